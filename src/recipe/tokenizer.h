#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

// Byte-level BPE of the V4 family, read from a HF tokenizer.json (spec recipe 1.3).
namespace galley::recipe {

struct TokenizerOptions {
  // Added tokens whose spelling is replaced after loading: how the V4 file serves V4.1 in tests
  // (spec 1.2).
  std::vector<std::pair<TokenId, std::string>> rename;
};

// Immutable after loading; every const member may be called from any thread at once.
class Tokenizer {
 public:
  // Errors: kInvalidArgument naming what in the file is missing, malformed or not supported;
  // kNotFound for no file; kTooLarge above kTokenizerJsonBytesMax; kUnavailable when it cannot be
  // read.
  static Result<std::shared_ptr<const Tokenizer>> from_file(const std::filesystem::path& path,
                                                            const TokenizerOptions& options = {});
  static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view json,
                                                            const TokenizerOptions& options = {});
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Appends the ids of `text`. No added token is recognised: text can never become a control token.
  // Each maximal ill-formed UTF-8 subsequence counts as one U+FFFD (spec 1.3). O(n log n) in the
  // longest piece.
  void encode(std::string_view text, std::vector<TokenId>& ids) const;
  // The same, but added tokens are recognised, leftmost-longest. For tools and tests, never for
  // client text.
  void encode_with_added(std::string_view text, std::vector<TokenId>& ids) const;

  // Bytes an id stands for, control ids by their spelling; empty for an unknown id. May be half a
  // character.
  [[nodiscard]] std::string_view bytes(TokenId id) const;
  [[nodiscard]] bool is_added(TokenId id) const;
  [[nodiscard]] std::optional<TokenId> find_added(std::string_view spelling) const;
  [[nodiscard]] std::size_t vocabulary_size() const;  // largest id + 1

  // All ids as text, ill-formed bytes as U+FFFD.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::recipe
