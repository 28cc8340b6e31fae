#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "gateway/codec.h"
#include "gateway/exchange.h"
#include "gateway/key_quota.h"
#include "gateway/response_desk.h"
#include "gateway/step_queue.h"
#include "recipe/output_parser.h"
#include "recipe/reply.h"
#include "recipe/reply_writer.h"
#include "recipe/token_source.h"

namespace galley::gateway {

// Header of a reply: what the client sent without effect, so that nothing disappears without a
// word.
inline constexpr std::string_view kNoteHeader = "x-galley-note";

// Headers of a whole reply: prompt tokens that came from the cache, and why the next ones did not,
// as "different; token=1234" (recipe/event.h, MissReason). A stream has them in its
// usage.
inline constexpr std::string_view kHitTokensHeader = "x-galley-hit-tokens";
inline constexpr std::string_view kMissHeader = "x-galley-miss";

// Bounds of one reply.
struct ReplyLimits {
  // A stream encodes tokens only while fewer bytes than this wait for the socket.
  std::size_t unsent_bytes_max = std::size_t{64} << 10U;
  // Tokens that wait behind a slow client, of all `n` answers together; beyond it the client is cut
  // off. Every token that one answer can have (393,216, each a step of its own) fits, so a single
  // one gets there with logprobs only.
  std::size_t waiting_bytes_max = std::size_t{4} << 20U;
};

// What the replies count. Handles, see base/metrics.h.
struct ReplyMetrics {
  explicit ReplyMetrics(Metrics& metrics);
  Counter prompt_tokens;
  Counter cached_tokens;
  Counter output_tokens;
  Counter cancelled;  // nobody was left to answer: at most one of these two a generation
  Counter failed;     // ended with an error
  Gauge active;
};

// What every reply needs; outlives them all.
struct ReplyContext {
  const Codec& codec;
  recipe::TokenSource& source;
  const Clock& clock;
  recipe::IdSource& ids;  // used on the connections' thread only
  ReplyMetrics metrics;
  ReplyLimits limits{};
  ResponseDesk* responses = nullptr;              // keeps Responses; null: nobody does
  std::atomic<std::size_t>* under_way = nullptr;  // counts the generations, where somebody asks
};

// Tokens of one generation, or of one for each of `n` choices -> the reply to one exchange, whole
// or streamed. The source's threads only put steps into a queue; parsing and encoding happen on the
// connections' thread, as far as the client keeps up, and a bounded number of tokens at a time. A
// client that goes away, a stop string and a bound that is hit cancel the generation. An error of
// one choice ends all.
class GenerationReply final : public ExchangeListener,
                              public std::enable_shared_from_this<GenerationReply> {
 public:
  // Starts the generation and the reply, on the connection's thread. An error of the source becomes
  // the reply.
  // `place` is kept until the end and charged; null: nobody counts.
  static void begin(const std::shared_ptr<Exchange>& exchange,
                    Prepared prepared,
                    ReplyContext context,
                    std::unique_ptr<KeyQuota::Place> place = nullptr);

  // Private in effect: use begin().
  GenerationReply(std::shared_ptr<Exchange> exchange,
                  recipe::Request request,
                  std::string tenant,
                  ReplyContext context,
                  std::unique_ptr<KeyQuota::Place> place);
  ~GenerationReply() override;

  void on_gone() override;
  void on_room() override;
  void on_stop() override;
  void on_keep_alive() override;

 private:
  class Answer;

  void post_pump() GALLEY_REQUIRES(mutex_);
  void charge(std::int64_t weighted_tokens);
  [[nodiscard]] bool overflowed() GALLEY_EXCLUDES(mutex_);
  [[nodiscard]] bool has_room() const;
  [[nodiscard]] Answer& first_open() const;
  void pump() GALLEY_EXCLUDES(mutex_);
  void apply(Answer& answer);
  // nullopt: a stop string ended the answer.
  void complete(Answer& answer, std::optional<recipe::SourceFinish> reason);
  // Has the complete reply stored first; its client may name it at once.
  void keep(Answer& answer);
  // All of it: what `last`, who ended last, has made.
  void deliver(Answer& last, const Result<void>& kept);
  void end_answer(Answer& answer);
  void flush(Answer& answer);
  void fail_with(const Error& error);
  void end() GALLEY_EXCLUDES(mutex_);

  const std::shared_ptr<Exchange> exchange_;  // owners: the connection, this reply until it ends
  const recipe::Request request_;
  const std::string tenant_;
  const std::string id_;
  ReplyContext context_;

  const bool streams_;

  Mutex mutex_;
  bool overflowed_ GALLEY_GUARDED_BY(mutex_) = false;  // something was dropped
  bool pump_posted_ GALLEY_GUARDED_BY(mutex_) = false;
  std::size_t waiting_bytes_ GALLEY_GUARDED_BY(mutex_) = 0;  // of all answers

  // The connections' thread only.
  recipe::Choices choices_;
  std::optional<recipe::Started> started_;  // of the first answer
  bool complete_ = false;  // all of it is made; it may still be on its way into the store
  bool over_ = false;
  std::unique_ptr<KeyQuota::Place> place_;
  std::vector<std::unique_ptr<Answer>> answers_;  // last: destroyed first, they use the above
};

// The error object of `protocol` as a response, status by the error's code.
[[nodiscard]] HttpResponse error_response(recipe::Protocol protocol,
                                          recipe::Compat compat,
                                          const Error& error);

}  // namespace galley::gateway
