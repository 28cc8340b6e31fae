#include "recipe/tokenizer.h"

#include <array>
#include <simdjson.h>

#include "base/file.h"
#include "recipe/bpe.h"
#include "recipe/byte_trie.h"
#include "recipe/limits.h"
#include "recipe/pretokenizer.h"
#include "recipe/text_decoder.h"
#include "recipe/tokenizer_json.h"

namespace galley::recipe {

struct Tokenizer::Impl {
  std::string bytes;                   // of all tokens, by id
  std::vector<std::uint32_t> offsets;  // token `id` is bytes[offsets[id], offsets[id + 1])
  std::vector<bool> is_added;          // by id
  Bpe bpe;
  ByteTrie added;

  // `text` is well formed.
  void encode_run(std::string_view text, std::vector<TokenId>& ids) const {
    PieceScanner scanner(text);
    std::array<std::string_view, Bpe::kGroupMax> pieces;
    std::size_t count = 0;
    do {
      count = 0;
      while (count != pieces.size() && !(pieces[count] = scanner.next()).empty()) {
        ++count;
      }
      bpe.encode(std::span(pieces).first(count), ids);
    } while (count == pieces.size());
  }
};

namespace {

// `text` itself when it is well formed, else a repaired copy in `storage`.
std::string_view well_formed(std::string_view text, std::string& storage) {
  if (simdjson::validate_utf8(text)) {
    return text;
  }
  TextDecoder decoder;
  decoder.feed(text, storage);
  decoder.flush(storage);
  return storage;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_file(const std::filesystem::path& path,
                                                              const TokenizerOptions& options) {
  GALLEY_TRY(const std::string json, read_file(path.string(), Bytes(kTokenizerJsonBytesMax)));
  auto tokenizer = from_json(json, options);
  if (!tokenizer) {
    return in_step(path.string(), std::move(tokenizer).error());
  }
  return tokenizer;
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view json,
                                                              const TokenizerOptions& options) {
  GALLEY_TRY(TokenizerJson file, read_tokenizer_json(json, options));
  auto impl = std::make_unique<Impl>();
  GALLEY_TRY(impl->bpe, Bpe::build(file.merges, file.symbol_tokens));
  std::vector<std::pair<std::string_view, std::uint32_t>> added(file.added.begin(),
                                                                file.added.end());
  GALLEY_TRY(impl->added, ByteTrie::build(added));
  impl->bytes = std::move(file.bytes);
  impl->offsets = std::move(file.offsets);
  impl->is_added.resize(impl->offsets.size() - 1);
  for (const auto& [spelling, id] : file.added) {
    impl->is_added[id] = true;
  }
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

void Tokenizer::encode(std::string_view text, std::vector<TokenId>& ids) const {
  std::string repaired;
  impl_->encode_run(well_formed(text, repaired), ids);
}

void Tokenizer::encode_with_added(std::string_view text, std::vector<TokenId>& ids) const {
  std::string repaired;
  text = well_formed(text, repaired);
  std::size_t run_begin = 0;
  for (std::size_t at = 0; at != text.size();) {
    const ByteTrie::Match match = impl_->added.longest_prefix(text.substr(at));
    if (match.value == ByteTrie::kNone) {
      ++at;
      continue;
    }
    impl_->encode_run(text.substr(run_begin, at - run_begin), ids);
    ids.push_back(match.value);
    at += match.bytes;
    run_begin = at;
  }
  impl_->encode_run(text.substr(run_begin), ids);
}

std::string_view Tokenizer::bytes(TokenId id) const {
  if (id >= vocabulary_size()) {
    return {};
  }
  const std::uint32_t begin = impl_->offsets[id];
  return std::string_view(impl_->bytes).substr(begin, impl_->offsets[id + 1] - begin);
}

bool Tokenizer::is_added(TokenId id) const {
  return id < vocabulary_size() && impl_->is_added[id];
}

std::optional<TokenId> Tokenizer::find_added(std::string_view spelling) const {
  const ByteTrie::Match match = impl_->added.longest_prefix(spelling);
  if (match.value == ByteTrie::kNone || match.bytes != spelling.size()) {
    return std::nullopt;
  }
  return match.value;
}

std::size_t Tokenizer::vocabulary_size() const {
  return impl_->offsets.size() - 1;
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string text;
  TextDecoder decoder;
  for (const TokenId id : ids) {
    decoder.feed(bytes(id), text);
  }
  decoder.flush(text);
  return text;
}

}  // namespace galley::recipe
