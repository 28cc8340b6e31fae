#include "base/quote.h"

#include <algorithm>
#include <fmt/core.h>

namespace galley {
namespace {

// Bytes of the UTF-8 character at the start of `text`, 0 when there is no valid one (Unicode 16,
// table 3-7).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](std::size_t i, unsigned lowest, unsigned highest) {
    return i < text.size() && byte(i) >= lowest && byte(i) <= highest;
  };
  const unsigned first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    return continues(1, 0x80, 0xBF) ? 2 : 0;
  }
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned lowest = first == 0xE0 ? 0xA0 : 0x80;   // no overlong forms
    const unsigned highest = first == 0xED ? 0x9F : 0xBF;  // no surrogates
    return continues(1, lowest, highest) && continues(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned lowest = first == 0xF0 ? 0x90 : 0x80;   // no overlong forms
    const unsigned highest = first == 0xF4 ? 0x8F : 0xBF;  // not above U+10FFFF
    const bool valid =
        continues(1, lowest, highest) && continues(2, 0x80, 0xBF) && continues(3, 0x80, 0xBF);
    return valid ? 4 : 0;
  }
  return 0;
}

// U+0080 to U+009F: some terminals obey them.
bool is_c1(std::string_view character) {
  return character.size() == 2 && character[0] == '\xC2' &&
         static_cast<unsigned char>(character[1]) < 0xA0;
}

void append_ascii(std::string& out, char c) {
  switch (c) {
    case '"':
    case '\\':
      out.append({'\\', c});
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      if (c < 0x20 || c == 0x7F) {
        out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      } else {
        out += c;
      }
  }
}

}  // namespace

std::string quoted(std::string_view text, std::size_t bytes_max) {
  const std::string_view shown = text.substr(0, bytes_max);
  std::string out = "\"";
  for (std::size_t i = 0; i < shown.size();) {
    // Measured in the whole text, so that a cut inside a character does not look like a bad byte.
    const std::size_t length = utf8_length(text.substr(i));
    if (length == 1) {
      append_ascii(out, shown[i]);
    } else if (length == 0) {
      out += "\uFFFD";
    } else if (is_c1(text.substr(i, length))) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(text[i + 1]));
    } else if (i + length <= shown.size()) {
      out += shown.substr(i, length);
    }
    i += length == 0 ? 1 : length;
  }
  if (shown.size() < text.size()) {
    out += "…";
  }
  out += '"';
  return out;
}

std::string harmless(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    const char c = character[0];
    const bool c0 = length == 1 && ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F);
    out += length == 0 || c0 || is_c1(character) ? "\uFFFD" : character;
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace galley
