#pragma once

#include <cstdint>

// Character classes of the pre-tokenizer (spec recipe 1.3): general categories of Unicode 16.0.
namespace galley::recipe {

// "East" marks U+4E00-9FA5 and U+3040-30FF, which the pre-tokenizer cuts off first. No number and
// no white space lies there.
enum class CharClass : std::uint8_t {
  kOther,    // control, format, unassigned, private use
  kLetter,   // L
  kMark,     // M
  kNumber,   // N
  kPunct,    // P and S
  kSpace,    // White_Space, but for the two below
  kNewline,  // CR and LF
  kEastOther,
  kEastLetter,
  kEastMark,
  kEastPunct,
};

namespace unicode {
extern const std::uint8_t kBlockOf[8704];
extern const std::uint8_t kBlocks[242][64];  // two classes to a byte, the even code point lower
}  // namespace unicode

// `code_point` is at most U+10FFFF.
[[nodiscard]] inline CharClass char_class(std::uint32_t code_point) {
  const std::uint8_t pair =
      unicode::kBlocks[unicode::kBlockOf[code_point / 128]][code_point % 128 / 2];
  return static_cast<CharClass>((pair >> (code_point % 2 * 4)) & 0xFU);
}

}  // namespace galley::recipe
