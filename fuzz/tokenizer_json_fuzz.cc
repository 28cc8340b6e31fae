// Any bytes as a tokenizer.json: an error or a tokenizer that gives text back. The small
// vocabulary's file, too large to be mutated usefully as a whole, comes in through the corpus in
// small pieces.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "recipe/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using galley::recipe::Tokenizer;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = Tokenizer::from_json(json, {.rename = {{258, "<renamed>"}}});
  const auto plain = Tokenizer::from_json(json);
  for (const auto& loaded : {tokenizer, plain}) {
    if (!loaded) {
      GALLEY_ASSERT(!loaded.error().what.empty());
      continue;
    }
    constexpr std::string_view kText = "abc abcab  <x> 123 汉字\n";
    std::vector<galley::TokenId> ids;
    (*loaded)->encode(kText, ids);
    GALLEY_ASSERT((*loaded)->decode(ids) == kText);
    ids.clear();
    (*loaded)->encode_with_added(kText, ids);
    GALLEY_ASSERT((*loaded)->decode(ids) == kText);
  }
  return 0;
}
