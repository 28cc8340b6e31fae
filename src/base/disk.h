#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

// A folder of files as an interface, so that what is stored can be tried on a disk that loses,
// tears and refuses writes (base/virtual_disk.h). PosixDisk (cache/posix_disk.h) is the real one.
// Names are plain file names, without folders.
namespace galley {

// Offsets, sizes and memory of reads and writes are multiples of this: what direct I/O asks for.
inline constexpr std::size_t kDiskPage = 4096;
// Error::reason of a write that found no room. Others of the disk have none.
inline constexpr std::string_view kDiskFull = "disk_full";

// An open file. It stays readable after its name was removed. Reading is thread-safe; whoever
// writes is one thread.
class DiskFile {
 public:
  virtual ~DiskFile() = default;
  [[nodiscard]] virtual Result<std::uint64_t> size() const = 0;
  // Fills `out`. Errors: kCorruption when the file ends before, kUnavailable for the disk's own.
  virtual Result<void> read(std::uint64_t offset, std::span<std::byte> out) const = 0;
  // Is there after a crash once sync() has returned well; until then any part of it may be.
  virtual Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  // After a failure nothing is known of what was written since the last success, and a second
  // call proves nothing: give the file up.
  virtual Result<void> sync() = 0;
  // Reads as zeros from now on; gives the room back where the file system can.
  virtual Result<void> erase(std::uint64_t offset, std::uint64_t bytes) = 0;
};

struct DiskEntry {
  std::string name;
  std::uint64_t bytes{};
  bool regular = true;  // else a folder, a link to nowhere, something else
};

// One of several reads that are under way together.
struct DiskRead {
  const DiskFile* file{};
  std::uint64_t offset{};
  std::span<std::byte> out;
  Result<void> result;
};

// Nobody else holds the same name while this lives.
class DiskLock {
 public:
  virtual ~DiskLock() = default;
};

// Any thread may call it.
class Disk {
 public:
  virtual ~Disk() = default;
  // A new file; kInvalidArgument when the name is taken. The name is there after a crash once
  // sync_names() has returned.
  virtual Result<std::unique_ptr<DiskFile>> create(const std::string& name) = 0;
  // For reading, and for writing where `writable`. kNotFound.
  virtual Result<std::unique_ptr<DiskFile>> open(const std::string& name, bool writable) = 0;
  virtual Result<void> remove(const std::string& name) = 0;
  virtual Result<void> sync_names() = 0;
  // A file of these bytes under this name, whole or not at all, and there when this returns.
  virtual Result<void> replace(const std::string& name, std::span<const std::byte> bytes) = 0;
  // In no order.
  virtual Result<std::vector<DiskEntry>> list() = 0;
  // kOverloaded when another holds it.
  virtual Result<std::unique_ptr<DiskLock>> lock(const std::string& name) = 0;

  // Calls `done` with the index of each read as it ends, in any order, on this thread. Returns when
  // all have.
  virtual void read_all(std::span<DiskRead> reads, const std::function<void(std::size_t)>& done) {
    for (std::size_t i = 0; i < reads.size(); ++i) {
      reads[i].result = reads[i].file->read(reads[i].offset, reads[i].out);
      done(i);
    }
  }
};

}  // namespace galley
