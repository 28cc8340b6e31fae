#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "recipe/limits.h"
#include "recipe/request.h"
#include "recipe/request_fields.h"
#include "recipe/schema.h"

// Chat Completions bodies (spec recipe 6.2).
namespace galley::recipe {
namespace {

constexpr std::array<RefusedField, 5> kRefusedFields = {{
    {"functions", "Use 'tools' instead."},
    {"function_call", "Use 'tool_choice' instead."},
    {"prediction", "Predicted outputs are not supported."},
    {"audio", "Audio output is not supported."},
    {"web_search_options", "Server-side web search is not supported; declare a tool instead."},
}};
constexpr std::array<RefusedField, 2> kRefusedMessageFields = {{
    {"function_call", "Use 'tool_calls' instead."},
    {"audio", "Audio is not supported."},
}};

// --- the body, typed but not judged --------------------------------------------------------------

struct Part {
  enum class Kind : std::uint8_t { kText, kImageUrl, kFile };
  Kind kind{};
  std::string text;  // kText: the text, kImageUrl: the url
  ImageDetail detail = ImageDetail::kHigh;
  std::optional<std::string> file_id;
  std::optional<std::string> file_data;
  bool has_filename = false;
};

struct PartList {
  std::optional<std::string> text;  // content sent as one string
  std::vector<Part> parts;
};

enum class ChatRole : std::uint8_t {
  kSystem,
  kUser,
  kAssistant,
  kTool,
  kLatestReminder,
  kDeveloper,
};

struct ChatMessage {
  ChatRole role{};
  std::optional<PartList> content;
  std::optional<std::string> reasoning;
  std::optional<std::vector<ToolCall>> tool_calls;
  bool prefix = false;
  std::string tool_call_id;
};

struct ChatBody {
  std::string model;
  std::vector<ChatMessage> messages;
  SamplingFields sampling;
  std::vector<std::pair<TokenId, float>> logit_bias;
  Stops stops;
  bool stream = false;
  bool has_stream_options = false;
  bool include_usage = false;
  bool has_response_format = false;
  ResponseFormat format;
  bool strict_schema = false;
  std::vector<DeclaredTool> tools;
  RequestedToolChoice tool_choice;
  bool parallel_tool_calls = true;
  std::optional<RequestedEffort> effort;
  std::optional<bool> thinking;
  std::string user;
};

// `message` is the place of one that must not ask to be continued.
std::unexpected<Error> misplaced_prefix(const Path& message) {
  return invalid(
      "Invalid completion message: prefix set true with message which is not final message or "
      "message role is not assistant",
      message.member("prefix"));
}

// First step: JSON to ChatBody, types only.
class Reader {
 public:
  Reader(const Fields& body, bool galley, std::vector<std::string>& notes)
      : body_(body), galley_(galley), notes_(notes) {}

  Result<ChatBody> read() {
    ChatBody out;
    GALLEY_TRY(out.model, body_.required_text("model"));
    GALLEY_CHECK_OK(read_messages(out));
    GALLEY_CHECK_OK(read_sampling(out));
    GALLEY_CHECK_OK(read_stream(out));
    GALLEY_CHECK_OK(read_response_format(out));
    GALLEY_CHECK_OK(read_tools(out));
    GALLEY_CHECK_OK(read_tool_choice(out));
    GALLEY_TRY(out.effort, read_effort(body_, "reasoning_effort"));
    GALLEY_TRY(out.thinking, read_thinking(body_, notes_));
    if (galley_) {
      GALLEY_CHECK_OK(read_extensions(out));
    }
    return out;
  }

 private:
  Result<void> read_messages(ChatBody& out) {
    GALLEY_TRY(JsonArray* const messages, body_.required_array("messages"));
    const Path at = body_.at().member("messages");
    if (galley_ && messages->size() > kMessageCountMax) {
      return invalid("Too many messages: " + std::to_string(messages->size()) + ", the limit is " +
                         std::to_string(kMessageCountMax) + ".",
                     at);
    }
    out.messages.reserve(messages->size());
    for (std::size_t i = 0; i < messages->size(); ++i) {
      GALLEY_CHECK_OK(read_message((*messages)[i], at.element(i), out.messages.emplace_back()));
    }
    return {};
  }

  Result<void> read_message(Json& value, const Path& at, ChatMessage& out) {
    constexpr std::array<std::string_view, 6> kRoles = {
        "system", "user", "assistant", "tool", "latest_reminder", "developer"};
    GALLEY_TRY(const Fields message, Fields::open(value, at));
    // The reference knows no developer role.
    GALLEY_TRY(const std::size_t role,
               message.required_choice(
                   "role", std::span(kRoles).first(galley_ ? kRoles.size() : kRoles.size() - 1)));
    out.role = static_cast<ChatRole>(role);
    if (galley_) {
      GALLEY_CHECK_OK(refuse_fields(message, kRefusedMessageFields));
    }
    GALLEY_CHECK_OK(read_by_role(message, out));
    if (galley_) {
      GALLEY_TRY(const std::optional<bool> prefix, message.boolean("prefix"));
      if (prefix.value_or(false) && out.role != ChatRole::kAssistant) {
        return misplaced_prefix(at);
      }
      message.note_unread(notes_);
    }
    return {};
  }

  Result<void> read_by_role(const Fields& message, ChatMessage& out) {
    const Path& at = message.at();
    if (out.role == ChatRole::kLatestReminder) {
      GALLEY_TRY(std::string text, message.required_text("content"));
      out.content.emplace().text = std::move(text);
      return {};
    }
    if (Json* const content = message.find("content")) {
      GALLEY_CHECK_OK(read_content(*content, at.member("content"), out.content.emplace()));
    } else if (out.role != ChatRole::kAssistant) {
      return missing(at.member("content"));
    }
    if (out.role == ChatRole::kTool) {
      GALLEY_TRY(out.tool_call_id, message.required_text("tool_call_id"));
      return {};
    }
    GALLEY_TRY(const std::optional<std::string> name, message.text("name"));
    if (name) {
      add_note(notes_, "`messages[].name` is ignored");
    }
    return out.role == ChatRole::kAssistant ? read_assistant(message, out) : Result<void>();
  }

  Result<void> read_assistant(const Fields& message, ChatMessage& out) {
    GALLEY_TRY(out.reasoning, message.text("reasoning_content"));
    if (galley_) {
      // Some clients replay it under this name; others keep something else there.
      Json* const alias = message.find("reasoning");
      if (!out.reasoning && alias != nullptr && alias->string() != nullptr) {
        out.reasoning = std::move(*alias->string());
      }
    }
    GALLEY_TRY(const std::optional<bool> prefix, message.boolean("prefix"));
    out.prefix = prefix.value_or(false);
    GALLEY_TRY(JsonArray* const calls, message.array("tool_calls"));
    if (calls == nullptr) {
      return {};
    }
    const Path at = message.at().member("tool_calls");
    out.tool_calls.emplace().reserve(calls->size());
    for (std::size_t i = 0; i < calls->size(); ++i) {
      GALLEY_CHECK_OK(read_call((*calls)[i], at.element(i), out.tool_calls->emplace_back()));
    }
    return {};
  }

  Result<void> read_call(Json& value, const Path& at, ToolCall& out) {
    constexpr std::array<std::string_view, 1> kTypes = {"function"};
    GALLEY_TRY(const Fields call, Fields::open(value, at));
    GALLEY_TRY(out.id, call.required_text("id"));
    GALLEY_CHECK_OK(call.required_choice("type", kTypes));
    const Path function_at = at.member("function");
    GALLEY_TRY(const Fields function, open_member(call, "function", function_at));
    GALLEY_TRY(out.name, function.required_text("name"));
    GALLEY_TRY(std::optional<std::string> arguments, function.text("arguments"));
    if (!arguments && !galley_) {
      return missing(function_at.member("arguments"));
    }
    out.arguments = std::move(arguments).value_or("");
    call.expect({"index"});  // of a reply that is sent back
    note_unread({&call, &function});
    return {};
  }

  Result<void> read_content(Json& value, const Path& at, PartList& out) {
    if (std::string* const text = value.string()) {
      out.text = std::move(*text);
      return {};
    }
    JsonArray* const parts = value.array();
    if (parts == nullptr) {
      return wrong_type(value, "a string or an array of objects", at);
    }
    out.parts.reserve(parts->size());
    for (std::size_t i = 0; i < parts->size(); ++i) {
      GALLEY_CHECK_OK(read_part((*parts)[i], at.element(i), out.parts.emplace_back()));
    }
    return {};
  }

  Result<void> read_part(Json& value, const Path& at, Part& out) {
    constexpr std::array<std::string_view, 3> kTypes = {"text", "image_url", "file"};
    GALLEY_TRY(const Fields part, Fields::open(value, at));
    GALLEY_TRY(const std::size_t type, part.required_choice("type", kTypes));
    out.kind = static_cast<Part::Kind>(type);
    switch (out.kind) {
      case Part::Kind::kText: {
        GALLEY_TRY(out.text, part.required_text("text"));
        note_unread({&part});
        return {};
      }
      case Part::Kind::kImageUrl: {
        const Path url_at = at.member("image_url");
        GALLEY_TRY(const Fields image, open_member(part, "image_url", url_at));
        GALLEY_TRY(out.text, image.required_text("url"));
        GALLEY_TRY(out.detail, read_detail(image));
        note_unread({&part, &image});
        return {};
      }
      case Part::Kind::kFile: {
        // OpenAI nests the members under `file`, the reference does not.
        const Path file_at = at.member("file");
        if (Json* const nested = galley_ ? part.find("file") : nullptr) {
          GALLEY_TRY(const Fields file, Fields::open(*nested, file_at));
          GALLEY_CHECK_OK(read_file(file, out));
          note_unread({&part, &file});
          return {};
        }
        GALLEY_CHECK_OK(read_file(part, out));
        note_unread({&part});
        return {};
      }
    }
    std::unreachable();
  }

  static Result<void> read_file(const Fields& file, Part& out) {
    GALLEY_TRY(out.file_id, file.text("file_id"));
    GALLEY_TRY(out.file_data, file.text("file_data"));
    GALLEY_TRY(const std::optional<std::string> filename, file.text("filename"));
    out.has_filename = filename.has_value();
    return {};
  }

  // What was sent in these objects and not read.
  void note_unread(std::initializer_list<const Fields*> objects) {
    for (const Fields* const fields : objects) {
      fields->note_unread(notes_);
    }
  }

  // A required object member.
  static Result<Fields> open_member(const Fields& fields, std::string_view key, const Path& at) {
    Json* const value = fields.find(key);
    if (value == nullptr) {
      return missing(at);
    }
    return Fields::open(*value, at);
  }

  Result<void> read_sampling(ChatBody& out) {
    SamplingFields& s = out.sampling;
    GALLEY_TRY(s.frequency_penalty, body_.real("frequency_penalty"));
    GALLEY_TRY(s.presence_penalty, body_.real("presence_penalty"));
    GALLEY_TRY(const std::optional<bool> logprobs, body_.boolean("logprobs"));
    s.logprobs = logprobs.value_or(false);
    GALLEY_TRY(s.top_logprobs, body_.natural("top_logprobs", kByteMax));
    GALLEY_TRY(s.max_tokens, body_.natural("max_tokens", kWordMax));
    GALLEY_TRY(s.n, body_.natural("n", kByteMax));
    GALLEY_TRY(s.seed, body_.natural("seed", kNaturalMax));
    GALLEY_TRY(s.temperature, body_.real("temperature"));
    GALLEY_TRY(s.top_p, body_.real("top_p"));
    GALLEY_TRY(out.stops, read_stops(body_, "stop"));
    return {};
  }

  Result<void> read_stream(ChatBody& out) {
    GALLEY_TRY(const std::optional<bool> stream, body_.boolean("stream"));
    out.stream = stream.value_or(false);
    GALLEY_TRY(const std::optional<bool> parallel, body_.boolean("parallel_tool_calls"));
    out.parallel_tool_calls = parallel.value_or(true);
    Json* const value = body_.find("stream_options");
    if (value == nullptr) {
      return {};
    }
    const Path at = body_.at().member("stream_options");
    GALLEY_TRY(const Fields options, Fields::open(*value, at));
    GALLEY_TRY(const std::optional<bool> usage, options.boolean("include_usage"));
    out.has_stream_options = true;
    out.include_usage = usage.value_or(false);
    options.note_unread(notes_);
    return {};
  }

  Result<void> read_response_format(ChatBody& out) {
    constexpr std::array<std::string_view, 4> kTypes = {"text", "json_object", "json_schema",
                                                        "regex"};
    Json* const value = body_.find("response_format");
    if (value == nullptr) {
      return {};
    }
    out.has_response_format = true;
    const Path at = body_.at().member("response_format");
    GALLEY_TRY(const Fields format, Fields::open(*value, at));
    GALLEY_TRY(const std::size_t type, format.required_choice("type", kTypes));
    out.format.kind = static_cast<ResponseFormat::Kind>(type);
    if (out.format.kind == ResponseFormat::Kind::kRegex) {
      GALLEY_TRY(out.format.regex, format.required_text("regex"));
    }
    if (out.format.kind == ResponseFormat::Kind::kJsonSchema) {
      const Path schema_at = at.member("json_schema");
      GALLEY_TRY(const Fields schema, open_member(format, "json_schema", schema_at));
      GALLEY_CHECK_OK(schema.text("name"));
      GALLEY_TRY(const std::optional<bool> strict, schema.boolean("strict"));
      out.strict_schema = strict.value_or(false);
      Json* const document = schema.find("schema");
      if (document == nullptr) {
        return missing(schema_at.member("schema"));
      }
      out.format.schema = std::move(*document);
      schema.note_unread(notes_);
    }
    format.note_unread(notes_);
    return {};
  }

  Result<void> read_tools(ChatBody& out) {
    constexpr std::array<std::string_view, 1> kTypes = {"function"};
    GALLEY_TRY(JsonArray* const tools, body_.array("tools"));
    if (tools == nullptr) {
      return {};
    }
    const Path tools_at = body_.at().member("tools");
    out.tools.reserve(tools->size());
    for (std::size_t i = 0; i < tools->size(); ++i) {
      const Path at = tools_at.element(i);
      GALLEY_TRY(const Fields tool, Fields::open((*tools)[i], at));
      GALLEY_CHECK_OK(tool.required_choice("type", kTypes));
      const Path function_at = at.member("function");
      GALLEY_TRY(const Fields function, open_member(tool, "function", function_at));
      DeclaredTool& declared = out.tools.emplace_back();
      declared.place = function_at.text();
      GALLEY_TRY(declared.tool.name, function.required_text("name"));
      GALLEY_TRY(declared.tool.description, function.text("description"));
      GALLEY_TRY(declared.tool.strict, function.boolean("strict"));
      if (Json* const parameters = function.find("parameters")) {
        declared.tool.parameters = std::move(*parameters);
      }
      note_unread({&tool, &function});
    }
    return {};
  }

  Result<void> read_tool_choice(ChatBody& out) {
    using Kind = RequestedToolChoice::Kind;
    constexpr std::array<std::string_view, 3> kNames = {"auto", "none", "required"};
    constexpr std::array<std::string_view, 1> kTypes = {"function"};
    Json* const value = body_.find("tool_choice");
    if (value == nullptr) {
      return {};
    }
    const Path at = body_.at().member("tool_choice");
    if (value->string() != nullptr) {
      GALLEY_TRY(const std::size_t kind, body_.required_choice("tool_choice", kNames));
      out.tool_choice.kind = static_cast<Kind>(kind);
      return {};
    }
    if (value->object() == nullptr) {
      return wrong_type(*value, "'none', 'auto', 'required' or an object", at);
    }
    GALLEY_TRY(const Fields choice, Fields::open(*value, at));
    GALLEY_CHECK_OK(choice.required_choice("type", kTypes));
    const Path function_at = at.member("function");
    GALLEY_TRY(const Fields function, open_member(choice, "function", function_at));
    GALLEY_TRY(out.tool_choice.name, function.required_text("name"));
    out.tool_choice.kind = Kind::kNamed;
    note_unread({&choice, &function});
    return {};
  }

  // What the reference does not know (spec 9.5).
  Result<void> read_extensions(ChatBody& out) {
    GALLEY_CHECK_OK(refuse_fields(body_, kRefusedFields));
    GALLEY_TRY(const auto completion, body_.natural("max_completion_tokens", kWordMax));
    if (completion && out.sampling.max_tokens) {
      add_note(notes_, "`max_completion_tokens` is ignored: `max_tokens` was sent too");
    } else if (completion) {
      out.sampling.max_tokens = completion;
      out.sampling.max_tokens_key = "max_completion_tokens";
    }
    GALLEY_TRY(out.sampling.top_k, body_.natural("top_k", kWordMax));
    GALLEY_TRY(std::optional<std::string> user_id, body_.text("user_id"));
    GALLEY_TRY(std::optional<std::string> user, body_.text("user"));
    if (user_id) {
      GALLEY_CHECK_OK(check_user(*user_id, true, body_.at().member("user_id")));
    } else if (user) {
      GALLEY_CHECK_OK(check_user(*user, false, body_.at().member("user")));
    }
    out.user = std::move(user_id).value_or(std::move(user).value_or(""));
    GALLEY_CHECK_OK(read_modalities());
    GALLEY_CHECK_OK(read_logit_bias(out));
    // Asks for what happens anyway: the prefix cache needs no key.
    body_.expect({"prompt_cache_key", "prompt_cache_retention"});
    body_.note_unread(notes_);
    return {};
  }

  Result<void> read_modalities() {
    constexpr std::array<std::string_view, 1> kKnown = {"text"};
    GALLEY_TRY(const JsonArray* const modalities, body_.array("modalities"));
    const Path at = body_.at().member("modalities");
    for (std::size_t i = 0; modalities != nullptr && i < modalities->size(); ++i) {
      const std::string* const name = (*modalities)[i].string();
      if (name == nullptr) {
        return wrong_type((*modalities)[i], "a string", at.element(i));
      }
      if (*name != kKnown[0]) {
        return unknown_value(*name, kKnown, at.element(i));
      }
    }
    return {};
  }

  Result<void> read_logit_bias(ChatBody& out) {
    constexpr float kBiasMax = 100.0F;
    Json* const value = body_.find("logit_bias");
    if (value == nullptr) {
      return {};
    }
    const Path at = body_.at().member("logit_bias");
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
      out.logit_bias.emplace_back(token, static_cast<float>(*amount));
    }
    return {};
  }

  const Fields& body_;
  bool galley_;
  std::vector<std::string>& notes_;
};

// --- judging -------------------------------------------------------------------------------------

// Unicode White_Space at the start of `text`, in bytes of the first character; 0 when there is
// none.
std::size_t white_space_bytes(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  if (text[0] == ' ' || (text[0] >= '\t' && text[0] <= '\r')) {
    return 1;
  }
  constexpr std::array<std::string_view, 2> kTwoBytes = {"\u0085", "\u00a0"};
  if (std::ranges::find(kTwoBytes, text.substr(0, 2)) != kTwoBytes.end()) {
    return 2;
  }
  const std::string_view three = text.substr(0, 3);
  constexpr std::array<std::string_view, 6> kThreeBytes = {"\u1680", "\u2028", "\u2029",
                                                           "\u202f", "\u205f", "\u3000"};
  const bool in_block = three >= "\u2000" && three <= "\u200a" && three.size() == 3;
  return in_block || std::ranges::find(kThreeBytes, three) != kThreeBytes.end() ? 3 : 0;
}

// A client that speaks Messages elsewhere may put its billing line first: cut up to the first
// newline or "You are", then white space (spec 6.2).
void strip_billing_header(Content& content) {
  if (!content.text.starts_with("x-anthropic-billing-header")) {
    return;
  }
  std::size_t start = std::min(content.text.find('\n'), content.text.find("You are"));
  if (start == std::string::npos) {
    content = {};
    return;
  }
  // Images come after the first part's text and "\n\n", hence after the cut.
  const std::size_t stop =
      content.images.empty() ? content.text.size() : content.images.front().offset;
  while (const std::size_t bytes =
             white_space_bytes(std::string_view(content.text).substr(0, stop).substr(start))) {
    start += bytes;
  }
  content.text.erase(0, start);
  for (Image& image : content.images) {
    image.offset -= start;
  }
}

// Second step: messages in order, with the checks of spec 5.3.
class Messages {
 public:
  Messages(std::vector<ChatMessage> source,
           ModelVersion version,
           bool galley,
           std::vector<std::string>& notes)
      : source_(std::move(source)), version_(version), galley_(galley), notes_(notes) {}

  Result<std::vector<Message>> convert() {
    if (source_.empty()) {
      return invalid("Empty input messages", list_);
    }
    out_.reserve(source_.size());
    for (std::size_t i = 0; i < source_.size(); ++i) {
      GALLEY_TRY(i, convert_one(i));
    }
    return std::move(out_);
  }

  // Index into the request's messages of a converted one.
  [[nodiscard]] std::size_t origin(std::size_t index) const { return origin_[index]; }
  [[nodiscard]] std::size_t source_count() const { return source_.size(); }
  [[nodiscard]] bool has_tool_context() const { return has_tool_context_; }

 private:
  Message& push(Role role, std::size_t origin) {
    origin_.push_back(origin);
    out_.push_back({.role = role});
    return out_.back();
  }

  // Returns the index of the last source message it used.
  Result<std::size_t> convert_one(std::size_t i) {
    ChatMessage& message = source_[i];
    switch (message.role) {
      case ChatRole::kSystem:
      case ChatRole::kDeveloper: {
        GALLEY_TRY(Content content, content_of(i));
        strip_billing_header(content);
        if (!content.empty()) {
          GALLEY_CHECK_OK(check_images(content, i));
          push(Role::kSystem, i).content = std::move(content);
        }
        return i;
      }
      case ChatRole::kUser: {
        GALLEY_TRY(Content content, content_of(i));
        GALLEY_CHECK_OK(check_images(content, i));
        push(Role::kUser, i).content = std::move(content);
        return i;
      }
      case ChatRole::kAssistant:
        return convert_assistant(i);
      case ChatRole::kTool:
        return invalid(
            "Messages with role 'tool' must be a response to a preceding message with "
            "'tool_calls'",
            list_.element(i));
      case ChatRole::kLatestReminder:
        push(Role::kLatestReminder, i).content.text = std::move(*message.content->text);
        return i;
    }
    std::unreachable();
  }

  Result<std::size_t> convert_assistant(std::size_t i) {
    ChatMessage& message = source_[i];
    if (!message.content && !message.tool_calls) {
      return invalid("Invalid assistant message: content or tool_calls must be set",
                     list_.element(i));
    }
    Content content;
    if (message.content) {
      GALLEY_TRY(content, content_of(i));
    }
    if (!content.images.empty()) {
      return invalid("Image in assistant message is not supported", list_.element(i));
    }
    Message& assistant = push(Role::kAssistant, i);
    assistant.content = std::move(content);
    assistant.reasoning = std::move(message.reasoning);
    assistant.prefix = message.prefix;
    if (!message.tool_calls) {
      return i;
    }
    has_tool_context_ = true;
    return convert_calls(i, out_.size() - 1);
  }

  Result<std::size_t> convert_calls(std::size_t i, std::size_t assistant) {
    std::vector<ToolCall>& calls = *source_[i].tool_calls;
    const Path at = list_.element(i);
    const Path calls_at = at.member("tool_calls");
    if (calls.empty()) {
      return invalid("Invalid '" + calls_at.text() +
                         "': empty array. Expected an array with minimum length 1, but got an "
                         "empty array instead.",
                     calls_at);
    }
    std::unordered_set<std::string_view> open;
    for (std::size_t j = 0; j < calls.size(); ++j) {
      if (!open.insert(calls[j].id).second) {
        const Path call_at = calls_at.element(j);
        return invalid("Duplicate value for 'tool_call_id' of " + calls[j].id + " in message[" +
                           std::to_string(i) + "]",
                       call_at.member("id"));
      }
    }
    std::unordered_set<std::string_view> answered;
    const std::size_t last = i + calls.size();
    for (std::size_t k = i + 1; k <= last; ++k) {
      if (k >= source_.size() || source_[k].role != ChatRole::kTool) {
        return invalid(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. (insufficient tool messages following tool_calls message)",
            calls_at);
      }
      ChatMessage& result = source_[k];
      const Path result_at = list_.element(k);
      const auto id = open.find(result.tool_call_id);
      if (id == open.end()) {
        return invalid(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id', The following tool_call_ids did not have response messages: " +
                result.tool_call_id,
            result_at.member("tool_call_id"));
      }
      if (!answered.insert(*id).second) {
        return invalid("Duplicate value for 'tool_call_id' of " + result.tool_call_id +
                           " in message[" + std::to_string(k) + "]",
                       result_at.member("tool_call_id"));
      }
      GALLEY_TRY(Content content, content_of(k));
      GALLEY_CHECK_OK(check_images(content, k));
      Message& tool = push(Role::kTool, k);
      tool.content = std::move(content);
      tool.tool_call_id = std::move(result.tool_call_id);
    }
    if (galley_) {
      for (std::size_t j = 0; j < calls.size(); ++j) {
        const Path call_at = calls_at.element(j);
        const Path function_at = call_at.member("function");
        GALLEY_CHECK_OK(settle_arguments(calls[j].arguments, function_at.member("arguments")));
      }
    }
    out_[assistant].tool_calls = std::move(calls);
    return last;
  }

  Result<Content> content_of(std::size_t i) {
    PartList& source = *source_[i].content;
    if (source.text) {
      return text_block(std::move(*source.text));
    }
    Content content;
    const Path at = list_.element(i);
    const Path content_at = at.member("content");
    for (std::size_t b = 0; b < source.parts.size(); ++b) {
      GALLEY_TRY(Content block, block_of(source.parts[b], i, b, content_at.element(b)));
      join_block(content, std::move(block), b);
    }
    return content;
  }

  Result<Content> block_of(Part& part, std::size_t i, std::size_t b, const Path& at) {
    if (part.kind == Part::Kind::kText) {
      return text_block(std::move(part.text));
    }
    if (version_ == ModelVersion::kV4) {
      add_note(notes_, "the model takes no images: the text `[Unsupported Image]` replaces them");
      return text_block(std::string(kUnsupportedImage));
    }
    std::string place = ".messages[" + std::to_string(i) + "]";
    if (part.kind == Part::Kind::kFile) {
      return file_block(part, std::move(place), at);
    }
    if (is_link(part.text) && part.text.size() > kImageLinkBytesMax) {
      const Path url_at = at.member("image_url");
      return invalid(place + ".image_url.url[" + std::to_string(b) + "]: image_url.url " +
                         link_too_long(part.text.size()),
                     url_at.member("url"));
    }
    return image_block(image_from_url(std::move(part.text), part.detail, std::move(place)));
  }

  static Result<Content> file_block(Part& part, std::string place, const Path& at) {
    if (!part.file_id && !part.file_data) {
      return invalid(place + ": file must have a file_id or file_data", at);
    }
    if (part.file_id && part.file_data) {
      return invalid(place + ": file cannot have both file_id and file_data", at);
    }
    if (part.file_id) {
      return invalid(place + (part.has_filename
                                  ? ": file cannot have filename when file_id is present"
                                  : ": file_id is not supported. Pass the image as a base64 data "
                                    "url instead."),
                     at.member("file_id"));
    }
    switch (data_url_fault(*part.file_data)) {
      case DataUrlFault::kNone:
        break;
      case DataUrlFault::kMediaType:
        return invalid(
            place +
                ": You have uploaded an unsupported file. Please make sure your file is valid and "
                "has one of the following formats: webp, png, jpeg, and gif.",
            at.member("file_data"));
      case DataUrlFault::kNoUrl:
      case DataUrlFault::kBase64:
        return invalid(place + ": file_data is not a valid base64 data url",
                       at.member("file_data"));
    }
    return image_block({.kind = Image::Kind::kDataUrl,
                        .path = std::move(place),
                        .reference = std::move(*part.file_data)});
  }

  [[nodiscard]] Result<void> check_images(const Content& content, std::size_t i) const {
    return check_data_urls(content, ".messages[" + std::to_string(i) + "]", list_.element(i));
  }

  Path body_;
  Path list_ = body_.member("messages");
  std::vector<ChatMessage> source_;
  ModelVersion version_;
  bool galley_;
  std::vector<std::string>& notes_;
  std::vector<Message> out_;
  std::vector<std::size_t> origin_;
  bool has_tool_context_ = false;
};

// Whether the conversation ends in a prefix message. Error: there is one before the end. The
// reference does not see the empty system messages that it drops.
Result<bool> check_prefix(const Conversation& conversation, const Messages& source, bool galley) {
  const auto first = std::ranges::find(conversation.messages, true, &Message::prefix);
  if (first == conversation.messages.end()) {
    return false;
  }
  const std::size_t origin =
      source.origin(static_cast<std::size_t>(first - conversation.messages.begin()));
  if (first + 1 != conversation.messages.end() || (galley && origin + 1 != source.source_count())) {
    const Path body;
    const Path list = body.member("messages");
    return misplaced_prefix(list.element(origin));
  }
  return true;
}

}  // namespace

Result<Request> parse_chat_request(std::string_view text, const CodecOptions& options) {
  const bool galley = options.compat == Compat::kGalley;
  const Path at;
  GALLEY_TRY(Json json, parse_body(text));
  GALLEY_TRY(const Fields fields, Fields::open(json, at));
  Request request{.protocol = Protocol::kChat, .compat = options.compat};
  Conversation& conversation = request.conversation;
  GALLEY_TRY(ChatBody body, Reader(fields, galley, request.notes).read());

  GALLEY_TRY(request.version, find_model(options, body.model));
  request.model = std::move(body.model);
  settle_thinking(body.thinking, body.effort, options.default_thinking, conversation);
  for (const DeclaredTool& declared : body.tools) {
    GALLEY_CHECK_OK(check_tool_name(declared.tool.name, declared.place));
  }
  Messages messages(std::move(body.messages), request.version, galley, request.notes);
  GALLEY_TRY(conversation.messages, messages.convert());
  const Path list = at.member("messages");
  if (const auto index = settle_reasoning(conversation.messages, conversation.thinking,
                                          !body.tools.empty(), options.reject_missing_reasoning)) {
    const Path message_at = list.element(messages.origin(*index));
    return invalid(missing_reasoning_text("reasoning_content"),
                   message_at.member("reasoning_content"));
  }
  GALLEY_TRY(const bool prefix, check_prefix(conversation, messages, galley));
  conversation.format = std::move(body.format);
  const bool json_object = conversation.format.kind == ResponseFormat::Kind::kJsonObject;
  if (json_object && !mentions_json(conversation.messages)) {
    return invalid(
        "Prompt must contain the word 'json' in some form to use 'response_format' of type "
        "'json_object'.",
        list);
  }
  const bool has_tool_context = !body.tools.empty() || messages.has_tool_context();
  GALLEY_CHECK_OK(settle_tools(std::move(body.tools), body.tool_choice, options.compat,
                               conversation, request.notes));
  if (prefix && (json_object || has_tool_context)) {
    return invalid(json_object ? "response_format json_object should not be used with prefix"
                               : "Function call should not be used with prefix",
                   json_object ? at.member("response_format") : at.member("tools"));
  }
  GALLEY_CHECK_OK(check_stops(body.stops, options.compat, at.member("stop")));
  if (body.has_stream_options && !body.stream) {
    return invalid("stream_options should be set along with stream = true",
                   at.member("stream_options"));
  }
  if (conversation.format.kind == ResponseFormat::Kind::kJsonSchema) {
    GALLEY_CHECK_OK(settle_response_schema(conversation.format, body.strict_schema, options.compat,
                                           "response_format.json_schema.schema"));
  }
  GALLEY_TRY(request.constraint, make_constraint(conversation, body.has_response_format));
  GALLEY_TRY(request.sampling, settle_sampling(body.sampling, conversation, request.version,
                                               options.compat, request.notes));
  request.sampling.logit_bias = std::move(body.logit_bias);
  request.output = make_output_format(conversation, std::move(body.stops.strings));
  request.stream = body.stream;
  request.include_usage = body.include_usage;
  request.parallel_tool_calls = body.parallel_tool_calls;
  request.user = std::move(body.user);
  if (galley) {
    GALLEY_CHECK_OK(check_image_limits(conversation));
    note_unenforced_format(conversation, request.notes);
  }
  return request;
}

}  // namespace galley::recipe
