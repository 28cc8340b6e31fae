#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "recipe/request.h"

namespace galley::apps {

// The flags that say how a request body is read, shared by `recipe render` and `recipe parse`.
struct RequestFlags {
  std::string protocol = "chat";
  std::string model;
  std::string compat = "galley";

  void add_to(CLI::App& command);
  // With `model` the body may name any model, else one of the configuration's.
  [[nodiscard]] Result<recipe::Request> parse(const std::string& body) const;
};

}  // namespace galley::apps
