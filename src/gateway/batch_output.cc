#include "gateway/batch_output.h"

#include <cerrno>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace galley::gateway {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20U;

std::unexpected<Error> cannot(std::string_view what, const std::string& path) {
  return fail(Code::kUnavailable,
              fmt::format("{}: {}", what, std::generic_category().message(errno)), path);
}

// In front of what the file's own lines are called.
std::unexpected<Error> in_file(const std::string& path, Error error) {
  error.where = error.where.empty() ? path : fmt::format("{}, {}", path, error.where);
  return std::unexpected(std::move(error));
}

Result<BatchDone> read_done(int file, const std::string& path) {
  BatchDoneReader reader;
  std::vector<char> piece(kPieceBytes);
  for (;;) {
    const ssize_t got = ::read(file, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return cannot("cannot be read", path);
    }
    if (got == 0) {
      break;
    }
    if (auto fed = reader.feed({piece.data(), static_cast<std::size_t>(got)}); !fed) {
      return in_file(path, std::move(fed).error());
    }
  }
  auto done = reader.finish();
  if (!done) {
    return in_file(path, std::move(done).error());
  }
  return done;
}

}  // namespace

Result<BatchOutput> BatchOutput::open(const std::string& path) {
  BatchOutput out;
  out.path_ = path;
  out.file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (out.file_ < 0) {
    return cannot("cannot be opened", path);
  }
  struct stat status{};
  if (::fstat(out.file_, &status) != 0) {
    return cannot("cannot be read", path);
  }
  if (!S_ISREG(status.st_mode)) {
    return fail(Code::kUnavailable, "is no regular file: what it holds could not be read again",
                path);
  }
  if (::flock(out.file_, LOCK_EX | LOCK_NB) != 0) {
    return errno == EWOULDBLOCK ? fail(Code::kUnavailable, "another process is writing it", path)
                                : cannot("cannot be locked", path);
  }
  GALLEY_TRY(out.done_, read_done(out.file_, path));
  if (::ftruncate(out.file_, static_cast<off_t>(out.done_.bytes)) != 0) {
    return cannot("cannot be cut", path);
  }
  return out;
}

BatchOutput::BatchOutput(BatchOutput&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      done_(std::move(other.done_)) {}

BatchOutput& BatchOutput::operator=(BatchOutput&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  std::swap(done_, other.done_);
  return *this;
}

BatchOutput::~BatchOutput() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

Result<void> BatchOutput::append(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(file_, line.data(), line.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      return cannot("cannot be written", path_);
    }
    line.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace galley::gateway
