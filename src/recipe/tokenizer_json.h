#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "recipe/bpe.h"
#include "recipe/tokenizer.h"

// Reads a HF tokenizer.json (spec recipe 1.2, 1.3).
namespace galley::recipe {

// What the file says, checked and put into our own terms.
struct TokenizerJson {
  std::string bytes;                   // of all tokens, by id, one after the other
  std::vector<std::uint32_t> offsets;  // token `id` is bytes[offsets[id], offsets[id + 1])
  std::vector<Bpe::Merge> merges;
  std::vector<TokenId> symbol_tokens;                  // id of each Bpe::Symbol
  std::vector<std::pair<std::string, TokenId>> added;  // sorted by spelling, renamed
};

// Accepts byte-level BPE with the four known pre-tokenizer steps and nothing else that would change
// ids; whatever it does not know is an error that names the place, never ignored.
[[nodiscard]] Result<TokenizerJson> read_tokenizer_json(std::string_view json,
                                                        const TokenizerOptions& options);

}  // namespace galley::recipe
