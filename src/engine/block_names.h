#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cache/block_key.h"
#include "recipe/token_source.h"

// What blocks of an engine are called, in memory and in a store (docs/formats/blocks.md). Whoever
// looks for the blocks of a request calls them the same.
namespace galley::engine {

// Key before the first block of a request. `layout` is the fingerprint of the model's plan;
// `weights`, empty where blocks stay with their network, names those; `salt` is the server's.
[[nodiscard]] cache::BlockKey block_root(const std::string& layout,
                                         const std::string& weights,
                                         std::string_view salt,
                                         const recipe::Generation& generation);
// Namespace of a store that a request's blocks are in.
[[nodiscard]] std::string block_space(const recipe::Generation& generation);
// Number of a layout or an arithmetic in a store.
[[nodiscard]] std::uint64_t block_number(std::string_view text);

}  // namespace galley::engine
