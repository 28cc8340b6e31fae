#include "base/file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/quote.h"

namespace galley {
namespace {

constexpr std::size_t kPathBytesShown = 256;

// Closes what open() gave.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) {
      ::close(number_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

std::unexpected<Error> file_error(const std::string& path, int error_number) {
  const Code code = error_number == ENOENT ? Code::kNotFound : Code::kUnavailable;
  return fail(code, "cannot read " + quoted(path, kPathBytesShown) + ": " +
                        std::strerror(error_number));  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace

Result<std::string> read_file(const std::string& path, Bytes max) {
  // Not blocking: a pipe given by mistake must not hang the start.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number() < 0) {
    return file_error(path, errno);
  }
  struct stat status{};
  if (::fstat(file.number(), &status) != 0) {
    return file_error(path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return fail(Code::kInvalidArgument, quoted(path, kPathBytesShown) + " is not a regular file");
  }
  // One byte more than allowed, so that a file that grows while it is read is still noticed.
  const auto size = static_cast<std::uint64_t>(status.st_size);
  std::string text;
  if (size <= max.value()) {
    text.resize(size + 1);
    std::size_t filled = 0;
    while (filled < text.size()) {
      const ssize_t count = ::read(file.number(), text.data() + filled, text.size() - filled);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count < 0) {
        return file_error(path, errno);
      }
      if (count == 0) {
        text.resize(filled);
        return text;
      }
      filled += static_cast<std::size_t>(count);
    }
  }
  return fail(Code::kTooLarge, quoted(path, kPathBytesShown) + " is larger than " + to_string(max));
}

}  // namespace galley
