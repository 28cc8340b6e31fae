#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "recipe/limits.h"
#include "recipe/request.h"
#include "recipe/request_fields.h"
#include "recipe/schema.h"

// Messages bodies (spec recipe 6.6).
namespace galley::recipe {
namespace {

// --- the body, typed but not judged --------------------------------------------------------------

struct Source {
  enum class Kind : std::uint8_t { kBase64, kUrl, kFile };
  Kind kind{};
  std::string media_type;  // kBase64, canonical
  std::string data;        // payload or url
};

// A block of a message, of a tool result or of a document.
struct Block {
  enum class Kind : std::uint8_t {
    kText,
    kImage,
    kDocument,
    kThinking,
    kServerToolUse,
    kToolUse,
    kToolResult,
    kWebSearchToolResult,
    kToolAddition,
    kRedactedThinking,
    kToolReference,
  };
  Kind kind{};
  std::string text;                        // text, thinking, the text a document stands for
  std::string id;                          // tool_use, tool_result
  std::string name;                        // tool_use, tool_addition, tool_reference
  Json input;                              // tool_use
  Source source;                           // image
  std::optional<std::string> result_text;  // tool_result with content sent as one string
  std::vector<Block> result;               // tool_result
};
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

enum class MessageRole : std::uint8_t { kUser, kAssistant, kSystem };

struct SourceMessage {
  MessageRole role{};
  std::optional<std::string> text;  // content sent as one string
  std::vector<Block> blocks;
};

struct MessagesBody {
  std::string model;
  std::vector<SourceMessage> messages;
  std::optional<std::string> system;
  SamplingFields sampling;
  Stops stops;
  bool stream = false;
  bool has_tools = false;  // server tools included
  std::vector<DeclaredTool> tools;
  std::unordered_set<std::string> dropped_tools;  // names of web search tools
  RequestedToolChoice tool_choice;
  bool any_tool = false;
  bool parallel_tool_calls = true;
  std::optional<bool> thinking;
  std::optional<RequestedEffort> effort;
  ResponseFormat format;
  std::string format_where;
  std::string user;
};

// First step: JSON to MessagesBody, types only.
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

  // Names, kinds and types of the tools. The reference finds unsupported kinds only after it knows
  // the model, hence apart from read().
  struct SourceTool {
    std::optional<std::string> server_type;
    Tool tool;
    std::string place;
  };
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

  Result<void> read_blocks(Json& value, const Path& at, std::vector<Block>& out) {
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
      out.emplace_back().kind = static_cast<Block::Kind>(kind);
      GALLEY_CHECK_OK(read_block(block, out.back()));
      note_unread(block);
    }
    return {};
  }

  Result<void> read_block(const Fields& block, Block& out) {
    switch (out.kind) {
      case Block::Kind::kText: {
        GALLEY_TRY(out.text, block.required_text("text"));
        return {};
      }
      case Block::Kind::kImage:
        return read_image(block, out.source);
      case Block::Kind::kDocument:
        return read_document(block, out.text);
      case Block::Kind::kThinking: {
        GALLEY_TRY(out.text, block.required_text("thinking"));
        GALLEY_CHECK_OK(block.text("signature"));
        return {};
      }
      case Block::Kind::kServerToolUse:
      case Block::Kind::kToolUse: {
        GALLEY_TRY(out.id, block.required_text("id"));
        GALLEY_TRY(out.name, block.required_text("name"));
        return take_value(block, "input", out.input);
      }
      case Block::Kind::kToolResult:
        return read_tool_result(block, out);
      case Block::Kind::kWebSearchToolResult: {
        GALLEY_TRY(out.id, block.required_text("tool_use_id"));
        Json content;
        return take_value(block, "content", content);
      }
      case Block::Kind::kToolAddition: {
        constexpr std::array<std::string_view, 1> kTypes = {"tool_reference"};
        const Path at = block.at().member("tool");
        GALLEY_TRY(const Fields tool, open_member(block, "tool", at));
        GALLEY_CHECK_OK(tool.required_choice("type", kTypes));
        GALLEY_TRY(out.name, tool.required_text("name"));
        note_unread(tool);
        return {};
      }
      case Block::Kind::kRedactedThinking:
        block.expect({"data"});
        add_note(notes_, "`redacted_thinking` blocks are ignored");
        return {};
      case Block::Kind::kToolReference: {
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

  Result<void> read_image(const Fields& block, Source& out) {
    constexpr std::array<std::string_view, 3> kKinds = {"base64", "url", "file"};
    constexpr std::array<std::string_view, 5> kMediaTypes = {"image/jpeg", "image/jpg", "image/png",
                                                             "image/gif", "image/webp"};
    const Path at = block.at().member("source");
    GALLEY_TRY(const Fields source, open_member(block, "source", at));
    GALLEY_TRY(const std::size_t kind, source.required_choice("type", kKinds));
    out.kind = static_cast<Source::Kind>(kind);
    if (out.kind == Source::Kind::kBase64) {
      GALLEY_TRY(const std::size_t type, source.required_choice("media_type", kMediaTypes));
      out.media_type = type == 1 ? kMediaTypes[0] : kMediaTypes[type];
      GALLEY_TRY(out.data, source.required_text("data"));
    } else {
      GALLEY_TRY(out.data,
                 source.required_text(out.kind == Source::Kind::kUrl ? "url" : "file_id"));
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

  Result<void> read_tool_result(const Fields& block, Block& out) {
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
      Block& result = out.result.emplace_back();
      result.kind = kind == 3 ? Block::Kind::kToolReference : static_cast<Block::Kind>(kind);
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

// --- judging -------------------------------------------------------------------------------------

// Sorts the declared tools: client tools stay, web search is dropped when the operator said so,
// everything else is refused.
Result<void> settle_tool_kinds(std::vector<Reader::SourceTool> tools,
                               const CodecOptions& options,
                               ModelVersion version,
                               MessagesBody& body,
                               std::vector<std::string>& notes) {
  body.has_tools = !tools.empty();
  body.tools.reserve(tools.size());
  for (Reader::SourceTool& source : tools) {
    if (source.server_type) {
      if (!source.server_type->starts_with("web_search") || !options.messages_drop_web_search) {
        return fail(Code::kInvalidArgument, source.place + ": server tools are not supported",
                    source.place + ".type");
      }
      body.dropped_tools.insert(std::move(source.tool.name));
      add_note(notes, "web search tools are ignored");
      continue;
    }
    GALLEY_CHECK_OK(check_tool_name(source.tool.name, source.place));
    source.tool.defer_loading &= version == ModelVersion::kV41;
    body.tools.push_back({std::move(source.tool), std::move(source.place), "input_schema"});
  }
  if (!body.tools.empty() && std::ranges::all_of(body.tools, [](const DeclaredTool& declared) {
        return declared.tool.defer_loading;
      })) {
    return fail(
        Code::kInvalidArgument,
        "tools: at least one tool must have defer_loading=false. All tools cannot be deferred.",
        "tools");
  }
  return {};
}

// Second step: messages in order, with the checks of spec 5.3.
class Messages {
 public:
  Messages(const CodecOptions& options,
           ModelVersion version,
           const std::vector<DeclaredTool>& tools,
           std::vector<std::string>& notes)
      : options_(options), version_(version), notes_(notes) {
    for (const DeclaredTool& declared : tools) {
      tools_.insert(declared.tool.name);
    }
  }
  Messages(const Messages&) = delete;  // list_ points into the object
  Messages& operator=(const Messages&) = delete;

  Result<std::vector<Message>> convert(std::optional<std::string> system,
                                       std::vector<SourceMessage> source) {
    if (source.empty()) {
      return invalid("messages: at least one message is required", list_);
    }
    if (system) {
      push(Role::kSystem, 0).content.text = std::move(*system);
    }
    for (std::size_t i = 0; i < source.size(); ++i) {
      GALLEY_CHECK_OK(convert_one(source[i], i));
    }
    if (!pending_.empty()) {
      return unanswered("messages." + std::to_string(source.size() - 1) + ":",
                        list_.element(source.size() - 1));
    }
    return std::move(out_);
  }

  // Index into the request's messages of a converted one.
  [[nodiscard]] std::size_t origin(std::size_t index) const { return origin_[index]; }

 private:
  static constexpr std::size_t kIdsShown = 8;  // unanswered ids an error names in Galley mode

  static std::string place(std::size_t i) { return "messages." + std::to_string(i); }
  static std::string place(std::size_t i, std::size_t b) {
    return place(i) + ".content." + std::to_string(b);
  }

  Message& push(Role role, std::size_t origin) {
    origin_.push_back(origin);
    out_.push_back({.role = role});
    return out_.back();
  }

  [[nodiscard]] std::unexpected<Error> unanswered(std::string what, const Path& at) const {
    what.append("`tool_use` ids were found without `tool_result` blocks immediately after: ");
    const bool bounded = options_.compat == Compat::kGalley;
    std::size_t shown = 0;
    for (const std::string& id : pending_) {
      if (bounded && shown == kIdsShown) {
        what.append(" and ").append(std::to_string(pending_.size() - shown)).append(" more");
        break;
      }
      what.append(shown++ == 0 ? "" : ", ").append(bounded ? clipped(id) : id);
    }
    what.append(
        ". Each `tool_use` block must have a corresponding `tool_result` block in the next "
        "message.");
    return invalid(std::move(what), at);
  }

  [[nodiscard]] Result<void> check_answered(std::size_t i) const {
    return pending_.empty() ? Result<void>() : unanswered(place(i) + ": ", list_.element(i));
  }

  // A block kind in a role that may not have it.
  [[nodiscard]] std::unexpected<Error> misplaced(Block::Kind kind,
                                                 std::size_t i,
                                                 std::size_t b) const {
    const Path at = list_.element(i);
    const Path content_at = at.member("content");
    const Path block_at = content_at.element(b);
    const auto text = [&](std::string_view block, std::string_view role) {
      return place(i) + ": `" + std::string(block) + "` blocks can only be in `" +
             std::string(role) + "` messages";
    };
    switch (kind) {
      case Block::Kind::kToolUse:
      case Block::Kind::kServerToolUse:
        return invalid(text("tool_use", "assistant"), block_at.member("type"));
      case Block::Kind::kToolResult:
        return invalid(text("tool_result", "user"), block_at.member("type"));
      case Block::Kind::kToolAddition:
        return invalid(text("tool_addition", "system"), block_at.member("type"));
      case Block::Kind::kWebSearchToolResult:
        return invalid(text("web_search_tool_result", "assistant"), block_at.member("type"));
      default:
        return invalid(place(i) + ".content: thinking blocks may only be in `assistant` messages",
                       block_at.member("type"));
    }
  }

  Result<void> convert_one(SourceMessage& source, std::size_t i) {
    if (source.text || source.role != MessageRole::kUser) {
      GALLEY_CHECK_OK(check_answered(i));
    }
    if (!source.text && source.blocks.empty() && source.role != MessageRole::kSystem) {
      return invalid(place(i) + ": all messages must have non-empty content", list_.element(i));
    }
    switch (source.role) {
      case MessageRole::kSystem:
        return convert_system(source, i);
      case MessageRole::kUser:
        if (source.text) {
          push(Role::kUser, i).content.text = std::move(*source.text);
          return {};
        }
        return convert_user(source.blocks, i);
      case MessageRole::kAssistant:
        if (source.text) {
          push(Role::kAssistant, i).content.text = std::move(*source.text);
          return {};
        }
        return convert_assistant(source.blocks, i);
    }
    std::unreachable();
  }

  Result<void> convert_system(SourceMessage& source, std::size_t i) {
    Content content;
    std::vector<Tool> announced;
    if (source.text) {
      content.text = std::move(*source.text);
    }
    const Path at = list_.element(i);
    const Path content_at = at.member("content");
    std::size_t joined = 0;
    for (std::size_t b = 0; b < source.blocks.size(); ++b) {
      Block& block = source.blocks[b];
      if (is_content(block)) {
        GALLEY_TRY(Content part, content_of(block, place(i) + ".content[" + std::to_string(b) + "]",
                                            place(i), content_at.element(b)));
        join_block(content, std::move(part), joined++);
      } else if (block.kind == Block::Kind::kToolAddition) {
        if (!tools_.contains(block.name)) {
          const Path block_at = content_at.element(b);
          return invalid(
              place(i, b) + ": `tool_addition` references unknown tool '" + block.name + "'",
              block_at.member("tool"));
        }
        announced.push_back({.name = std::move(block.name)});
      } else {
        return misplaced(block.kind, i, b);
      }
    }
    if (version_ == ModelVersion::kV41) {
      Message& message = push(Role::kSystem, i);
      message.content = std::move(content);
      message.announced_tools = std::move(announced);
    } else if (!content.empty()) {
      // V4 has no system message here.
      Content wrapped = text_block("<system-reminder>\n");
      wrapped.append(std::move(content));
      wrapped.text.append("\n</system-reminder>");
      push(Role::kUser, i).content = std::move(wrapped);
    }
    return {};
  }

  Result<void> convert_user(std::vector<Block>& blocks, std::size_t i) {
    std::unordered_set<std::string> answered;
    std::vector<Tool> referenced;
    const Path at = list_.element(i);
    const Path content_at = at.member("content");
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      Block& block = blocks[b];
      if (is_content(block)) {
        GALLEY_CHECK_OK(check_answered(i));
        const std::string block_place = place(i) + ".content[" + std::to_string(b) + "]";
        GALLEY_TRY(Content content,
                   content_of(block, block_place, block_place, content_at.element(b)));
        push(Role::kUser, i).content = std::move(content);
        continue;
      }
      if (block.kind != Block::Kind::kToolResult) {
        return misplaced(block.kind, i, b);
      }
      const Path block_at = content_at.element(b);
      if (answered.contains(block.id)) {
        return invalid(place(i, b) +
                           ": each tool_use must have a single result. Found multiple "
                           "`tool_result` blocks with id: " +
                           block.id,
                       block_at.member("tool_use_id"));
      }
      if (pending_.erase(block.id) == 0) {
        return invalid("unexpected `" + place(i, b) + ": tool_use_id` found in `tool_result` " +
                           "blocks: " + block.id +
                           ". Each `tool_result` block must have a corresponding `tool_use` block "
                           "in the previous message.",
                       block_at.member("tool_use_id"));
      }
      answered.insert(block.id);
      GALLEY_CHECK_OK(convert_result(block, i, b, block_at, referenced));
    }
    if (!pending_.empty()) {
      // Some id is pending only when an assistant message came before.
      return unanswered(place(i - 1) + ":", list_.element(i - 1));
    }
    if (version_ == ModelVersion::kV41 && !referenced.empty()) {
      push(Role::kSystem, i).announced_tools = std::move(referenced);
    }
    return {};
  }

  Result<void> convert_result(
      Block& block, std::size_t i, std::size_t b, const Path& at, std::vector<Tool>& referenced) {
    const Path content_at = at.member("content");
    for (std::size_t r = 0; r < block.result.size(); ++r) {
      const Block& inner = block.result[r];
      if (inner.kind != Block::Kind::kToolReference) {
        continue;
      }
      if (!tools_.contains(inner.name)) {
        const Path inner_at = content_at.element(r);
        return invalid(
            place(i, b) + ": tool reference '" + inner.name + "' not found in available tools",
            inner_at.member("tool_name"));
      }
      referenced.push_back({.name = inner.name});
    }
    Content content;
    if (block.result_text) {
      content.text = std::move(*block.result_text);
    }
    const std::string result_place = place(i, b) + ".tool_result";
    for (std::size_t r = 0; r < block.result.size(); ++r) {
      GALLEY_TRY(Content part,
                 content_of(block.result[r], result_place + ".content[" + std::to_string(r) + "]",
                            result_place, content_at.element(r)));
      join_block(content, std::move(part), r);
    }
    Message& message = push(Role::kTool, i);
    message.content = std::move(content);
    message.tool_call_id = std::move(block.id);
    return {};
  }

  Result<void> convert_assistant(std::vector<Block>& blocks, std::size_t i) {
    Message message{.role = Role::kAssistant};
    const Path at = list_.element(i);
    const Path content_at = at.member("content");
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      Block& block = blocks[b];
      if (is_content(block)) {
        if (!message.tool_calls.empty()) {
          return unanswered(place(i) + "." + std::to_string(b) + ": ", content_at.element(b));
        }
        const std::string block_place = place(i) + ".content[" + std::to_string(b) + "]";
        GALLEY_TRY(Content content,
                   content_of(block, block_place, block_place, content_at.element(b)));
        if (!content.images.empty()) {
          return invalid("Image in assistant message is unsupported", content_at.element(b));
        }
        message.content.text.append(message.content.text.empty() ? "" : "\n\n")
            .append(content.text);
        continue;
      }
      switch (block.kind) {
        case Block::Kind::kToolUse:
          if (!pending_.insert(block.id).second) {
            const Path block_at = content_at.element(b);
            return invalid(place(i, b) + ": `tool_use` ids must be unique", block_at.member("id"));
          }
          message.tool_calls.push_back(
              {std::move(block.id), std::move(block.name), arguments_of(block.input)});
          break;
        case Block::Kind::kThinking:
          if (message.reasoning) {
            message.reasoning->append("\n\n").append(block.text);
          } else {
            message.reasoning = std::move(block.text);
          }
          break;
        case Block::Kind::kRedactedThinking:
          break;
        case Block::Kind::kServerToolUse:
        case Block::Kind::kWebSearchToolResult:
          if (!options_.messages_drop_web_search) {
            const Path block_at = content_at.element(b);
            return invalid("Unsupported content block: server tools are not supported",
                           block_at.member("type"));
          }
          add_note(notes_, "web search blocks are ignored");
          break;
        default:
          return misplaced(block.kind, i, b);
      }
    }
    push(Role::kAssistant, i) = std::move(message);
    return {};
  }

  [[nodiscard]] std::string arguments_of(const Json& input) const {
    if (input.is_null() && options_.compat == Compat::kGalley) {
      return "{}";
    }
    return to_json(input, {JsonNumbers::kRust, JsonSpacing::kSpaced});
  }

  static bool is_content(const Block& block) {
    return block.kind == Block::Kind::kText || block.kind == Block::Kind::kImage ||
           block.kind == Block::Kind::kDocument;
  }

  // Text, image, document or tool reference. `block_place` is what errors name, `image_place` what
  // an image records.
  Result<Content> content_of(Block& block,
                             std::string_view block_place,
                             std::string_view image_place,
                             const Path& at) {
    if (block.kind == Block::Kind::kToolReference) {
      return text_block(std::move(block.name));
    }
    if (block.kind != Block::Kind::kImage) {
      return text_block(std::move(block.text));
    }
    if (version_ == ModelVersion::kV4) {
      add_note(notes_, "the model takes no images: the text `[Unsupported Image]` replaces them");
      return text_block(std::string(kUnsupportedImage));
    }
    Source& source = block.source;
    const Path source_at = at.member("source");
    const std::string intro = std::string(block_place).append(": ");
    switch (source.kind) {
      case Source::Kind::kFile:
        return invalid(
            intro + "file_id is not supported. Pass the image as a base64 data url instead.",
            source_at.member("file_id"));
      case Source::Kind::kUrl:
        if (!is_link(source.data)) {
          return invalid(intro + "invalid url: " + quoted(source.data), source_at.member("url"));
        }
        if (source.data.size() > kImageLinkBytesMax) {
          return invalid(intro + link_too_long(source.data.size()), source_at.member("url"));
        }
        break;
      case Source::Kind::kBase64:
        pad_base64(source.data);
        if (!is_base64(source.data)) {
          return invalid(intro + "base64 decode error", source_at.member("data"));
        }
        source.data.insert(0, "data:" + source.media_type + ";base64,");
        break;
    }
    return image_block(
        image_from_url(std::move(source.data), ImageDetail::kHigh, std::string(image_place)));
  }

  // Clients pad wrongly: some '=' at the end becomes the right number. None at all is left alone,
  // it may be a payload that was cut.
  static void pad_base64(std::string& data) {
    if (!data.ends_with('=')) {
      return;
    }
    const std::size_t symbols = data.find_last_not_of('=') + 1;
    if (symbols % 4 != 1) {
      data.resize(symbols);
      data.append((4 - symbols % 4) % 4, '=');
    }
  }

  // As the reference quotes a url in its error: control characters and quotes escaped.
  static std::string quoted(std::string_view text) {
    constexpr std::string_view kHex = "0123456789abcdef";
    std::string out = "\"";
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      switch (c) {
        case '\n':
          out.append("\\n");
          break;
        case '\r':
          out.append("\\r");
          break;
        case '\t':
          out.append("\\t");
          break;
        case '\0':
          out.append("\\0");
          break;
        case '"':
        case '\\':
          out.append({'\\', c});
          break;
        default:
          if (byte >= 0x20 && byte != 0x7F) {
            out.push_back(c);
            break;
          }
          out.append("\\u{");
          if (byte >= 0x10) {
            out.push_back(kHex[byte >> 4U]);
          }
          out.push_back(kHex[byte & 15U]);
          out.push_back('}');
      }
    }
    return out.append("\"");
  }

  Path body_;
  Path list_ = body_.member("messages");
  const CodecOptions& options_;
  ModelVersion version_;
  std::vector<std::string>& notes_;
  std::unordered_set<std::string_view> tools_;  // declared names; the tools outlive this object
  std::set<std::string, std::less<>> pending_;  // sorted, as the error texts list them
  std::vector<Message> out_;
  std::vector<std::size_t> origin_;
};

// `any` asks for some call. The reference reads it as auto, so outside thinking mode the prompt
// stays that of auto and only the constraint knows; in thinking mode a forced call does not show in
// the prompt anyway.
RequestedToolChoice effective_choice(const MessagesBody& body,
                                     const Conversation& conversation,
                                     bool galley) {
  using Kind = RequestedToolChoice::Kind;
  if (body.tool_choice.kind == Kind::kNamed && body.dropped_tools.contains(body.tool_choice.name)) {
    return {};
  }
  if (galley && body.any_tool && conversation.thinking) {
    return {.kind = Kind::kRequired};
  }
  return body.tool_choice;
}

}  // namespace

Result<Request> parse_messages_request(std::string_view text, const CodecOptions& options) {
  using Kind = RequestedToolChoice::Kind;
  const bool galley = options.compat == Compat::kGalley;
  const Path at;
  GALLEY_TRY(Json json, parse_body(text));
  GALLEY_TRY(const Fields fields, Fields::open(json, at));
  Request request{.protocol = Protocol::kMessages, .compat = options.compat};
  Conversation& conversation = request.conversation;
  Reader reader(fields, galley, request.notes);
  GALLEY_TRY(MessagesBody body, reader.read());
  GALLEY_TRY(std::vector<Reader::SourceTool> tools, reader.read_tools());

  GALLEY_TRY(request.version, find_model(options, body.model));
  request.model = std::move(body.model);
  settle_thinking(body.thinking, body.effort, options.default_thinking, conversation);
  GALLEY_CHECK_OK(
      settle_tool_kinds(std::move(tools), options, request.version, body, request.notes));
  Messages messages(options, request.version, body.tools, request.notes);
  const bool ends_with_assistant =
      !body.messages.empty() && body.messages.back().role == MessageRole::kAssistant;
  GALLEY_TRY(conversation.messages,
             messages.convert(std::move(body.system), std::move(body.messages)));
  if (const auto index = settle_reasoning(conversation.messages, conversation.thinking,
                                          body.has_tools, options.reject_missing_reasoning)) {
    const Path list = at.member("messages");
    const Path message_at = list.element(messages.origin(*index));
    return invalid(missing_reasoning_text("content[].thinking"), message_at.member("content"));
  }
  const RequestedToolChoice choice = effective_choice(body, conversation, galley);
  if (choice.kind == Kind::kNamed && body.has_tools && body.tools.empty()) {
    return invalid("Invalid value for 'tool_call': no function named '" + choice.name +
                       "' was specified in the 'tools' parameter.",
                   at.member("tool_choice"));
  }
  GALLEY_CHECK_OK(
      settle_tools(std::move(body.tools), choice, options.compat, conversation, request.notes));
  if (galley && body.any_tool && conversation.tools.empty()) {
    add_note(request.notes, "`tool_choice` is ignored: no tools are declared");
  }
  GALLEY_CHECK_OK(settle_announced_tools(conversation));
  if (body.format.kind == ResponseFormat::Kind::kJsonSchema) {
    conversation.format = std::move(body.format);
    GALLEY_CHECK_OK(
        settle_response_schema(conversation.format, false, options.compat, body.format_where));
  }
  GALLEY_TRY(request.constraint, make_constraint(conversation, false, galley && body.any_tool));
  GALLEY_CHECK_OK(check_stops(body.stops, options.compat, at.member("stop_sequences")));
  GALLEY_TRY(request.sampling, settle_sampling(body.sampling, conversation, request.version,
                                               options.compat, request.notes));
  request.output = make_output_format(conversation, std::move(body.stops.strings));
  request.stream = body.stream;
  request.parallel_tool_calls = body.parallel_tool_calls;
  request.user = std::move(body.user);
  if (galley) {
    GALLEY_CHECK_OK(check_image_limits(conversation));
    note_unenforced_format(conversation, request.notes);
    if (ends_with_assistant) {
      add_note(request.notes, "the last assistant message is a finished turn, not continued");
    }
  }
  return request;
}

}  // namespace galley::recipe
