#pragma once

#include <cstddef>
#include <functional>

#include "base/result.h"

namespace galley {

// Runs `task` on a thread of its own with a stack of `stack_bytes` and returns once it has run: for
// code that goes down as deep as its input is nested. Only what is used of the stack becomes
// memory. `task` must not throw. Error kUnavailable, and `task` has not run: the system has no such
// thread now, with its reason.
[[nodiscard]] Result<void> run_deep(std::size_t stack_bytes, const std::function<void()>& task);

}  // namespace galley
