#include "model/image_resize.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace galley::model {
namespace {

constexpr std::size_t kChannels = 3;
constexpr int kWeightBits = 22;  // 32 - 8 of a pixel - 2 of head room for negative lobes
constexpr double kSupport = 2.0;
constexpr std::uint8_t kFill = 127;

double bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::fabs(x);
  if (x < 1.0) {
    return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1.0;
  }
  return x < 2.0 ? (((x - 5.0) * x + 8.0) * x - 4.0) * kA : 0.0;
}

// The inputs one output pixel is made of: inputs [begin, begin + count) with `weights` from
// `first`.
struct Tap {
  std::size_t begin{};
  std::size_t count{};
  std::size_t first{};
};
struct Filter {
  std::vector<Tap> taps;  // one an output
  std::vector<std::int32_t> weights;
};

Filter make_filter(int in, int out) {
  const double scale = static_cast<double>(in) / out;
  const double widen = std::max(scale, 1.0);
  const double support = kSupport * widen;
  const double narrow = 1.0 / widen;
  Filter filter;
  std::vector<double> exact;
  for (int o = 0; o < out; ++o) {
    const double centre = (o + 0.5) * scale;
    // Truncated, not rounded: Pillow's edges, also where the sum is negative.
    // NOLINTBEGIN(bugprone-incorrect-roundings)
    const int begin = std::max(0, static_cast<int>(centre - support + 0.5));
    const int end = std::min(in, static_cast<int>(centre + support + 0.5));
    // NOLINTEND(bugprone-incorrect-roundings)
    exact.clear();
    double sum = 0;
    for (int i = begin; i < end; ++i) {
      exact.push_back(bicubic((i - centre + 0.5) * narrow));
      sum += exact.back();
    }
    filter.taps.push_back({static_cast<std::size_t>(begin), exact.size(), filter.weights.size()});
    for (const double weight : exact) {
      const double fixed = (sum != 0.0 ? weight / sum : weight) * (1 << kWeightBits);
      filter.weights.push_back(static_cast<std::int32_t>(fixed < 0 ? fixed - 0.5 : fixed + 0.5));
    }
  }
  return filter;
}

std::uint8_t to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

Image resize_columns(const Image& image, int width) {
  const Filter filter = make_filter(image.width, width);
  Image out{width, image.height, {}};
  const std::size_t in_stride = static_cast<std::size_t>(image.width) * kChannels;
  out.rgb.reserve(static_cast<std::size_t>(width) * static_cast<std::size_t>(image.height) *
                  kChannels);
  for (std::size_t y = 0; y < static_cast<std::size_t>(image.height); ++y) {
    const std::uint8_t* const row = image.rgb.data() + y * in_stride;
    for (const Tap& tap : filter.taps) {
      std::int32_t sum[kChannels] = {kHalf, kHalf, kHalf};
      const std::uint8_t* in = row + tap.begin * kChannels;
      for (std::size_t i = 0; i < tap.count; ++i, in += kChannels) {
        const std::int32_t weight = filter.weights[tap.first + i];
        for (std::size_t c = 0; c < kChannels; ++c) {
          sum[c] += in[c] * weight;
        }
      }
      for (const std::int32_t channel : sum) {
        out.rgb.push_back(to_byte(channel));
      }
    }
  }
  return out;
}

Image resize_rows(const Image& image, int height) {
  const Filter filter = make_filter(image.height, height);
  const std::size_t stride = static_cast<std::size_t>(image.width) * kChannels;
  Image out{image.width, height, {}};
  out.rgb.reserve(static_cast<std::size_t>(height) * stride);
  std::vector<std::int32_t> sums(stride);
  for (const Tap& tap : filter.taps) {
    std::ranges::fill(sums, kHalf);
    for (std::size_t i = 0; i < tap.count; ++i) {
      const std::int32_t weight = filter.weights[tap.first + i];
      const std::uint8_t* const in = image.rgb.data() + (tap.begin + i) * stride;
      for (std::size_t x = 0; x < stride; ++x) {
        sums[x] += in[x] * weight;
      }
    }
    for (const std::int32_t sum : sums) {
      out.rgb.push_back(to_byte(sum));
    }
  }
  return out;
}

// Half to even, as Python rounds.
int rounded(double value) {
  return static_cast<int>(std::nearbyint(value));
}

// Fitted size of a width x height image in a box.
std::pair<int, int> fitted(const Image& image, int width, int height) {
  const double wide = image.width;
  const double high = image.height;
  const double ratio = wide / high;
  const double box = static_cast<double>(width) / height;
  if (ratio > box) {
    height = rounded(high / wide * width);
  } else if (ratio < box) {
    width = rounded(wide / high * height);
  }
  return {width, height};
}

}  // namespace

Image resize_bicubic(const Image& image, int width, int height) {
  if (image.width == width) {
    return image.height == height ? image : resize_rows(image, height);
  }
  Image columns = resize_columns(image, width);
  return image.height == height ? std::move(columns) : resize_rows(columns, height);
}

Image fit_into(const Image& image, int width, int height) {
  const auto [inner_width, inner_height] = fitted(image, width, height);
  if (inner_width == 0 || inner_height == 0) {
    return resize_bicubic(image, width, height);
  }
  Image inner = resize_bicubic(image, inner_width, inner_height);
  if (inner_width == width && inner_height == height) {
    return inner;
  }
  Image out{width, height, {}};
  const std::size_t stride = static_cast<std::size_t>(width) * kChannels;
  out.rgb.assign(static_cast<std::size_t>(height) * stride, kFill);
  const auto left = static_cast<std::size_t>(rounded((width - inner_width) * 0.5));
  const auto top = static_cast<std::size_t>(rounded((height - inner_height) * 0.5));
  const std::size_t inner_stride = static_cast<std::size_t>(inner_width) * kChannels;
  for (std::size_t y = 0; y < static_cast<std::size_t>(inner_height); ++y) {
    std::copy_n(
        inner.rgb.begin() + static_cast<std::ptrdiff_t>(y * inner_stride), inner_stride,
        out.rgb.begin() + static_cast<std::ptrdiff_t>((top + y) * stride + left * kChannels));
  }
  return out;
}

}  // namespace galley::model
