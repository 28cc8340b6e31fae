#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "recipe/chat_body.h"
#include "recipe/limits.h"
#include "recipe/request.h"
#include "recipe/request_fields.h"
#include "recipe/schema.h"

// Chat Completions bodies, judged and made a request (spec recipe 6.2).
namespace galley::recipe {
namespace {

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
        return invalid("Duplicate value for 'tool_call_id' of " +
                           std::string(clipped(calls[j].id)) + " in message[" + std::to_string(i) +
                           "]",
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
                std::string(clipped(result.tool_call_id)),
            result_at.member("tool_call_id"));
      }
      if (!answered.insert(*id).second) {
        return invalid("Duplicate value for 'tool_call_id' of " +
                           std::string(clipped(result.tool_call_id)) + " in message[" +
                           std::to_string(k) + "]",
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
    ChatContent& source = *source_[i].content;
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

  Result<Content> block_of(ChatPart& part, std::size_t i, std::size_t b, const Path& at) {
    if (part.kind == ChatPart::Kind::kText) {
      return text_block(std::move(part.text));
    }
    if (version_ == ModelVersion::kV4) {
      add_note(notes_, "the model takes no images: the text `[Unsupported Image]` replaces them");
      return text_block(std::string(kUnsupportedImage));
    }
    std::string place = ".messages[" + std::to_string(i) + "]";
    if (part.kind == ChatPart::Kind::kFile) {
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

  static Result<Content> file_block(ChatPart& part, std::string place, const Path& at) {
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
  GALLEY_TRY(ChatBody body, read_chat_body(fields, galley, request.notes));

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
  if (body.guided && conversation.format.kind != ResponseFormat::Kind::kText) {
    return fail(Code::kInvalidArgument, "cannot be used with `response_format`",
                body.guided->place);
  }
  request.guided = std::move(body.guided);
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
  GALLEY_TRY(request.constraint,
             make_constraint(conversation, body.has_response_format ? "response_format" : ""));
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
