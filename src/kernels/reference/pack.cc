#include "kernels/reference/pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/code_tables.h"
#include "kernels/formats.h"
#include "kernels/reference/quantise.h"

namespace galley::kernels::reference {
namespace {

// Scale byte of a power of two >= 2^-126: its exponent field.
std::uint8_t to_e8m0(float scale) {
  return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(scale) >> 23U);
}

void put(std::byte* out, std::size_t index, std::uint8_t value) {
  out[index] = std::byte{value};
}

std::uint8_t get(const std::byte* in, std::size_t index) {
  return std::to_integer<std::uint8_t>(in[index]);
}

}  // namespace

void pack_row(const RowFormat& format, std::span<const float> row, std::byte* out) {
  GALLEY_ASSERT(row.size() == format.width);
  if (format.codec == RowCodec::kF32) {
    std::memcpy(out, row.data(), row.size_bytes());
    return;
  }
  std::vector<float> values(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(format.plain));
  std::vector<std::uint8_t> codes(format.plain);
  std::vector<float> scales(format.scales());
  const QuantiseParts parts{codes, scales};
  std::fill_n(out, format.bytes(), std::byte{0});
  std::size_t at = 0;
  if (format.codec == RowCodec::kFp8) {
    fake_quantise_fp8(values, format.block, parts);
    for (std::size_t c = 0; c < format.plain; ++c) {
      put(out, at++, codes[c]);
    }
    for (std::size_t c = format.plain; c < format.width; ++c, at += 2) {
      const std::uint16_t bits = to_bf16(row[c]);
      std::memcpy(out + at, &bits, sizeof(bits));
    }
  } else {
    (format.codec == RowCodec::kFp4 ? fake_quantise_fp4 : fake_quantise_fp4_e4m3)(
        values, format.block, parts);
    for (std::size_t c = 0; c < format.width; c += 2) {
      const unsigned high = c + 1 < format.width ? codes[c + 1] : 0U;
      put(out, at++, static_cast<std::uint8_t>(codes[c] | (high << 4U)));
    }
  }
  for (const float scale : scales) {
    put(out, at++, format.codec == RowCodec::kFp4E4m3 ? to_e4m3(scale) : to_e8m0(scale));
  }
}

void unpack_row(const RowFormat& format, const std::byte* in, std::span<float> row) {
  GALLEY_ASSERT(row.size() == format.width);
  switch (format.codec) {
    case RowCodec::kF32:
      std::memcpy(row.data(), in, row.size_bytes());
      return;
    case RowCodec::kFp8: {
      const std::byte* const tail = in + format.plain;
      const std::byte* const scales = tail + 2 * (format.width - format.plain);
      for (std::size_t begin = 0; begin < format.plain; begin += format.block) {
        const float scale = kCodes.e8m0[get(scales, begin / format.block)];
        const std::size_t end = std::min(format.plain, begin + format.block);
        for (std::size_t c = begin; c < end; ++c) {
          row[c] = kCodes.e4m3[get(in, c)] * scale;
        }
      }
      for (std::size_t c = format.plain; c < format.width; ++c) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, tail + 2 * (c - format.plain), sizeof(bits));
        row[c] = from_bf16(bits);
      }
      return;
    }
    case RowCodec::kFp4:
    case RowCodec::kFp4E4m3: {
      const std::byte* const scales = in + (format.width + 1) / 2;
      const auto& values = format.codec == RowCodec::kFp4 ? kCodes.e8m0 : kCodes.e4m3;
      for (std::size_t begin = 0; begin < format.width; begin += format.block) {
        const float scale = values[get(scales, begin / format.block)];
        const std::size_t end = std::min(format.width, begin + format.block);
        std::size_t c = begin;
        for (; c % 2 == 0 && c + 1 < end; c += 2) {
          const auto& pair = kCodes.e2m1[get(in, c / 2)];
          row[c] = pair[0] * scale;
          row[c + 1] = pair[1] * scale;
        }
        for (; c < end; ++c) {
          row[c] = kCodes.e2m1[get(in, c / 2)][c % 2] * scale;
        }
      }
      return;
    }
  }
}

}  // namespace galley::kernels::reference
