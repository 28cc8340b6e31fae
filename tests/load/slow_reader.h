#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/units.h"

namespace galley::load {

// A client that takes its stream a few bytes at a time, with next to no room of its own.
class SlowReader {
 public:
  SlowReader(std::uint16_t port, std::size_t request_id, std::string_view body);
  ~SlowReader();
  SlowReader(const SlowReader&) = delete;
  SlowReader& operator=(const SlowReader&) = delete;

  // Takes a little, where it is time to. False once the stream has ended.
  bool read_a_little(TimeNs now);

 private:
  int socket_ = -1;
  TimeNs next_{};
};

}  // namespace galley::load
