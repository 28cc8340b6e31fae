#include "base/row_file.h"

#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace galley {

Result<RowFile> RowFile::open(const std::filesystem::path& path) {
  RowFile out;
  out.file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (out.file_ < 0) {
    return fail(errno == ENOENT ? Code::kNotFound : Code::kUnavailable,
                std::generic_category().message(errno), path.string());
  }
  // Neighbours of a row are not wanted. Advice: a refusal changes speed only.
  ::posix_fadvise(out.file_, 0, 0, POSIX_FADV_RANDOM);
  return out;
}

RowFile::RowFile(RowFile&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

RowFile& RowFile::operator=(RowFile&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

RowFile::~RowFile() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

void RowFile::expect(std::uint64_t offset, std::size_t bytes) const {
  ::posix_fadvise(file_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                  POSIX_FADV_WILLNEED);
}

Result<void> RowFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(file_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return fail(Code::kUnavailable, std::generic_category().message(errno));
    }
    if (got == 0) {
      return fail(Code::kCorruption, "the file ends too early");
    }
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

}  // namespace galley
