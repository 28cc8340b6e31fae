#include "apps/input.h"

#include <cstdio>
#include <fmt/core.h>

#include "apps/commands.h"
#include "base/file.h"

namespace galley::apps {

Result<std::string> read_input(const std::string& path) {
  if (path != "-") {
    return read_file(path, Bytes{kInputBytesMax});
  }
  std::string text;
  char part[65536];
  for (std::size_t got = 0; (got = std::fread(part, 1, sizeof part, stdin)) > 0;) {
    if (text.size() + got > kInputBytesMax) {
      return fail(Code::kTooLarge, "standard input is too long");
    }
    text.append(part, got);
  }
  return text;
}

int report(const Error& error) {
  fmt::print(stderr, "galley: {}{}\n", error.what,
             error.where.empty() ? "" : fmt::format(" (at {})", error.where));
  return kExitFailure;
}

}  // namespace galley::apps
