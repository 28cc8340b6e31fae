#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"
#include "recipe/event.h"
#include "recipe/output_parser.h"
#include "recipe/reply.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

namespace galley::recipe {

// An id for a new reply: "chatcmpl-...", "resp_...", "msg_..." or "cmpl-...".
[[nodiscard]] std::string new_reply_id(Protocol protocol, IdSource& ids);

// One reply from generated tokens (or text) to bytes: the output parser and the encoder of the
// request's protocol, tied together. One thread at a time.
class ReplyWriter {
 public:
  // `request` and what `info` points to must outlive the writer. `tokenizer` is null for a reply
  // that is fed text. `stream` overrides what the request asks for.
  ReplyWriter(const Request& request,
              std::shared_ptr<const Tokenizer> tokenizer,
              ReplyInfo info,
              std::optional<bool> stream = std::nullopt);
  ReplyWriter(const ReplyWriter&) = delete;
  ReplyWriter& operator=(const ReplyWriter&) = delete;

  // Each appends what is to be sent to bytes(); after finish() or fail() none does anything. What
  // they expect and return is what OutputParser says.
  void start(const Started& started);
  [[nodiscard]] Result<void> feed_tokens(std::span<const TokenId> ids,
                                         std::span<const TokenLogprob> logprobs = {});
  void feed_text(std::string_view text, std::int64_t token_count);
  // Ends the reply. A whole one appears in bytes() now, and not before.
  void finish(std::optional<SourceFinish> reason);
  // Ends the reply with an error: a stream in its protocol's own way, a whole reply as the error
  // object. When a stop string has matched, the reply is complete whatever happens to the source:
  // the same as finish().
  void fail(const Error& error);
  // A frame every client skips; nothing when the reply is whole.
  void keep_alive();

  [[nodiscard]] bool streams() const { return stream_ != nullptr; }
  // A stop string matched, or a call broke: the source should be cancelled, finish() comes next.
  [[nodiscard]] bool finished() const { return parser_->finished(); }
  [[nodiscard]] bool ended() const { return ended_; }  // by finish() or fail()
  // After finish(), while bytes() are still there: a Response as an object, for a store.
  [[nodiscard]] std::string whole() const { return stream_ ? stream_->whole() : bytes_; }
  // What was made and not yet taken; the caller clears it.
  [[nodiscard]] std::string& bytes() { return bytes_; }

 private:
  Protocol protocol_;
  Compat compat_;
  std::string bytes_;
  std::unique_ptr<StreamEncoder> stream_;  // one of the two
  std::unique_ptr<WholeEncoder> whole_;
  std::unique_ptr<OutputParser> parser_;
  bool ended_ = false;
};

}  // namespace galley::recipe
