#pragma once

#include "base/random.h"

namespace galley {

// A seed from the operating system, for requests that name none. The only source of numbers that
// cannot be repeated; log the seed where a run must be.
[[nodiscard]] Seed entropy_seed();

}  // namespace galley
