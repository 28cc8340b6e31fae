#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fmt/core.h>
#include <jpeglib.h>
#include <string>
#include <vector>
// after jpeglib.h, which it needs
#include <jerror.h>

#include "model/image_codecs.h"

namespace galley::model {
namespace {

// A progressive file may name any number of scans, each a pass over all pixels and a few bytes
// long. Encoders make about ten.
constexpr int kScansMax = 64;

constexpr char kTooManyScans[] = "more than 64 scans";

// The library's error state and what we add. Trivial, because longjmp runs no destructors.
struct Errors {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  std::array<char, JMSG_LENGTH_MAX> message;
};

[[noreturn]] void on_error(j_common_ptr library) {
  auto& errors = *reinterpret_cast<Errors*>(library->err);
  library->err->format_message(library, errors.message.data());
  std::longjmp(errors.jump, 1);  // NOLINT: the library's only way to report an error
}

// The library goes on after damage and fills in grey; we do not. Warnings about harmless oddities
// (stray bytes between segments, versions) pass.
void on_message(j_common_ptr library, int level) {
  if (level >= 0) {
    return;
  }
  switch (library->err->msg_code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
    case JWRN_NOT_SEQUENTIAL:
      on_error(library);
    default:
      return;
  }
}

void on_progress(j_common_ptr library) {
  if (reinterpret_cast<j_decompress_ptr>(library)->input_scan_number > kScansMax) {
    auto& errors = *reinterpret_cast<Errors*>(library->err);
    std::strcpy(errors.message.data(), kTooManyScans);
    std::longjmp(errors.jump, 1);  // NOLINT
  }
}

void set_up(jpeg_decompress_struct& jpeg, Errors& errors) {
  jpeg.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = on_error;
  errors.base.emit_message = on_message;
}

void start(jpeg_decompress_struct& jpeg, ImageBytes file) {
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, file.data(), file.size());
  jpeg_read_header(&jpeg, TRUE);
}

bool read_header(jpeg_decompress_struct& jpeg, Errors& errors, ImageBytes file) {
  if (setjmp(errors.jump) != 0) {  // NOLINT
    return false;
  }
  start(jpeg, file);
  return true;
}

// `out`: height * width * max(3, components) bytes. No object with a destructor lives here.
bool read_pixels(jpeg_decompress_struct& jpeg, Errors& errors, ImageBytes file, std::uint8_t* out) {
  if (setjmp(errors.jump) != 0) {  // NOLINT
    return false;
  }
  start(jpeg, file);
  jpeg_progress_mgr progress{};
  progress.progress_monitor = on_progress;
  jpeg.progress = &progress;
  jpeg.out_color_space = jpeg.num_components == 4 ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&jpeg);
  const std::size_t stride = static_cast<std::size_t>(jpeg.output_width) *
                             static_cast<std::size_t>(jpeg.output_components);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = out + jpeg.output_scanline * stride;
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  return true;
}

// Adobe writes CMYK inverted, and the reference processor takes every CMYK file to be so.
std::vector<std::uint8_t> rgb_of_cmyk(const std::vector<std::uint8_t>& cmyk) {
  std::vector<std::uint8_t> rgb(cmyk.size() / 4 * 3);
  for (std::size_t i = 0; i < cmyk.size() / 4; ++i) {
    const unsigned light = cmyk[4 * i + 3];
    for (std::size_t c = 0; c < 3; ++c) {
      // light - (255 - ink) * light / 255, rounded to the nearest
      const unsigned product = (255U - cmyk[4 * i + c]) * light + 128U;
      const unsigned taken = ((product >> 8U) + product) >> 8U;
      rgb[3 * i + c] = static_cast<std::uint8_t>(light - std::min(light, taken));
    }
  }
  return rgb;
}

std::unexpected<Error> unreadable(const Errors& errors) {
  return fail(Code::kInvalidArgument, fmt::format("cannot be read ({})", errors.message.data()));
}

struct Header {
  int width;
  int height;
  int components;
};

Result<Header> header_of(ImageBytes file) {
  Errors errors{};
  jpeg_decompress_struct jpeg{};
  set_up(jpeg, errors);
  const bool read = read_header(jpeg, errors, file);
  const Header header{static_cast<int>(jpeg.image_width), static_cast<int>(jpeg.image_height),
                      jpeg.num_components};
  jpeg_destroy_decompress(&jpeg);
  if (!read) {
    return unreadable(errors);
  }
  if (header.components != 1 && header.components != 3 && header.components != 4) {
    return fail(Code::kInvalidArgument,
                fmt::format("has {} colour components, want 1, 3 or 4", header.components));
  }
  return header;
}

}  // namespace

Result<ImageInfo> probe_jpeg(ImageBytes file) {
  GALLEY_TRY(const Header header, header_of(file));
  return ImageInfo{ImageFormat::kJpeg, header.width, header.height};
}

Result<Image> decode_jpeg(ImageBytes file) {
  GALLEY_TRY(const Header header, header_of(file));
  const bool cmyk = header.components == 4;
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(header.width) *
                                   static_cast<std::size_t>(header.height) * (cmyk ? 4U : 3U));
  Errors errors{};
  jpeg_decompress_struct jpeg{};
  set_up(jpeg, errors);
  const bool read = read_pixels(jpeg, errors, file, pixels.data());
  jpeg_destroy_decompress(&jpeg);
  if (!read) {
    return unreadable(errors);
  }
  return Image{header.width, header.height, cmyk ? rgb_of_cmyk(pixels) : std::move(pixels)};
}

}  // namespace galley::model
