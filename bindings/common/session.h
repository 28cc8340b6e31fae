#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "recipe/event.h"
#include "recipe/output_parser.h"
#include "recipe/random_ids.h"
#include "recipe/reply_writer.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

namespace galley::bindings {

struct SessionOptions {
  std::optional<bool> stream;  // default: as the request asks
  std::string id;              // of the reply; empty: a new one
  std::optional<std::int64_t> created_s;
  std::optional<Seed> id_seed;
  bool usage_chunk = false;
};

// Log probabilities as engines have them, by id.
struct IdLogprob {
  float logprob{};
  std::vector<std::pair<TokenId, float>> top;
};

// A ReplyWriter that keeps alive what it needs and refuses misuse, for callers in other languages.
// One thread at a time.
class Session {
 public:
  // `tokenizer` is null for a reply that is fed text. `clock` must outlive the session.
  Session(std::shared_ptr<const recipe::Request> request,
          std::shared_ptr<const recipe::Tokenizer> tokenizer,
          SessionOptions options,
          const Clock& clock);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Each appends what is to be sent to bytes(). Error: kInvalidArgument after the end, and for the
  // misuses OutputParser names.
  [[nodiscard]] Result<void> start(const recipe::Started& started);
  [[nodiscard]] Result<void> feed_tokens(std::span<const TokenId> ids,
                                         std::span<const IdLogprob> logprobs = {});
  [[nodiscard]] Result<void> feed_text(std::string_view text, std::int64_t token_count);
  [[nodiscard]] Result<void> finish(std::optional<recipe::SourceFinish> reason);
  // When a stop string has matched, the reply is complete whatever happens to the source: the same
  // as finish().
  [[nodiscard]] Result<void> fail(const Error& error);
  [[nodiscard]] Result<void> keep_alive();

  // A stop string matched: the source should be cancelled.
  [[nodiscard]] bool finished() const { return writer_.finished(); }
  [[nodiscard]] const recipe::Request& request() const { return *request_; }
  // What was made and not yet taken; the caller clears it.
  [[nodiscard]] std::string& bytes() { return writer_.bytes(); }

 private:
  [[nodiscard]] Result<void> check_open() const;

  std::shared_ptr<const recipe::Request> request_;  // shared with the caller's handle
  std::shared_ptr<const recipe::Tokenizer> tokenizer_;
  recipe::RandomIds ids_;
  recipe::ReplyWriter writer_;
  bool started_ = false;
};

}  // namespace galley::bindings
