#pragma once

namespace galley {

// Processors that are online; at least 1.
[[nodiscard]] int cpu_count();

}  // namespace galley
