#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

// What the model said, free of any protocol (spec recipe 3.3). The output parser makes these, the
// encoders of the protocols turn them into replies.
namespace galley::recipe {

struct TopLogprob {
  std::string token;  // bytes of the token; may be half a character
  float logprob{};
};
struct TokenLogprob {
  std::string token;
  float logprob{};
  std::vector<TopLogprob> top;
};

// Why the first part of a prompt that could have come from the cache did not.
enum class MissReason : std::uint8_t {
  kNotStored,  // nothing that begins so is there
  kDifferent,  // what is there has another token
  kEvicted,    // it was there and made room for others
  kTooShort,   // it is there, but no longer than what is computed again behind any hit
  kExpired,    // it was on disk, and its time is over
  kDamaged,    // it is on disk, and did not verify
  kLate,       // it is on disk, and computing it was quicker or its time was up
};
[[nodiscard]] std::string_view name(MissReason reason);
struct CacheMiss {
  MissReason reason{};
  std::int64_t token{};  // first of the prompt that was not found
};

struct Usage {
  std::int64_t prompt_tokens{};      // with every image in full, cache hits included
  std::int64_t cached_tokens{};      // part of prompt_tokens
  std::int64_t completion_tokens{};  // reasoning included
  std::optional<std::int64_t> reasoning_tokens;
  std::optional<CacheMiss> cache_miss;
};

enum class FinishReason : std::uint8_t {
  kStop,          // the model ended its turn
  kStopSequence,  // a client's stop string
  kToolCalls,     // the turn ended in at least one call
  kLength,        // max_tokens or the context limit
  kContentFilter,
  kEndOfStream,  // the source ended without saying why
  kBrokenCall,   // a tool call that cannot be used (malformed, or the source ended inside it): it
                 // was refused, and nothing after it was read
};

// Views are valid during the call that delivers the event.
struct Started {
  std::int64_t prompt_tokens{};
  std::int64_t cached_tokens{};
  std::optional<CacheMiss> cache_miss;  // nothing: all that could be found was, or nobody knows
  std::optional<std::string> fingerprint;
};
struct ReasoningText {
  std::string_view text;  // never empty, whole characters
  std::span<const TokenLogprob> logprobs;
};
struct ContentText {
  std::string_view text;
  std::span<const TokenLogprob> logprobs;
};
struct CallNamed {
  std::string_view name;
};
struct CallArguments {
  std::string_view text;  // next piece of the JSON text of the last named call
};
struct Finished {
  FinishReason reason{};
  std::string_view stop_sequence;  // with kStopSequence
  Usage usage;
};
using Event = std::variant<Started, ReasoningText, ContentText, CallNamed, CallArguments, Finished>;

class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_event(const Event& event) = 0;
};

}  // namespace galley::recipe
