#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "recipe/event.h"
#include "recipe/reply.h"
#include "recipe/request.h"

// What the encoders of the protocols share. Internal to the reply encoders.
//
// Encoders append JSON text straight to one string: a streamed token must not cost an allocation.
namespace galley::recipe {

// Ids of the calls of one reply (spec recipe 6.0): "call_NN_" + "ET_" when the model was to think
// and did not + 20 random characters + 4 digits of checksum.
class CallIds {
 public:
  CallIds(IdSource* source, bool thinking) : source_(source), empty_thinking_(thinking) {}
  void reasoning_seen() { empty_thinking_ = false; }
  std::string next();

 private:
  IdSource* source_;
  bool empty_thinking_;
  int count_ = 0;
};

void append_int(std::int64_t value, std::string& out);
// Shortest decimal that is this float again, with a point or an exponent; -9999.0 for what is not
// finite, which is how OpenAI writes "as good as impossible".
void append_float(float value, std::string& out);
// The bytes of a token inside a JSON string: text, or \\xNN for every byte where they are no UTF-8.
void append_token_text(std::string_view token, std::string& out);
// The usage object of Chat Completions and Completions (spec 6.1).
void append_openai_usage(const Usage& usage, std::string& out);
// Elements of a log-probability list, without the brackets, comma-separated.
void append_logprobs(std::span<const TokenLogprob> logprobs, std::string& out);
// `{"message":...,"type":...,"param":...,"code":...}`
void append_openai_error(Compat compat, const Error& error, std::string& out);
// The frame that breaks a stream of Chat Completions and Completions, which then has no [DONE].
void append_openai_stream_error(Compat compat, const Error& error, std::string& out);
// `{"type":"error","error":{...},"request_id":null}`
void append_anthropic_error(const Error& error, std::string& out);

// `text` is one JSON value.
[[nodiscard]] bool is_json(std::string_view text);

inline constexpr std::string_view kKeepAliveComment = ": keep-alive\n\n";

std::unique_ptr<StreamEncoder> make_chat_stream(const Request& request,
                                                ReplyInfo info,
                                                std::string& out);
std::unique_ptr<WholeEncoder> make_chat_whole(const Request& request, ReplyInfo info);
std::unique_ptr<StreamEncoder> make_completions_stream(const Request& request,
                                                       const ReplyInfo& info,
                                                       std::string& out);
std::unique_ptr<WholeEncoder> make_completions_whole(const Request& request, const ReplyInfo& info);
std::unique_ptr<StreamEncoder> make_messages_stream(const Request& request,
                                                    ReplyInfo info,
                                                    std::string& out);
std::unique_ptr<WholeEncoder> make_messages_whole(const Request& request, ReplyInfo info);
std::unique_ptr<StreamEncoder> make_responses_stream(const Request& request,
                                                     const ReplyInfo& info,
                                                     std::string& out);
std::unique_ptr<WholeEncoder> make_responses_whole(const Request& request, const ReplyInfo& info);

}  // namespace galley::recipe
