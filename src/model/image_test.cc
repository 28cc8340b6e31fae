// Goal: images of three formats become exactly the pixels of the reference processor, and files
// that are cut, damaged, animated, oversized or no image are refused with a reason. Method: small
// files and what Pillow makes of them (tests/data/images); every prefix and many damaged copies of
// each file.
#include "model/image.h"

#include <cstring>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "model/image_resize.h"

namespace galley::model {
namespace {

const std::filesystem::path kFolder = std::string(GALLEY_TESTS_DIR) + "/data/images";

std::string read(const std::string& name) {
  std::ifstream in(kFolder / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

struct Case {
  std::string what;
  std::string file;
  int width{};
  int height{};
  std::vector<std::uint8_t> rgb;
};

std::vector<Case> cases(std::string_view what) {
  std::vector<Case> out;
  std::istringstream lines(read("expected.txt"));
  for (Case row; lines >> row.what >> row.file >> row.width >> row.height;) {
    std::string hex;
    lines >> hex;
    row.rgb.clear();
    for (std::size_t i = 0; i < hex.size(); i += 2) {
      row.rgb.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    if (row.what == what) {
      out.push_back(row);
    }
  }
  return out;
}

int largest_difference(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
  if (a.size() != b.size()) {
    return 256;
  }
  int largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

TEST(Image, DecodesAsTheReferenceProcessorDoes) {
  const std::vector<Case> files = cases("decode");
  EXPECT_EQ(files.size(), 25U);
  for (const Case& want : files) {
    const std::string file = read(want.file);
    const auto info = probe_image(bytes(file));
    ASSERT_TRUE(info) << want.file << to_string(info.error());
    EXPECT_EQ(info->width, want.width);
    EXPECT_EQ(info->height, want.height);
    const auto got = decode_image(bytes(file));
    ASSERT_TRUE(got) << want.file << to_string(got.error());
    EXPECT_EQ(got->width, want.width) << want.file;
    EXPECT_EQ(largest_difference(got->rgb, want.rgb), 0) << want.file;
  }
}

TEST(Image, ResizesToTheBitAsTheReferenceProcessorDoes) {
  const auto wanted = cases("resize");
  EXPECT_EQ(wanted.size(), 8U);
  for (const Case& want : wanted) {
    const auto image = decode_image(bytes(read(want.file)));
    ASSERT_TRUE(image);
    EXPECT_EQ(largest_difference(resize_bicubic(*image, want.width, want.height).rgb, want.rgb), 0)
        << want.width << " x " << want.height;
  }
}

TEST(Image, FitsIntoABoxAsTheReferenceProcessorDoes) {
  const auto wanted = cases("fit");
  EXPECT_EQ(wanted.size(), 7U);
  for (const Case& want : wanted) {
    const auto image = decode_image(bytes(read(want.file)));
    ASSERT_TRUE(image);
    EXPECT_EQ(largest_difference(fit_into(*image, want.width, want.height).rgb, want.rgb), 0)
        << want.width << " x " << want.height;
  }
}

TEST(Image, ASideThatWouldRoundToZeroIsStretched) {
  const Image line{400, 1, std::vector<std::uint8_t>(1200, 9)};
  const Image fitted = fit_into(line, 14, 14);
  EXPECT_EQ(fitted.rgb, std::vector<std::uint8_t>(14 * 14 * 3, 9));
}

void expect_refused(const std::string& file, Code code, std::string_view reason) {
  for (const bool whole : {false, true}) {
    std::optional<Error> error;
    if (whole) {
      const auto image = decode_image(bytes(file));
      error = image ? std::nullopt : std::optional(image.error());
    } else {
      const auto info = probe_image(bytes(file));
      error = info ? std::nullopt : std::optional(info.error());
    }
    ASSERT_TRUE(error) << reason;
    EXPECT_EQ(error->code, code) << reason;
    EXPECT_NE(error->what.find(reason), std::string::npos) << error->what;
  }
}

void put_big_endian(std::string& file, std::size_t at, std::uint32_t value, int count) {
  for (int i = 0; i < count; ++i) {
    file[at + static_cast<std::size_t>(i)] =
        static_cast<char>(value >> static_cast<unsigned>(8 * (count - 1 - i)));
  }
}

TEST(Image, RefusesAnimations) {
  expect_refused(read("animated.webp.bad"), Code::kInvalidArgument, "WebP image: is animated");
  expect_refused(read("animated.png.bad"), Code::kInvalidArgument, "PNG image: is animated");
}

TEST(Image, RefusesWhatIsNoImage) {
  for (const std::string file :
       {"", "\xff", "\xff\xd8", "GIF89a......", "RIFF", "RIFF\1\1\1\1WAVE", "BM", "\x89PNG"}) {
    expect_refused(file, Code::kInvalidArgument, "is not JPEG, PNG or WebP");
  }
}

// Sizes come from the header, before a pixel is decoded: the files are a few hundred bytes.
TEST(Image, RefusesBombsByTheirHeader) {
  const std::string png = read("rgb.png");
  for (const auto& [width, height, reason] :
       {std::tuple{65'536U, 1U, "65536 x 1 pixels, more than 65535 a side"},
        {60'000U, 60'000U, "more than 65535 a side or 67108864 in all"},
        {8'193U, 8'192U, "8193 x 8192"},
        {0x7fffffffU, 0x7fffffffU, "more than"}}) {
    std::string file = png;
    put_big_endian(file, 16, width, 4);
    put_big_endian(file, 20, height, 4);
    expect_refused(file, Code::kTooLarge, reason);
  }
  std::string jpeg = read("rgb.jpg");
  const std::size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  put_big_endian(jpeg, frame + 5, 65'000, 2);
  put_big_endian(jpeg, frame + 7, 65'000, 2);
  expect_refused(jpeg, Code::kTooLarge, "JPEG image: is 65000 x 65000 pixels, more than");
  std::string webp = read("lossy.webp");
  const std::size_t start = webp.find("\x9d\x01\x2a");
  ASSERT_NE(start, std::string::npos);
  webp.replace(start + 3, 4, "\xff\x3f\xff\x3f");
  expect_refused(webp, Code::kTooLarge, "WebP image: is 16383 x 16383 pixels, more than");
  expect_refused(std::string(kImageBytesMax + 1, '\xff'), Code::kTooLarge, "bytes, more than");
}

// The largest that the limits allow have a header like any other.
TEST(Image, TakesSizesAtTheLimits) {
  for (const auto& [width, height] : {std::pair{65'535U, 1U}, {1U, 65'535U}, {8'192U, 8'192U}}) {
    std::string file = read("rgb.png");
    put_big_endian(file, 16, width, 4);
    put_big_endian(file, 20, height, 4);
    const auto info = probe_image(bytes(file));
    ASSERT_TRUE(info) << to_string(info.error());
    EXPECT_EQ(info->width, static_cast<int>(width));
    EXPECT_EQ(info->height, static_cast<int>(height));
  }
  expect_refused(std::string(kImageBytesMax, '\0'), Code::kInvalidArgument, "is not JPEG");
}

// Each scan is a pass over all pixels for a few bytes.
TEST(Image, RefusesManyScans) {
  const std::string file = read("progressive.jpg");
  const std::size_t first = file.find("\xff\xda");
  const std::size_t second = file.find("\xff\xc4", first);
  ASSERT_NE(second, std::string::npos);
  const std::string scan = file.substr(first, second - first);
  const auto with = [&](int more) {
    std::string out = file.substr(0, first);
    for (int i = 0; i < more; ++i) {
      out += scan;
    }
    return decode_image(bytes(out + file.substr(first)));
  };
  EXPECT_TRUE(with(10));
  const auto refused = with(70);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().what, "JPEG image: cannot be read (more than 64 scans)");
}

TEST(Image, RefusesImagesWithoutPixels) {
  std::string png = read("rgb.png");
  put_big_endian(png, 16, 0, 4);
  expect_refused(png, Code::kInvalidArgument, "PNG image: is 0 x 13 pixels");
  std::string jpeg = read("rgb.jpg");
  put_big_endian(jpeg, jpeg.find("\xff\xc0") + 5, 0, 2);
  EXPECT_FALSE(probe_image(bytes(jpeg)));
  std::string webp = read("lossy.webp");
  webp.replace(webp.find("\x9d\x01\x2a") + 3, 4, std::string(4, '\0'));
  EXPECT_FALSE(probe_image(bytes(webp)));
}

// A size the limits allow, but data for far fewer pixels.
TEST(Image, RefusesMorePixelsThanData) {
  std::string jpeg = read("rgb.jpg");
  put_big_endian(jpeg, jpeg.find("\xff\xc0") + 5, 2'000, 2);
  const auto image = decode_image(bytes(jpeg));
  ASSERT_FALSE(image);
  EXPECT_EQ(image.error().code, Code::kInvalidArgument);
  EXPECT_NE(image.error().what.find("JPEG image: cannot be read ("), std::string::npos);
}

TEST(Image, NoPrefixOfAFileIsAnImage) {
  for (const Case& want : cases("decode")) {
    const std::string file = read(want.file);
    for (std::size_t length = 0; length < file.size(); ++length) {
      EXPECT_FALSE(decode_image(bytes(std::string_view(file).substr(0, length))))
          << want.file << " cut at " << length << " of " << file.size();
    }
  }
}

// Whatever happens to a file, it is an image of the size it claims or an error with words.
TEST(Image, DamageIsAnErrorOrAnImage) {
  std::mt19937 random(5);
  for (const Case& want : cases("decode")) {
    const std::string file = read(want.file);
    for (int round = 0; round < 100; ++round) {
      std::string damaged = file;
      for (int flips = 0; flips < 1 + round % 4; ++flips) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      const auto image = decode_image(bytes(damaged));
      if (image) {
        EXPECT_EQ(image->rgb.size(), static_cast<std::size_t>(image->width) *
                                         static_cast<std::size_t>(image->height) * 3);
      } else {
        EXPECT_FALSE(image.error().what.empty());
      }
    }
  }
}

}  // namespace
}  // namespace galley::model
