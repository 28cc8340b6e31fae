#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "apps/doctor_facts.h"
#include "base/clock.h"

// What the system says of itself, and how fast a disk reads.
namespace galley::apps {

// Without `chosen` and `wanted`.
[[nodiscard]] CpuFacts read_cpu();
[[nodiscard]] MemoryFacts read_memory();
[[nodiscard]] LimitFacts read_limits();
// Reads the largest file of `directory`, one second at most. If none is large enough a temporary
// one is written, the first 256 MiB of `content`, which has no name and is gone in the end whatever
// happens.
[[nodiscard]] DiskFacts measure_disk(const std::string& directory,
                                     std::span<const std::byte> content,
                                     const Clock& clock);

}  // namespace galley::apps
