#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gateway/codec.h"

// Bodies about tokens themselves -> the JSON text of their replies. Linear in the body. Errors:
// kInvalidArgument naming the member; as Codec::prompt where the body is a conversation.
namespace galley::gateway {

// A body of tokenize() or detokenize(). A byte can become a token, and a token twenty bytes of
// reply.
inline constexpr std::size_t kTokenBodyBytesMax = std::size_t{4} << 20U;

// POST /v1/messages/count_tokens: a Messages body -> {"input_tokens": N}, what `message_start`
// would report as input and cache read (spec recipe 6.7).
[[nodiscard]] Result<std::string> count_tokens(const Codec& codec, std::string_view body);

// POST /tokenize: {"prompt": text} or a Chat Completions body with `messages` -> {"count",
// "max_model_len", "tokens"}. Text is plain text: no control token is recognised in it. With
// `return_token_strs` also "token_strs", and "control", the positions of control tokens.
[[nodiscard]] Result<std::string> tokenize(const Codec& codec, std::string_view body);

// POST /detokenize: {"tokens": [ids]} -> {"prompt": text}, control tokens by their spelling,
// ill-formed bytes as U+FFFD.
[[nodiscard]] Result<std::string> detokenize(const Codec& codec, std::string_view body);

}  // namespace galley::gateway
