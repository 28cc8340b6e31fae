#include "base/new_file.h"

#include <cerrno>
#include <fcntl.h>
#include <fmt/core.h>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/check.h"
#include "base/entropy.h"
#include "base/units.h"

namespace galley {
namespace {

namespace fs = std::filesystem;

std::unexpected<Error> cannot(std::string_view what, int error_number, const fs::path& path) {
  return fail(Code::kUnavailable,
              fmt::format("{}: {}", what, std::generic_category().message(error_number)),
              path.string());
}

// Room for all of it before the first byte is written. 0, or the error's number.
int reserve(int file, std::uint64_t bytes) {
  if (bytes == 0) {
    return 0;
  }
  const auto size = static_cast<off_t>(bytes);
  for (;;) {
    if (::fallocate(file, 0, 0, size) == 0) {
      return 0;
    }
    if (errno == EOPNOTSUPP || errno == ENOSYS) {  // then a full disk shows while writing
      return ::ftruncate(file, size) == 0 ? 0 : errno;
    }
    if (errno != EINTR) {
      return errno;
    }
  }
}

Result<void> synchronise_folder(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0 || ::fsync(file) != 0) {
    const int error_number = errno;
    if (file >= 0) {
      ::close(file);
    }
    return cannot("cannot write the folder", error_number, folder);
  }
  ::close(file);
  return {};
}

// Where a bare name lies.
fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

Result<NewFile> NewFile::create(const fs::path& path, std::uint64_t bytes, Readers readers) {
  const fs::path folder = folder_of(path);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return cannot("cannot make the folder", error.value(), folder);
  }
  NewFile out;
  out.path_ = path;
  const fs::path part = path.string() + fmt::format(".{:016x}.part", entropy_seed().value());
  const mode_t mode = readers == Readers::kOwner ? 0600 : 0666;
  out.file_ = ::open(part.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (out.file_ < 0) {
    return cannot("cannot write it", errno, part);
  }
  out.part_ = part;
  if (const int error_number = reserve(out.file_, bytes); error_number != 0) {
    // What a reservation that failed may have taken is free again before it is counted.
    const bool emptied = ::ftruncate(out.file_, 0) == 0;
    const fs::space_info space = fs::space(folder, error);
    if (error_number == ENOSPC && emptied && !error) {
      return fail(Code::kUnavailable,
                  fmt::format("needs {}, {} are free", to_string(Bytes(bytes)),
                              to_string(Bytes(space.available))),
                  folder.string());
    }
    return cannot("cannot write it", error_number, part);
  }
  return out;
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      part_(std::exchange(other.part_, {})),
      file_(std::exchange(other.file_, -1)) {}

NewFile& NewFile::operator=(NewFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(part_, other.part_);
  std::swap(file_, other.file_);
  return *this;
}

NewFile::~NewFile() {
  if (!part_.empty()) {
    ::unlink(part_.c_str());
  }
  if (file_ >= 0) {
    ::close(file_);
  }
}

Result<void> NewFile::write(std::uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      return cannot("cannot write it", done < 0 ? errno : EIO, part_);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return {};
}

Result<void> NewFile::commit() {
  GALLEY_ASSERT(!part_.empty());
  if (::fsync(file_) != 0) {
    return cannot("cannot write it", errno, part_);
  }
  if (::rename(part_.c_str(), path_.c_str()) != 0) {
    return cannot("cannot take its name", errno, path_);
  }
  part_.clear();
  return synchronise_folder(folder_of(path_));
}

}  // namespace galley
