#include "base/cpu_count.h"

#include <algorithm>
#include <unistd.h>

namespace galley {

int cpu_count() {
  return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace galley
