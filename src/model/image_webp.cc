#include <fmt/core.h>
#include <string_view>
#include <webp/decode.h>

#include "model/image_codecs.h"

namespace galley::model {
namespace {

std::string_view describe(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
      return "is cut short";
    case VP8_STATUS_OUT_OF_MEMORY:
      return "needs too much memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "uses an unknown feature";
    default:
      return "damaged data";
  }
}

std::unexpected<Error> unreadable(VP8StatusCode status) {
  return fail(Code::kInvalidArgument, fmt::format("cannot be read ({})", describe(status)));
}

}  // namespace

Result<ImageInfo> probe_webp(ImageBytes file) {
  WebPBitstreamFeatures features;
  if (const VP8StatusCode status = WebPGetFeatures(file.data(), file.size(), &features);
      status != VP8_STATUS_OK) {
    return unreadable(status);
  }
  if (features.has_animation != 0) {
    return fail(Code::kInvalidArgument, "is animated, want a still image");
  }
  return ImageInfo{ImageFormat::kWebp, features.width, features.height};
}

Result<Image> decode_webp(ImageBytes file) {
  GALLEY_TRY(const ImageInfo header, probe_webp(file));
  Image image{header.width, header.height, {}};
  image.rgb.resize(static_cast<std::size_t>(header.width) *
                   static_cast<std::size_t>(header.height) * 3);
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) {
    return fail(Code::kInternal, "libwebp has another version than its headers");
  }
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = image.rgb.data();
  config.output.u.RGBA.stride = header.width * 3;
  config.output.u.RGBA.size = image.rgb.size();
  const VP8StatusCode status = WebPDecode(file.data(), file.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (status != VP8_STATUS_OK) {
    return unreadable(status);
  }
  return image;
}

}  // namespace galley::model
