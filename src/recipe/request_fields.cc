#include "recipe/request_fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "recipe/limits.h"
#include "recipe/schema.h"

namespace galley::recipe {
namespace {

constexpr std::size_t kClipBytes = 64;

// "a string", "an object", "null".
std::string with_article(std::string_view type) {
  if (type == "null") {
    return "null";
  }
  const bool vowel = type.front() == 'a' || type.front() == 'i' || type.front() == 'o';
  return std::string(vowel ? "an " : "a ").append(type);
}

std::string empty_string_text(std::string_view place) {
  return std::string("Invalid '")
      .append(place)
      .append(
          "': empty string. Expected a string with minimum length 1, but got an empty string "
          "instead.");
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool equals_ignoring_case(std::string_view a, std::string_view lower_case) {
  return std::ranges::equal(a, lower_case, {}, lower);
}

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

}  // namespace

// --- paths and errors --------------------------------------------------------------------------

std::string Path::text() const {
  return spelled(true);
}

std::string Path::pattern() const {
  return spelled(false);
}

std::string Path::spelled(bool with_indices) const {
  if (parent_ == nullptr) {
    return {};
  }
  std::string out = parent_->spelled(with_indices);
  if (key_.empty()) {
    return out.append("[").append(with_indices ? std::to_string(index_) : "").append("]");
  }
  if (!out.empty()) {
    out.push_back('.');
  }
  return out.append(key_);
}

std::unexpected<Error> invalid(std::string what, const Path& at) {
  std::string where = at.text();
  return fail(Code::kInvalidArgument, std::move(what), where.empty() ? "body" : std::move(where));
}

std::unexpected<Error> wrong_type(const Json& value, std::string_view expected, const Path& at) {
  std::string what = "Invalid type for '";
  std::string where = at.text();
  what.append(where.empty() ? "body" : where).append("': expected ").append(expected);
  what.append(", but got ").append(with_article(value.type_name())).append(" instead.");
  return invalid(std::move(what), at);
}

std::unexpected<Error> missing(const Path& at) {
  return invalid("Missing required parameter: '" + at.text() + "'.", at);
}

std::unexpected<Error> unknown_value(std::string_view value,
                                     std::span<const std::string_view> known,
                                     const Path& at) {
  std::string what = "Invalid value: '";
  what.append(clipped(value)).append("'. Supported values are: ");
  for (std::size_t i = 0; i < known.size(); ++i) {
    what.append(i == 0 ? "'" : ", '").append(known[i]).append("'");
  }
  return invalid(what.append("."), at);
}

std::string_view clipped(std::string_view text) {
  if (text.size() <= kClipBytes) {
    return text;
  }
  std::size_t end = kClipBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  return text.substr(0, end);
}

// --- members -----------------------------------------------------------------------------------

Result<Fields> Fields::open(Json& value, const Path& at) {
  JsonObject* const object = value.object();
  if (object == nullptr) {
    return wrong_type(value, "an object", at);
  }
  return Fields(*object, at);
}

Json* Fields::find(std::string_view key) const {
  Json* const value = find_any(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Json* Fields::find_any(std::string_view key) const {
  const auto it = std::ranges::find(*object_, key, &JsonMember::key);
  if (it == object_->end()) {
    return nullptr;
  }
  const auto index = static_cast<std::size_t>(it - object_->begin());
  if (index < kTrackedMax) {
    read_.set(index);
  }
  return &it->value;
}

void Fields::expect(std::initializer_list<std::string_view> keys) const {
  for (const std::string_view key : keys) {
    std::ignore = find_any(key);
  }
}

void Fields::note_unread(std::vector<std::string>& notes) const {
  const std::size_t count = std::min(object_->size(), kTrackedMax);
  for (std::size_t i = 0; i < count && notes.size() < kNoteCountMax; ++i) {
    const auto& [key, value] = (*object_)[i];
    const bool asks = !value.is_null() && (value.array() == nullptr || !value.array()->empty());
    if (asks && !read_.test(i)) {
      std::string place = at_->pattern();
      place.append(place.empty() ? "" : ".").append(clipped(key));
      add_note(notes, "`" + place + "` is ignored");
    }
  }
}

Result<std::optional<std::string>> Fields::text(std::string_view key) const {
  Json* const value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (std::string* const string = value->string()) {
    return std::move(*string);
  }
  return wrong_type(*value, "a string", at_->member(key));
}

Result<std::string> Fields::required_text(std::string_view key) const {
  GALLEY_TRY(std::optional<std::string> value, text(key));
  if (!value) {
    return missing(at_->member(key));
  }
  return std::move(*value);
}

Result<std::optional<bool>> Fields::boolean(std::string_view key) const {
  const Json* const value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (const bool* const boolean = value->boolean()) {
    return *boolean;
  }
  return wrong_type(*value, "a boolean", at_->member(key));
}

Result<std::optional<std::uint64_t>> Fields::natural(std::string_view key,
                                                     std::uint64_t max) const {
  const Json* const value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::int64_t* const small = value->int64();
  const std::uint64_t* const large = value->uint64();
  if (small == nullptr && large == nullptr) {
    return wrong_type(*value, "an integer", at_->member(key));
  }
  const std::uint64_t number = small != nullptr ? static_cast<std::uint64_t>(*small) : *large;
  if ((small != nullptr && *small < 0) || number > max) {
    return invalid("Invalid value for '" + at_->member(key).text() +
                       "': expected an integer from 0 to " + std::to_string(max) + ", but got " +
                       to_json(*value) + " instead.",
                   at_->member(key));
  }
  return number;
}

Result<std::optional<float>> Fields::real(std::string_view key) const {
  const Json* const value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::optional<double> number = value->number();
  if (!number) {
    return wrong_type(*value, "a number", at_->member(key));
  }
  if (std::abs(*number) > double{std::numeric_limits<float>::max()}) {
    return std::copysign(std::numeric_limits<float>::infinity(), *number > 0 ? 1.0F : -1.0F);
  }
  return static_cast<float>(*number);
}

Result<JsonArray*> Fields::array(std::string_view key) const {
  Json* const value = find(key);
  if (value == nullptr) {
    return nullptr;
  }
  if (JsonArray* const array = value->array()) {
    return array;
  }
  return wrong_type(*value, "an array", at_->member(key));
}

Result<JsonArray*> Fields::required_array(std::string_view key) const {
  GALLEY_TRY(JsonArray* const value, array(key));
  if (value == nullptr) {
    return missing(at_->member(key));
  }
  return value;
}

Result<std::optional<std::size_t>> Fields::choice(std::string_view key,
                                                  std::span<const std::string_view> known) const {
  const Json* const value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::string* const text = value->string();
  if (text == nullptr) {
    return wrong_type(*value, "a string", at_->member(key));
  }
  const auto it = std::ranges::find(known, *text);
  if (it == known.end()) {
    return unknown_value(*text, known, at_->member(key));
  }
  return static_cast<std::size_t>(it - known.begin());
}

Result<std::size_t> Fields::required_choice(std::string_view key,
                                            std::span<const std::string_view> known) const {
  GALLEY_TRY(const std::optional<std::size_t> value, choice(key, known));
  if (!value) {
    return missing(at_->member(key));
  }
  return *value;
}

// --- notes -------------------------------------------------------------------------------------

void add_note(std::vector<std::string>& notes, std::string note) {
  if (notes.size() < kNoteCountMax && std::ranges::find(notes, note) == notes.end()) {
    notes.push_back(std::move(note));
  }
}

Result<void> refuse_fields(const Fields& body, std::span<const RefusedField> refused) {
  for (const RefusedField& field : refused) {
    if (body.find(field.name) != nullptr) {
      return invalid(
          "Unsupported parameter: '" + std::string(field.name) + "'. " + std::string(field.advice),
          body.at().member(field.name));
    }
  }
  return {};
}

// --- body, model, user -------------------------------------------------------------------------

Result<Json> parse_body(std::string_view body) {
  if (body.size() > kBodyBytesMax) {
    return fail(Code::kTooLarge,
                "The request body has " + std::to_string(body.size()) + " bytes, the limit is " +
                    std::to_string(kBodyBytesMax) + ".",
                "body");
  }
  Result<Json> value = parse_json(body);
  if (!value) {
    Error error = std::move(value).error();
    if (error.where.empty()) {
      error.where = "body";
    }
    return in_step("invalid JSON request", std::move(error));
  }
  if (value->object() == nullptr) {
    return wrong_type(*value, "an object", Path());
  }
  return value;
}

Result<ModelVersion> find_model(const CodecOptions& options, std::string_view name) {
  if (const auto it = options.models.find(name); it != options.models.end()) {
    return it->second;
  }
  std::string names;
  for (const auto& [known, version] : options.models) {  // the map is sorted
    names.append(names.empty() ? "" : ", ").append(known);
  }
  const Path body;
  // The reference repeats the name in full.
  const std::string_view shown = options.compat == Compat::kGalley ? clipped(name) : name;
  return invalid(
      "The supported API model names are " + names + ", but you passed " + std::string(shown) + ".",
      body.member("model"));
}

Result<void> check_user(std::string_view user, bool strict, const Path& at) {
  if (user.size() > kUserIdBytesMax || (strict && user.empty()) ||
      (strict && !std::ranges::all_of(user, is_name_byte))) {
    return invalid("Invalid '" + at.text() + "': expected " + (strict ? "1 to " : "at most ") +
                       std::to_string(kUserIdBytesMax) +
                       (strict ? " characters of '^[a-zA-Z0-9_-]+$'." : " bytes."),
                   at);
  }
  return {};
}

// --- thinking ----------------------------------------------------------------------------------

Result<std::optional<RequestedEffort>> read_effort(const Fields& fields, std::string_view key) {
  constexpr std::array<std::string_view, 8> kNames = {"none", "minimal", "low",   "medium",
                                                      "high", "xhigh",   "ultra", "max"};
  GALLEY_TRY(const std::optional<std::size_t> index, fields.choice(key, kNames));
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
    return invalid(range_text("max_tokens", "[1, " + std::to_string(kMaxTokensMax) + "]"),
                   body.member(fields.max_tokens_key));
  }
  if (fields.seed && *fields.seed > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    return invalid(range_text("seed", "[0, 2^63)"), body.member("seed"));
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

Result<Sampling> settle_sampling(const SamplingFields& fields,
                                 const Conversation& conversation,
                                 ModelVersion version,
                                 Compat compat,
                                 std::vector<std::string>& notes) {
  GALLEY_CHECK_OK(check_sampling(fields, compat));
  Sampling sampling;
  if (fields.max_tokens) {
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
  if (fields.top_k.value_or(0) != 0) {  // 0 is how clients spell "off"
    sampling.top_k = static_cast<int>(*fields.top_k);
  }
  return sampling;
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

// --- tools -------------------------------------------------------------------------------------

Result<void> check_tool_name(std::string_view name, std::string_view place) {
  const std::string where = std::string(place).append(".name");
  if (name.empty()) {
    return fail(Code::kInvalidArgument, empty_string_text(where), where);
  }
  if (name.size() > kToolNameBytesMax) {
    return fail(Code::kInvalidArgument,
                "Invalid '" + where + "': string too long. Expected a string with maximum length " +
                    std::to_string(kToolNameBytesMax) + ", but got a string with length " +
                    std::to_string(name.size()) + " instead.",
                where);
  }
  if (!std::ranges::all_of(name, is_name_byte)) {
    return fail(Code::kInvalidArgument,
                "Invalid '" + where +
                    "': string does not match pattern. Expected a string that matches the pattern "
                    "'^[a-zA-Z0-9_-]+$'.",
                where);
  }
  return {};
}

Result<void> settle_tools(std::vector<DeclaredTool> declared,
                          const RequestedToolChoice& choice,
                          Compat compat,
                          Conversation& conversation,
                          std::vector<std::string>& notes) {
  using Kind = RequestedToolChoice::Kind;
  conversation.tools.clear();
  conversation.tool_choice = choice.kind == Kind::kNone ? ToolChoice::kNone : ToolChoice::kAuto;
  const bool forced = choice.kind == Kind::kRequired || choice.kind == Kind::kNamed;
  if (choice.kind == Kind::kNone || declared.empty()) {
    if (forced) {
      add_note(notes, "`tool_choice` is ignored: no tools are declared");
    }
    return {};
  }
  const Path body;
  if (compat == Compat::kGalley && declared.size() > kToolCountMax) {
    return invalid("Too many tools: " + std::to_string(declared.size()) + ", the limit is " +
                       std::to_string(kToolCountMax) + ".",
                   body.member("tools"));
  }
  std::unordered_set<std::string_view> names;
  bool found = false;
  for (DeclaredTool& entry : declared) {
    if (!names.insert(entry.tool.name).second) {
      return fail(Code::kInvalidArgument, "Tool names must be unique.", entry.place + ".name");
    }
    GALLEY_CHECK_OK(settle_tool_schema(
        entry.tool, compat, std::string(entry.place).append(".").append(entry.schema_key), notes));
    found |= entry.tool.name == choice.name;
  }
  if (choice.kind == Kind::kNamed && !found) {
    return invalid("Invalid value for 'tool_call': no function named '" + choice.name +
                       "' was specified in the 'tools' parameter.",
                   body.member("tool_choice"));
  }
  if (forced && conversation.thinking && compat == Compat::kRecipe02) {
    return invalid("Thinking mode does not support this tool_choice", body.member("tool_choice"));
  }
  conversation.tools.reserve(declared.size());
  for (DeclaredTool& entry : declared) {
    if (choice.kind != Kind::kNamed || entry.tool.name == choice.name) {
      conversation.tools.push_back(std::move(entry.tool));
    }
  }
  conversation.tool_choice = forced ? ToolChoice::kRequired : ToolChoice::kAuto;
  return {};
}

Result<void> settle_arguments(std::string& arguments, const Path& at) {
  if (arguments.find_first_not_of(" \t\r\n") == std::string::npos) {
    arguments = "{}";
    return {};
  }
  if (const Result<Json> value = parse_json(arguments); !value) {
    return invalid("Invalid '" + at.text() + "': expected JSON text (" + value.error().what + ").",
                   at);
  }
  return {};
}

Result<void> settle_announced_tools(Conversation& conversation) {
  struct Settled {
    const Tool* tool = nullptr;
    std::size_t bytes = 0;  // about what one announcement adds to the prompt; 0: not counted yet
  };
  std::unordered_map<std::string_view, Settled> settled;
  for (const Tool& tool : conversation.tools) {
    settled.emplace(tool.name, Settled{.tool = &tool});
  }
  std::size_t total = 0;
  std::size_t messages_kept = 0;
  for (Message& message : conversation.messages) {
    std::size_t kept = 0;
    for (Tool& tool : message.announced_tools) {
      const auto it = settled.find(tool.name);
      if (it == settled.end()) {
        continue;
      }
      Settled& known = it->second;
      if (known.bytes == 0) {
        known.bytes = 1 + (known.tool->description ? known.tool->description->size() : 0) +
                      (known.tool->parameters ? to_json(*known.tool->parameters).size() : 0);
      }
      total += known.bytes;
      if (total > kAnnouncedBytesMax) {
        return fail(Code::kInvalidArgument,
                    "Announced tool schemas too large, the limit is " +
                        std::to_string(kAnnouncedBytesMax) + " bytes.",
                    "messages");
      }
      message.announced_tools[kept++] = *known.tool;
    }
    const bool emptied = kept == 0 && !message.announced_tools.empty();
    message.announced_tools.resize(kept);
    if (emptied && message.content.empty()) {
      continue;
    }
    if (Message& place = conversation.messages[messages_kept++]; &place != &message) {
      place = std::move(message);
    }
  }
  conversation.messages.resize(messages_kept);
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
                                   bool has_response_format,
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
      if (has_response_format) {
        return invalid("response_format should not be used with tools", body.member("tools"));
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
  if (conversation.has_tools() && conversation.format.kind != ResponseFormat::Kind::kText) {
    add_note(notes, "the response format is not enforced, because tools are declared");
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

// --- content and images ------------------------------------------------------------------------

void join_block(Content& content, Content block, std::size_t index) {
  if (index == 0) {
    content = std::move(block);
    return;
  }
  content.text.append("\n\n");
  content.append(std::move(block));
}

Content text_block(std::string text) {
  return {std::move(text), {}};
}

Content image_block(Image image) {
  Content content;
  image.offset = 0;
  content.images.push_back(std::move(image));
  return content;
}

Result<ImageDetail> read_detail(const Fields& fields) {
  constexpr std::array<std::string_view, 4> kNames = {"low", "high", "original", "auto"};
  GALLEY_TRY(const std::optional<std::size_t> index, fields.choice("detail", kNames));
  return index ? static_cast<ImageDetail>(*index) : ImageDetail::kHigh;
}

bool is_link(std::string_view url) {
  return equals_ignoring_case(url.substr(0, 4), "http");
}

std::string link_too_long(std::size_t bytes) {
  return "external link length " + std::to_string(bytes) + " too long, max link length " +
         std::to_string(kImageLinkBytesMax) +
         ". Consider passing file data directly with base64 data url instead.";
}

Image image_from_url(std::string url, ImageDetail detail, std::string path) {
  return {.kind = is_link(url) ? Image::Kind::kUrl : Image::Kind::kDataUrl,
          .detail = detail,
          .path = std::move(path),
          .reference = std::move(url)};
}

Result<void> check_data_urls(const Content& content, std::string_view path, const Path& at) {
  for (const Image& image : content.images) {
    if (image.kind != Image::Kind::kDataUrl) {
      continue;
    }
    DataUrlFault fault = DataUrlFault::kNoUrl;
    if (image.reference.find("base64,") != std::string::npos) {
      fault = data_url_fault(image.reference);
    }
    switch (fault) {
      case DataUrlFault::kNone:
        break;
      case DataUrlFault::kNoUrl:
        return invalid(std::string(path) + ": Unsupported image_url format", at);
      case DataUrlFault::kMediaType:
        return invalid(std::string(path) +
                           ": You have uploaded an unsupported image. Please make sure your image "
                           "is valid and has one of the following formats: webp, png, jpeg, and "
                           "gif.",
                       at);
      case DataUrlFault::kBase64:
        return invalid(std::string(path) + ": Invalid base64 data", at);
    }
  }
  return {};
}

namespace {

bool is_url_blank(char c) {  // what a URL parser drops everywhere
  return c == '\t' || c == '\n' || c == '\r';
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  const char l = lower(c);
  return l >= 'a' && l <= 'f' ? l - 'a' + 10 : -1;
}

bool is_base64_byte(unsigned char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
         c == '/';
}

// Percent-decoding and the "forgiving" base64 of the Infra standard, up to a fragment.
bool is_forgiving_base64(std::string_view body) {
  std::size_t symbols = 0;
  std::size_t padding = 0;
  for (std::size_t i = 0; i < body.size(); ++i) {
    auto byte = static_cast<unsigned char>(body[i]);
    if (byte == '#') {
      break;
    }
    if (byte == '%' && i + 2 < body.size() && hex_value(body[i + 1]) >= 0 &&
        hex_value(body[i + 2]) >= 0) {
      byte = static_cast<unsigned char>(hex_value(body[i + 1]) * 16 + hex_value(body[i + 2]));
      i += 2;
    }
    if (is_base64_byte(byte)) {
      if (padding != 0) {
        return false;
      }
      ++symbols;
    } else if (byte == '=') {
      ++padding;
    } else if (byte != ' ' && byte != '\t' && byte != '\n' && byte != '\r' && byte != '\f') {
      return false;
    }
  }
  switch (symbols % 4) {
    case 0:
      return padding == 0;
    case 2:
      return padding == 0 || padding == 2;
    case 3:
      return padding <= 1;
    default:
      return false;
  }
}

// Cuts "; base64" off the end of a data URL's header; false when it is not there.
bool cut_base64_suffix(std::string& header) {
  constexpr std::string_view kWord = "base64";
  if (header.size() < kWord.size() + 1 ||
      !equals_ignoring_case(std::string_view(header).substr(header.size() - kWord.size()), kWord)) {
    return false;
  }
  std::size_t end = header.size() - kWord.size();
  while (end > 0 && header[end - 1] == ' ') {
    --end;
  }
  if (end == 0 || header[end - 1] != ';') {
    return false;
  }
  header.resize(end - 1);
  return true;
}

bool is_image_media_type(std::string_view header) {
  const auto trim = [](std::string_view text) {
    const std::size_t first = text.find_first_not_of(' ');
    return first == std::string_view::npos
               ? std::string_view()
               : text.substr(first, text.find_last_not_of(' ') - first + 1);
  };
  const std::string_view type = trim(header.substr(0, header.find(';')));
  constexpr std::array<std::string_view, 5> kTypes = {"image/jpeg", "image/jpg", "image/png",
                                                      "image/gif", "image/webp"};
  return std::ranges::any_of(
      kTypes, [&](std::string_view known) { return equals_ignoring_case(type, known); });
}

}  // namespace

DataUrlFault data_url_fault(std::string_view url) {
  constexpr std::string_view kScheme = "data:";
  std::size_t begin = 0;
  while (begin < url.size() && static_cast<unsigned char>(url[begin]) <= ' ') {
    ++begin;
  }
  for (std::size_t matched = 0; matched < kScheme.size(); ++begin) {
    if (begin == url.size()) {
      return DataUrlFault::kNoUrl;
    }
    if (is_url_blank(url[begin])) {
      continue;
    }
    if (lower(url[begin]) != kScheme[matched]) {
      return DataUrlFault::kNoUrl;
    }
    ++matched;
  }
  const std::size_t comma = url.find_first_of(",#", begin);
  if (comma == std::string_view::npos || url[comma] == '#') {
    return DataUrlFault::kNoUrl;
  }
  std::string header(url.substr(begin, comma - begin));
  std::erase_if(header, is_url_blank);
  header.erase(0, header.find_first_not_of(' '));
  header.resize(header.find_last_not_of(' ') + 1);
  const bool base64 = cut_base64_suffix(header);
  if (!is_image_media_type(header)) {
    return DataUrlFault::kMediaType;
  }
  std::string_view body = url.substr(comma + 1);
  while (!body.empty() && static_cast<unsigned char>(body.back()) <= ' ') {
    body.remove_suffix(1);
  }
  return base64 && !is_forgiving_base64(body) ? DataUrlFault::kBase64 : DataUrlFault::kNone;
}

bool is_base64(std::string_view data) {
  std::size_t symbols = data.size();
  while (symbols > 0 && data.size() - symbols < 2 && data[symbols - 1] == '=') {
    --symbols;
  }
  if (data.size() % 4 != 0 || !std::ranges::all_of(data.substr(0, symbols), [](char c) {
        return is_base64_byte(static_cast<unsigned char>(c));
      })) {
    return false;
  }
  // The bits of the last symbol that no byte takes must be zero: 2 of them beside one '=', 4 beside
  // two.
  constexpr std::string_view kZeroLow2 = "AEIMQUYcgkosw048";
  constexpr std::string_view kZeroLow4 = "AQgw";
  const std::size_t padding = data.size() - symbols;
  return padding == 0 ||
         (padding == 1 ? kZeroLow2 : kZeroLow4).find(data[symbols - 1]) != std::string_view::npos;
}

namespace {

// The reference's spelling of a place (".messages[2]", "messages.2.content[0]") as a path.
std::string request_path(std::string_view place) {
  std::string out;
  for (std::size_t i = 0; i < place.size(); ++i) {
    if (place[i] != '.' || i + 1 == place.size() || place[i + 1] < '0' || place[i + 1] > '9') {
      if (i != 0 || place[i] != '.') {
        out.push_back(place[i]);
      }
      continue;
    }
    const std::size_t end = std::min(place.find_first_of(".[", i + 1), place.size());
    out.append("[").append(place.substr(i + 1, end - i - 1)).append("]");
    i = end - 1;
  }
  return out;
}

}  // namespace

Result<void> check_image_limits(const Conversation& conversation) {
  std::size_t count = 0;
  std::size_t bytes = 0;
  for (const Message& message : conversation.messages) {
    for (const Image& image : message.content.images) {
      ++count;
      const std::string where = request_path(image.path);
      if (count > kImageCountMax) {
        return fail(Code::kInvalidArgument,
                    "Too many images, the limit is " + std::to_string(kImageCountMax) + ".", where);
      }
      if (image.kind != Image::Kind::kDataUrl) {
        continue;
      }
      bytes += image.reference.size();
      if (image.reference.size() > kImageBytesMax || bytes > kImageBytesTotalMax) {
        return fail(Code::kInvalidArgument,
                    "Images too large, the limit is " + std::to_string(kImageBytesMax) +
                        " encoded bytes for one image and " + std::to_string(kImageBytesTotalMax) +
                        " for all of a request.",
                    where);
      }
    }
  }
  return {};
}

}  // namespace galley::recipe
