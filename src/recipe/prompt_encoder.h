#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "recipe/control.h"
#include "recipe/prompt.h"
#include "recipe/tokenizer.h"

namespace galley::recipe {

// Prompt -> token ids. Each run of text between control tokens is encoded on its own, so runs are
// kept (bounded, least recently used first out) and a conversation that grows by a turn costs only
// that turn. A kept run is used only when its bytes are equal: the answer never depends on what was
// cached. Thread-safe.
class PromptEncoder {
 public:
  static constexpr std::size_t kCacheBytesDefault = std::size_t{64} << 20U;

  PromptEncoder(std::shared_ptr<const Tokenizer> tokenizer,
                ControlIds controls,
                std::size_t cache_bytes_max = kCacheBytesDefault);
  ~PromptEncoder();
  PromptEncoder(const PromptEncoder&) = delete;
  PromptEncoder& operator=(const PromptEncoder&) = delete;

  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::recipe
