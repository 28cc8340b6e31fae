#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "base/disk.h"
#include "base/mutex.h"

namespace galley::cache {

class ReadRing;

struct PosixDiskOptions {
  // Past the page cache (O_DIRECT), where the file system can: what is read was on the disk, and
  // other programs keep their memory.
  bool direct = true;
  // Several reads together through io_uring, where the kernel lets us; else one after the other.
  bool ring = true;
};

// A folder of the machine. Errors carry the system's reason and the path.
class PosixDisk final : public Disk {
 public:
  // `create_folder`: makes the folder if need be. Errors: kNotFound, kInvalidArgument when it is
  // none.
  static Result<std::unique_ptr<PosixDisk>> open_folder(const std::filesystem::path& folder,
                                                        bool create_folder,
                                                        const PosixDiskOptions& options = {});
  ~PosixDisk() override;
  PosixDisk(const PosixDisk&) = delete;
  PosixDisk& operator=(const PosixDisk&) = delete;

  Result<std::unique_ptr<DiskFile>> create(const std::string& name) override;
  Result<std::unique_ptr<DiskFile>> open(const std::string& name, bool writable) override;
  Result<void> remove(const std::string& name) override;
  Result<void> sync_names() override;
  Result<void> replace(const std::string& name, std::span<const std::byte> bytes) override;
  Result<std::vector<DiskEntry>> list() override;
  Result<std::unique_ptr<DiskLock>> lock(const std::string& name) override;
  void read_all(std::span<DiskRead> reads, const std::function<void(std::size_t)>& done) override;

  // What of the options the folder and the kernel could do.
  [[nodiscard]] bool direct() const { return direct_; }
  [[nodiscard]] bool ring() const { return ring_; }

 private:
  PosixDisk(std::filesystem::path folder, const PosixDiskOptions& options);
  Result<std::unique_ptr<DiskFile>> open_file(const std::string& name, int flags);

  std::filesystem::path folder_;
  bool direct_;
  bool ring_;
  Mutex mutex_;
  // Not in use; a thread that reads takes one, or makes one.
  std::vector<std::unique_ptr<ReadRing>> rings_ GALLEY_GUARDED_BY(mutex_);
};

}  // namespace galley::cache
