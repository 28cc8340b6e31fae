#include "base/virtual_disk.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/ceil_div.h"

namespace galley {
namespace {

std::unexpected<Error> off() {
  return fail(Code::kUnavailable, "the machine is off");
}

void put_at(std::vector<std::byte>& file, std::uint64_t offset, std::span<const std::byte> bytes) {
  file.resize(std::max<std::size_t>(file.size(), offset + bytes.size()));
  std::ranges::copy(bytes, file.begin() + static_cast<std::ptrdiff_t>(offset));
}

constexpr std::size_t at(DiskOp op) {
  return static_cast<std::size_t>(op);
}

}  // namespace

std::string_view name(DiskOp op) {
  switch (op) {
    case DiskOp::kCreate:
      return "create";
    case DiskOp::kWrite:
      return "write";
    case DiskOp::kSync:
      return "sync";
    case DiskOp::kRemove:
      return "remove";
    case DiskOp::kSyncNames:
      return "sync of names";
    case DiskOp::kReplace:
      return "replace";
    case DiskOp::kErase:
      return "erase";
    case DiskOp::kRead:
      return "read";
  }
  std::unreachable();
}

class VirtualDisk::File final : public DiskFile {
 public:
  File(VirtualDisk& disk, std::shared_ptr<Inode> inode, std::uint64_t life)
      : disk_(disk), inode_(std::move(inode)), life_(life) {}

  [[nodiscard]] Result<std::uint64_t> size() const override {
    const MutexLock lock(disk_.mutex_);
    if (stale()) {
      return off();
    }
    return inode_->seen.size();
  }
  Result<void> read(std::uint64_t offset, std::span<std::byte> out) const override {
    const MutexLock lock(disk_.mutex_);
    return stale() ? off() : disk_.read(*inode_, offset, out);
  }
  Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const MutexLock lock(disk_.mutex_);
    return stale() ? off() : disk_.write(*inode_, offset, bytes);
  }
  Result<void> sync() override {
    const MutexLock lock(disk_.mutex_);
    return stale() ? off() : disk_.sync(*inode_);
  }
  Result<void> erase(std::uint64_t offset, std::uint64_t bytes) override {
    const MutexLock lock(disk_.mutex_);
    return stale() ? off() : disk_.erase(*inode_, offset, bytes);
  }

 private:
  [[nodiscard]] bool stale() const GALLEY_REQUIRES(disk_.mutex_) { return life_ != disk_.life_; }

  VirtualDisk& disk_;
  std::shared_ptr<Inode> inode_;
  std::uint64_t life_;
};

class VirtualDisk::Lock final : public DiskLock {
 public:
  Lock(VirtualDisk& disk, std::string name, std::uint64_t life)
      : disk_(disk), name_(std::move(name)), life_(life) {}
  ~Lock() override {
    const MutexLock lock(disk_.mutex_);
    if (life_ == disk_.life_) {
      disk_.locks_.erase(name_);
    }
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  VirtualDisk& disk_;
  std::string name_;
  std::uint64_t life_;
};

VirtualDisk::VirtualDisk(Seed seed)
    : random_(seed, 0), room_(std::numeric_limits<std::uint64_t>::max()) {}

VirtualDisk::~VirtualDisk() = default;

void VirtualDisk::set_faults(const DiskFaults& faults) {
  const MutexLock lock(mutex_);
  faults_ = faults;
}

void VirtualDisk::set_room(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  room_ = bytes;
}

void VirtualDisk::crash_after(std::uint64_t operations) {
  const MutexLock lock(mutex_);
  until_crash_ = operations;
}

std::optional<DiskOp> VirtualDisk::crashed_in() const {
  const MutexLock lock(mutex_);
  return crashed_;
}

bool VirtualDisk::chance(unsigned of_65536) {
  return of_65536 > 0 && random_.next_below(65'536) < of_65536;
}

Result<void> VirtualDisk::begin(DiskOp op, bool& half) {
  half = false;
  if (crashed_) {
    return off();
  }
  ++operations_[at(op)];
  if (op != DiskOp::kRead && until_crash_ && --*until_crash_ == 0) {
    until_crash_.reset();
    crashed_ = op;
    half = random_.next_below(2) == 0;
    return off();
  }
  const unsigned rate = op == DiskOp::kRead                            ? faults_.read
                        : op == DiskOp::kWrite || op == DiskOp::kErase ? faults_.write
                        : op == DiskOp::kSync                          ? faults_.sync
                                                                       : faults_.names;
  if (chance(rate)) {
    ++failed_[at(op)];
    half = random_.next_below(2) == 0;
    return fail(Code::kUnavailable, "input/output error");
  }
  return {};
}

// A random part of what is pending gets onto the disk, in any order; the rest is forgotten.
void VirtualDisk::keep_part(Inode& inode, bool all) {
  const std::uint64_t luck = all ? 4 : random_.next_below(5);  // of 4
  for (const Write& write : inode.pending) {
    for (std::uint64_t begin = 0; begin < write.bytes.size();) {
      const std::uint64_t offset = write.offset + begin;
      const std::uint64_t end =
          std::min<std::uint64_t>(write.bytes.size(), begin + kSector - offset % kSector);
      if (random_.next_below(4) < luck) {
        put_at(inode.kept, offset, std::span(write.bytes).subspan(begin, end - begin));
      } else {
        ++sectors_lost_;
      }
      begin = end;
    }
  }
  inode.pending.clear();
}

void VirtualDisk::restart() {
  const MutexLock lock(mutex_);
  for (const NameChange& change : changes_) {
    if (random_.next_below(2) == 0) {
      continue;
    }
    if (change.inode) {
      kept_[change.name] = change.inode;
    } else {
      kept_.erase(change.name);
    }
  }
  changes_.clear();
  for (auto& [name, inode] : kept_) {
    keep_part(*inode, false);
    inode->seen = inode->kept;
  }
  seen_ = kept_;
  locks_.clear();
  crashed_.reset();
  until_crash_.reset();
  ++life_;
}

bool VirtualDisk::flip(const std::string& name, std::uint64_t offset, unsigned bit) {
  const MutexLock lock(mutex_);
  const auto it = seen_.find(name);
  if (it == seen_.end() || offset >= it->second->seen.size()) {
    return false;
  }
  const auto mask = static_cast<std::byte>(1U << (bit % 8U));
  it->second->seen[offset] ^= mask;
  if (offset < it->second->kept.size()) {
    it->second->kept[offset] ^= mask;
  }
  return true;
}

std::optional<std::vector<std::byte>> VirtualDisk::contents(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto it = seen_.find(name);
  return it == seen_.end() ? std::nullopt : std::optional(it->second->seen);
}

void VirtualDisk::put(const std::string& name, std::vector<std::byte> bytes) {
  const MutexLock lock(mutex_);
  auto inode = std::make_shared<Inode>();
  inode->seen = bytes;
  inode->kept = std::move(bytes);
  seen_[name] = inode;
  kept_[name] = inode;
}

std::uint64_t VirtualDisk::used_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [name, inode] : seen_) {
    sum += inode->seen.size();
  }
  return sum;
}

std::uint64_t VirtualDisk::used() const {
  const MutexLock lock(mutex_);
  return used_bytes();
}

std::uint64_t VirtualDisk::operations(DiskOp op) const {
  const MutexLock lock(mutex_);
  return operations_[at(op)];
}

std::uint64_t VirtualDisk::failed(DiskOp op) const {
  const MutexLock lock(mutex_);
  return failed_[at(op)];
}

std::uint64_t VirtualDisk::sectors_lost() const {
  const MutexLock lock(mutex_);
  return sectors_lost_;
}

Result<void> VirtualDisk::write(Inode& inode,
                                std::uint64_t offset,
                                std::span<const std::byte> bytes) {
  bool half = false;
  const auto begun = begin(DiskOp::kWrite, half);
  if (!begun && !half) {
    return begun;
  }
  const std::uint64_t end = offset + bytes.size();
  if (end > inode.seen.size() && used_bytes() + end - inode.seen.size() > room_) {
    ++failed_[at(DiskOp::kWrite)];
    return fail(Code::kUnavailable, "no space left on device", {}, kDiskFull);
  }
  if (!begun) {  // some of it, and the caller never knows how much
    bytes = bytes.first(random_.next_below(bytes.size() + 1));
  }
  put_at(inode.seen, offset, bytes);
  inode.pending.push_back({.offset = offset, .bytes = {bytes.begin(), bytes.end()}});
  return begun;
}

Result<void> VirtualDisk::read(const Inode& inode, std::uint64_t offset, std::span<std::byte> out) {
  bool half = false;
  GALLEY_CHECK_OK(begin(DiskOp::kRead, half));
  if (offset + out.size() > inode.seen.size()) {
    return fail(Code::kCorruption, "the file ends too early");
  }
  std::ranges::copy(std::span(inode.seen).subspan(offset, out.size()), out.begin());
  return {};
}

Result<void> VirtualDisk::sync(Inode& inode) {
  bool half = false;
  const auto begun = begin(DiskOp::kSync, half);
  if (!begun && crashed_ && !half) {
    return begun;  // restart() decides what is there
  }
  keep_part(inode, begun.has_value() || crashed_.has_value());
  return begun;
}

Result<void> VirtualDisk::erase(Inode& inode, std::uint64_t offset, std::uint64_t bytes) {
  bool half = false;
  const auto begun = begin(DiskOp::kErase, half);
  if (!begun && !half) {
    return begun;
  }
  const std::vector<std::byte> zeros(std::min<std::uint64_t>(
      bytes, inode.seen.size() - std::min<std::uint64_t>(offset, inode.seen.size())));
  put_at(inode.seen, offset, zeros);
  inode.pending.push_back({.offset = offset, .bytes = zeros});
  return begun;
}

Result<std::unique_ptr<DiskFile>> VirtualDisk::create(const std::string& name) {
  const MutexLock lock(mutex_);
  bool half = false;
  const auto begun = begin(DiskOp::kCreate, half);
  if (!begun && !half) {
    return std::unexpected(begun.error());
  }
  if (seen_.contains(name)) {
    return fail(Code::kInvalidArgument, "there is one already", name);
  }
  const auto inode = std::make_shared<Inode>();
  seen_[name] = inode;
  changes_.push_back({.name = name, .inode = inode});
  if (!begun) {
    return std::unexpected(begun.error());
  }
  return std::make_unique<File>(*this, inode, life_);
}

Result<std::unique_ptr<DiskFile>> VirtualDisk::open(const std::string& name, bool /*writable*/) {
  const MutexLock lock(mutex_);
  if (crashed_) {
    return off();
  }
  const auto it = seen_.find(name);
  if (it == seen_.end()) {
    return fail(Code::kNotFound, "no such file", name);
  }
  return std::make_unique<File>(*this, it->second, life_);
}

Result<void> VirtualDisk::remove(const std::string& name) {
  const MutexLock lock(mutex_);
  bool half = false;
  const auto begun = begin(DiskOp::kRemove, half);
  if (!begun && !half) {
    return begun;
  }
  if (seen_.erase(name) == 0) {
    return fail(Code::kNotFound, "no such file", name);
  }
  changes_.push_back({.name = name, .inode = nullptr});
  return begun;
}

Result<void> VirtualDisk::sync_names() {
  const MutexLock lock(mutex_);
  bool half = false;
  const auto begun = begin(DiskOp::kSyncNames, half);
  if (!begun && !half) {
    return begun;
  }
  kept_ = seen_;
  changes_.clear();
  return begun;
}

Result<void> VirtualDisk::replace(const std::string& name, std::span<const std::byte> bytes) {
  const MutexLock lock(mutex_);
  bool half = false;
  const auto begun = begin(DiskOp::kReplace, half);
  if (!begun && !half) {
    return begun;
  }
  const auto inode = std::make_shared<Inode>();
  inode->seen.assign(bytes.begin(), bytes.end());
  inode->kept = inode->seen;
  seen_[name] = inode;
  kept_[name] = inode;
  std::erase_if(changes_, [&](const NameChange& change) { return change.name == name; });
  return begun;
}

Result<std::vector<DiskEntry>> VirtualDisk::list() {
  const MutexLock lock(mutex_);
  if (crashed_) {
    return off();
  }
  std::vector<DiskEntry> out;
  for (const auto& [name, inode] : seen_) {
    out.push_back({.name = name, .bytes = inode->seen.size()});
  }
  return out;
}

Result<std::unique_ptr<DiskLock>> VirtualDisk::lock(const std::string& name) {
  const MutexLock lock(mutex_);
  if (crashed_) {
    return off();
  }
  if (!locks_.insert(name).second) {
    return fail(Code::kOverloaded, "another process writes here", name);
  }
  return std::make_unique<Lock>(*this, name, life_);
}

}  // namespace galley
