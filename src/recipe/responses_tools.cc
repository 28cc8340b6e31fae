#include "recipe/responses_tools.h"

#include <algorithm>
#include <array>
#include <utility>

namespace galley::recipe {
namespace {

// What V4.1 is told about the custom tool apply_patch (a data fact, spec 6.4). V4 lacks one line
// break, see kPatchBreak.
constexpr std::string_view kApplyPatch =
    "Use the `apply_patch` tool to edit files.\n"
    "Your patch language is a stripped\u2011down, file\u2011oriented diff format designed to "
    "be easy to parse and safe to apply. You can think of it as a high\u2011level "
    "envelope:\n"
    "\n"
    "*** Begin Patch\n"
    "[ one or more file sections ]\n"
    "*** End Patch\n"
    "\n"
    "Within that envelope, you get a sequence of file operations.\n"
    "You MUST include a header to specify the action you are taking.\n"
    "Each operation starts with one of three headers:\n"
    "\n"
    "*** Add File: <path> - create a new file. Every following line is a + line "
    "(the initial contents).\n"
    "*** Delete File: <path> - remove an existing file. Nothing follows.\n"
    "*** Update File: <path> - patch an existing file in place (optionally with a "
    "rename).\n"
    "\n"
    "May be immediately followed by *** Move to: <new path> if you want to rename "
    "the file.\n"
    "Then one or more \u201chunks\u201d, each introduced by @@ (optionally followed by a "
    "hunk header).\n"
    "Within a hunk each line starts with:\n"
    "\n"
    "For instructions on [context_before] and [context_after]:\n"
    "- By default, show 3 lines of code immediately above and 3 lines immediately "
    "below each change. If a change is within 3 lines of a previous change, do NOT "
    "duplicate the first change\u2019s [context_after] lines in the second change\u2019s "
    "[context_before] lines.\n"
    "- If 3 lines of context is insufficient to uniquely identify the snippet of "
    "code within the file, use the @@ operator to indicate the class or function "
    "to which the snippet belongs. For instance, we might have:\n"
    "@@ class BaseClass\n"
    "[3 lines of pre-context]\n"
    "- [old_code]\n"
    "+ [new_code]\n"
    "[3 lines of post-context]\n"
    "\n"
    "- If a code block is repeated so many times in a class or function such that "
    "even a single `@@` statement and 3 lines of context cannot uniquely identify "
    "the snippet of code, you can use multiple `@@` statements to jump to the "
    "right context. For instance:\n"
    "\n"
    "@@ class BaseClass\n"
    "@@ \t def method():\n"
    "[3 lines of pre-context]\n"
    "- [old_code]\n"
    "+ [new_code]\n"
    "[3 lines of post-context]\n"
    "\n"
    "The full grammar definition is below:\n"
    "Patch := Begin { FileOp } End\n"
    "Begin := \"*** Begin Patch\" NEWLINE\n"
    "End := \"*** End Patch\" NEWLINE\n"
    "FileOp := AddFile | DeleteFile | UpdateFile\n"
    "AddFile := \"*** Add File: \" path NEWLINE { \"+\" line NEWLINE }\n"
    "DeleteFile := \"*** Delete File: \" path NEWLINE\n"
    "UpdateFile := \"*** Update File: \" path NEWLINE [ MoveTo ] { Hunk }\n"
    "MoveTo := \"*** Move to: \" newPath NEWLINE\n"
    "Hunk := \"@@\" [ header ] NEWLINE { HunkLine } [ \"*** End of File\" NEWLINE ]\n"
    "HunkLine := (\" \" | \"-\" | \"+\") text NEWLINE\n"
    "\n"
    "A full patch can combine several operations:\n"
    "\n"
    "*** Begin Patch\n"
    "*** Add File: hello.txt\n"
    "+Hello world\n"
    "*** Update File: src/app.py\n"
    "*** Move to: src/main.py\n"
    "@@ def greet():\n"
    "-print(\"Hi\")\n"
    "+print(\"Hello, world!\")\n"
    "*** Delete File: obsolete.txt\n"
    "*** End Patch\n"
    "\n"
    "It is important to remember:\n"
    "\n"
    "- You must include a header with your intended action (Add/Delete/Update)\n"
    "- You must prefix new lines with `+` even when creating a new file\n"
    "- File references can only be relative, NEVER ABSOLUTE.\n";
constexpr std::string_view kPatchBreak = "envelope:\n";

constexpr std::string_view kPatchInput =
    "The entire contents of the apply_patch command (the *** Begin Patch ... *** End Patch "
    "envelope).";

Result<ToolEntry> read_tool(Json& value,
                            const ReadContext& context,
                            const Path& at,
                            bool in_namespace);

Json or_null(const std::optional<std::string>& text) {
  return text ? Json(*text) : Json{};
}

Result<Json> read_user_location(const Fields& tool, const ReadContext& context) {
  Json* const value = tool.find("user_location");
  if (value == nullptr) {
    return Json{};
  }
  const Path at = tool.at().member("user_location");
  GALLEY_TRY(const Fields location, Fields::open(*value, at));
  JsonObject out;
  for (const char* const key : {"city", "country", "region", "timezone"}) {
    GALLEY_TRY(const std::optional<std::string> part, location.text(key));
    out.emplace_back(key, or_null(part));
  }
  location.expect({"type"});  // "approximate", the only one there is
  context.note_unread(location);
  return Json(std::move(out));
}

Result<void> read_custom(const Fields& tool, const ReadContext& context, ToolEntry& entry) {
  GALLEY_TRY(entry.name, tool.required_text("name"));
  if (!context.galley()) {
    return {};
  }
  GALLEY_TRY(entry.description, tool.text("description"));
  Json* const format = tool.find("format");
  if (format == nullptr) {
    return {};
  }
  constexpr std::array<std::string_view, 2> kFormats = {"text", "grammar"};
  const Path at = tool.at().member("format");
  GALLEY_TRY(const Fields fields, Fields::open(*format, at));
  GALLEY_TRY(const std::size_t type, fields.required_choice("type", kFormats));
  if (type == 1) {
    GALLEY_TRY(auto syntax, fields.text("syntax"));
    GALLEY_TRY(auto definition, fields.text("definition"));
    entry.grammar = syntax.value_or("") + "\n" + definition.value_or("");
  }
  context.note_unread(fields);
  return {};
}

Result<void> read_function(const Fields& tool, ToolEntry& entry) {
  GALLEY_TRY(entry.name, tool.required_text("name"));
  GALLEY_TRY(entry.description, tool.text("description"));
  GALLEY_TRY(entry.strict, tool.boolean("strict"));
  if (Json* const parameters = tool.find("parameters")) {
    entry.parameters = std::move(*parameters);
  }
  return {};
}

Result<void> read_tool_search(const Fields& tool, ToolEntry& entry) {
  constexpr std::array<std::string_view, 2> kExecutions = {"client", "server"};
  GALLEY_TRY(const std::optional<std::size_t> execution, tool.choice("execution", kExecutions));
  if (execution) {
    entry.execution = kExecutions[*execution];
  }
  GALLEY_TRY(entry.description, tool.text("description"));
  if (Json* const parameters = tool.find("parameters")) {
    entry.parameters = std::move(*parameters);
  }
  return {};
}

Result<void> read_web_search(const Fields& tool, const ReadContext& context, ToolEntry& entry) {
  constexpr std::array<std::string_view, 3> kSizes = {"low", "medium", "high"};
  GALLEY_TRY(const std::optional<std::size_t> size, tool.choice("search_context_size", kSizes));
  if (size) {
    entry.search_context_size = kSizes[*size];
  }
  GALLEY_TRY(entry.user_location, read_user_location(tool, context));
  return {};
}

Result<void> read_namespace(const Fields& tool, const ReadContext& context, ToolEntry& entry) {
  GALLEY_TRY(entry.name, tool.required_text("name"));
  GALLEY_TRY(entry.description, tool.text("description"));
  GALLEY_TRY(JsonArray* const members, tool.required_array("tools"));
  const Path at = tool.at().member("tools");
  for (std::size_t i = 0; i < members->size(); ++i) {
    GALLEY_TRY(entry.members.emplace_back(),
               read_tool((*members)[i], context, at.element(i), true));
  }
  return {};
}

ToolEntry::Kind kind_of(std::string_view type) {
  using Kind = ToolEntry::Kind;
  constexpr std::array<std::pair<std::string_view, Kind>, 6> kKinds = {
      {{"function", Kind::kFunction},
       {"namespace", Kind::kNamespace},
       {"custom", Kind::kCustom},
       {"tool_search", Kind::kToolSearch},
       {"web_search", Kind::kWebSearch},
       {"web_search_2025_08_26", Kind::kWebSearch}}};
  const auto it = std::ranges::find(kKinds, type, &std::pair<std::string_view, Kind>::first);
  return it == kKinds.end() ? Kind::kUnsupported : it->second;
}

Result<ToolEntry> read_tool(Json& value,
                            const ReadContext& context,
                            const Path& at,
                            bool in_namespace) {
  using Kind = ToolEntry::Kind;
  GALLEY_TRY(const Fields tool, Fields::open(value, at));
  ToolEntry entry;
  GALLEY_TRY(entry.type, tool.required_text("type"));
  entry.kind = kind_of(entry.type);
  if (in_namespace && entry.kind != Kind::kFunction && entry.kind != Kind::kCustom) {
    constexpr std::array<std::string_view, 2> kKnown = {"function", "custom"};
    return unknown_value(entry.type, kKnown, at.member("type"));
  }
  switch (entry.kind) {
    case Kind::kFunction:
      GALLEY_CHECK_OK(read_function(tool, entry));
      break;
    case Kind::kNamespace:
      GALLEY_CHECK_OK(read_namespace(tool, context, entry));
      break;
    case Kind::kCustom:
      GALLEY_CHECK_OK(read_custom(tool, context, entry));
      break;
    case Kind::kToolSearch:
      GALLEY_CHECK_OK(read_tool_search(tool, entry));
      break;
    case Kind::kWebSearch:
      GALLEY_CHECK_OK(read_web_search(tool, context, entry));
      break;
    case Kind::kUnsupported:
      return entry;
  }
  context.note_unread(tool);
  return entry;
}

Json namespace_echo(const ToolEntry& entry) {
  JsonArray members;
  members.reserve(entry.members.size());
  for (const ToolEntry& member : entry.members) {
    members.push_back(tool_echo(member));
  }
  return Json(JsonObject{{"type", entry.type},
                         {"name", entry.name},
                         {"description", or_null(entry.description)},
                         {"tools", Json(std::move(members))}});
}

// Length first, so that no two pairs share a key.
std::string pair_key(const std::string& name_space, const std::string& name) {
  return std::to_string(name_space.size()) + ":" + name_space + name;
}

std::string element(const std::string& place, std::size_t index) {
  return place + "[" + std::to_string(index) + "]";
}

}  // namespace

Result<std::vector<ToolEntry>> read_tools(JsonArray& tools,
                                          const ReadContext& context,
                                          const Path& at) {
  std::vector<ToolEntry> out;
  out.reserve(tools.size());
  for (std::size_t i = 0; i < tools.size(); ++i) {
    GALLEY_TRY(out.emplace_back(), read_tool(tools[i], context, at.element(i), false));
  }
  return out;
}

Json tool_echo(const ToolEntry& entry) {
  using Kind = ToolEntry::Kind;
  switch (entry.kind) {
    case Kind::kFunction:
      return Json(JsonObject{{"type", entry.type},
                             {"name", entry.name},
                             {"description", or_null(entry.description)},
                             {"parameters", entry.parameters.value_or(Json{})},
                             {"strict", entry.strict ? Json(*entry.strict) : Json{}}});
    case Kind::kNamespace:
      return namespace_echo(entry);
    case Kind::kCustom:
      return Json(JsonObject{{"type", entry.type}, {"name", entry.name}});
    case Kind::kToolSearch:
      return Json(JsonObject{{"type", entry.type},
                             {"execution", or_null(entry.execution)},
                             {"description", or_null(entry.description)},
                             {"parameters", entry.parameters.value_or(Json{})}});
    case Kind::kWebSearch:
      return Json(JsonObject{{"type", entry.type},
                             {"search_context_size", or_null(entry.search_context_size)},
                             {"user_location", entry.user_location}});
    case Kind::kUnsupported:
      break;
  }
  return Json(JsonObject{{"type", entry.type}});
}

Result<std::string> tool_search_result(const std::vector<ToolEntry>& found,
                                       Compat compat,
                                       const Path& at) {
  JsonArray out;
  for (const ToolEntry& entry : found) {
    if (entry.kind == ToolEntry::Kind::kUnsupported) {
      if (compat == Compat::kRecipe02) {
        return invalid(at.text() + ": a tool of type '" + std::string(clipped(entry.type)) +
                           "' cannot be the result of a search",
                       at);
      }
      continue;
    }
    if (entry.kind != ToolEntry::Kind::kNamespace) {
      out.push_back(tool_echo(entry));
      continue;
    }
    const Json name_space(
        JsonObject{{"name", entry.name}, {"description", entry.description.value_or("")}});
    for (const ToolEntry& member : entry.members) {
      out.push_back(tool_echo(member));
      out.back().object()->emplace_back("namespace", name_space);
    }
  }
  return to_json(Json(std::move(out)));
}

Result<ToolChoiceEntry> read_tool_choice(const Fields& body, const ReadContext& context) {
  using Kind = RequestedToolChoice::Kind;
  ToolChoiceEntry entry;
  Json* const value = body.find("tool_choice");
  if (value == nullptr) {
    return entry;
  }
  const Path at = body.at().member("tool_choice");
  if (value->string() != nullptr) {
    constexpr std::array<std::string_view, 3> kModes = {"auto", "none", "required"};
    constexpr std::array<Kind, 3> kKinds = {Kind::kAuto, Kind::kNone, Kind::kRequired};
    GALLEY_TRY(const std::size_t mode, body.required_choice("tool_choice", kModes));
    entry.choice.kind = kKinds[mode];
    entry.echo = kModes[mode];
    return entry;
  }
  constexpr std::array<std::string_view, 4> kTypes = {"function", "custom", "web_search",
                                                      "web_search_2025_08_26"};
  GALLEY_TRY(const Fields named, Fields::open(*value, at));
  GALLEY_TRY(const std::size_t type, named.required_choice("type", kTypes));
  if (type >= 2) {
    entry.web_search = true;
    entry.echo = Json(JsonObject{{"type", kTypes[type]}});
    context.note_unread(named);
    return entry;
  }
  entry.choice.kind = Kind::kNamed;
  GALLEY_TRY(entry.choice.name, named.required_text("name"));
  entry.echo = Json(JsonObject{{"type", kTypes[type]}, {"name", entry.choice.name}});
  context.note_unread(named);
  return entry;
}

void ResponsesTools::reserve_names(const std::vector<ToolEntry>& group) {
  for (const ToolEntry& entry : group) {
    if (entry.kind == ToolEntry::Kind::kFunction) {
      taken_.insert(entry.name);
    }
  }
}

Result<std::vector<std::string>> ResponsesTools::declare(std::vector<ToolEntry> group,
                                                         const std::string& place,
                                                         bool found_by_search,
                                                         std::vector<std::string>& notes) {
  const std::size_t first = declared.size();
  for (std::size_t i = 0; i < group.size(); ++i) {
    GALLEY_CHECK_OK(declare_one(group[i], element(place, i), found_by_search, notes));
  }
  std::vector<std::string> names;
  names.reserve(declared.size() - first);
  for (std::size_t i = first; i < declared.size(); ++i) {
    declared[i].tool.defer_loading = found_by_search;
    names.push_back(declared[i].tool.name);
  }
  return names;
}

Result<void> ResponsesTools::declare_one(ToolEntry& entry,
                                         const std::string& place,
                                         bool found_by_search,
                                         std::vector<std::string>& notes) {
  using Kind = ToolEntry::Kind;
  const auto left_out = [&] {
    add_note(notes,
             place + ": a tool of type `" + std::string(clipped(entry.type)) + "` is left out");
  };
  switch (entry.kind) {
    case Kind::kFunction:
      GALLEY_CHECK_OK(check_tool_name(entry.name, place));
      add(entry.name, entry, place);
      return {};
    case Kind::kNamespace:
      return declare_namespace(entry, place);
    case Kind::kCustom:
      return declare_custom(entry, place, notes);
    case Kind::kToolSearch: {
      const bool by_client = entry.execution == "client";
      client_tool_search |= by_client && !found_by_search;
      if (by_client && version_ == ModelVersion::kV41) {
        add("tool_search", entry, place);
      } else {
        left_out();
      }
      return {};
    }
    case Kind::kWebSearch:
      if (options_.responses_reject_web_search) {
        return fail(Code::kInvalidArgument, "Server tools are not supported", place);
      }
      left_out();
      return {};
    case Kind::kUnsupported:
      left_out();
      return {};
  }
  std::unreachable();
}

Result<void> ResponsesTools::declare_namespace(ToolEntry& entry, const std::string& place) {
  GALLEY_CHECK_OK(check_tool_name(entry.name, place));
  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < entry.members.size(); ++i) {
    ToolEntry& member = entry.members[i];
    const std::string member_place = element(place + ".tools", i);
    if (member.kind == ToolEntry::Kind::kCustom) {
      return fail(Code::kInvalidArgument,
                  "Currently custom tools are not allowed inside a namespace. Found custom tool '" +
                      member.name + "' in " + member_place + ".",
                  member_place);
    }
    GALLEY_CHECK_OK(check_tool_name(member.name, member_place));
    if (!names.insert(member.name).second) {
      return fail(Code::kInvalidArgument, "Tool names within a namespace must be unique.",
                  member_place + ".name");
    }
    if (version_ == ModelVersion::kV41 && entry.description && !entry.description->empty()) {
      member.description = *entry.description + "\n" + member.description.value_or("");
    }
    const std::string flat = unique_name(entry.name, member.name);
    flat_names_.emplace(pair_key(entry.name, member.name), flat);
    namespaced.push_back({flat, entry.name, member.name});
    add(flat, member, member_place);
  }
  return {};
}

// Its call carries one string, the tool's free-form input.
Result<void> ResponsesTools::declare_custom(ToolEntry& entry,
                                            const std::string& place,
                                            std::vector<std::string>& notes) {
  const bool patch = entry.name == "apply_patch";
  if (!patch && options_.compat == Compat::kRecipe02) {
    return fail(Code::kInvalidArgument,
                "Unsupported custom tool: '" + std::string(clipped(entry.name)) +
                    "'. Only 'apply_patch' is supported.",
                place);
  }
  std::string_view input = "The whole input of the tool, as plain text.";
  if (patch) {
    entry.description = kApplyPatch;
    if (version_ == ModelVersion::kV4) {
      entry.description->erase(entry.description->find(kPatchBreak) + kPatchBreak.size(), 1);
    }
    input = kPatchInput;
  } else {
    GALLEY_CHECK_OK(check_tool_name(entry.name, place));
    if (!entry.grammar.empty()) {
      entry.description = entry.description.value_or("") +
                          "\n\nThe input must match this grammar: " + entry.grammar;
      add_note(notes, place + ": the grammar is shown to the model but not enforced");
    }
  }
  entry.parameters = Json(JsonObject{
      {"type", "object"},
      {"additionalProperties", false},
      {"properties",
       Json(JsonObject{{"input", Json(JsonObject{{"type", "string"}, {"description", input}})}})},
      {"required", Json(JsonArray{"input"})}});
  custom.push_back(entry.name);
  add(entry.name, entry, place);
  return {};
}

void ResponsesTools::add(std::string name, ToolEntry& entry, const std::string& place) {
  declared.push_back({.tool = {.name = std::move(name),
                               .description = std::move(entry.description),
                               .parameters = std::move(entry.parameters),
                               .strict = entry.strict},
                      .place = place});
}

std::string ResponsesTools::unique_name(const std::string& name_space, const std::string& name) {
  std::string base = name_space;
  if (version_ == ModelVersion::kV41) {
    base.append("::");
  } else if (!name_space.ends_with('_') && !name.starts_with('_')) {
    base.append("__");
  }
  base.append(name);
  if (taken_.insert(base).second) {
    return base;
  }
  for (std::size_t& suffix = next_suffix_.try_emplace(base, 1).first->second;; ++suffix) {
    std::string candidate = base + "_" + std::to_string(suffix);
    if (taken_.insert(candidate).second) {
      return candidate;
    }
  }
}

std::string ResponsesTools::flat_name(const std::string& name_space, const std::string& name) {
  const auto [it, fresh] = flat_names_.try_emplace(pair_key(name_space, name));
  if (fresh) {
    it->second = unique_name(name_space, name);
  }
  return it->second;
}

}  // namespace galley::recipe
