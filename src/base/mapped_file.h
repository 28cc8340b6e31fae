#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace galley {

// A whole file mapped read-only and shared: several processes that map the same weights hold them
// in memory once, and pages are read when they are touched. The file must not shrink while it is
// mapped.
class MappedFile {
 public:
  // How the bytes will be read, for the kernel's read-ahead.
  enum class Access : std::uint8_t { kNormal, kRandom };

  // Errors: kNotFound, or kUnavailable with the system's reason.
  static Result<MappedFile> open(const std::filesystem::path& path,
                                 Access access = Access::kNormal);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  // When the file was changed last, as of opening: nanoseconds since 1970, modulo 2^64.
  [[nodiscard]] std::uint64_t modified_ns() const { return modified_ns_; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t modified_ns_ = 0;
};

}  // namespace galley
