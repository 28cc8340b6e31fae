#pragma once

#include <string>

#include "base/result.h"

namespace galley::apps {

// Larger than any request body the server takes.
inline constexpr std::size_t kInputBytesMax = std::size_t{256} << 20U;

// The whole of what `path` names: standard input for "-", else a file or a pipe (`<(command)`).
// Error: it cannot be opened or read, is a directory, or is longer than kInputBytesMax.
[[nodiscard]] Result<std::string> read_input(const std::string& path);

// "galley: what (at where)" on standard error. Returns kExitFailure.
int report(const Error& error);

}  // namespace galley::apps
