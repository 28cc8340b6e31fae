#include "bindings/common/session.h"

#include "base/entropy.h"

namespace galley::bindings {
namespace {

std::string_view id_prefix(recipe::Protocol protocol) {
  switch (protocol) {
    case recipe::Protocol::kChat:
      return "chatcmpl-";
    case recipe::Protocol::kResponses:
      return "resp_";
    case recipe::Protocol::kMessages:
      return "msg_";
  }
  return {};
}

}  // namespace

std::string RandomIds::next_id() {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  constexpr std::size_t kIdBytes = 20;
  std::string id(kIdBytes, '\0');
  for (char& c : id) {
    c = kAlphabet[random_.next_below(kAlphabet.size())];
  }
  return id;
}

Session::Session(std::shared_ptr<const recipe::Request> request,
                 std::shared_ptr<const recipe::Tokenizer> tokenizer,
                 SessionOptions options,
                 const Clock& clock)
    : request_(std::move(request)),
      tokenizer_(std::move(tokenizer)),
      clock_(clock),
      call_ids_(options.id_seed ? *options.id_seed : entropy_seed()) {
  recipe::ReplyInfo info{
      .id = std::move(options.id),
      .created_s = options.created_s ? *options.created_s : clock_.unix_seconds(),
      .call_ids = &call_ids_,
      .usage_chunk = options.usage_chunk,
  };
  if (info.id.empty()) {
    info.id.append(id_prefix(request_->protocol)).append(call_ids_.next_id());
  }
  recipe::EventSink* sink = nullptr;
  if (options.stream.value_or(request_->stream)) {
    stream_ = recipe::StreamEncoder::create(*request_, std::move(info), bytes_);
    sink = stream_.get();
  } else {
    whole_ = recipe::WholeEncoder::create(*request_, std::move(info));
    sink = whole_.get();
  }
  parser_ = recipe::OutputParser::create(*request_, tokenizer_, *sink);
}

Result<void> Session::check_open() const {
  if (ended_) {
    return galley::fail(Code::kInvalidArgument, "the reply has ended");
  }
  return {};
}

void Session::tell_time() {
  if (request_->protocol != recipe::Protocol::kResponses) {
    return;
  }
  if (stream_ != nullptr) {
    stream_->set_completed_s(clock_.unix_seconds());
  } else {
    whole_->set_completed_s(clock_.unix_seconds());
  }
}

Result<void> Session::start(const recipe::Started& started) {
  GALLEY_CHECK_OK(check_open());
  if (started_) {
    return galley::fail(Code::kInvalidArgument, "start comes once, before anything is fed");
  }
  started_ = true;
  parser_->start(started);
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
  tell_time();
  std::vector<recipe::TokenLogprob> spelled;
  spelled.reserve(logprobs.size());
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    recipe::TokenLogprob& token =
        spelled.emplace_back(std::string(tokenizer_->bytes(ids[i])), logprobs[i].logprob);
    for (const auto& [id, logprob] : logprobs[i].top) {
      token.top.emplace_back(std::string(tokenizer_->bytes(id)), logprob);
    }
  }
  return parser_->feed_tokens(ids, spelled);
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
  tell_time();
  parser_->feed_text(text, token_count);
  return {};
}

Result<void> Session::finish(std::optional<recipe::SourceFinish> reason) {
  GALLEY_CHECK_OK(check_open());
  ended_ = true;
  if (!parser_->finished()) {
    tell_time();
    parser_->finish(reason);
  }
  if (whole_ != nullptr) {
    bytes_.append(whole_->body());
  }
  return {};
}

Result<void> Session::fail(const Error& error) {
  if (parser_->finished()) {
    return finish(std::nullopt);
  }
  GALLEY_CHECK_OK(check_open());
  ended_ = true;
  if (stream_ != nullptr) {
    stream_->fail(error);
  } else {
    bytes_.append(recipe::error_body(request_->protocol, request_->compat, error));
  }
  return {};
}

Result<void> Session::keep_alive() {
  GALLEY_CHECK_OK(check_open());
  if (stream_ != nullptr) {
    stream_->keep_alive();
  }
  return {};
}

}  // namespace galley::bindings
