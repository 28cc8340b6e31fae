#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "recipe/limits.h"
#include "recipe/request_fields.h"
#include "recipe/request_text.h"
#include "recipe/schema.h"

// The tools of a request, and the arguments of calls in its history.
namespace galley::recipe {

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
    return invalid("Invalid value for 'tool_call': no function named '" +
                       std::string(clipped(choice.name)) +
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

}  // namespace galley::recipe
