#include "cache/posix_disk.h"

#include <cerrno>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/new_file.h"
#include "cache/read_ring.h"

namespace galley::cache {
namespace {

namespace fs = std::filesystem;

// Of every file: a store holds what people said, and its folder may have been there before.
constexpr mode_t kMode = 0600;

std::unexpected<Error> cannot(std::string_view what, int error_number, const fs::path& path) {
  const bool full = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  return fail(error_number == ENOENT ? Code::kNotFound : Code::kUnavailable,
              fmt::format("{}: {}", what, std::generic_category().message(error_number)),
              path.string(), full ? kDiskFull : std::string_view{});
}

class PosixFile final : public DiskFile {
 public:
  PosixFile(int descriptor, fs::path path) : descriptor_(descriptor), path_(std::move(path)) {}
  ~PosixFile() override { ::close(descriptor_); }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }

  [[nodiscard]] Result<std::uint64_t> size() const override {
    struct stat status{};
    if (::fstat(descriptor_, &status) != 0) {
      return cannot("cannot be looked at", errno, path_);
    }
    return static_cast<std::uint64_t>(status.st_size);
  }

  Result<void> read(std::uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got < 0) {
        return cannot("cannot be read", errno, path_);
      }
      if (got == 0) {
        return fail(Code::kCorruption, "the file ends too early", path_.string());
      }
      out = out.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    return {};
  }

  Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t put =
          ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (put < 0 && errno == EINTR) {
        continue;
      }
      if (put < 0) {
        return cannot("cannot be written", errno, path_);
      }
      bytes = bytes.subspan(static_cast<std::size_t>(put));
      offset += static_cast<std::uint64_t>(put);
    }
    return {};
  }

  Result<void> sync() override {
    if (::fdatasync(descriptor_) != 0) {
      return cannot("cannot be put on the disk", errno, path_);
    }
    return {};
  }

  Result<void> erase(std::uint64_t offset, std::uint64_t bytes) override {
    constexpr std::size_t kZerosAtOnce = std::size_t{1} << 20U;
    if (::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) {
      return {};
    }
    if (errno != EOPNOTSUPP && errno != ENOSYS) {
      return cannot("cannot be erased in part", errno, path_);
    }
    struct alignas(kDiskPage) Page {
      std::byte bytes[kDiskPage];
    };
    const std::vector<Page> zeros(kZerosAtOnce / kDiskPage);
    while (bytes > 0) {
      const std::size_t count =
          static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kZerosAtOnce));
      GALLEY_CHECK_OK(write(offset, {zeros.front().bytes, count}));
      offset += count;
      bytes -= count;
    }
    return {};
  }

 private:
  int descriptor_;
  fs::path path_;
};

class PosixLock final : public DiskLock {
 public:
  explicit PosixLock(int descriptor) : descriptor_(descriptor) {}
  ~PosixLock() override { ::close(descriptor_); }
  PosixLock(const PosixLock&) = delete;
  PosixLock& operator=(const PosixLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace

PosixDisk::PosixDisk(fs::path folder, const PosixDiskOptions& options)
    : folder_(std::move(folder)), direct_(options.direct), ring_(options.ring) {}

PosixDisk::~PosixDisk() = default;

Result<std::unique_ptr<PosixDisk>> PosixDisk::open_folder(const fs::path& folder,
                                                          bool create_folder,
                                                          const PosixDiskOptions& options) {
  std::error_code error;
  if (create_folder) {
    fs::create_directories(folder, error);
    if (error) {
      return cannot("cannot be made", error.value(), folder);
    }
  }
  const fs::file_status status = fs::status(folder, error);
  if (status.type() == fs::file_type::not_found) {
    return fail(Code::kNotFound, "no such folder", folder.string());
  }
  if (!fs::is_directory(status)) {
    return fail(Code::kInvalidArgument, "is no folder", folder.string());
  }
  std::unique_ptr<PosixDisk> out(new PosixDisk(folder, options));
  if (out->ring_) {
    auto ring = ReadRing::open();
    out->ring_ = ring != nullptr;
    if (ring) {
      const MutexLock lock(out->mutex_);
      out->rings_.push_back(std::move(ring));
    }
  }
  if (out->direct_) {  // tmpfs and some others refuse it
    const int probe = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, kMode);
    if (probe >= 0) {
      ::close(probe);
    } else if (errno == EINVAL) {
      out->direct_ = false;
    }  // any other answer, such as a folder we may only read, is left to the files themselves
  }
  return out;
}

Result<std::unique_ptr<DiskFile>> PosixDisk::open_file(const std::string& name, int flags) {
  const fs::path path = folder_ / name;
  int descriptor = -1;
  if (direct_) {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_DIRECT, kMode);
  }
  if (!direct_ || (descriptor < 0 && errno == EINVAL)) {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, kMode);
  }
  if (descriptor < 0) {
    if (errno == EEXIST) {
      return fail(Code::kInvalidArgument, "there is one already", path.string());
    }
    return cannot("cannot be opened", errno, path);
  }
  return std::make_unique<PosixFile>(descriptor, path);
}

Result<std::unique_ptr<DiskFile>> PosixDisk::create(const std::string& name) {
  return open_file(name, O_RDWR | O_CREAT | O_EXCL);
}

Result<std::unique_ptr<DiskFile>> PosixDisk::open(const std::string& name, bool writable) {
  return open_file(name, writable ? O_RDWR : O_RDONLY);
}

Result<void> PosixDisk::remove(const std::string& name) {
  const fs::path path = folder_ / name;
  if (::unlink(path.c_str()) != 0) {
    return cannot("cannot be removed", errno, path);
  }
  return {};
}

Result<void> PosixDisk::sync_names() {
  const int descriptor = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return cannot("cannot be opened", errno, folder_);
  }
  const int result = ::fsync(descriptor);
  const int error_number = errno;
  ::close(descriptor);
  if (result != 0) {
    return cannot("cannot be put on the disk", error_number, folder_);
  }
  return {};
}

Result<void> PosixDisk::replace(const std::string& name, std::span<const std::byte> bytes) {
  GALLEY_TRY(NewFile file, NewFile::create(folder_ / name, bytes.size(), NewFile::Readers::kOwner));
  GALLEY_CHECK_OK(file.write(0, bytes));
  return file.commit();
}

Result<std::vector<DiskEntry>> PosixDisk::list() {
  std::vector<DiskEntry> out;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    std::error_code one;  // a file that goes while we look is none
    if (it->is_regular_file(one) && !one) {
      const std::uint64_t bytes = it->file_size(one);
      if (!one) {
        out.push_back({.name = it->path().filename().string(), .bytes = bytes});
      }
      continue;
    }
    const fs::file_type itself = it->symlink_status(one).type();
    if (itself != fs::file_type::regular && itself != fs::file_type::not_found && !one) {
      out.push_back({.name = it->path().filename().string(), .regular = false});
    }
  }
  if (error) {
    return cannot("cannot be listed", error.value(), folder_);
  }
  return out;
}

Result<std::unique_ptr<DiskLock>> PosixDisk::lock(const std::string& name) {
  const fs::path path = folder_ / name;
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
  if (descriptor < 0) {
    return cannot("cannot be opened", errno, path);
  }
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    const int error_number = errno;
    ::close(descriptor);
    if (error_number == EWOULDBLOCK) {
      return fail(Code::kOverloaded, "another process writes here", folder_.string());
    }
    return cannot("cannot be locked", error_number, path);
  }
  return std::make_unique<PosixLock>(descriptor);
}

void PosixDisk::read_all(std::span<DiskRead> reads, const std::function<void(std::size_t)>& done) {
  std::unique_ptr<ReadRing> ring;
  if (ring_) {
    const MutexLock lock(mutex_);
    if (!rings_.empty()) {
      ring = std::move(rings_.back());
      rings_.pop_back();
    }
  }
  if (ring_ && !ring) {
    ring = ReadRing::open();
  }
  if (!ring) {
    Disk::read_all(reads, done);
    return;
  }
  ring->read_all(
      reads,
      [&](std::size_t i) { return static_cast<const PosixFile*>(reads[i].file)->descriptor(); },
      done);
  const MutexLock lock(mutex_);
  rings_.push_back(std::move(ring));
}

}  // namespace galley::cache
