#include "recipe/pretokenizer.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "recipe/unicode_tables.h"

namespace galley::recipe {
namespace {

// A set of classes, one bit each.
using Classes = std::uint32_t;

constexpr Classes set_of(std::same_as<CharClass> auto... classes) {
  return ((1U << static_cast<unsigned>(classes)) | ...);
}

constexpr bool contains(Classes set, CharClass value) {
  return ((set >> static_cast<unsigned>(value)) & 1U) != 0;
}

constexpr Classes kWord = set_of(CharClass::kLetter, CharClass::kMark);
constexpr Classes kEastWord = set_of(CharClass::kEastLetter, CharClass::kEastMark);
constexpr Classes kWhite = set_of(CharClass::kSpace, CharClass::kNewline);
// The first two patterns cut these out before the third is tried: for it, text ends before them.
constexpr Classes kCutOut = set_of(CharClass::kNumber,
                                   CharClass::kEastOther,
                                   CharClass::kEastLetter,
                                   CharClass::kEastMark,
                                   CharClass::kEastPunct);

constexpr bool is_ascii_letter(unsigned char byte) {
  return static_cast<unsigned>((byte | 0x20U) - 'a') < 26U;
}

constexpr std::array<CharClass, 128> ascii_classes() {
  std::array<CharClass, 128> classes{};
  for (std::size_t byte = 0; byte < classes.size(); ++byte) {
    const bool digit = byte >= '0' && byte <= '9';
    if (is_ascii_letter(static_cast<unsigned char>(byte))) {
      classes[byte] = CharClass::kLetter;
    } else if (byte == '\r' || byte == '\n') {
      classes[byte] = CharClass::kNewline;
    } else if (byte == ' ' || (byte >= '\t' && byte <= '\r')) {
      classes[byte] = CharClass::kSpace;
    } else if (byte > ' ' && byte < 0x7F) {
      classes[byte] = digit ? CharClass::kNumber : CharClass::kPunct;
    }
  }
  return classes;
}
constexpr std::array<CharClass, 128> kAscii = ascii_classes();

struct Char {
  CharClass kind;
  std::uint8_t bytes;
};

Char multi_byte_char(const char* at) {
  const auto byte = [at](int index) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(at[index]));
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0xE0) {
    return {char_class((lead & 0x1FU) << 6U | (byte(1) & 0x3FU)), 2};
  }
  const std::uint32_t low = (byte(1) & 0x3FU) << 6U | (byte(2) & 0x3FU);
  if (lead < 0xF0) {
    const std::uint32_t code_point = (lead & 0x0FU) << 12U | low;
    if (code_point - 0x4E00 <= 0x9FA5 - 0x4E00) {
      return {CharClass::kEastLetter, 3};
    }
    return {char_class(code_point), 3};
  }
  return {char_class((lead & 0x07U) << 18U | low << 6U | (byte(3) & 0x3FU)), 4};
}

inline Char char_at(const char* at) {
  const auto byte = static_cast<unsigned char>(*at);
  if (byte < 0x80) [[likely]] {
    return {kAscii[byte], 1};
  }
  return multi_byte_char(at);
}

// End of the run of characters whose class is in `set`.
const char* skip(const char* at, const char* end, Classes set) {
  while (at != end) {
    const Char next = char_at(at);
    if (!contains(set, next.kind)) {
      break;
    }
    at += next.bytes;
  }
  return at;
}

bool is(const char* at, const char* end, Classes set) {
  return at != end && contains(set, char_at(at).kind);
}

// `?[\p{P}\p{S}]+[\r\n]*`, what precedes the first mark already taken.
const char* punct_run(const char* at, const char* end, CharClass punct) {
  at = skip(at, end, set_of(punct));
  while (at != end && (*at == '\r' || *at == '\n')) {
    ++at;
  }
  return at;
}

// `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the last line end of the run; without one, all of it at the end
// of the text, else all but its last character, which may belong to what follows.
const char* white_run(const char* at, const char* end) {
  const char* after_newline = nullptr;
  const char* last = at;
  const char* begin = at;
  Char next = char_at(at);
  while (contains(kWhite, next.kind)) {
    last = at;
    at += next.bytes;
    if (next.kind == CharClass::kNewline) {
      after_newline = at;
    }
    if (at == end) {
      break;
    }
    next = char_at(at);
  }
  if (after_newline != nullptr) {
    return after_newline;
  }
  return at == end || contains(kCutOut, next.kind) || last == begin ? at : last;
}

// Characters no alternative takes, up to the first that begins a match: any of another class, or
// one of theirs before a word. `at` is behind the first of them.
const char* other_run(const char* at, const char* end, CharClass other, Classes word) {
  if (is(at, end, word)) {
    return skip(at, end, word);
  }
  while (at != end) {
    const Char next = char_at(at);
    if (next.kind != other || is(at + next.bytes, end, word)) {
      break;
    }
    at += next.bytes;
  }
  return at;
}

}  // namespace

std::string_view PieceScanner::next() {
  const char* begin = at_;
  if (begin == end_) {
    return {};
  }
  const Char first = char_at(begin);
  const char* at = begin + first.bytes;
  switch (first.kind) {
    case CharClass::kLetter:
    case CharClass::kMark:
      at = skip(at, end_, kWord);
      break;
    case CharClass::kSpace:
      if (is(at, end_, kWord)) {
        at = skip(at, end_, kWord);
      } else if (*begin == ' ' && is(at, end_, set_of(CharClass::kPunct))) {
        at = punct_run(at, end_, CharClass::kPunct);
      } else {
        at = white_run(begin, end_);
      }
      break;
    case CharClass::kNewline:
      at = white_run(begin, end_);
      break;
    case CharClass::kPunct:
      if (first.bytes == 1 && at != end_ && is_ascii_letter(static_cast<unsigned char>(*at))) {
        while (at != end_ && is_ascii_letter(static_cast<unsigned char>(*at))) {
          ++at;
        }
      } else {
        at = punct_run(at, end_, CharClass::kPunct);
      }
      break;
    case CharClass::kNumber:
      for (int digits = 1; digits < 3 && is(at, end_, set_of(CharClass::kNumber)); ++digits) {
        at += char_at(at).bytes;
      }
      break;
    case CharClass::kOther:
      at = other_run(at, end_, CharClass::kOther, kWord);
      break;
    case CharClass::kEastLetter:
    case CharClass::kEastMark:
      at = skip(at, end_, kEastWord);
      break;
    case CharClass::kEastPunct:
      at = skip(at, end_, set_of(CharClass::kEastPunct));
      break;
    case CharClass::kEastOther:
      at = other_run(at, end_, CharClass::kEastOther, kEastWord);
      break;
  }
  at_ = at;
  return {begin, static_cast<std::size_t>(at - begin)};
}

}  // namespace galley::recipe
