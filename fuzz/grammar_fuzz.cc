// Goal: no schema, regular expression or grammar of a client crashes or hangs the compiler or the
// masks. Method: the first byte chooses what the rest is; a small vocabulary; the first tokens that
// are allowed are said, some are taken back.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/grammar.h"

namespace galley::engine {
namespace {

std::shared_ptr<const GrammarVocabulary> vocabulary() {
  static const auto made = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) {
      tokens.emplace_back(1, static_cast<char>(byte));
    }
    tokens.emplace_back("\xff<end>");
    for (const char* const text : {"{\"", "\":", "true", "\",\"", "\n\n<", "ab"}) {
      tokens.emplace_back(text);
    }
    return GrammarVocabulary::create(tokens, 256).value();
  }();
  return made;
}

void fuzz(const std::uint8_t* data, std::size_t size) {
  using Kind = recipe::AnswerGrammar::Kind;
  constexpr std::size_t kBytesMax = 4096;
  constexpr int kTokens = 24;
  if (size == 0 || size > kBytesMax) {
    return;
  }
  constexpr Kind kKinds[] = {Kind::kJsonSchema, Kind::kRegex, Kind::kLark};
  const auto grammar = Grammar::compile(
      vocabulary(),
      {.kind = kKinds[data[0] % 3], .text = {reinterpret_cast<const char*>(data) + 1, size - 1}});
  if (!grammar) {
    GALLEY_ASSERT(!grammar.error().what.empty());
    return;
  }
  const auto matcher = Matcher::begin(*grammar);
  std::vector<MaskWord> mask(vocabulary()->mask_words());
  for (int i = 0; i < kTokens; ++i) {
    if (!matcher->fill(mask)) {
      return;  // too dear, or a dead end: the request ends with an error
    }
    TokenId token = 256;
    for (std::size_t word = 0; word < mask.size() && token == 256; ++word) {
      for (MaskWord rest = mask[word]; rest != 0 && token == 256; rest &= rest - 1) {
        token = static_cast<TokenId>(word * kMaskWordBits +
                                     static_cast<std::size_t>(std::countr_zero(rest)));
      }
    }
    if (token == 256 || !matcher->accept(token)) {
      return;
    }
    if (i % 5 == 4 && !matcher->rollback(2)) {
      return;
    }
  }
}

}  // namespace
}  // namespace galley::engine

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  galley::engine::fuzz(data, size);
  return 0;
}
