#include "model/image.h"

#include <algorithm>
#include <array>
#include <fmt/core.h>
#include <utility>

#include "model/image_codecs.h"

namespace galley::model {
namespace {

struct Codec {
  ImageFormat format;
  Result<ImageInfo> (*probe)(ImageBytes);
  Result<Image> (*decode)(ImageBytes);
};
constexpr std::array kCodecs{Codec{ImageFormat::kJpeg, probe_jpeg, decode_jpeg},
                             Codec{ImageFormat::kPng, probe_png, decode_png},
                             Codec{ImageFormat::kWebp, probe_webp, decode_webp}};

bool starts_with(ImageBytes file, std::size_t at, std::string_view magic) {
  return file.size() >= at + magic.size() &&
         std::ranges::equal(file.subspan(at, magic.size()), magic, [](std::uint8_t byte, char c) {
           return byte == static_cast<std::uint8_t>(c);
         });
}

const Codec* codec_of(ImageBytes file) {
  if (starts_with(file, 0, "\xff\xd8\xff")) {
    return &kCodecs[0];
  }
  if (starts_with(file, 0, "\x89PNG\r\n\x1a\n")) {
    return &kCodecs[1];
  }
  if (starts_with(file, 0, "RIFF") && starts_with(file, 8, "WEBP")) {
    return &kCodecs[2];
  }
  return nullptr;
}

Result<void> check_size(const ImageInfo& info) {
  const std::int64_t pixels = std::int64_t{info.width} * info.height;
  if (info.width < 1 || info.height < 1) {
    return fail(Code::kInvalidArgument,
                fmt::format("is {} x {} pixels, which is no image", info.width, info.height));
  }
  if (info.width > kImageSideMax || info.height > kImageSideMax || pixels > kImagePixelsMax) {
    return fail(Code::kTooLarge,
                fmt::format("is {} x {} pixels, more than {} a side or {} in all", info.width,
                            info.height, kImageSideMax, kImagePixelsMax));
  }
  return {};
}

Result<ImageInfo> probe(const Codec* codec, ImageBytes file) {
  if (file.size() > kImageBytesMax) {
    return fail(Code::kTooLarge,
                fmt::format("has {} bytes, more than {}", file.size(), kImageBytesMax));
  }
  if (codec == nullptr) {
    return fail(Code::kInvalidArgument, "is not JPEG, PNG or WebP");
  }
  Result<ImageInfo> info = codec->probe(file);
  if (!info) {
    return in_step(name(codec->format), std::move(info).error());
  }
  if (Result<void> fits = check_size(*info); !fits) {
    return in_step(name(codec->format), std::move(fits).error());
  }
  return info;
}

ImageBytes as_octets(std::span<const std::byte> file) {
  return {reinterpret_cast<const std::uint8_t*>(file.data()), file.size()};
}

}  // namespace

std::string_view name(ImageFormat format) {
  switch (format) {
    case ImageFormat::kJpeg:
      return "JPEG image";
    case ImageFormat::kPng:
      return "PNG image";
    case ImageFormat::kWebp:
      return "WebP image";
  }
  return "image";
}

Result<ImageInfo> probe_image(std::span<const std::byte> file) {
  const ImageBytes bytes = as_octets(file);
  return probe(codec_of(bytes), bytes);
}

Result<Image> decode_image(std::span<const std::byte> file) {
  const ImageBytes bytes = as_octets(file);
  const Codec* const codec = codec_of(bytes);
  GALLEY_CHECK_OK(probe(codec, bytes));
  Result<Image> image = codec->decode(bytes);
  if (!image) {
    return in_step(name(codec->format), std::move(image).error());
  }
  return image;
}

}  // namespace galley::model
