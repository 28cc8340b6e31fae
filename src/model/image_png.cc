#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <fmt/core.h>
#include <limits>
#include <png.h>
#include <string>
#include <vector>

#include "model/image_codecs.h"

namespace galley::model {
namespace {

constexpr std::size_t kSignatureBytes = 8;
constexpr std::size_t kChunkFrameBytes = 12;  // length, type, checksum
constexpr std::size_t kHeaderBytes = 13;

std::uint32_t big_endian(ImageBytes file, std::size_t at) {
  return static_cast<std::uint32_t>(file[at]) << 24U |
         static_cast<std::uint32_t>(file[at + 1]) << 16U |
         static_cast<std::uint32_t>(file[at + 2]) << 8U | file[at + 3];
}

std::string_view chunk_type(ImageBytes file, std::size_t at) {
  return {reinterpret_cast<const char*>(file.data()) + at + 4, 4};
}

// What libpng calls back with. Trivial, because longjmp runs no destructors.
struct Reader {
  ImageBytes file;
  std::size_t at;
  std::array<char, 128> message;
};

void read_bytes(png_structp png, png_bytep out, png_size_t count) {
  auto& reader = *static_cast<Reader*>(png_get_io_ptr(png));
  if (count > reader.file.size() - reader.at) {
    png_error(png, "is cut short");
  }
  std::memcpy(out, reader.file.data() + reader.at, count);
  reader.at += count;
}

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto& reader = *static_cast<Reader*>(png_get_error_ptr(png));
  std::strncpy(reader.message.data(), message, reader.message.size() - 1);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

// Chunks that do not change what the reference processor sees, and would only cost memory.
void ignore_ancillary_chunks(png_structp png) {
  static constexpr png_byte kIgnored[] =
      "bKGD\0cHRM\0cICP\0eXIf\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB\0"
      "sTER\0tEXt\0tIME\0tRNS\0zTXt";
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, kIgnored,
                              static_cast<int>(sizeof(kIgnored) / 5));
}

// Sets the conversions to 8-bit RGB; 16-bit grey is left as it is. Returns whether it is that.
bool set_conversions(png_structp png, png_infop info) {
  const int color = png_get_color_type(png, info);
  const int depth = png_get_bit_depth(png, info);
  if (color == PNG_COLOR_TYPE_GRAY && depth == 16) {
    return true;
  }
  if (color == PNG_COLOR_TYPE_PALETTE) {
    png_set_palette_to_rgb(png);
  }
  if (color == PNG_COLOR_TYPE_GRAY && depth < 8) {
    png_set_expand_gray_1_2_4_to_8(png);
  }
  if (depth == 16) {
    png_set_strip_16(png);
  }
  if ((color & PNG_COLOR_MASK_ALPHA) != 0) {
    png_set_strip_alpha(png);
  }
  if ((color & PNG_COLOR_MASK_COLOR) == 0) {
    png_set_gray_to_rgb(png);
  }
  return false;
}

struct Pixels {
  std::uint8_t* data;
  png_bytepp rows;
  std::size_t width;
  std::size_t height;
};

// Fills `pixels` through `png`; false after an error, with the message in the reader. No object
// with a destructor lives here: libpng leaves by longjmp. 16-bit grey comes as two bytes a pixel,
// the high one first, at the front of the buffer.
bool read_pixels(
    png_structp png, png_infop info, Reader& reader, const Pixels& pixels, bool& grey16) {
  if (setjmp(png_jmpbuf(png)) != 0) {  // NOLINT: the library's only way to report an error
    return false;
  }
  png_set_read_fn(png, &reader, read_bytes);
  ignore_ancillary_chunks(png);
  png_set_user_limits(png, static_cast<png_uint_32>(kImageSideMax),
                      static_cast<png_uint_32>(kImageSideMax));
  png_read_info(png, info);
  grey16 = set_conversions(png, info);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const std::size_t row_bytes = pixels.width * (grey16 ? 2 : 3);
  if (png_get_image_width(png, info) != pixels.width ||
      png_get_image_height(png, info) != pixels.height ||
      png_get_rowbytes(png, info) != row_bytes) {
    png_error(png, "has two headers");
  }
  for (std::size_t y = 0; y < pixels.height; ++y) {
    pixels.rows[y] = pixels.data + y * row_bytes;
  }
  png_read_image(png, pixels.rows);
  png_read_end(png, nullptr);
  return true;
}

// In place, from the end: pixel i moves from bytes [2 i, 2 i + 2) to [3 i, 3 i + 3).
void clip_grey16(std::vector<std::uint8_t>& rgb) {
  for (std::size_t i = rgb.size() / 3; i-- > 0;) {
    const std::uint8_t grey = rgb[2 * i] != 0 ? std::uint8_t{255} : rgb[2 * i + 1];
    std::fill_n(rgb.begin() + static_cast<std::ptrdiff_t>(3 * i), 3, grey);
  }
}

}  // namespace

Result<ImageInfo> probe_png(ImageBytes file) {
  std::size_t at = kSignatureBytes;
  if (file.size() < at + kChunkFrameBytes + kHeaderBytes || chunk_type(file, at) != "IHDR" ||
      big_endian(file, at) != kHeaderBytes) {
    return fail(Code::kInvalidArgument, "has no header");
  }
  const std::uint32_t width = big_endian(file, at + 8);
  const std::uint32_t height = big_endian(file, at + 12);
  constexpr std::uint32_t kMax = std::numeric_limits<std::int32_t>::max();
  if (width > kMax || height > kMax) {
    return fail(Code::kInvalidArgument, fmt::format("is {} x {} pixels", width, height));
  }
  // An animation says so before its first image data.
  while (file.size() - at >= kChunkFrameBytes && chunk_type(file, at) != "IDAT") {
    if (chunk_type(file, at) == "acTL") {
      return fail(Code::kInvalidArgument, "is animated, want a still image");
    }
    const std::uint32_t length = big_endian(file, at);
    if (length > file.size() - at - kChunkFrameBytes) {
      break;
    }
    at += kChunkFrameBytes + length;
  }
  return ImageInfo{ImageFormat::kPng, static_cast<int>(width), static_cast<int>(height)};
}

Result<Image> decode_png(ImageBytes file) {
  GALLEY_TRY(const ImageInfo header, probe_png(file));
  Image image{header.width, header.height, {}};
  const auto width = static_cast<std::size_t>(header.width);
  const auto height = static_cast<std::size_t>(header.height);
  image.rgb.resize(width * height * 3);
  std::vector<png_bytep> rows(height);
  Reader reader{file, 0, {}};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_error, on_warning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  bool grey16 = false;
  const bool whole =
      info != nullptr &&
      read_pixels(png, info, reader, {image.rgb.data(), rows.data(), width, height}, grey16);
  png_destroy_read_struct(&png, &info, nullptr);
  if (!whole) {
    return fail(Code::kInvalidArgument, fmt::format("cannot be read ({})", reader.message.data()));
  }
  if (grey16) {
    clip_grey16(image.rgb);
  }
  return image;
}

}  // namespace galley::model
