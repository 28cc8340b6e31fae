#pragma once

#include <cstddef>
#include <string>

namespace galley::gateway {

// A part of a list, as a client asks for it.
struct ListPage {
  std::size_t limit = 20;
  bool descending = true;  // the newest first
  std::string after;       // begin behind the one of that id; empty: at the first
};

}  // namespace galley::gateway
