#pragma once

#include <string_view>

// The pre-tokenizer of the V4 family: cuts text into the pieces inside which byte pairs are merged
// (spec recipe 1.3).
namespace galley::recipe {

// Hands out the pieces of one text, in order; together they are the text. Equal to the four
// patterns applied one after the other, found in one pass: at every piece's beginning the first
// character's class decides what may follow, and nothing before it matters. Linear in the text;
// no memory of its own. The text must be well-formed UTF-8 and must outlive the scanner.
class PieceScanner {
 public:
  explicit PieceScanner(std::string_view text)
      : at_(text.data()), end_(text.data() + text.size()) {}

  // The next piece, never empty; an empty view at the end.
  [[nodiscard]] std::string_view next();

 private:
  const char* at_;
  const char* end_;
};

// The regular expressions PieceScanner stands for, as a tokenizer.json spells them. The third has
// two spellings: line ends escaped, or as themselves.
inline constexpr std::string_view kNumberPattern = R"(\p{N}{1,3})";
inline constexpr std::string_view kEastPattern = "[一-龥\u3040-ゟ゠-ヿ]+";
inline constexpr std::string_view kWordPattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kWordPatternRaw =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
    "\r\n"
    R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
    "\r\n"
    R"(]*|\s*[)"
    "\r\n"
    R"(]+|\s+(?!\S)|\s+)";

}  // namespace galley::recipe
