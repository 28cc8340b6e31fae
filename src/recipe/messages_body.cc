#include "recipe/messages_body.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "recipe/limits.h"

namespace galley::recipe {
namespace {

constexpr std::array<std::string_view, 10> kMessageBlocks = {"text",
                                                             "image",
                                                             "document",
                                                             "thinking",
                                                             "server_tool_use",
                                                             "tool_use",
                                                             "tool_result",
                                                             "web_search_tool_result",
                                                             "tool_addition",
                                                             "redacted_thinking"};
constexpr std::array<std::string_view, 4> kResultBlocks = {"text", "image", "document",
                                                           "tool_reference"};

class Reader {
 public:
  Reader(const Fields& body, bool galley, std::vector<std::string>& notes)
      : body_(body), galley_(galley), notes_(notes) {}

  Result<MessagesBody> read() {
    MessagesBody out;
    GALLEY_TRY(out.model, body_.required_text("model"));
    GALLEY_CHECK_OK(read_messages(out));
    GALLEY_CHECK_OK(read_system(out));
    GALLEY_TRY(out.sampling.max_tokens, body_.natural("max_tokens", kWordMax));
    out.sampling.clamp_max_tokens = true;
    GALLEY_TRY(out.sampling.temperature, body_.real("temperature"));
    GALLEY_TRY(out.sampling.top_p, body_.real("top_p"));
    GALLEY_TRY(const JsonArray* const stops, body_.array("stop_sequences"));
    if (stops != nullptr) {
      GALLEY_TRY(out.stops, read_stops(body_, "stop_sequences"));
    }
    GALLEY_TRY(const std::optional<bool> stream, body_.boolean("stream"));
    out.stream = stream.value_or(false);
    GALLEY_CHECK_OK(read_tool_choice(out));
    GALLEY_TRY(out.thinking, read_thinking(body_, notes_));
    GALLEY_CHECK_OK(read_output_config(out));
    GALLEY_CHECK_OK(read_metadata(out));
    if (galley_) {
      GALLEY_CHECK_OK(read_extensions(out));
    }
    return out;
  }

  Result<std::vector<SourceTool>> read_tools() {
    std::vector<SourceTool> out;
    GALLEY_TRY(JsonArray* const tools, body_.array("tools"));
    if (tools == nullptr) {
      return out;
    }
    const Path list = body_.at().member("tools");
    out.reserve(tools->size());
    for (std::size_t i = 0; i < tools->size(); ++i) {
      GALLEY_CHECK_OK(read_tool((*tools)[i], list.element(i), out.emplace_back()));
    }
    return out;
  }

 private:
  Result<void> read_messages(MessagesBody& out) {
    constexpr std::array<std::string_view, 3> kRoles = {"user", "assistant", "system"};
    GALLEY_TRY(JsonArray* const messages, body_.required_array("messages"));
    const Path list = body_.at().member("messages");
    if (galley_ && messages->size() > kMessageCountMax) {
      return invalid("Too many messages: " + std::to_string(messages->size()) + ", the limit is " +
                         std::to_string(kMessageCountMax) + ".",
                     list);
    }
    out.messages.reserve(messages->size());
    for (std::size_t i = 0; i < messages->size(); ++i) {
      const Path at = list.element(i);
      GALLEY_TRY(const Fields message, Fields::open((*messages)[i], at));
      GALLEY_TRY(const std::size_t role, message.required_choice("role", kRoles));
      SourceMessage& source = out.messages.emplace_back();
      source.role = static_cast<MessageRole>(role);
      Json* const content = message.find("content");
      const Path content_at = at.member("content");
      if (content == nullptr) {
        return missing(content_at);
      }
      if (std::string* const text = content->string()) {
        source.text = std::move(*text);
      } else {
        GALLEY_CHECK_OK(read_blocks(*content, content_at, source.blocks));
      }
      note_unread(message);
    }
    return {};
  }

  // Asks for what happens anyway: prefixes are always cached.
  void note_unread(const Fields& fields) {
    if (galley_) {
      fields.expect({"cache_control"});
      fields.note_unread(notes_);
    }
  }

  Result<void> read_blocks(Json& value, const Path& at, std::vector<MessageBlock>& out) {
    JsonArray* const blocks = value.array();
    if (blocks == nullptr) {
      return wrong_type(value, "a string or an array of objects", at);
    }
    out.reserve(blocks->size());
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      const Path block_at = at.element(i);
      GALLEY_TRY(const Fields block, Fields::open((*blocks)[i], block_at));
      GALLEY_TRY(const std::size_t kind,
                 block.required_choice(
                     "type", std::span(kMessageBlocks).first(kMessageBlocks.size() - !galley_)));
      out.emplace_back().kind = static_cast<MessageBlock::Kind>(kind);
      GALLEY_CHECK_OK(read_block(block, out.back()));
      note_unread(block);
    }
    return {};
  }

  Result<void> read_block(const Fields& block, MessageBlock& out) {
    switch (out.kind) {
      case MessageBlock::Kind::kText: {
        GALLEY_TRY(out.text, block.required_text("text"));
        return {};
      }
      case MessageBlock::Kind::kImage:
        return read_image(block, out.source);
      case MessageBlock::Kind::kDocument:
        return read_document(block, out.text);
      case MessageBlock::Kind::kThinking: {
        GALLEY_TRY(out.text, block.required_text("thinking"));
        GALLEY_CHECK_OK(block.text("signature"));
        return {};
      }
      case MessageBlock::Kind::kServerToolUse:
      case MessageBlock::Kind::kToolUse: {
        GALLEY_TRY(out.id, block.required_text("id"));
        GALLEY_TRY(out.name, block.required_text("name"));
        return take_value(block, "input", out.input);
      }
      case MessageBlock::Kind::kToolResult:
        return read_tool_result(block, out);
      case MessageBlock::Kind::kWebSearchToolResult: {
        GALLEY_TRY(out.id, block.required_text("tool_use_id"));
        Json content;
        return take_value(block, "content", content);
      }
      case MessageBlock::Kind::kToolAddition: {
        constexpr std::array<std::string_view, 1> kTypes = {"tool_reference"};
        const Path at = block.at().member("tool");
        GALLEY_TRY(const Fields tool, open_member(block, "tool", at));
        GALLEY_CHECK_OK(tool.required_choice("type", kTypes));
        GALLEY_TRY(out.name, tool.required_text("name"));
        note_unread(tool);
        return {};
      }
      case MessageBlock::Kind::kRedactedThinking:
        block.expect({"data"});
        add_note(notes_, "`redacted_thinking` blocks are ignored");
        return {};
      case MessageBlock::Kind::kToolReference: {
        GALLEY_TRY(out.name, block.required_text("tool_name"));
        return {};
      }
    }
    std::unreachable();
  }

  // A member that may be anything. The reference wants it to be there; Galley takes its absence for
  // null.
  [[nodiscard]] Result<void> take_value(const Fields& block,
                                        std::string_view key,
                                        Json& out) const {
    if (Json* const value = block.find_any(key)) {
      out = std::move(*value);
    } else if (!galley_) {
      return missing(block.at().member(key));
    }
    return {};
  }

  static Result<Fields> open_member(const Fields& fields, std::string_view key, const Path& at) {
    Json* const value = fields.find(key);
    if (value == nullptr) {
      return missing(at);
    }
    return Fields::open(*value, at);
  }

  Result<void> read_image(const Fields& block, ImageSource& out) {
    constexpr std::array<std::string_view, 3> kKinds = {"base64", "url", "file"};
    constexpr std::array<std::string_view, 5> kMediaTypes = {"image/jpeg", "image/jpg", "image/png",
                                                             "image/gif", "image/webp"};
    const Path at = block.at().member("source");
    GALLEY_TRY(const Fields source, open_member(block, "source", at));
    GALLEY_TRY(const std::size_t kind, source.required_choice("type", kKinds));
    out.kind = static_cast<ImageSource::Kind>(kind);
    if (out.kind == ImageSource::Kind::kBase64) {
      GALLEY_TRY(const std::size_t type, source.required_choice("media_type", kMediaTypes));
      out.media_type = type == 1 ? kMediaTypes[0] : kMediaTypes[type];
      GALLEY_TRY(out.data, source.required_text("data"));
    } else {
      GALLEY_TRY(out.data,
                 source.required_text(out.kind == ImageSource::Kind::kUrl ? "url" : "file_id"));
    }
    note_unread(source);
    return {};
  }

  // The text that stands for a document in the prompt. The reference reads none of them.
  Result<void> read_document(const Fields& block, std::string& out) {
    const Path at = block.at().member("source");
    GALLEY_TRY(const Fields source, open_member(block, "source", at));
    GALLEY_TRY(const std::optional<std::string> media_type, source.text("media_type"));
    if (galley_) {
      GALLEY_TRY(const std::optional<std::string> type, source.text("type"));
      if (type == "text") {
        GALLEY_TRY(out, source.required_text("data"));
        note_unread(source);
        return {};
      }
      if (type == "content") {
        return read_document_content(source, out);
      }
      add_note(notes_, "documents other than text are not read: a short text replaces them");
    }
    out = "[Unsupported document type: " + media_type.value_or("unknown") + "]";
    return {};
  }

  // A document given as a string or as text blocks.
  Result<void> read_document_content(const Fields& source, std::string& out) {
    constexpr std::array<std::string_view, 1> kTypes = {"text"};
    const Path at = source.at().member("content");
    Json* const content = source.find("content");
    if (content == nullptr) {
      return missing(at);
    }
    if (std::string* const text = content->string()) {
      out = std::move(*text);
      note_unread(source);
      return {};
    }
    if (content->array() == nullptr) {
      return wrong_type(*content, "a string or an array of objects", at);
    }
    for (std::size_t i = 0; i < content->array()->size(); ++i) {
      const Path block_at = at.element(i);
      GALLEY_TRY(const Fields block, Fields::open((*content->array())[i], block_at));
      GALLEY_CHECK_OK(block.required_choice("type", kTypes));
      GALLEY_TRY(const std::string text, block.required_text("text"));
      out.append(i == 0 ? "" : "\n\n").append(text);
      note_unread(block);
    }
    note_unread(source);
    return {};
  }

  Result<void> read_tool_result(const Fields& block, MessageBlock& out) {
    GALLEY_TRY(out.id, block.required_text("tool_use_id"));
    GALLEY_TRY(const std::optional<bool> is_error, block.boolean("is_error"));
    if (is_error.value_or(false)) {
      add_note(notes_, "`is_error` of tool results is ignored");
    }
    Json* const content = block.find("content");
    if (content == nullptr) {
      return {};
    }
    if (std::string* const text = content->string()) {
      out.result_text = std::move(*text);
      return {};
    }
    const Path at = block.at().member("content");
    JsonArray* const blocks = content->array();
    if (blocks == nullptr) {
      return wrong_type(*content, "a string or an array of objects", at);
    }
    out.result.reserve(blocks->size());
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      const Path inner_at = at.element(i);
      GALLEY_TRY(const Fields inner, Fields::open((*blocks)[i], inner_at));
      GALLEY_TRY(const std::size_t kind, inner.required_choice("type", kResultBlocks));
      MessageBlock& result = out.result.emplace_back();
      result.kind =
          kind == 3 ? MessageBlock::Kind::kToolReference : static_cast<MessageBlock::Kind>(kind);
      GALLEY_CHECK_OK(read_block(inner, result));
      note_unread(inner);
    }
    return {};
  }

  Result<void> read_system(MessagesBody& out) {
    constexpr std::array<std::string_view, 1> kTypes = {"text"};
    constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";
    Json* const value = body_.find("system");
    if (value == nullptr) {
      return {};
    }
    if (std::string* const text = value->string()) {
      out.system = std::move(*text);
      return {};
    }
    const Path at = body_.at().member("system");
    JsonArray* const blocks = value->array();
    if (blocks == nullptr) {
      return wrong_type(*value, "a string or an array of objects", at);
    }
    std::string& system = out.system.emplace();
    bool first = true;
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      const Path block_at = at.element(i);
      GALLEY_TRY(const Fields block, Fields::open((*blocks)[i], block_at));
      GALLEY_CHECK_OK(block.required_choice("type", kTypes));
      GALLEY_TRY(const std::string text, block.required_text("text"));
      note_unread(block);
      const std::string_view head = std::string_view(text).substr(0, kBillingHeader.size());
      if (i == 0 && std::ranges::equal(head, kBillingHeader, {}, [](char c) {
            return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
          })) {
        continue;
      }
      system.append(first ? "" : "\n\n").append(text);
      first = false;
    }
    return {};
  }

  Result<void> read_tool(Json& value, const Path& at, SourceTool& out) {
    GALLEY_TRY(const Fields tool, Fields::open(value, at));
    out.place = at.text();
    // With a type it is a server tool for the reference, whatever the type; "custom" is how newer
    // clients spell a client tool.
    const Json* const type = tool.find_any("type");
    if (type != nullptr && !(galley_ && type->is_null())) {
      GALLEY_TRY(std::string text, tool.required_text("type"));
      if (!galley_ || text != "custom") {
        out.server_type = std::move(text);
        GALLEY_TRY(const std::optional<std::string> name, tool.text("name"));
        out.tool.name = name.value_or("web_search");
        return {};
      }
    }
    GALLEY_TRY(out.tool.name, tool.required_text("name"));
    GALLEY_TRY(out.tool.description, tool.text("description"));
    Json* const schema = tool.find("input_schema");
    // A missing schema is null for the reference, and then no schema of an object.
    out.tool.parameters = schema == nullptr ? Json() : std::move(*schema);
    GALLEY_TRY(const std::optional<bool> deferred, tool.boolean("defer_loading"));
    out.tool.defer_loading = deferred.value_or(false);
    note_unread(tool);
    return {};
  }

  Result<void> read_tool_choice(MessagesBody& out) {
    using Kind = RequestedToolChoice::Kind;
    constexpr std::array<std::string_view, 4> kTypes = {"auto", "any", "tool", "none"};
    Json* const value = body_.find("tool_choice");
    if (value == nullptr) {
      return {};
    }
    const Path at = body_.at().member("tool_choice");
    GALLEY_TRY(const Fields choice, Fields::open(*value, at));
    GALLEY_TRY(const std::size_t type, choice.required_choice("type", kTypes));
    if (type == 3) {
      out.tool_choice.kind = Kind::kNone;
      note_unread(choice);
      return {};
    }
    out.any_tool = type == 1;
    if (type == 2) {
      out.tool_choice.kind = Kind::kNamed;
      GALLEY_TRY(out.tool_choice.name, choice.required_text("name"));
    }
    GALLEY_TRY(const std::optional<bool> one, choice.boolean("disable_parallel_tool_use"));
    out.parallel_tool_calls = !one.value_or(false);
    note_unread(choice);
    return {};
  }

  Result<void> read_output_config(MessagesBody& out) {
    Json* const value = body_.find("output_config");
    if (value == nullptr) {
      return {};
    }
    const Path at = body_.at().member("output_config");
    GALLEY_TRY(const Fields config, Fields::open(*value, at));
    GALLEY_TRY(out.effort, read_effort(config, "effort"));
    if (galley_) {
      GALLEY_CHECK_OK(read_format(config, "format", out));
    }
    note_unread(config);
    return {};
  }

  // Structured output; the reference does not know it.
  Result<void> read_format(const Fields& fields, std::string_view key, MessagesBody& out) {
    constexpr std::array<std::string_view, 1> kTypes = {"json_schema"};
    Json* const value = fields.find(key);
    if (value == nullptr) {
      return {};
    }
    const Path at = fields.at().member(key);
    GALLEY_TRY(const Fields format, Fields::open(*value, at));
    GALLEY_CHECK_OK(format.required_choice("type", kTypes));
    const Path schema_at = at.member("schema");
    Json* const schema = format.find("schema");
    if (schema == nullptr) {
      return missing(schema_at);
    }
    out.format.kind = ResponseFormat::Kind::kJsonSchema;
    out.format.schema = std::move(*schema);
    out.format_where = schema_at.text();
    note_unread(format);
    return {};
  }

  Result<void> read_metadata(MessagesBody& out) {
    Json* const value = body_.find("metadata");
    if (value == nullptr) {
      return {};
    }
    const Path at = body_.at().member("metadata");
    GALLEY_TRY(const Fields metadata, Fields::open(*value, at));
    GALLEY_TRY(std::optional<std::string> user, metadata.text("user_id"));
    if (galley_ && user) {
      GALLEY_CHECK_OK(check_user(*user, false, at.member("user_id")));
      out.user = std::move(*user);
    }
    note_unread(metadata);
    return {};
  }

  // What the reference does not know (spec 9.5).
  Result<void> read_extensions(MessagesBody& out) {
    GALLEY_TRY(out.sampling.top_k, body_.natural("top_k", kWordMax));
    if (out.format.kind == ResponseFormat::Kind::kText) {
      GALLEY_CHECK_OK(read_format(body_, "output_format", out));
    }
    GALLEY_TRY(const JsonArray* const servers, body_.array("mcp_servers"));
    if (servers != nullptr && !servers->empty()) {
      return invalid(
          "Unsupported parameter: 'mcp_servers'. The server does not run tools; declare them in "
          "'tools'.",
          body_.at().member("mcp_servers"));
    }
    // `tools` is read later. The others are named by the hosted service's router, an address and
    // nothing else.
    body_.expect({"tools", "anthropic_version", "anthropic_beta"});
    note_unread(body_);
    return {};
  }

  const Fields& body_;
  bool galley_;
  std::vector<std::string>& notes_;
};

}  // namespace

Result<MessagesBody> read_messages_body(const Fields& body,
                                        bool galley,
                                        std::vector<std::string>& notes) {
  return Reader(body, galley, notes).read();
}

Result<std::vector<SourceTool>> read_messages_tools(const Fields& body,
                                                    bool galley,
                                                    std::vector<std::string>& notes) {
  return Reader(body, galley, notes).read_tools();
}

}  // namespace galley::recipe
