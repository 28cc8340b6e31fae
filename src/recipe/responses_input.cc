#include "recipe/responses_input.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "recipe/limits.h"

namespace galley::recipe {
namespace {

using Kind = InputItem::Kind;

// -- reading --------------------------------------------------------------------------------------

Result<InputBlock> read_image(const Fields& fields) {
  InputBlock block{.kind = InputBlock::Kind::kImage};
  GALLEY_TRY(block.image_url, fields.text("image_url"));
  GALLEY_TRY(block.file_id, fields.text("file_id"));
  GALLEY_TRY(block.detail, read_detail(fields));
  if (block.image_url && block.image_url->empty()) {
    block.image_url.reset();
  }
  return block;
}

Result<InputBlock> read_block(Json& value,
                              bool is_output,
                              const ReadContext& context,
                              const Path& at) {
  // A call's output may hold everything but the first of these. The last is Galley's.
  constexpr std::array<std::string_view, 5> kTypes = {"output_text", "input_text", "input_image",
                                                      "input_file", "refusal"};
  GALLEY_TRY(const Fields fields, Fields::open(value, at));
  const std::size_t known = context.galley() ? 5 : 4;
  const std::span<const std::string_view> allowed =
      is_output ? std::span(kTypes).subspan(1, 3) : std::span(kTypes).first(known);
  GALLEY_TRY(const std::size_t index, fields.required_choice("type", allowed));
  const std::string_view type = allowed[index];
  if (type == "input_image") {
    GALLEY_TRY(InputBlock image, read_image(fields));
    context.note_unread(fields);
    return image;
  }
  if (type == "input_file") {
    return InputBlock{.kind = InputBlock::Kind::kFile};
  }
  InputBlock block{.kind = InputBlock::Kind::kText};
  GALLEY_TRY(block.text, fields.required_text(type == "refusal" ? "refusal" : "text"));
  context.note_unread(fields);
  return block;
}

// `value` is nullptr where nothing was sent.
Result<InputContent> read_content(Json* value,
                                  bool is_output,
                                  const ReadContext& context,
                                  const Path& at) {
  InputContent content;
  if (value == nullptr) {
    return content;
  }
  if (std::string* const text = value->string()) {
    content.blocks.push_back({.kind = InputBlock::Kind::kText, .text = std::move(*text)});
    return content;
  }
  JsonArray* const blocks = value->array();
  if (blocks == nullptr) {
    return wrong_type(*value, "a string or an array", at);
  }
  content.is_list = true;
  content.blocks.reserve(blocks->size());
  for (std::size_t i = 0; i < blocks->size(); ++i) {
    GALLEY_TRY(content.blocks.emplace_back(),
               read_block((*blocks)[i], is_output, context, at.element(i)));
  }
  return content;
}

Result<void> read_message(const Fields& fields, const ReadContext& context, InputItem& item) {
  constexpr std::array<std::string_view, 4> kRoles = {"user", "assistant", "system", "developer"};
  GALLEY_TRY(const std::size_t role, fields.required_choice("role", kRoles));
  item.speaker = static_cast<InputItem::Speaker>(role);
  const Path at = fields.at().member("content");
  Json* const content = fields.find("content");
  if (content == nullptr) {
    return missing(at);
  }
  GALLEY_TRY(item.content, read_content(content, false, context, at));
  return {};
}

Result<void> read_reasoning(const Fields& fields, const ReadContext& context, InputItem& item) {
  GALLEY_TRY(const auto encrypted, fields.text("encrypted_content"));
  GALLEY_TRY(JsonArray* const parts, fields.array("content"));
  if (parts == nullptr) {
    return {};
  }
  const Path at = fields.at().member("content");
  for (std::size_t i = 0; i < parts->size(); ++i) {
    const Path part_at = at.element(i);
    GALLEY_TRY(const Fields part, Fields::open((*parts)[i], part_at));
    GALLEY_TRY(const std::string text, part.required_text("text"));
    item.reasoning.append(i == 0 ? "" : "\n").append(text);
    part.expect({"type"});
    context.note_unread(part);
  }
  return {};
}

Result<void> read_function_call(const Fields& fields, const ReadContext& context, InputItem& item) {
  GALLEY_TRY(item.call_id, fields.required_text("call_id"));
  GALLEY_TRY(item.name, fields.required_text("name"));
  GALLEY_TRY(item.name_space, fields.text("namespace"));
  if (!context.galley()) {
    GALLEY_TRY(item.arguments, fields.required_text("arguments"));
    return {};
  }
  GALLEY_TRY(auto arguments, fields.text("arguments"));
  item.arguments = std::move(arguments).value_or("");
  return settle_arguments(item.arguments, fields.at().member("arguments"));
}

Result<void> read_custom_call(const Fields& fields, InputItem& item) {
  GALLEY_TRY(item.call_id, fields.required_text("call_id"));
  GALLEY_TRY(item.name, fields.required_text("name"));
  GALLEY_TRY(const std::string input, fields.required_text("input"));
  item.arguments = R"({"input":)";
  append_json_string(input, item.arguments);
  item.arguments.push_back('}');
  return {};
}

Result<void> read_execution(const Fields& fields) {
  constexpr std::array<std::string_view, 2> kExecutions = {"client", "server"};
  GALLEY_TRY([[maybe_unused]] const auto execution, fields.choice("execution", kExecutions));
  return {};
}

Result<void> read_search_call(const Fields& fields, InputItem& item) {
  GALLEY_TRY(item.call_id, fields.required_text("call_id"));
  GALLEY_CHECK_OK(read_execution(fields));
  const Path at = fields.at().member("arguments");
  const Json* const arguments = fields.find("arguments");
  if (arguments == nullptr) {
    return missing(at);
  }
  if (arguments->object() == nullptr) {
    return wrong_type(*arguments, "an object", at);
  }
  item.name = "tool_search";
  item.arguments = to_json(*arguments);
  return {};
}

Result<void> read_search_output(const Fields& fields, const ReadContext& context, InputItem& item) {
  GALLEY_TRY(item.call_id, fields.required_text("call_id"));
  GALLEY_CHECK_OK(read_execution(fields));
  GALLEY_TRY(JsonArray* const tools, fields.required_array("tools"));
  const Path at = fields.at().member("tools");
  GALLEY_TRY(item.tools, read_tools(*tools, context, at));
  return {};
}

Result<void> read_call_output(const Fields& fields, const ReadContext& context, InputItem& item) {
  const Path at = fields.at().member("output");
  Json* const output = fields.find("output");
  if (item.type == "custom_tool_call_output") {
    GALLEY_TRY(item.call_id, fields.required_text("call_id"));
  } else {
    GALLEY_TRY(item.call_id, fields.text("call_id"));
    if (output == nullptr) {
      return missing(at);
    }
  }
  GALLEY_TRY(item.content, read_content(output, true, context, at));
  return {};
}

Kind kind_of(std::string_view type) {
  constexpr std::array<std::pair<std::string_view, Kind>, 9> kKinds = {
      {{"message", Kind::kMessage},
       {"reasoning", Kind::kReasoning},
       {"function_call", Kind::kCall},
       {"custom_tool_call", Kind::kCall},
       {"tool_search_call", Kind::kCall},
       {"function_call_output", Kind::kCallOutput},
       {"custom_tool_call_output", Kind::kCallOutput},
       {"tool_search_output", Kind::kSearchOutput},
       {"web_search_call", Kind::kWebSearchCall}}};
  const auto it = std::ranges::find(kKinds, type, &std::pair<std::string_view, Kind>::first);
  return it == kKinds.end() ? Kind::kUnsupported : it->second;
}

Result<InputItem> read_item(Json& value, const ReadContext& context, const Path& at) {
  GALLEY_TRY(const Fields fields, Fields::open(value, at));
  InputItem item;
  GALLEY_TRY(auto type, fields.text("type"));
  if (!type && fields.find("role") == nullptr) {
    return invalid("An input item needs a 'type' or a 'role'.", at);
  }
  item.type = std::move(type).value_or("");
  item.kind =
      item.type.empty() && fields.find("role") != nullptr ? Kind::kMessage : kind_of(item.type);
  switch (item.kind) {
    case Kind::kMessage:
      GALLEY_CHECK_OK(read_message(fields, context, item));
      break;
    case Kind::kReasoning:
      GALLEY_CHECK_OK(read_reasoning(fields, context, item));
      break;
    case Kind::kCall:
      if (item.type == "function_call") {
        GALLEY_CHECK_OK(read_function_call(fields, context, item));
      } else if (item.type == "custom_tool_call") {
        GALLEY_CHECK_OK(read_custom_call(fields, item));
      } else {
        GALLEY_CHECK_OK(read_search_call(fields, item));
      }
      break;
    case Kind::kCallOutput:
      GALLEY_CHECK_OK(read_call_output(fields, context, item));
      break;
    case Kind::kSearchOutput:
      GALLEY_CHECK_OK(read_search_output(fields, context, item));
      break;
    case Kind::kUnsupported:
      if (context.galley() && item.type == "item_reference") {
        return invalid(at.text() + ": item_reference is not supported; replay full input instead",
                       at);
      }
      add_note(context.notes,
               "items of type `" + std::string(clipped(item.type)) + "` are ignored");
      return item;
    case Kind::kWebSearchCall:
      return item;
  }
  // What items of a reply have when they are sent back.
  fields.expect({"id", "status", "phase", "execution"});
  context.note_unread(fields);
  return item;
}

// -- converting -----------------------------------------------------------------------------------

// Error: the image names neither or both sources, a file, or a link that is too long.
Result<Content> convert_image(InputBlock& block, const Path& at, const std::string& item_place) {
  if (!block.image_url && !block.file_id) {
    return invalid(at.text() + ": input_image must have image_url or file_id", at);
  }
  if (block.image_url && block.file_id) {
    return invalid(at.text() + ": input_image cannot have both image_url and file_id", at);
  }
  if (block.file_id) {
    return invalid(
        at.text() + ": file_id is not supported. Pass the image as a base64 data url instead.", at);
  }
  if (is_link(*block.image_url) && block.image_url->size() > kImageLinkBytesMax) {
    return invalid(at.text() + ": image_url " + link_too_long(block.image_url->size()), at);
  }
  return image_block(image_from_url(std::move(*block.image_url), block.detail, item_place));
}

// `at` is the place of the list itself.
Result<Content> convert_content(InputContent content,
                                ModelVersion version,
                                const Path& at,
                                const std::string& item_place,
                                std::vector<std::string>& notes) {
  Content out;
  for (std::size_t i = 0; i < content.blocks.size(); ++i) {
    InputBlock& block = content.blocks[i];
    switch (block.kind) {
      case InputBlock::Kind::kText:
        join_block(out, text_block(std::move(block.text)), i);
        break;
      case InputBlock::Kind::kImage:
        if (version == ModelVersion::kV4) {
          join_block(out, text_block(std::string(kUnsupportedImage)), i);
          add_note(notes, "the model reads no images");
        } else {
          GALLEY_TRY(Content image, convert_image(block, at.element(i), item_place));
          join_block(out, std::move(image), i);
        }
        break;
      case InputBlock::Kind::kFile:
        join_block(out, text_block(std::string(kUnsupportedDocument)), i);
        add_note(notes, "`input_file` is not read");
        break;
    }
  }
  return out;
}

// A developer message with one text block of this shape belongs to the result before it.
bool is_resize_notice(const InputItem& item) {
  return item.kind == Kind::kMessage && item.speaker == InputItem::Speaker::kDeveloper &&
         item.content.is_list && item.content.blocks.size() == 1 &&
         item.content.blocks[0].kind == InputBlock::Kind::kText &&
         item.content.blocks[0].text.starts_with("<image_resize_notice>") &&
         item.content.blocks[0].text.ends_with("</image_resize_notice>");
}

class Converter {
 public:
  Converter(ModelVersion version,
            Compat compat,
            ResponsesTools& tools,
            std::vector<Message>& messages,
            std::vector<std::string>& notes)
      : version_(version), compat_(compat), tools_(tools), messages_(messages), notes_(notes) {}

  Result<void> run(std::vector<InputItem> items,
                   std::size_t earlier_count,
                   const std::vector<std::vector<std::string>>& found) {
    const ItemPlaces places{.earlier_count = earlier_count};
    for (index_ = 0; index_ < items.size(); ++index_) {
      InputItem& item = items[index_];
      const Path at = places.of(index_);
      InputItem* const next = index_ + 1 < items.size() ? &items[index_ + 1] : nullptr;
      switch (item.kind) {
        case Kind::kMessage:
          GALLEY_CHECK_OK(close_group(at));
          GALLEY_CHECK_OK(message(item, at));
          break;
        case Kind::kReasoning:
          GALLEY_CHECK_OK(close_group(at));
          reasoning(std::move(item.reasoning));
          break;
        case Kind::kWebSearchCall:
          GALLEY_CHECK_OK(close_group(at));
          break;
        case Kind::kCall:
          GALLEY_CHECK_OK(call(item, at));
          break;
        case Kind::kCallOutput:
          GALLEY_CHECK_OK(call_output(item, next, at));
          break;
        case Kind::kSearchOutput:
          GALLEY_CHECK_OK(search_output(item, found[index_], at));
          break;
        case Kind::kUnsupported:
          break;
      }
    }
    return close_group(places.input);
  }

 private:
  // The calls of one turn and what answered them, until nothing is open any more.
  struct Group {
    std::vector<ToolCall> calls;
    std::unordered_map<std::string, std::vector<Message>> answers;  // by call id
    std::vector<Message> announcements;
  };

  bool is_v41() const { return version_ == ModelVersion::kV41; }

  // What begins something new needs every earlier call to be answered.
  Result<void> close_group(const Path& at) {
    if (!open_.empty()) {
      // The reference names any of them, in the goldens the last. The first is the one whose answer
      // a client should have sent first.
      const auto is_open = [this](const ToolCall& call) { return open_.contains(call.id); };
      const auto call =
          compat_ == Compat::kGalley
              ? std::ranges::find_if(group_.calls, is_open)
              : std::ranges::find_if(group_.calls.rbegin(), group_.calls.rend(), is_open).base() -
                    1;
      return invalid("No tool output found for tool call " + std::string(clipped(call->id)) + ".",
                     at);
    }
    flush_group();
    return {};
  }

  void flush_group() {
    if (group_.calls.empty()) {
      return;
    }
    Group group = std::exchange(group_, Group{});
    std::ranges::stable_sort(group.calls, {}, &ToolCall::id);
    std::vector<Message> answers;
    for (const ToolCall& call : group.calls) {
      std::ranges::move(group.answers[call.id], std::back_inserter(answers));
    }
    if (messages_.empty() || messages_.back().role != Role::kAssistant) {
      messages_.push_back({.role = Role::kAssistant});
    }
    std::ranges::move(group.calls, std::back_inserter(messages_.back().tool_calls));
    std::ranges::move(answers, std::back_inserter(messages_));
    std::ranges::move(group.announcements, std::back_inserter(messages_));
  }

  Result<void> message(InputItem& item, const Path& at) {
    const std::string place = at.text();
    const Path content_at = at.member("content");
    GALLEY_TRY(Content content,
               convert_content(std::move(item.content), version_, content_at, place, notes_));
    if (item.speaker == InputItem::Speaker::kAssistant) {
      if (!content.images.empty()) {
        return invalid(place + ": Image in assistant message is unsupported", at);
      }
      assistant(std::move(content));
      return {};
    }
    GALLEY_CHECK_OK(check_data_urls(content, place, at));
    const bool is_user = item.speaker == InputItem::Speaker::kUser ||
                         (item.speaker == InputItem::Speaker::kDeveloper && !is_v41());
    messages_.push_back(
        {.role = is_user ? Role::kUser : Role::kSystem, .content = std::move(content)});
    return {};
  }

  void assistant(Content content) {
    if (messages_.empty() || messages_.back().role != Role::kAssistant ||
        !messages_.back().tool_calls.empty()) {
      messages_.push_back({.role = Role::kAssistant, .content = std::move(content)});
      return;
    }
    std::string& last = messages_.back().content.text;
    if (!content.text.empty()) {
      last.append(last.empty() ? "" : "\n\n").append(content.text);
    }
  }

  void reasoning(std::string text) {
    if (text.empty()) {
      return;
    }
    if (messages_.empty() || messages_.back().role != Role::kAssistant ||
        !messages_.back().content.empty()) {
      messages_.push_back({.role = Role::kAssistant});
    }
    std::optional<std::string>& reasoning = messages_.back().reasoning;
    if (reasoning) {
      reasoning->append("\n").append(text);
    } else {
      reasoning = std::move(text);
    }
  }

  Result<void> check_call_id(const std::string& id, const Path& at) const {
    if (id.empty()) {
      return invalid("Invalid '" + at.text() +
                         ".call_id': empty string. Expected a string with minimum length 1, but "
                         "got an empty string instead.",
                     at.member("call_id"));
    }
    return {};
  }

  Result<void> call(InputItem& item, const Path& at) {
    if (item.type == "tool_search_call" && !is_v41()) {
      return {};
    }
    GALLEY_CHECK_OK(check_call_id(*item.call_id, at));
    if (open_.contains(*item.call_id) || answered_.contains(*item.call_id)) {
      return invalid("Duplicate 'call_id': " + std::string(clipped(*item.call_id)) + ".",
                     at.member("call_id"));
    }
    open_.insert(*item.call_id);
    group_.calls.push_back({.id = std::move(*item.call_id),
                            .name = item.name_space ? tools_.flat_name(*item.name_space, item.name)
                                                    : std::move(item.name),
                            .arguments = std::move(item.arguments)});
    return {};
  }

  // Moves the id of an answered call from the open ones to the others.
  Result<void> answer(const std::string& id, const Path& at) {
    GALLEY_CHECK_OK(check_call_id(id, at));
    if (open_.erase(id) == 0) {
      const std::string shown(clipped(id));
      return invalid(answered_.contains(id)
                         ? "Duplicate tool output for call_id: " + shown + "."
                         : "No tool call found for tool output with call_id " + shown + ".",
                     at.member("call_id"));
    }
    answered_.insert(id);
    return {};
  }

  void add_answer(std::string id, std::vector<Message> messages) {
    group_.answers.emplace(std::move(id), std::move(messages));
    if (group_.answers.size() >= group_.calls.size()) {
      flush_group();
    }
  }

  Result<void> call_output(InputItem& item, InputItem* next, const Path& at) {
    const bool custom = item.type == "custom_tool_call_output";
    // The reference judges a custom output's id first, a function's output text first.
    if (custom) {
      GALLEY_CHECK_OK(answer(*item.call_id, at));
    }
    const std::string place = at.text();
    const Path output_at = at.member("output");
    GALLEY_TRY(Content content,
               convert_content(std::move(item.content), version_, output_at, place, notes_));
    GALLEY_CHECK_OK(check_data_urls(content, place, at));
    if (!item.call_id) {
      GALLEY_CHECK_OK(close_group(at));
      messages_.push_back({.role = Role::kTool, .content = std::move(content)});
      return {};
    }
    if (!custom) {
      GALLEY_CHECK_OK(answer(*item.call_id, at));
    }
    std::vector<Message> messages;
    messages.push_back(
        {.role = Role::kTool, .content = std::move(content), .tool_call_id = item.call_id});
    if (is_v41() && next != nullptr && is_resize_notice(*next)) {
      messages.push_back(
          {.role = Role::kSystem, .content = {.text = std::move(next->content.blocks[0].text)}});
      ++index_;
    }
    add_answer(std::move(*item.call_id), std::move(messages));
    return {};
  }

  Result<void> search_output(InputItem& item,
                             const std::vector<std::string>& found,
                             const Path& at) {
    if (!is_v41()) {
      return {};
    }
    GALLEY_CHECK_OK(answer(*item.call_id, at));
    GALLEY_TRY(std::string text, tool_search_result(item.tools, compat_, at));
    if (!found.empty()) {
      Message announcement{.role = Role::kSystem};
      for (const std::string& name : found) {
        announcement.announced_tools.push_back({.name = name});
      }
      group_.announcements.push_back(std::move(announcement));
    }
    std::vector<Message> messages;
    messages.push_back(
        {.role = Role::kTool, .content = {.text = std::move(text)}, .tool_call_id = item.call_id});
    add_answer(std::move(*item.call_id), std::move(messages));
    return {};
  }

  ModelVersion version_;
  Compat compat_;
  ResponsesTools& tools_;
  std::vector<Message>& messages_;
  std::vector<std::string>& notes_;
  std::size_t index_ = 0;
  Group group_;
  std::unordered_set<std::string> open_;
  std::unordered_set<std::string> answered_;
};

}  // namespace

Result<std::vector<InputItem>> read_items(JsonArray& items,
                                          const ReadContext& context,
                                          const Path& at) {
  if (context.galley() && items.size() > kMessageCountMax) {
    return invalid("Too many input items: " + std::to_string(items.size()) + ", the limit is " +
                       std::to_string(kMessageCountMax) + ".",
                   at);
  }
  std::vector<InputItem> out;
  out.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    GALLEY_TRY(out.emplace_back(), read_item(items[i], context, at.element(i)));
  }
  return out;
}

Result<void> convert_items(std::vector<InputItem> items,
                           std::size_t earlier_count,
                           ModelVersion version,
                           Compat compat,
                           ResponsesTools& tools,
                           const std::vector<std::vector<std::string>>& found,
                           std::vector<Message>& messages,
                           std::vector<std::string>& notes) {
  return Converter(version, compat, tools, messages, notes)
      .run(std::move(items), earlier_count, found);
}

}  // namespace galley::recipe
