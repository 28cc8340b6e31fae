#include "base/entropy.h"

#include <unistd.h>

#include "base/check.h"

namespace galley {

Seed entropy_seed() {
  std::uint64_t bits = 0;
  // Fails only for bad arguments or on kernels before 3.17, which lack the system call.
  GALLEY_ASSERT(getentropy(&bits, sizeof bits) == 0);
  return Seed(bits);
}

}  // namespace galley
