#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/mutex.h"
#include "base/random.h"

namespace galley {

// What is done to a disk, for counting where faults fell.
enum class DiskOp : std::uint8_t {
  kCreate,
  kWrite,
  kSync,
  kRemove,
  kSyncNames,
  kReplace,
  kErase,
  kRead,
};
inline constexpr std::size_t kDiskOps = 8;
[[nodiscard]] std::string_view name(DiskOp op);

// How often operations fail, of 65,536.
struct DiskFaults {
  unsigned read = 0;
  unsigned write = 0;
  unsigned sync = 0;
  unsigned names = 0;  // create, remove, sync_names, replace
};

// A disk in memory, as bad as disks may be. What was not synced is lost in a crash, sector by
// sector and in any order; names that were not synced too. A failed sync() forgets what it should
// have written, although reads still show it: so do kernels. One seed decides everything.
class VirtualDisk final : public Disk {
 public:
  static constexpr std::size_t kSector = 512;  // is written whole or not at all

  explicit VirtualDisk(Seed seed);
  ~VirtualDisk() override;

  void set_faults(const DiskFaults& faults);
  // Room for so many bytes; a write beyond it fails with kDiskFull.
  void set_room(std::uint64_t bytes);
  // The power goes within the `operations`-th operation from now that changes something, and
  // everything fails until restart().
  void crash_after(std::uint64_t operations);
  // Where it went, since the last restart().
  [[nodiscard]] std::optional<DiskOp> crashed_in() const;
  // The power comes back, also where it never went: what was not synced is there or not. Open
  // files and locks of before are of no use.
  void restart();

  // Changes what is stored. False when the file has no such byte.
  bool flip(const std::string& name, std::uint64_t offset, unsigned bit);
  // Stored bytes of a file as they are, for tests that damage or compare them.
  [[nodiscard]] std::optional<std::vector<std::byte>> contents(const std::string& name) const;
  void put(const std::string& name, std::vector<std::byte> bytes);

  [[nodiscard]] std::uint64_t used() const;
  [[nodiscard]] std::uint64_t operations(DiskOp op) const;
  [[nodiscard]] std::uint64_t failed(DiskOp op) const;  // by set_faults or set_room
  [[nodiscard]] std::uint64_t sectors_lost() const;     // of all restarts

  Result<std::unique_ptr<DiskFile>> create(const std::string& name) override;
  Result<std::unique_ptr<DiskFile>> open(const std::string& name, bool writable) override;
  Result<void> remove(const std::string& name) override;
  Result<void> sync_names() override;
  Result<void> replace(const std::string& name, std::span<const std::byte> bytes) override;
  Result<std::vector<DiskEntry>> list() override;
  Result<std::unique_ptr<DiskLock>> lock(const std::string& name) override;

 private:
  class File;
  class Lock;
  struct Write {
    std::uint64_t offset{};
    std::vector<std::byte> bytes;
  };
  // Shared by the names, as they are and as they would be after a crash, and by open files.
  struct Inode {
    std::vector<std::byte> seen;
    std::vector<std::byte> kept;  // on the disk for certain
    std::vector<Write> pending;   // not synced
  };
  using Names = std::map<std::string, std::shared_ptr<Inode>>;
  struct NameChange {
    std::string name;
    std::shared_ptr<Inode> inode;  // none: removed
  };

  // Counts the operation and tells whether it fails; `half` when the power goes within it.
  Result<void> begin(DiskOp op, bool& half) GALLEY_REQUIRES(mutex_);
  bool chance(unsigned of_65536) GALLEY_REQUIRES(mutex_);
  void keep_part(Inode& inode, bool all) GALLEY_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t used_bytes() const GALLEY_REQUIRES(mutex_);

  Result<void> write(Inode& inode, std::uint64_t offset, std::span<const std::byte> bytes)
      GALLEY_REQUIRES(mutex_);
  Result<void> read(const Inode& inode, std::uint64_t offset, std::span<std::byte> out)
      GALLEY_REQUIRES(mutex_);
  Result<void> sync(Inode& inode) GALLEY_REQUIRES(mutex_);
  Result<void> erase(Inode& inode, std::uint64_t offset, std::uint64_t bytes)
      GALLEY_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Random random_ GALLEY_GUARDED_BY(mutex_);
  DiskFaults faults_ GALLEY_GUARDED_BY(mutex_);
  std::uint64_t room_ GALLEY_GUARDED_BY(mutex_);
  std::optional<std::uint64_t> until_crash_ GALLEY_GUARDED_BY(mutex_);
  std::optional<DiskOp> crashed_ GALLEY_GUARDED_BY(mutex_);
  std::uint64_t life_ GALLEY_GUARDED_BY(mutex_) = 0;  // restarts
  Names seen_ GALLEY_GUARDED_BY(mutex_);
  Names kept_ GALLEY_GUARDED_BY(mutex_);
  std::vector<NameChange> changes_ GALLEY_GUARDED_BY(mutex_);
  std::set<std::string> locks_ GALLEY_GUARDED_BY(mutex_);
  std::array<std::uint64_t, kDiskOps> operations_ GALLEY_GUARDED_BY(mutex_){};
  std::array<std::uint64_t, kDiskOps> failed_ GALLEY_GUARDED_BY(mutex_){};
  std::uint64_t sectors_lost_ GALLEY_GUARDED_BY(mutex_) = 0;
};

}  // namespace galley
