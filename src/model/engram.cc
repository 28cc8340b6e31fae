#include "model/engram.h"

#include <cstring>
#include <fmt/core.h>
#include <string>

#include "base/check.h"
#include "base/file.h"
#include "kernels/reference/ops.h"

namespace galley::model {
namespace {

constexpr std::size_t kTokenMapBytesMax = std::size_t{64} << 20U;  // of the largest vocabulary

}  // namespace

Result<std::vector<kernels::EngramLayout>> hash_layouts(const ModelConfig& config) {
  GALLEY_ASSERT(config.engram.has_value());
  const EngramConfig& engram = *config.engram;
  std::vector<kernels::EngramLayout> layouts =
      kernels::reference::engram_layouts({.layers = engram.layers,
                                          .vocabulary = engram.vocabulary,
                                          .ngram = engram.ngram_max,
                                          .heads = engram.heads,
                                          .compressed_vocabulary = engram.compressed_vocabulary});
  for (std::size_t i = 0; i < engram.layers.size(); ++i) {
    if (layouts[i].rows > engram.table_rows[i]) {
      return fail(Code::kInvalidArgument,
                  fmt::format("hashes reach row {}, the table has {}", layouts[i].rows,
                              engram.table_rows[i]),
                  fmt::format("engram_num_embeddings[{}]", i));
    }
  }
  return layouts;
}

Result<std::vector<std::int32_t>> read_token_map(const std::filesystem::path& directory,
                                                 const ModelConfig& config) {
  GALLEY_ASSERT(config.engram.has_value());
  const std::filesystem::path path = directory / "engram_token_map.bin";
  std::vector<std::int32_t> map(static_cast<std::size_t>(config.vocabulary));
  const auto read = read_file(path.string(), Bytes(kTokenMapBytesMax));
  if (!read) {
    return in_step("the engram hash needs it",
                   Error{read.error().code, read.error().what, path.string()});
  }
  const std::string& bytes = *read;
  if (bytes.size() != map.size() * sizeof(std::uint32_t)) {
    return fail(Code::kCorruption,
                fmt::format("has {} bytes, want 4 for each of {} tokens", bytes.size(), map.size()),
                path.string());
  }
  std::memcpy(map.data(), bytes.data(), bytes.size());
  for (std::size_t id = 0; id < map.size(); ++id) {
    if (map[id] < 0 || map[id] >= config.engram->compressed_vocabulary) {
      return fail(
          Code::kCorruption,
          fmt::format("token {} maps to {}, outside the compressed vocabulary", id, map[id]),
          path.string());
    }
  }
  return map;
}

}  // namespace galley::model
