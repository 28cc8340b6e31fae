#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "recipe/limits.h"
#include "recipe/request_fields.h"
#include "recipe/request_text.h"

// How a request wants to be answered: thinking, sampling, stop strings, constraint and form.
namespace galley::recipe {

// --- thinking ----------------------------------------------------------------------------------

Result<std::optional<RequestedEffort>> read_effort(const Fields& fields, std::string_view key) {
  constexpr std::array<std::string_view, 8> kEfforts = {"none", "minimal", "low",   "medium",
                                                        "high", "xhigh",   "ultra", "max"};
  GALLEY_TRY(const std::optional<std::size_t> index, fields.choice(key, kEfforts));
  if (!index) {
    return std::nullopt;
  }
  return static_cast<RequestedEffort>(*index);
}

Result<std::optional<bool>> read_thinking(const Fields& body, std::vector<std::string>& notes) {
  constexpr std::array<std::string_view, 3> kTypes = {"adaptive", "enabled", "disabled"};
  Json* const value = body.find("thinking");
  if (value == nullptr) {
    return std::nullopt;
  }
  const Path at = body.at().member("thinking");
  GALLEY_TRY(const Fields thinking, Fields::open(*value, at));
  GALLEY_TRY(const std::size_t type, thinking.required_choice("type", kTypes));
  GALLEY_TRY(const auto budget, thinking.natural("budget_tokens", kNaturalMax));
  if (budget) {
    add_note(notes, "`thinking.budget_tokens` is ignored");
  }
  thinking.note_unread(notes);
  return type != 2;
}

void settle_thinking(std::optional<bool> thinking,
                     std::optional<RequestedEffort> effort,
                     bool default_thinking,
                     Conversation& conversation) {
  if (thinking) {
    conversation.thinking = *thinking;
  } else {
    conversation.thinking = effort ? *effort != RequestedEffort::kNone : default_thinking;
  }
  conversation.effort = std::nullopt;
  if (!conversation.thinking) {
    return;
  }
  switch (effort.value_or(RequestedEffort::kHigh)) {
    case RequestedEffort::kMinimal:
    case RequestedEffort::kLow:
      conversation.effort = Effort::kLow;
      break;
    case RequestedEffort::kNone:  // `thinking: enabled` wins over effort `none`
    case RequestedEffort::kMedium:
    case RequestedEffort::kHigh:
      conversation.effort = Effort::kHigh;
      break;
    case RequestedEffort::kXhigh:
      conversation.effort = Effort::kXhigh;
      break;
    case RequestedEffort::kUltra:
    case RequestedEffort::kMax:
      conversation.effort = Effort::kMax;
      break;
  }
}

// --- sampling ----------------------------------------------------------------------------------

namespace {

std::string range_text(std::string_view name, std::string_view range) {
  return std::string("Invalid ")
      .append(name)
      .append(" value, the valid range of ")
      .append(name)
      .append(" is ")
      .append(range);
}

// Ranges only, in the reference's order.
Result<void> check_sampling(const SamplingFields& fields, Compat compat) {
  const Path body;
  if (compat == Compat::kRecipe02 && fields.n.value_or(1) != 1) {
    return invalid("Invalid n value (currently only n = 1 is supported)", body.member("n"));
  }
  if (fields.n && (*fields.n < 1 || *fields.n > kChoiceCountMax)) {
    return invalid(range_text("n", "[1, " + std::to_string(kChoiceCountMax) + "]"),
                   body.member("n"));
  }
  const auto outside = [](std::optional<float> value, float low, float high) {
    return value && !(*value >= low && *value <= high);
  };
  if (outside(fields.presence_penalty, -2.0F, 2.0F)) {
    return invalid(range_text("presence_penalty", "[-2, 2]"), body.member("presence_penalty"));
  }
  if (outside(fields.frequency_penalty, -2.0F, 2.0F)) {
    return invalid(range_text("frequency_penalty", "[-2, 2]"), body.member("frequency_penalty"));
  }
  if (outside(fields.temperature, 0.0F, 2.0F)) {
    return invalid(range_text("temperature", "[0, 2]"), body.member("temperature"));
  }
  if (outside(fields.top_p, std::numeric_limits<float>::denorm_min(), 1.0F)) {
    return invalid(range_text("top_p", "(0, 1.0]"), body.member("top_p"));
  }
  if (fields.top_logprobs && !fields.logprobs) {
    return invalid(
        "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is "
        "used.",
        body.member("top_logprobs"));
  }
  if (fields.top_logprobs && *fields.top_logprobs > kTopLogprobsMax) {
    return invalid(range_text("top_logprobs", "[0, " + std::to_string(kTopLogprobsMax) + "]."),
                   body.member("top_logprobs"));
  }
  if (fields.max_tokens &&
      (*fields.max_tokens < 1 ||
       (!fields.clamp_max_tokens && *fields.max_tokens > std::uint64_t{kMaxTokensMax}))) {
    // The reference has one name for it in all protocols.
    const std::string_view name = compat == Compat::kGalley ? fields.max_tokens_key : "max_tokens";
    return invalid(range_text(name, "[1, " + std::to_string(kMaxTokensMax) + "]"),
                   body.member(fields.max_tokens_key));
  }
  if (fields.seed && *fields.seed > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    return seed_out_of_range(body.member("seed"));
  }
  if (outside(fields.min_p, 0.0F, 1.0F)) {
    return invalid(range_text("min_p", "[0, 1]"), body.member("min_p"));
  }
  if (fields.top_k && *fields.top_k > std::uint64_t{std::numeric_limits<int>::max()}) {
    return invalid(
        range_text("top_k", "[0, " + std::to_string(std::numeric_limits<int>::max()) + "]"),
        body.member("top_k"));
  }
  return {};
}

// What the reference samples with (spec 5.1); with nothing sent this is the default of both modes.
float reference_top_p(std::optional<float> sent,
                      const Conversation& conversation,
                      ModelVersion version) {
  constexpr float kThinkingTopP = 0.95F;
  if (version == ModelVersion::kV41) {
    return conversation.thinking ? std::max(sent.value_or(1.0F), kThinkingTopP) : 1.0F;
  }
  if (conversation.thinking) {
    return conversation.has_tools() ? kThinkingTopP : 1.0F;
  }
  return sent.value_or(1.0F);
}

}  // namespace

std::unexpected<Error> seed_out_of_range(const Path& at) {
  return invalid(range_text("seed", "[0, 2^63)"), at);
}

Result<Sampling> settle_sampling(const SamplingFields& fields,
                                 const Conversation& conversation,
                                 ModelVersion version,
                                 Compat compat,
                                 std::vector<std::string>& notes) {
  GALLEY_CHECK_OK(check_sampling(fields, compat));
  Sampling sampling;
  if (fields.max_tokens) {
    sampling.max_tokens_key = fields.max_tokens_key;
    sampling.max_tokens =
        static_cast<std::int64_t>(std::min(*fields.max_tokens, std::uint64_t{kMaxTokensMax}));
    if (*fields.max_tokens > std::uint64_t{kMaxTokensMax}) {
      add_note(notes, "`max_tokens` is lowered to " + std::to_string(kMaxTokensMax));
    }
  }
  if (fields.seed) {
    sampling.seed = static_cast<std::int64_t>(*fields.seed);
  }
  sampling.logprobs = fields.logprobs;
  if (fields.top_logprobs) {
    sampling.top_logprobs = static_cast<int>(*fields.top_logprobs);
  }
  if (compat == Compat::kRecipe02) {
    sampling.temperature = conversation.thinking ? 1.0F : fields.temperature.value_or(1.0F);
    sampling.top_p = reference_top_p(fields.top_p, conversation, version);
    return sampling;
  }
  sampling.temperature = fields.temperature.value_or(1.0F);
  sampling.top_p = fields.top_p.value_or(reference_top_p(std::nullopt, conversation, version));
  sampling.n = static_cast<int>(fields.n.value_or(1));
  sampling.presence_penalty = fields.presence_penalty.value_or(0.0F);
  sampling.frequency_penalty = fields.frequency_penalty.value_or(0.0F);
  sampling.min_p = fields.min_p.value_or(0.0F);
  if (fields.top_k.value_or(0) != 0) {  // 0 is how clients spell "off"
    sampling.top_k = static_cast<int>(*fields.top_k);
  }
  return sampling;
}

// A negative seed is told as one that is too large is; the reference refuses it as no u64.
Result<std::optional<std::uint64_t>> read_seed(const Fields& body) {
  const Json* const value = body.find("seed");
  if (value != nullptr && value->int64() != nullptr && *value->int64() < 0) {
    return seed_out_of_range(body.at().member("seed"));
  }
  return body.natural("seed", kNaturalMax);
}

// What the range is, is said in one place, in the order of the other ranges.
Result<std::optional<std::uint64_t>> read_choice_count(const Fields& body) {
  auto count = body.natural("n", kByteMax);
  const Json* const value = body.find("n");
  if (!count && (value->int64() != nullptr || value->uint64() != nullptr)) {
    return 0;
  }
  return count;
}

Result<std::vector<std::pair<TokenId, float>>> read_logit_bias(const Fields& body) {
  constexpr float kBiasMax = 100.0F;
  std::vector<std::pair<TokenId, float>> biases;
  Json* const value = body.find("logit_bias");
  if (value == nullptr) {
    return biases;
  }
  const Path at = body.at().member("logit_bias");
  GALLEY_TRY(const Fields bias, Fields::open(*value, at));
  if (bias.members().size() > kLogitBiasCountMax) {
    return invalid("Too many entries in logit_bias: " + std::to_string(bias.members().size()) +
                       ", the limit is " + std::to_string(kLogitBiasCountMax) + ".",
                   at);
  }
  for (const JsonMember& member : bias.members()) {
    TokenId token{};
    const char* const end = member.key.data() + member.key.size();
    const auto [stop, error] = std::from_chars(member.key.data(), end, token);
    if (member.key.empty() || error != std::errc{} || stop != end) {
      return invalid("Invalid token id in logit_bias: '" + std::string(clipped(member.key)) +
                         "'. Expected an integer in decimal digits.",
                     at);
    }
    const std::optional<double> amount = member.value.number();
    if (!amount) {
      return wrong_type(member.value, "a number", at.member(member.key));
    }
    if (!(*amount >= -kBiasMax && *amount <= kBiasMax)) {
      return invalid("Invalid logit_bias value, the valid range of logit_bias is [-100, 100]",
                     at.member(member.key));
    }
    biases.emplace_back(token, static_cast<float>(*amount));
  }
  return biases;
}

Result<Stops> read_stops(const Fields& body, std::string_view key) {
  Stops stops;
  Json* const value = body.find(key);
  if (value == nullptr) {
    return stops;
  }
  const Path at = body.at().member(key);
  if (std::string* const text = value->string()) {
    stops.single = true;
    stops.strings.push_back(std::move(*text));
    return stops;
  }
  JsonArray* const array = value->array();
  if (array == nullptr) {
    return wrong_type(*value, "a string or an array of strings", at);
  }
  stops.strings.reserve(std::min(array->size(), kStopCountMax));
  for (std::size_t i = 0; i < array->size(); ++i) {
    std::string* const text = (*array)[i].string();
    if (text == nullptr) {
      return wrong_type((*array)[i], "a string", at.element(i));
    }
    stops.strings.push_back(std::move(*text));
  }
  return stops;
}

Result<void> check_stops(const Stops& stops, Compat compat, const Path& at) {
  if (stops.strings.size() > kStopCountMax) {
    return invalid("Stop string array too long: " + std::to_string(stops.strings.size()), at);
  }
  for (std::size_t i = 0; i < stops.strings.size(); ++i) {
    if (stops.strings[i].empty()) {
      // The reference writes `stop` for Messages' stop_sequences too.
      return stops.single
                 ? invalid(empty_string_text("stop"), at)
                 : invalid(empty_string_text("stop[" + std::to_string(i) + "]"), at.element(i));
    }
    if (compat == Compat::kGalley && stops.strings[i].size() > kStopBytesMax) {
      return invalid("Stop string too long: " + std::to_string(stops.strings[i].size()) +
                         " bytes, the limit is " + std::to_string(kStopBytesMax) + ".",
                     stops.single ? at : at.element(i));
    }
  }
  return {};
}

// --- reasoning, constraint, output ---------------------------------------------------------------

namespace {

// A call id of a thinking turn without reasoning (spec 6.0), with or without its underscores.
bool marks_empty_thinking(std::string_view id) {
  const bool ascii =
      std::ranges::all_of(id, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  return ascii && ((id.size() > 10 && id.substr(8, 3) == "ET_") ||
                   (id.size() > 7 && id.substr(6, 2) == "ET"));
}

}  // namespace

std::optional<std::size_t> settle_reasoning(std::vector<Message>& messages,
                                            bool thinking,
                                            bool has_tools,
                                            bool reject) {
  const auto last_user = std::find_if(messages.rbegin(), messages.rend(),
                                      [](const Message& m) { return m.role == Role::kUser; });
  // Number of messages up to and including the last user message.
  const auto open_turn = static_cast<std::size_t>(messages.rend() - last_user);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Message& message = messages[i];
    if (message.role != Role::kAssistant) {
      continue;
    }
    if (!thinking) {
      message.reasoning = std::nullopt;
      continue;
    }
    if (message.reasoning) {
      continue;
    }
    if (reject && i >= open_turn && (!message.tool_calls.empty() || has_tools) &&
        !std::ranges::any_of(message.tool_calls, marks_empty_thinking, &ToolCall::id)) {
      return i;
    }
    message.reasoning.emplace();
  }
  return std::nullopt;
}

std::string missing_reasoning_text(std::string_view field) {
  return std::string("The `").append(field).append(
      "` in the thinking mode must be passed back to the API.");
}

bool mentions_json(const std::vector<Message>& messages) {
  constexpr std::string_view kWord = "json";
  return std::ranges::any_of(messages, [&](const Message& message) {
    return !std::ranges::search(message.content.text, kWord, {}, lower).empty();
  });
}

Result<Constraint> make_constraint(const Conversation& conversation,
                                   std::string_view format_key,
                                   bool forced_call) {
  const Path body;
  if (conversation.has_tools()) {
    const std::vector<Tool>& tools = conversation.tools;
    const auto is_strict = [](const Tool& tool) { return tool.strict == true; };
    if (std::ranges::any_of(tools, is_strict)) {
      if (!std::ranges::all_of(tools, is_strict)) {
        return invalid("Cannot use strict tool with non-strict tool in the same request",
                       body.member("tools"));
      }
      if (!format_key.empty()) {
        return invalid(std::string(format_key) + " should not be used with tools",
                       body.member("tools"));
      }
    }
    const bool required = forced_call || conversation.tool_choice == ToolChoice::kRequired;
    Constraint constraint{
        required ? Constraint::Kind::kToolCallRequired : Constraint::Kind::kToolCall, "["};
    for (const Tool& tool : tools) {
      std::string& text = constraint.text;
      text.append(&tool == tools.data() ? "" : ",");
      text.append(R"({"type":"function","function":{"name":)");
      append_json_string(tool.name, text);
      text.append(R"(,"description":)");
      if (tool.description) {
        append_json_string(*tool.description, text);
      } else {
        text.append("null");
      }
      text.append(R"(,"parameters":)");
      const std::optional<Json>& schema =
          tool.constraint_parameters ? tool.constraint_parameters : tool.parameters;
      if (schema) {
        append_json(*schema, {}, text);
      } else {
        text.append("{}");
      }
      text.append(R"(,"strict":)");
      text.append(!tool.strict ? "null" : *tool.strict ? "true" : "false");
      text.append(tool.defer_loading ? R"(},"defer_loading":true})" : "}}");
    }
    constraint.text.push_back(']');
    return constraint;
  }
  switch (conversation.format.kind) {
    case ResponseFormat::Kind::kText:
      return Constraint{};
    case ResponseFormat::Kind::kJsonObject:
      return Constraint{Constraint::Kind::kJson, {}};
    case ResponseFormat::Kind::kJsonSchema:
      return Constraint{Constraint::Kind::kJson, to_json(conversation.format.constraint_schema)};
    case ResponseFormat::Kind::kRegex:
      return Constraint{Constraint::Kind::kRegex, conversation.format.regex};
  }
  std::unreachable();
}

void note_unenforced_format(const Conversation& conversation, std::vector<std::string>& notes) {
  if (conversation.has_tools() && conversation.tool_choice == ToolChoice::kRequired &&
      conversation.format.kind != ResponseFormat::Kind::kText) {
    add_note(notes, "the response format has no effect, because a call is required");
  }
}

OutputFormat make_output_format(const Conversation& conversation,
                                std::vector<std::string> stop_sequences) {
  OutputFormat output;
  output.thinking = conversation.thinking;
  output.parse_tool_calls = conversation.has_tools();
  output.in_tool_block = conversation.has_tools() && !conversation.thinking &&
                         conversation.tool_choice == ToolChoice::kRequired;
  output.json_output = conversation.format.kind == ResponseFormat::Kind::kJsonObject;
  output.stop_sequences = std::move(stop_sequences);
  if (!conversation.thinking) {
    return output;
  }
  output.stage = StartStage::kReasoningStart;
  if (!conversation.messages.empty() && conversation.messages.back().prefix) {
    const Message& last = conversation.messages.back();
    if (!last.content.empty()) {
      output.stage = StartStage::kContentContinuation;
    } else if (last.reasoning && !last.reasoning->empty()) {
      output.stage = StartStage::kReasoningContinuation;
    }
  }
  return output;
}

}  // namespace galley::recipe
