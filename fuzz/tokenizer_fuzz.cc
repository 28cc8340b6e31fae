// Any bytes: encoding ends, decoding gives the text back (ill-formed parts as U+FFFD), plain text
// yields no added token, and the streaming decoder agrees with decode() whatever the cuts.
// Needs GALLEY_TESTS_DIR (the small vocabulary).
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "recipe/text_decoder.h"
#include "recipe/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using galley::TokenId;
  using galley::recipe::TextDecoder;
  using galley::recipe::Tokenizer;
  static const auto tokenizer =
      Tokenizer::from_file(GALLEY_TESTS_DIR "/data/small_tokenizer.json").value();

  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string repaired;
  TextDecoder repair;
  repair.feed(text, repaired);
  repair.flush(repaired);

  std::vector<TokenId> ids;
  tokenizer->encode(text, ids);
  GALLEY_ASSERT(tokenizer->decode(ids) == repaired);
  std::string streamed;
  TextDecoder decoder;
  for (const TokenId id : ids) {
    GALLEY_ASSERT(!tokenizer->is_added(id));
    decoder.feed(tokenizer->bytes(id), streamed);
  }
  GALLEY_ASSERT(!decoder.pending());
  GALLEY_ASSERT(streamed == repaired);

  std::vector<TokenId> with_added;
  tokenizer->encode_with_added(text, with_added);
  GALLEY_ASSERT(tokenizer->decode(with_added) == repaired);

  // The bytes as ids.
  std::vector<TokenId> chosen;
  for (std::size_t i = 0; i + 1 < size; i += 2) {
    chosen.push_back(data[i] * 17U + data[i + 1]);
  }
  std::string decoded;
  TextDecoder pieces;
  for (const TokenId id : chosen) {
    pieces.feed(tokenizer->bytes(id), decoded);
  }
  pieces.flush(decoded);
  GALLEY_ASSERT(decoded == tokenizer->decode(chosen));
  return 0;
}
