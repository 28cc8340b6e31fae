#pragma once

#include <string>

#include "base/result.h"
#include "base/units.h"

namespace galley {

// The whole of a regular file. kNotFound when it is missing, kTooLarge when longer than `max`.
[[nodiscard]] Result<std::string> read_file(const std::string& path, Bytes max);

}  // namespace galley
