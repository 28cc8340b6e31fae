#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "recipe/event.h"
#include "recipe/output_parser.h"
#include "recipe/request.h"

// The seam between the gateway and anything that makes tokens: a scripted source, the
// single-sequence loop, the engine, remote workers, other engines (design 3). Types only; nothing
// here knows HTTP or a model.
namespace galley::recipe {

struct Generation {
  std::vector<TokenId> prompt;
  std::vector<Image> images;
  Sampling sampling;
  Constraint constraint;
  std::int64_t max_tokens{};
  std::vector<TokenId> stop_ids;  // end the turn; never delivered
  std::string tenant;             // whose cache salt and quota apply; empty is the default tenant
  std::optional<std::int64_t> deadline_ns;  // on the loop's clock
};

// Called in order, from any one thread at a time: on_start once, on_tokens any number of times,
// then exactly one of on_finish and on_error, after which nothing more comes. Calls must not block.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void on_start(const Started& started) = 0;
  virtual void on_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs) = 0;
  virtual void on_finish(SourceFinish reason) = 0;
  virtual void on_error(Error error) = 0;
};

// One request under way. Destroying it cancels: after the destructor returned, the sink is not
// called any more.
class ActiveGeneration {
 public:
  virtual ~ActiveGeneration() = default;
};

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  // `sink` must outlive the returned object. Error: kOverloaded when a bounded queue is full,
  // kInvalidArgument for what this source cannot do (named); then the sink is never called.
  virtual Result<std::unique_ptr<ActiveGeneration>> start(Generation generation,
                                                          TokenSink& sink) = 0;
  // What /v1/models says and /ready waits for.
  [[nodiscard]] virtual bool ready() const = 0;
};

}  // namespace galley::recipe
