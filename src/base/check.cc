#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace galley {

void assertion_failed(const char* condition, std::source_location where) {
  // stderr directly: the log may be what is broken.
  std::fprintf(stderr, "%s:%u: %s: invariant broken: %s\n", where.file_name(),
               static_cast<unsigned>(where.line()), where.function_name(), condition);
  std::abort();
}

}  // namespace galley
