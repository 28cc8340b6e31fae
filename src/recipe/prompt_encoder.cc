#include "recipe/prompt_encoder.h"

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <xxhash.h>

#include "base/mutex.h"

namespace galley::recipe {
namespace {

// Runs below this are encoded faster than they are looked up, more or less.
constexpr std::size_t kCachedRunBytesMin = 128;
// What a cached run costs beside its text and ids: list and map nodes, allocator headers.
constexpr std::size_t kRunOverheadBytes = 256;

// Encoded runs, least recently used first out. Ordered by hash, so that chosen collisions cost no
// more than anything else: one run per hash, the newer replaces the older. Not synchronised.
class Runs {
 public:
  explicit Runs(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  // Appends the ids of `text` if it is here.
  bool append(std::string_view text, std::uint64_t hash, std::vector<TokenId>& ids) {
    const auto found = by_hash_.find(hash);
    if (found == by_hash_.end() || found->second->text != text) {
      return false;
    }
    by_age_.splice(by_age_.begin(), by_age_, found->second);
    const std::vector<TokenId>& run = found->second->ids;
    ids.insert(ids.end(), run.begin(), run.end());
    return true;
  }

  void insert(std::string_view text, std::uint64_t hash, std::span<const TokenId> ids) {
    Run run{hash, std::string(text), {ids.begin(), ids.end()}};
    if (cost(run) > bytes_max_) {
      return;
    }
    if (const auto found = by_hash_.find(hash); found != by_hash_.end()) {
      erase(found->second);
    }
    bytes_ += cost(run);
    by_age_.push_front(std::move(run));
    by_hash_.emplace(hash, by_age_.begin());
    while (bytes_ > bytes_max_) {
      erase(std::prev(by_age_.end()));
    }
  }

 private:
  struct Run {
    std::uint64_t hash;
    std::string text;
    std::vector<TokenId> ids;
  };

  static std::size_t cost(const Run& run) {
    return run.text.size() + run.ids.size() * sizeof(TokenId) + kRunOverheadBytes;
  }

  void erase(std::list<Run>::iterator run) {
    bytes_ -= cost(*run);
    by_hash_.erase(run->hash);
    by_age_.erase(run);
  }

  std::size_t bytes_max_;
  std::size_t bytes_ = 0;
  std::list<Run> by_age_;  // most recently used first
  std::map<std::uint64_t, std::list<Run>::iterator> by_hash_;
};

}  // namespace

struct PromptEncoder::Impl {
  std::shared_ptr<const Tokenizer> tokenizer;  // shared with whoever else encodes or decodes
  ControlIds controls;
  Mutex mutex;
  Runs runs GALLEY_GUARDED_BY(mutex);

  void encode_run(std::string_view text, std::vector<TokenId>& ids) {
    if (text.size() < kCachedRunBytesMin) {
      tokenizer->encode(text, ids);
      return;
    }
    const std::uint64_t hash = XXH3_64bits(text.data(), text.size());
    {
      const MutexLock lock(mutex);
      if (runs.append(text, hash, ids)) {
        return;
      }
    }
    const std::size_t first = ids.size();
    tokenizer->encode(text, ids);
    const MutexLock lock(mutex);
    runs.insert(text, hash, std::span(ids).subspan(first));
  }
};

PromptEncoder::PromptEncoder(std::shared_ptr<const Tokenizer> tokenizer,
                             ControlIds controls,
                             std::size_t cache_bytes_max)
    : impl_(new Impl{std::move(tokenizer), controls, {}, Runs(cache_bytes_max)}) {}

PromptEncoder::~PromptEncoder() = default;

std::vector<TokenId> PromptEncoder::encode(const Prompt& prompt) {
  if (!prompt.ids.empty()) {
    return prompt.ids;
  }
  const std::string_view text = prompt.text;
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3);
  std::size_t run_begin = 0;
  for (const ControlSpan& span : prompt.controls) {
    const TokenId id = impl_->controls[span.control];
    // A vocabulary without the token has its spelling as text, part of the run around it.
    if (id == ControlIds::kAbsent) {
      continue;
    }
    impl_->encode_run(text.substr(run_begin, span.begin - run_begin), ids);
    ids.push_back(id);
    run_begin = span.end;
  }
  impl_->encode_run(text.substr(run_begin), ids);
  return ids;
}

}  // namespace galley::recipe
