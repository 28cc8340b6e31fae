#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "model/image.h"

// One reader a format, each the only place that knows its library. `probe_*` reads a header and
// checks no limit; `decode_*` is called for a file whose probe was accepted.
namespace galley::model {

using ImageBytes = std::span<const std::uint8_t>;

[[nodiscard]] Result<ImageInfo> probe_jpeg(ImageBytes file);
[[nodiscard]] Result<Image> decode_jpeg(ImageBytes file);
[[nodiscard]] Result<ImageInfo> probe_png(ImageBytes file);
[[nodiscard]] Result<Image> decode_png(ImageBytes file);
[[nodiscard]] Result<ImageInfo> probe_webp(ImageBytes file);
[[nodiscard]] Result<Image> decode_webp(ImageBytes file);

}  // namespace galley::model
