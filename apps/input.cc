#include "apps/input.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/commands.h"
#include "base/quote.h"
#include "base/units.h"

namespace galley::apps {
namespace {

constexpr std::size_t kPathBytesShown = 256;

std::unexpected<Error> cannot_read(const std::string& name, int error_number) {
  return fail(error_number == ENOENT ? Code::kNotFound : Code::kUnavailable,
              "cannot read " + name + ": " +
                  std::strerror(error_number));  // NOLINT(concurrency-mt-unsafe): one thread
}

Result<std::string> read_all(int descriptor, const std::string& name) {
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) {
    return cannot_read(name, errno);
  }
  if (S_ISDIR(status.st_mode)) {
    return fail(Code::kInvalidArgument, name + " is a directory");
  }
  std::string text;
  char part[65536];
  for (;;) {
    const ssize_t count = ::read(descriptor, part, sizeof part);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return cannot_read(name, errno);
    }
    if (count == 0) {
      return text;
    }
    if (text.size() + static_cast<std::size_t>(count) > kInputBytesMax) {
      return fail(Code::kTooLarge, name + " is longer than " + to_string(Bytes{kInputBytesMax}));
    }
    text.append(part, static_cast<std::size_t>(count));
  }
}

}  // namespace

Result<std::string> read_input(const std::string& path) {
  if (path == "-") {
    return read_all(STDIN_FILENO, "standard input");
  }
  const std::string name = quoted(path, kPathBytesShown);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return cannot_read(name, errno);
  }
  Result<std::string> text = read_all(descriptor, name);
  ::close(descriptor);
  return text;
}

int report(const Error& error) {
  // Not fmt::print, which throws when stderr cannot be written: nobody is left to tell then.
  const std::string text =
      fmt::format("galley: {}{}\n", error.what,
                  error.where.empty() ? "" : fmt::format(" (at {})", error.where));
  std::fputs(text.c_str(), stderr);
  return kExitFailure;
}

}  // namespace galley::apps
