#include "recipe/reply_writer.h"

#include <utility>

namespace galley::recipe {

std::string new_reply_id(Protocol protocol, IdSource& ids) {
  switch (protocol) {
    case Protocol::kChat:
      return "chatcmpl-" + ids.next_id();
    case Protocol::kResponses:
      return "resp_" + ids.next_id();
    case Protocol::kMessages:
      return "msg_" + ids.next_id();
    case Protocol::kCompletions:
      return "cmpl-" + ids.next_id();
  }
  std::unreachable();
}

ReplyWriter::ReplyWriter(const Request& request,
                         std::shared_ptr<const Tokenizer> tokenizer,
                         ReplyInfo info,
                         std::optional<bool> stream)
    : protocol_(request.protocol), compat_(request.compat) {
  EventSink* sink = nullptr;
  if (stream.value_or(request.stream)) {
    stream_ = StreamEncoder::create(request, std::move(info), bytes_);
    sink = stream_.get();
  } else {
    whole_ = WholeEncoder::create(request, std::move(info));
    sink = whole_.get();
  }
  parser_ = OutputParser::create(request, std::move(tokenizer), *sink);
}

void ReplyWriter::start(const Started& started) {
  if (!ended_) {
    parser_->start(started);
  }
}

Result<void> ReplyWriter::feed_tokens(std::span<const TokenId> ids,
                                      std::span<const TokenLogprob> logprobs) {
  return ended_ ? Result<void>() : parser_->feed_tokens(ids, logprobs);
}

void ReplyWriter::feed_text(std::string_view text, std::int64_t token_count) {
  if (!ended_) {
    parser_->feed_text(text, token_count);
  }
}

void ReplyWriter::finish(std::optional<SourceFinish> reason) {
  if (ended_) {
    return;
  }
  ended_ = true;
  if (!parser_->finished()) {
    parser_->finish(reason);
  }
  if (whole_ != nullptr) {
    bytes_.append(whole_->body());
  }
}

void ReplyWriter::fail(const Error& error) {
  if (parser_->finished()) {
    finish(std::nullopt);
    return;
  }
  if (ended_) {
    return;
  }
  ended_ = true;
  if (stream_ != nullptr) {
    stream_->fail(error);
  } else {
    bytes_.append(error_body(protocol_, compat_, error));
  }
}

void ReplyWriter::keep_alive() {
  if (!ended_ && stream_ != nullptr) {
    stream_->keep_alive();
  }
}

}  // namespace galley::recipe
