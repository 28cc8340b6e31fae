// Goal: nothing another engine's server sends crashes us, and no event brings more tokens than it
// counts.
// Method: the first byte picks the dialect; the rest is a stream, fed in one piece and byte by
// byte, which must say the same.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "gateway/http_client.h"
#include "gateway/sources/dialect.h"

namespace {

using galley::TokenId;

std::shared_ptr<const galley::recipe::Tokenizer> tokenizer() {
  static const auto kTokenizer =
      galley::recipe::Tokenizer::from_file(GALLEY_TESTS_DIR "/data/small_tokenizer.json").value();
  return kTokenizer;
}

// The ids of the stream, up to the first error.
std::vector<TokenId> read(const galley::gateway::Dialect& dialect,
                          std::string_view stream,
                          std::size_t piece_bytes) {
  std::vector<TokenId> ids;
  bool well = true;
  galley::gateway::SseReader events;
  const auto reader = dialect.reader({});
  while (!stream.empty() && well) {
    const std::string_view piece = stream.substr(0, piece_bytes);
    stream.remove_prefix(piece.size());
    const auto fed = events.feed(piece, [&](std::string_view data) {
      const auto json = galley::recipe::parse_json(data);
      galley::Result<galley::gateway::DialectPiece> part =
          galley::fail(galley::Code::kInternal, "no event");
      if (json && well) {
        part = reader->read(*json);
      }
      well = part.has_value();
      if (well) {
        GALLEY_ASSERT(!part->cached_tokens || *part->cached_tokens >= 0);
        GALLEY_ASSERT(part->ids.size() <= data.size());
        ids.insert(ids.end(), part->ids.begin(), part->ids.end());
      }
    });
    well = well && fed.has_value();
  }
  return ids;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  using galley::gateway::kDialectNames;
  static const std::vector<std::unique_ptr<const galley::gateway::Dialect>> kDialects = [] {
    std::vector<std::unique_ptr<const galley::gateway::Dialect>> out;
    for (const std::string_view name : kDialectNames) {
      out.push_back(galley::gateway::make_dialect(name, tokenizer()));
    }
    return out;
  }();
  const auto& dialect = *kDialects[data[0] % kDialects.size()];
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  GALLEY_ASSERT(read(dialect, stream, stream.size()) == read(dialect, stream, 1));
  return 0;
}
