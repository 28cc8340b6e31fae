#pragma once

#include <source_location>

// GALLEY_ASSERT(condition) guards an invariant of ours. It is on in every build: a server that goes
// on after its own bookkeeping broke would serve wrong answers. Input from outside is never checked
// with it (base/result.h is for that).
namespace galley {

[[noreturn]] void assertion_failed(const char* condition, std::source_location where);

}  // namespace galley

#define GALLEY_ASSERT(condition)      \
  ((condition) ? static_cast<void>(0) \
               : ::galley::assertion_failed(#condition, std::source_location::current()))
