#include "recipe/request.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "recipe/limits.h"

namespace galley::recipe {

namespace {

// What a protocol calls the text that is read.
std::string prompt_field(Protocol protocol) {
  switch (protocol) {
    case Protocol::kResponses:
      return "input";
    case Protocol::kCompletions:
      return "prompt";
    case Protocol::kChat:
    case Protocol::kMessages:
      break;
  }
  return "messages";
}

}  // namespace

Result<Request> parse_request(Protocol protocol,
                              std::string_view body,
                              const CodecOptions& options,
                              JsonArray earlier) {
  switch (protocol) {
    case Protocol::kChat:
      return parse_chat_request(body, options);
    case Protocol::kResponses:
      return parse_responses_request(body, options, std::move(earlier));
    case Protocol::kMessages:
      return parse_messages_request(body, options);
    case Protocol::kCompletions:
      return parse_completions_request(body, options);
  }
  std::unreachable();
}

Result<std::int64_t> effective_max_tokens(const Request& request,
                                          std::int64_t prompt_tokens,
                                          std::int64_t context_tokens) {
  // Where nothing was asked for, one token must still fit.
  const bool full = request.compat == Compat::kGalley && prompt_tokens == context_tokens;
  const std::int64_t requested = request.sampling.max_tokens.value_or(full ? 1 : 0);
  const std::int64_t total = prompt_tokens > std::numeric_limits<std::int64_t>::max() - requested
                                 ? std::numeric_limits<std::int64_t>::max()
                                 : prompt_tokens + requested;
  if (total > context_tokens) {
    const std::string counts = std::to_string(total) + " tokens (" + std::to_string(prompt_tokens) +
                               " in the messages, " + std::to_string(requested) +
                               " in the completion)";
    return fail(Code::kInvalidArgument,
                "This model's maximum context length is " + std::to_string(context_tokens) +
                    " tokens. However, you requested " + counts +
                    ". Please reduce the length of the messages or completion.",
                request.sampling.max_tokens ? std::string(request.sampling.max_tokens_key)
                                            : prompt_field(request.protocol),
                kContextLengthExceeded);
  }
  std::int64_t wanted = request.completion ? kDefaultMaxTokensCompletion : kDefaultMaxTokensChat;
  if (request.conversation.thinking) {
    wanted = request.conversation.effort == Effort::kMax ? kDefaultMaxTokensMaxEffort
                                                         : kDefaultMaxTokensThinking;
  }
  wanted = request.sampling.max_tokens.value_or(wanted);
  return std::max<std::int64_t>(1, std::min(wanted, context_tokens - prompt_tokens));
}

}  // namespace galley::recipe
