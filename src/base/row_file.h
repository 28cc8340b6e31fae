#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace galley {

// A file that is read in small pieces at any place and never mapped: what was read lies in the
// caller's memory and nowhere else in the process, however large the file. Reading is thread-safe.
class RowFile {
 public:
  // Errors: kNotFound, or kUnavailable with the system's reason.
  static Result<RowFile> open(const std::filesystem::path& path);

  RowFile() = default;
  RowFile(RowFile&& other) noexcept;
  RowFile& operator=(RowFile&& other) noexcept;
  ~RowFile();

  // Starts reading into the system's cache and returns at once, so that several reads are under way
  // together. Advice only.
  void expect(std::uint64_t offset, std::size_t bytes) const;
  // Fills `out`. Errors: kCorruption when the file ends before, kUnavailable with the system's
  // reason.
  Result<void> read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  int file_ = -1;
};

}  // namespace galley
