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
#include "recipe/messages_body.h"
#include "recipe/request.h"
#include "recipe/request_fields.h"
#include "recipe/schema.h"

// Messages bodies, judged and made a request (spec recipe 6.6).
namespace galley::recipe {
namespace {

// Sorts the declared tools: client tools stay, web search is dropped when the operator said so,
// everything else is refused.
Result<void> settle_tool_kinds(std::vector<SourceTool> tools,
                               const CodecOptions& options,
                               ModelVersion version,
                               MessagesBody& body,
                               std::vector<std::string>& notes) {
  body.has_tools = !tools.empty();
  body.tools.reserve(tools.size());
  for (SourceTool& source : tools) {
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
  [[nodiscard]] std::unexpected<Error> misplaced(MessageBlock::Kind kind,
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
      case MessageBlock::Kind::kToolUse:
      case MessageBlock::Kind::kServerToolUse:
        return invalid(text("tool_use", "assistant"), block_at.member("type"));
      case MessageBlock::Kind::kToolResult:
        return invalid(text("tool_result", "user"), block_at.member("type"));
      case MessageBlock::Kind::kToolAddition:
        return invalid(text("tool_addition", "system"), block_at.member("type"));
      case MessageBlock::Kind::kWebSearchToolResult:
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
      MessageBlock& block = source.blocks[b];
      if (is_content(block)) {
        GALLEY_TRY(Content part, content_of(block, place(i) + ".content[" + std::to_string(b) + "]",
                                            place(i), content_at.element(b)));
        join_block(content, std::move(part), joined++);
      } else if (block.kind == MessageBlock::Kind::kToolAddition) {
        if (!tools_.contains(block.name)) {
          const Path block_at = content_at.element(b);
          return invalid(place(i, b) + ": `tool_addition` references unknown tool '" +
                             std::string(clipped(block.name)) + "'",
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

  Result<void> convert_user(std::vector<MessageBlock>& blocks, std::size_t i) {
    std::unordered_set<std::string> answered;
    std::vector<Tool> referenced;
    const Path at = list_.element(i);
    const Path content_at = at.member("content");
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      MessageBlock& block = blocks[b];
      if (is_content(block)) {
        GALLEY_CHECK_OK(check_answered(i));
        const std::string block_place = place(i) + ".content[" + std::to_string(b) + "]";
        GALLEY_TRY(Content content,
                   content_of(block, block_place, block_place, content_at.element(b)));
        push(Role::kUser, i).content = std::move(content);
        continue;
      }
      if (block.kind != MessageBlock::Kind::kToolResult) {
        return misplaced(block.kind, i, b);
      }
      const Path block_at = content_at.element(b);
      if (answered.contains(block.id)) {
        return invalid(place(i, b) +
                           ": each tool_use must have a single result. Found multiple "
                           "`tool_result` blocks with id: " +
                           std::string(clipped(block.id)),
                       block_at.member("tool_use_id"));
      }
      if (pending_.erase(block.id) == 0) {
        return invalid("unexpected `" + place(i, b) + ": tool_use_id` found in `tool_result` " +
                           "blocks: " + std::string(clipped(block.id)) +
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

  Result<void> convert_result(MessageBlock& block,
                              std::size_t i,
                              std::size_t b,
                              const Path& at,
                              std::vector<Tool>& referenced) {
    const Path content_at = at.member("content");
    for (std::size_t r = 0; r < block.result.size(); ++r) {
      const MessageBlock& inner = block.result[r];
      if (inner.kind != MessageBlock::Kind::kToolReference) {
        continue;
      }
      if (!tools_.contains(inner.name)) {
        const Path inner_at = content_at.element(r);
        return invalid(place(i, b) + ": tool reference '" + std::string(clipped(inner.name)) +
                           "' not found in available tools",
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

  Result<void> convert_assistant(std::vector<MessageBlock>& blocks, std::size_t i) {
    Message message{.role = Role::kAssistant};
    const Path at = list_.element(i);
    const Path content_at = at.member("content");
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      MessageBlock& block = blocks[b];
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
        case MessageBlock::Kind::kToolUse:
          if (!pending_.insert(block.id).second) {
            const Path block_at = content_at.element(b);
            return invalid(place(i, b) + ": `tool_use` ids must be unique", block_at.member("id"));
          }
          message.tool_calls.push_back(
              {std::move(block.id), std::move(block.name), arguments_of(block.input)});
          break;
        case MessageBlock::Kind::kThinking:
          if (message.reasoning) {
            message.reasoning->append("\n\n").append(block.text);
          } else {
            message.reasoning = std::move(block.text);
          }
          break;
        case MessageBlock::Kind::kRedactedThinking:
          break;
        case MessageBlock::Kind::kServerToolUse:
        case MessageBlock::Kind::kWebSearchToolResult:
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

  static bool is_content(const MessageBlock& block) {
    return block.kind == MessageBlock::Kind::kText || block.kind == MessageBlock::Kind::kImage ||
           block.kind == MessageBlock::Kind::kDocument;
  }

  // Text, image, document or tool reference. `block_place` is what errors name, `image_place` what
  // an image records.
  Result<Content> content_of(MessageBlock& block,
                             std::string_view block_place,
                             std::string_view image_place,
                             const Path& at) {
    if (block.kind == MessageBlock::Kind::kToolReference) {
      return text_block(std::move(block.name));
    }
    if (block.kind != MessageBlock::Kind::kImage) {
      return text_block(std::move(block.text));
    }
    if (version_ == ModelVersion::kV4) {
      add_note(notes_, "the model takes no images: the text `[Unsupported Image]` replaces them");
      return text_block(std::string(kUnsupportedImage));
    }
    ImageSource& source = block.source;
    const Path source_at = at.member("source");
    const std::string intro = std::string(block_place).append(": ");
    switch (source.kind) {
      case ImageSource::Kind::kFile:
        return invalid(
            intro + "file_id is not supported. Pass the image as a base64 data url instead.",
            source_at.member("file_id"));
      case ImageSource::Kind::kUrl:
        if (!is_link(source.data)) {
          return invalid(intro + "invalid url: " + quoted(clipped(source.data)),
                         source_at.member("url"));
        }
        if (source.data.size() > kImageLinkBytesMax) {
          return invalid(intro + link_too_long(source.data.size()), source_at.member("url"));
        }
        break;
      case ImageSource::Kind::kBase64:
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
  GALLEY_TRY(MessagesBody body, read_messages_body(fields, galley, request.notes));
  GALLEY_TRY(std::vector<SourceTool> tools, read_messages_tools(fields, galley, request.notes));

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
    return invalid("Invalid value for 'tool_call': no function named '" +
                       std::string(clipped(choice.name)) +
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
  GALLEY_TRY(request.constraint, make_constraint(conversation, "", galley && body.any_tool));
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
