#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"

namespace galley::model {

enum class Dtype : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kF16,
  kBf16,
  kF32,
  kF64,
  kF8E4m3,
  kF8E8m0
};
[[nodiscard]] std::string_view name(Dtype dtype);  // as the file spells it
[[nodiscard]] std::size_t bytes_of(Dtype dtype);

// A tensor in a mapped file: row-major, no alignment promised.
struct TensorView {
  Dtype dtype{};
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;

  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] std::string shape_text() const;  // "[128, 512]"
};

inline constexpr std::size_t kHeaderBytesMax = std::size_t{100} << 20U;  // the format's own limit

// One .safetensors file, mapped and checked before anything of it is used: header within limits,
// known dtypes, sizes that match shapes, ranges inside the file that neither overlap nor leave
// holes.
class Safetensors {
 public:
  // Errors: kCorruption with file and tensor in `where` and the expectation in `what`; kNotFound.
  static Result<Safetensors> open(const std::filesystem::path& path);

  [[nodiscard]] const std::map<std::string, TensorView, std::less<>>& tensors() const {
    return tensors_;
  }
  [[nodiscard]] const TensorView* find(std::string_view name) const;
  [[nodiscard]] const MappedFile& file() const { return file_; }
  // What stands before the tensors: the header and its length in front.
  [[nodiscard]] std::span<const std::byte> header() const;
  // Where `view`, a tensor of this file, begins in it.
  [[nodiscard]] std::uint64_t offset_of(const TensorView& view) const {
    return static_cast<std::uint64_t>(view.bytes.data() - file_.bytes().data());
  }

 private:
  MappedFile file_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

// The header alone, for tests and fuzzing: `bytes` is a whole file.
[[nodiscard]] Result<std::map<std::string, TensorView, std::less<>>> parse_safetensors(
    std::span<const std::byte> bytes);

}  // namespace galley::model
