#include "recipe/text_decoder.h"

#include <cstddef>

namespace galley::recipe {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Length of the character that `lead` begins; 0 when none does.
std::size_t char_bytes(unsigned char lead) {
  if (lead < 0x80) {
    return 1;
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return 0;
  }
  return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// Whether `byte` may stand at `index` >= 1 of a character that begins with `lead` (Unicode table
// 3-7: no overlong forms, no surrogates, nothing above U+10FFFF).
bool may_follow(unsigned char lead, std::size_t index, unsigned char byte) {
  unsigned low = 0x80;
  unsigned high = 0xBF;
  if (index == 1) {
    low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : low;
    high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : high;
  }
  return byte >= low && byte <= high;
}

}  // namespace

void TextDecoder::feed(std::string_view bytes, std::string& out) {
  std::size_t at = 0;
  while (at != bytes.size()) {
    const auto byte = static_cast<unsigned char>(bytes[at]);
    if (pending_bytes_ == 0 && byte < 0x80) {
      std::size_t end = at + 1;
      while (end != bytes.size() && static_cast<unsigned char>(bytes[end]) < 0x80) {
        ++end;
      }
      out.append(bytes, at, end - at);
      at = end;
      continue;
    }
    if (pending_bytes_ == 0 && char_bytes(byte) == 0) {
      out += kReplacement;
      ++at;
      continue;
    }
    const auto lead = static_cast<unsigned char>(pending_bytes_ == 0 ? byte : pending_[0]);
    if (pending_bytes_ != 0 && !may_follow(lead, pending_bytes_, byte)) {
      flush(out);  // and look at `byte` again, as the first of a character
      continue;
    }
    pending_[pending_bytes_++] = bytes[at++];
    if (pending_bytes_ == char_bytes(lead)) {
      out.append(pending_, pending_bytes_);
      pending_bytes_ = 0;
    }
  }
}

void TextDecoder::flush(std::string& out) {
  if (pending_bytes_ != 0) {
    out += kReplacement;
    pending_bytes_ = 0;
  }
}

}  // namespace galley::recipe
