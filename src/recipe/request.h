#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "recipe/conversation.h"

// Bodies of the public protocols -> one typed request (spec recipe 5, 6). JSON ends here.
namespace galley::recipe {

enum class Protocol : std::uint8_t { kChat, kResponses, kMessages, kCompletions };

// kGalley answers right where deepseek-recipe 0.2.0 is wrong (docs/decisions); kRecipe02 reproduces
// it, so that every golden can be checked. Prompt bytes are equal in both.
enum class Compat : std::uint8_t { kGalley, kRecipe02 };

// How the codec is set up: the operator's choices, never the client's.
struct CodecOptions {
  Compat compat = Compat::kGalley;
  bool default_thinking = true;
  bool reject_missing_reasoning = false;  // spec 5.3 "missing reasoning"; default fills it with ""
  bool messages_drop_web_search =
      false;  // Messages web_search tools: dropped, or (default) refused
  bool responses_reject_web_search =
      false;  // Responses web_search tools: refused, or (default) ignored
  // Whoever uses the codec keeps Responses: `store` is on unless a request says no, and
  // `previous_response_id` has a meaning.
  bool keeps_responses = false;
  // Names clients may send -> version. Replies echo the name that was asked for.
  std::map<std::string, ModelVersion, std::less<>> models = {
      {"DeepSeek-V4-Pro", ModelVersion::kV4}, {"DeepSeek-V4.1-Flash", ModelVersion::kV41}};
};

// Values that were sent and are honoured (Compat::kRecipe02: values recipe would use, spec 5.1).
struct Sampling {
  float temperature = 1.0F;
  float top_p = 1.0F;
  std::optional<std::int64_t> max_tokens;          // as sent; see effective_max_tokens
  std::string_view max_tokens_key = "max_tokens";  // the member that said it; views a literal
  std::optional<std::int64_t> seed;
  bool logprobs = false;
  std::optional<int> top_logprobs;
  int n = 1;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  std::optional<int> top_k;
  float min_p = 0.0F;  // tokens less likely than this times the likeliest are not drawn
  std::vector<std::pair<TokenId, float>> logit_bias;
};

// What the sampler may have to enforce (spec 5.4, last paragraph).
struct Constraint {
  enum class Kind : std::uint8_t { kNone, kToolCall, kToolCallRequired, kJson, kRegex };
  Kind kind = Kind::kNone;
  std::string text;  // compact JSON (tools or schema), or the regex
};

// What a client asks of the answer's form in vLLM's way. The prompt shows nothing of it.
struct GuidedFormat {
  enum class Kind : std::uint8_t { kSchema, kRegex, kChoice, kGrammar };
  Kind kind{};
  Json schema;                       // kSchema
  std::string text;                  // kRegex, kGrammar
  std::vector<std::string> choices;  // kChoice: one of these
  std::string place;                 // the member that says so
};

// How the reply has to be read: the start state follows the prompt that was rendered
// (spec 2.9, 3.2).
enum class StartStage : std::uint8_t {
  kAnswer,                 // prompt ended in </think>, or no thinking
  kReasoningStart,         // prompt ended in <think>
  kReasoningContinuation,  // prefix: <think> + reasoning
  kContentContinuation,    // prefix: ... </think> + content
};
struct OutputFormat {
  bool thinking = false;
  bool parse_tool_calls = false;
  bool in_tool_block = false;  // the prompt opened the block (tool_choice required or named)
  bool json_output = false;    // json_object only
  StartStage stage = StartStage::kAnswer;
  std::vector<std::string> stop_sequences;
};

// A Responses tool that came from a namespace: its flattened name and the pair it is split back
// into.
struct NamespacedTool {
  std::string flat_name;
  std::string name_space;
  std::string name;
};

// Text to go on with, or a gap to fill, instead of a conversation (spec 6.9).
struct Completion {
  std::string prompt;
  std::vector<TokenId> prompt_ids;  // sent as ids: `prompt` is empty
  std::string suffix;               // not empty: what comes behind the gap
  bool echo = false;                // the reply begins with the prompt
};

struct Request {
  Protocol protocol{};
  std::string model;  // as asked for, echoed in replies
  ModelVersion version{};
  Compat compat{};
  Conversation conversation;
  std::optional<Completion> completion;  // Completions only; `conversation` is empty
  Sampling sampling;
  Constraint constraint;
  std::optional<GuidedFormat> guided;  // chat, completions
  OutputFormat output;
  bool stream = false;
  bool include_usage = false;  // chat, completions: stream_options.include_usage
  bool parallel_tool_calls = true;
  std::string
      user;  // user_id or user (chat, completions), user (Responses), metadata.user_id (Messages)

  // Responses only.
  // Object: the request fields a Response repeats (spec 6.5), each in the form the reply prints.
  // A reply takes its object of defaults and replaces the members named here; their values are
  // final, with every absent part spelled as null. Always there, unless longer than kEchoBytesMax:
  // `instructions`, `max_output_tokens`, `reasoning` {effort, summary}, `temperature`, `text`
  // {format, verbosity}, `tool_choice`, `tools`, `top_logprobs`, `top_p`, `user`. Galley mode adds,
  // when sent, `metadata`, `parallel_tool_calls`, `previous_response_id`, `prompt_cache_key` and
  // `safety_identifier`. Sampling floats are those sent; the reference rounds them to single
  // precision and prints as few digits as tell that float (0.123456789 is 0.12345679, 0.3 is 0.3).
  Json responses_echo;
  std::vector<NamespacedTool> namespaced_tools;
  std::vector<std::string>
      custom_tools;  // declared custom tool names: their calls come back as custom_tool_call
  bool client_tool_search = false;  // calls of `tool_search` come back as tool_search_call
  std::optional<std::string> previous_response_id;
  bool store = false;
  std::string input_items;  // with `store`: `input` as items, the text of a JSON array

  // Things the client sent that have no effect here, one short sentence each ("`service_tier` is
  // ignored"): nothing a client asks for disappears without a word.
  std::vector<std::string> notes;
};

// Error: kInvalidArgument (HTTP 400), also for what is refused by name, with the reference's exact
// text in `what` (spec 5.3) and the offending path in `where` ("messages[3].content[0].type", never
// empty); kTooLarge above kBodyBytesMax. Linear in `body` and `earlier`.
//
// `earlier` is what the Response named by `previous_response_id` went on from, and what it said:
// items as a client could send them, oldest first. They stand before those of `input`. None: the
// request names no Response, or whoever calls refuses it.
[[nodiscard]] Result<Request> parse_request(Protocol protocol,
                                            std::string_view body,
                                            const CodecOptions& options,
                                            JsonArray earlier = {});

// What a Responses body says in `previous_response_id`, before it is judged; nothing in a body that
// is no object or does not have it.
[[nodiscard]] std::optional<std::string> named_response(std::string_view body);

[[nodiscard]] Result<Request> parse_chat_request(std::string_view body,
                                                 const CodecOptions& options);
[[nodiscard]] Result<Request> parse_responses_request(std::string_view body,
                                                      const CodecOptions& options,
                                                      JsonArray earlier = {});
[[nodiscard]] Result<Request> parse_messages_request(std::string_view body,
                                                     const CodecOptions& options);
[[nodiscard]] Result<Request> parse_completions_request(std::string_view body,
                                                        const CodecOptions& options);

// Error::reason of a request that does not fit: clients look for it to shorten a conversation and
// try again.
inline constexpr std::string_view kContextLengthExceeded = "context_length_exceeded";

// The context check after encoding (spec 5.1): how many tokens may be generated. `prompt_tokens`
// counts every image in full. Error: kInvalidArgument with the context overflow text and
// kContextLengthExceeded.
[[nodiscard]] Result<std::int64_t> effective_max_tokens(const Request& request,
                                                        std::int64_t prompt_tokens,
                                                        std::int64_t context_tokens);

}  // namespace galley::recipe
