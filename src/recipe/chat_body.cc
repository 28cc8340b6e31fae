#include "recipe/chat_body.h"

#include <array>
#include <charconv>
#include <initializer_list>
#include <span>
#include <string_view>

#include "recipe/guided.h"
#include "recipe/limits.h"
#include "recipe/names.h"

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
    if (galley_) {
      GALLEY_TRY(out.guided, read_guided(body_, notes_));
    }
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

  Result<void> read_content(Json& value, const Path& at, ChatContent& out) {
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

  Result<void> read_part(Json& value, const Path& at, ChatPart& out) {
    constexpr std::array<std::string_view, 3> kTypes = {"text", "image_url", "file"};
    GALLEY_TRY(const Fields part, Fields::open(value, at));
    GALLEY_TRY(const std::size_t type, part.required_choice("type", kTypes));
    out.kind = static_cast<ChatPart::Kind>(type);
    switch (out.kind) {
      case ChatPart::Kind::kText: {
        GALLEY_TRY(out.text, part.required_text("text"));
        note_unread({&part});
        return {};
      }
      case ChatPart::Kind::kImageUrl: {
        const Path url_at = at.member("image_url");
        GALLEY_TRY(const Fields image, open_member(part, "image_url", url_at));
        GALLEY_TRY(out.text, image.required_text("url"));
        GALLEY_TRY(out.detail, read_detail(image));
        note_unread({&part, &image});
        return {};
      }
      case ChatPart::Kind::kFile: {
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

  static Result<void> read_file(const Fields& file, ChatPart& out) {
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
    GALLEY_TRY(s.n, galley_ ? read_choice_count(body_) : body_.natural("n", kByteMax));
    GALLEY_TRY(s.seed, read_seed(body_));
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
    Json* const value = body_.find("response_format");
    if (value == nullptr) {
      return {};
    }
    out.has_response_format = true;
    const Path at = body_.at().member("response_format");
    GALLEY_TRY(const Fields format, Fields::open(*value, at));
    GALLEY_TRY(const std::size_t type,
               format.required_choice("type", kNames<ResponseFormat::Kind>));
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
    constexpr std::array<std::string_view, 3> kModes = {"auto", "none", "required"};
    constexpr std::array<std::string_view, 1> kTypes = {"function"};
    Json* const value = body_.find("tool_choice");
    if (value == nullptr) {
      return {};
    }
    const Path at = body_.at().member("tool_choice");
    if (value->string() != nullptr) {
      GALLEY_TRY(const std::size_t kind, body_.required_choice("tool_choice", kModes));
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
    GALLEY_TRY(out.sampling.min_p, body_.real("min_p"));
    GALLEY_TRY(out.user, read_user(body_));
    GALLEY_CHECK_OK(read_modalities());
    GALLEY_TRY(out.logit_bias, read_logit_bias(body_));
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

  const Fields& body_;
  bool galley_;
  std::vector<std::string>& notes_;
};

}  // namespace

std::unexpected<Error> misplaced_prefix(const Path& message) {
  return invalid(
      "Invalid completion message: prefix set true with message which is not final message or "
      "message role is not assistant",
      message.member("prefix"));
}

Result<ChatBody> read_chat_body(const Fields& body, bool galley, std::vector<std::string>& notes) {
  return Reader(body, galley, notes).read();
}

}  // namespace galley::recipe
