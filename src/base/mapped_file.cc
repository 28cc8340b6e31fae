#include "base/mapped_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace galley {
namespace {

std::unexpected<Error> system_error(Code code, const std::filesystem::path& path) {
  return fail(code, std::generic_category().message(errno), path.string());
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path, Access access) {
  // Not blocking: a pipe given by mistake must not hang the start.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    return system_error(missing ? Code::kNotFound : Code::kUnavailable, path);
  }
  struct stat status{};
  if (::fstat(file, &status) != 0) {
    auto error = system_error(Code::kUnavailable, path);
    ::close(file);
    return error;
  }
  MappedFile mapped;
  constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
  mapped.modified_ns_ = static_cast<std::uint64_t>(status.st_mtim.tv_sec) * kNsPerSecond +
                        static_cast<std::uint64_t>(status.st_mtim.tv_nsec);
  if (!S_ISREG(status.st_mode)) {
    ::close(file);
    return fail(Code::kInvalidArgument, "is not a regular file", path.string());
  }
  if (status.st_size > 0) {
    const auto size = static_cast<std::size_t>(status.st_size);
    void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) {
      auto error = system_error(Code::kUnavailable, path);
      ::close(file);
      return error;
    }
    if (access == Access::kRandom) {
      ::madvise(data, size, MADV_RANDOM);  // advice: a refusal changes speed only
    }
    mapped.data_ = static_cast<const std::byte*>(data);
    mapped.size_ = size;
  }
  ::close(file);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      modified_ns_(std::exchange(other.modified_ns_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(modified_ns_, other.modified_ns_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

}  // namespace galley
