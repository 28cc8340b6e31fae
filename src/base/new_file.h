#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace galley {

// A file that appears whole or not at all. It is written under another name in the same folder,
// PATH.<16 hex digits>.part; commit() puts it on the disk and renames it to PATH, where it replaces
// what was there. Who has the old one open or mapped keeps it. Without commit() the other name is
// removed; only a process that is killed leaves it behind.
class NewFile {
 public:
  enum class Readers : std::uint8_t {
    kAny,    // that the process does not mask
    kOwner,  // nobody else, whatever the folder allows
  };
  // Makes the folder too, if need be, and reserves `bytes` where the file system can. Errors:
  // kUnavailable with the system's reason.
  static Result<NewFile> create(const std::filesystem::path& path,
                                std::uint64_t bytes,
                                Readers readers = Readers::kAny);

  NewFile() = default;
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&& other) noexcept;
  ~NewFile();

  // Bytes that are never written are zero. Any thread, also several at a time.
  Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes) const;
  // Once, after the last write.
  Result<void> commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path part_;  // its name until commit()
  int file_ = -1;
};

}  // namespace galley
