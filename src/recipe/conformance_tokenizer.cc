#include <charconv>
#include <optional>
#include <string>

#include "recipe/conformance_parts.h"

// Golden records of the tokenizer (spec recipe 9.3).
namespace galley::recipe {
namespace {

constexpr std::size_t kRepeatedBytesMax = std::size_t{16} << 20U;  // of a `rep` record

// nullopt: the record has no text in any form.
std::optional<std::string> golden_text(const Json& record) {
  if (record.find("hex") != nullptr) {
    const std::string hex = text_of(record, "hex");
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
      unsigned char byte = 0;
      std::from_chars(hex.data() + i, hex.data() + i + 2, byte, 16);
      bytes.push_back(static_cast<char>(byte));
    }
    return bytes;
  }
  if (record.find("text") != nullptr) {
    return text_of(record, "text");
  }
  if (record.find("rep") == nullptr) {
    return std::nullopt;
  }
  const std::string unit = text_of(record, "rep");
  std::string text;
  for (std::int64_t i = 0; i < integer_of(record, "times") && text.size() < kRepeatedBytesMax;
       ++i) {
    text.append(unit);
  }
  return text;
}

}  // namespace

void check_encode(const Json& record, bool added, const Tokenizer& tokenizer, Differences& out) {
  const std::optional<std::string> text = golden_text(record);
  if (!text) {
    out.emplace_back("text: missing, so there is nothing to check");
    return;
  }
  std::vector<TokenId> ids;
  if (added) {
    tokenizer.encode_with_added(*text, ids);
  } else {
    tokenizer.encode(*text, ids);
  }
  expect_ids(record, ids, out);
}

void check_decode(const Json& record, const ConformanceTokenizers& tokenizers, Differences& out) {
  std::vector<TokenId> ids;
  for (const Json& id : elements_of(member_of(record, "ids"))) {
    ids.push_back(static_cast<TokenId>(int_of(id)));
  }
  expect_text(text_of(record, "text"), tokenizers.v4->decode(ids), "text", out);
}

}  // namespace galley::recipe
