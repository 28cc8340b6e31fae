#include "bindings/common/session.h"

#include <utility>

#include "base/entropy.h"

namespace galley::bindings {

Session::Session(std::shared_ptr<const recipe::Request> request,
                 std::shared_ptr<const recipe::Tokenizer> tokenizer,
                 SessionOptions options,
                 const Clock& clock)
    : request_(std::move(request)),
      tokenizer_(std::move(tokenizer)),
      ids_(options.id_seed ? *options.id_seed : entropy_seed()),
      writer_(*request_,
              tokenizer_,
              {.id = options.id.empty() ? new_reply_id(request_->protocol, ids_)
                                        : std::move(options.id),
               .created_s = options.created_s ? *options.created_s : clock.unix_seconds(),
               .call_ids = &ids_,
               .clock = &clock,
               .usage_chunk = options.usage_chunk},
              options.stream) {}

Result<void> Session::check_open() const {
  if (writer_.ended()) {
    return galley::fail(Code::kInvalidArgument, "the reply has ended");
  }
  return {};
}

Result<void> Session::start(const recipe::Started& started) {
  GALLEY_CHECK_OK(check_open());
  if (started_) {
    return galley::fail(Code::kInvalidArgument, "start comes once, before anything is fed");
  }
  started_ = true;
  writer_.start(started);
  return {};
}

Result<void> Session::feed_tokens(std::span<const TokenId> ids,
                                  std::span<const IdLogprob> logprobs) {
  GALLEY_CHECK_OK(check_open());
  if (tokenizer_ == nullptr) {
    return galley::fail(Code::kInvalidArgument, "a reply without a tokenizer is fed text, not ids");
  }
  if (!logprobs.empty() && logprobs.size() != ids.size()) {
    return galley::fail(Code::kInvalidArgument, "log probabilities and ids differ in number");
  }
  started_ = true;
  std::vector<recipe::TokenLogprob> spelled;
  spelled.reserve(logprobs.size());
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    recipe::TokenLogprob& token =
        spelled.emplace_back(std::string(tokenizer_->bytes(ids[i])), logprobs[i].logprob);
    for (const auto& [id, logprob] : logprobs[i].top) {
      token.top.emplace_back(std::string(tokenizer_->bytes(id)), logprob);
    }
  }
  return writer_.feed_tokens(ids, spelled);
}

Result<void> Session::feed_text(std::string_view text, std::int64_t token_count) {
  GALLEY_CHECK_OK(check_open());
  if (tokenizer_ != nullptr) {
    return galley::fail(Code::kInvalidArgument, "a reply with a tokenizer is fed ids, not text");
  }
  if (token_count < 0) {
    return galley::fail(Code::kInvalidArgument, "the token count is negative");
  }
  started_ = true;
  writer_.feed_text(text, token_count);
  return {};
}

Result<void> Session::finish(std::optional<recipe::SourceFinish> reason) {
  GALLEY_CHECK_OK(check_open());
  writer_.finish(reason);
  return {};
}

Result<void> Session::fail(const Error& error) {
  GALLEY_CHECK_OK(check_open());
  writer_.fail(error);
  return {};
}

Result<void> Session::keep_alive() {
  GALLEY_CHECK_OK(check_open());
  writer_.keep_alive();
  return {};
}

}  // namespace galley::bindings
