#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"
#include "recipe/answer_grammar.h"
#include "recipe/event.h"
#include "recipe/output_parser.h"
#include "recipe/request.h"

// The seam between the gateway and anything that makes tokens: a scripted source, the
// single-sequence loop, the engine, remote workers, other engines (design 3). Types only; nothing
// here knows HTTP or a model.
namespace galley::recipe {

// What a source made of a generation's grammar, whoever it is.
class PreparedGrammar {
 public:
  virtual ~PreparedGrammar() = default;
};

// One answer to make. A request for n answers is n generations that differ in `choice` only.
struct Generation {
  std::vector<TokenId> prompt;  // control tokens included; how it ends says what comes first
  std::vector<Image> images;    // one for each image placeholder of the prompt, in order
  Sampling sampling;
  Constraint constraint;
  AnswerGrammar grammar;                            // enforces it, token by token
  std::shared_ptr<const PreparedGrammar> prepared;  // by TokenSource::prepare(); or null
  std::int64_t max_tokens{};       // at least 1; prompt + max_tokens fits the context
  std::vector<TokenId> stop_ids;   // end the turn; never delivered
  std::uint32_t choice{};          // with `seed`: which of the n reproducible answers
  std::string tenant;              // whose fair share counts; empty is the default tenant
  std::string user;                // of the tenant: the cache keeps users apart, too
  bool has_tools = false;          // an agent's, most likely: how long a cache keeps its blocks
  bool keeps_blocks = true;        // of it, beyond the process; not for what nobody goes on from
  std::optional<TimeNs> deadline;  // on the source's clock: kDeadlineExceeded when it passes
  // For logs, and for a source that asks another server: what the request is called, and the trace
  // it belongs to (W3C traceparent, well formed or empty).
  std::string request_id;
  std::string traceparent;
};

// Called in order, from any thread but by one at a time, and possibly before start() has returned:
// on_start once, on_tokens any number of times, then exactly one of on_finish and on_error, after
// which nothing more comes. An error may come first. Calls must not block: a sink that has no room
// keeps what it gets, and cancels when that grows too large.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // `started.prompt_tokens` counts every image in full.
  virtual void on_start(const Started& started) = 0;
  // Settled tokens: never taken back. One call a step, so that a stream can send a frame a step.
  // `logprobs` has one entry a token where the request asked for them, else none.
  virtual void on_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs) = 0;
  virtual void on_finish(SourceFinish reason) = 0;
  virtual void on_error(Error error) = 0;
};

// One generation under way. Destroying it cancels: once the destructor has returned, the sink is
// not called any more. Not to be destroyed inside a call of its sink, since it may wait for that
// call to return.
class ActiveGeneration {
 public:
  virtual ~ActiveGeneration() = default;
};

// Thread-safe. Outlives every generation it started.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  // Returns at once. `sink` must outlive the returned object. Errors: kOverloaded when a bounded
  // queue is full, kUnavailable while not ready, kUnimplemented for what this source cannot do
  // (named, with the request field in `where`); then the sink is never called.
  virtual Result<std::unique_ptr<ActiveGeneration>> start(Generation generation,
                                                          TokenSink& sink) = 0;
  // What takes too long for start(), up to a second: compiles the grammar, on a thread of the
  // caller's that has the time. Leaving it out costs start() the time. Errors as start().
  virtual Result<void> prepare(Generation& /*generation*/) { return {}; }
  // Generations that differ in `choice` only, each with a sink: all of them start, or none. A
  // source that can compute their prompt once has a way of its own.
  virtual Result<std::vector<std::unique_ptr<ActiveGeneration>>> start_choices(
      std::vector<Generation> generations, std::span<TokenSink* const> sinks) {
    std::vector<std::unique_ptr<ActiveGeneration>> out;
    for (std::size_t i = 0; i < generations.size(); ++i) {
      auto started = start(std::move(generations[i]), *sinks[i]);
      if (!started) {
        return std::unexpected(std::move(started).error());
      }
      out.push_back(*std::move(started));
    }
    return out;
  }
  // Whether it draws by `grammar`. What does not is asked for nothing that needs one
  // (gateway/codec.h).
  [[nodiscard]] virtual bool enforces_grammars() const { return false; }
  // What /ready waits for.
  [[nodiscard]] virtual bool ready() const = 0;
  // For people: "echo (no model is loaded)".
  [[nodiscard]] virtual std::string_view description() const = 0;
};

}  // namespace galley::recipe
