#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace galley::model {

// Limits of one image from outside. A header that names more is refused before a pixel is decoded,
// so a small file cannot ask for much memory or time. The pixels are those of the largest side the
// API takes, squared; a side is as long as JPEG can name.
inline constexpr std::size_t kImageBytesMax = std::size_t{32} << 20U;  // encoded
inline constexpr std::int64_t kImageSideMax = 65'535;
inline constexpr std::int64_t kImagePixelsMax = std::int64_t{8192} * 8192;

enum class ImageFormat : std::uint8_t { kJpeg, kPng, kWebp };
[[nodiscard]] std::string_view name(ImageFormat format);

struct ImageInfo {
  ImageFormat format{};
  int width{};
  int height{};
};

// Eight bits a channel, rows from the top, red green blue, no padding.
struct Image {
  int width{};
  int height{};
  std::vector<std::uint8_t> rgb;
};

// Reads the header alone. Errors: kInvalidArgument when the bytes are none of the three formats,
// are cut, animated, or have no pixels; kTooLarge names the limit.
[[nodiscard]] Result<ImageInfo> probe_image(std::span<const std::byte> file);

// The pixels, as the reference processor sees them (PIL `convert("RGB")`, spec model 10.1): alpha
// and transparency are dropped, not blended; grey is repeated; 16-bit colour keeps its high byte
// and 16-bit grey is clipped at 255; CMYK is taken as Adobe writes it (inverted); colour profiles,
// gamma and EXIF orientation are ignored. Errors as above; damaged or missing data is
// kInvalidArgument, never a partly decoded image.
[[nodiscard]] Result<Image> decode_image(std::span<const std::byte> file);

}  // namespace galley::model
