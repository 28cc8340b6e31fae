// Goal: no file makes an image decoder, the plan or the resizer crash, hang or read outside; what
// is accepted has the size its header claims and fits the budget. Method: the input is the file;
// the three formats are told apart by their magic, as in production. A PNG is also tried with its
// checksums mended, or no change behind the header would get past them. Only small images are
// decoded, so that a run takes microseconds.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <utility>
#include <vector>
#include <zlib.h>

#include "base/check.h"
#include "model/image.h"
#include "model/image_resize.h"
#include "model/vision.h"

namespace {

using galley::model::ImageLayout;
using galley::model::VisionConfig;

constexpr std::int64_t kDecodedPixelsMax = std::int64_t{1} << 14;

void check(std::span<const std::byte> file) {
  const auto info = galley::model::probe_image(file);
  if (!info) {
    GALLEY_ASSERT(!info.error().what.empty());
    GALLEY_ASSERT(!galley::model::decode_image(file));
    return;
  }
  GALLEY_ASSERT(info->width > 0);
  GALLEY_ASSERT(info->height > 0);
  const std::int64_t pixels = std::int64_t{info->width} * info->height;
  GALLEY_ASSERT(pixels <= galley::model::kImagePixelsMax);
  if (pixels > kDecodedPixelsMax) {
    return;
  }
  if (const auto image = galley::model::decode_image(file)) {
    GALLEY_ASSERT(image->width == info->width);
    GALLEY_ASSERT(image->height == info->height);
    GALLEY_ASSERT(std::ssize(image->rgb) == 3 * pixels);
  }
  // Plan and resizing depend on the size alone: once a size is enough.
  static std::set<std::pair<int, int>> sizes;
  if (!sizes.emplace(info->width, info->height).second) {
    return;
  }
  const bool pairs = file.size() % 2 == 1;
  const VisionConfig config = {.patch = 2,
                               .downsample = 2,
                               .tokens_max = 40,
                               .pixels_min = 64,
                               .ratio_max = pairs ? 8.0 : 0.0,
                               .layout = pairs ? ImageLayout::kRowPairs : ImageLayout::kRows};
  if (const auto prepared = galley::model::prepare_image(config, file)) {
    const auto& plan = prepared->plan;
    GALLEY_ASSERT(plan.tokens <= config.tokens_max);
    GALLEY_ASSERT(std::ssize(prepared->patches) == std::int64_t{3} * plan.width * plan.height);
  }
}

std::uint32_t big_endian(const std::vector<std::uint8_t>& file, std::size_t at) {
  return static_cast<std::uint32_t>(file[at]) << 24U |
         static_cast<std::uint32_t>(file[at + 1]) << 16U |
         static_cast<std::uint32_t>(file[at + 2]) << 8U | file[at + 3];
}

// Writes the right checksum behind every chunk.
void mend_checksums(std::vector<std::uint8_t>& file) {
  std::size_t at = 8;
  while (at < file.size() && file.size() - at >= 12) {
    const std::uint32_t length = big_endian(file, at);
    if (length > file.size() - at - 12) {
      return;
    }
    const auto sum = static_cast<std::uint32_t>(crc32(0, file.data() + at + 4, length + 4));
    for (std::size_t i = 0; i < 4; ++i) {
      file[at + 8 + length + i] = static_cast<std::uint8_t>(sum >> (24U - 8U * i));
    }
    at += 12 + length;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check(std::as_bytes(std::span(data, size)));
  if (size > 8 && std::memcmp(data, "\x89PNG", 4) == 0) {
    std::vector<std::uint8_t> file(data, data + size);
    mend_checksums(file);
    check(std::as_bytes(std::span(file)));
  }
  return 0;
}
