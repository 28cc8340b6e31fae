#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "recipe/request.h"
#include "recipe/request_fields.h"

// Tool declarations of the Responses protocol (spec recipe 6.4): functions, namespaces of
// functions, custom tools, client tool search and what is only known by name.
namespace galley::recipe {

// One element of `tools` as read, before any of it is judged.
struct ToolEntry {
  enum class Kind : std::uint8_t {
    kFunction,
    kNamespace,
    kCustom,
    kToolSearch,
    kWebSearch,
    kUnsupported
  };
  Kind kind{};
  std::string type;  // as sent
  std::string name;
  std::optional<std::string> description;
  std::optional<Json> parameters;
  std::optional<bool> strict;
  std::vector<ToolEntry> members;                  // kNamespace: functions and custom tools
  std::optional<std::string> execution;            // kToolSearch: client or server
  std::optional<std::string> search_context_size;  // kWebSearch
  Json user_location;                              // kWebSearch
  std::string grammar;                             // kCustom: the definition of its input format
};

// The reference does not look at the description and format of a custom tool.
[[nodiscard]] Result<std::vector<ToolEntry>> read_tools(JsonArray& tools,
                                                        const ReadContext& context,
                                                        const Path& at);
// The tool as a Response repeats it: known members in a fixed order, absent ones null.
[[nodiscard]] Json tool_echo(const ToolEntry& entry);
// The result text of a tool search: the tools found, namespaces flattened. Error: one of a type
// nobody knows (the reference) or, in Galley mode, nothing: such a tool is left out.
[[nodiscard]] Result<std::string> tool_search_result(const std::vector<ToolEntry>& found,
                                                     Compat compat,
                                                     const Path& at);

// `tool_choice` as read.
struct ToolChoiceEntry {
  RequestedToolChoice choice;
  bool web_search = false;  // names the hosted search tool
  Json echo = "auto";
};
[[nodiscard]] Result<ToolChoiceEntry> read_tool_choice(const Fields& body,
                                                       const ReadContext& context);

// The declarations of one request as functions with unique names. Owns what it makes of them; every
// step is linear in the number of tools and calls.
class ResponsesTools {
 public:
  ResponsesTools(ModelVersion version, const CodecOptions& options)
      : version_(version), options_(options) {}

  // Names that clashes have to avoid; call for every group before the first declare().
  void reserve_names(const std::vector<ToolEntry>& group);
  // Checks and converts one group: `tools` of the request, or the tools a tool search found, which
  // are deferred. `place` is "tools" or "input[3].tools". Returns the tools' final names.
  [[nodiscard]] Result<std::vector<std::string>> declare(std::vector<ToolEntry> group,
                                                         const std::string& place,
                                                         bool found_by_search,
                                                         std::vector<std::string>& notes);

  // The name under which the prompt shows a call of history. A pair that was never declared gets
  // one stable name that nothing else has.
  [[nodiscard]] std::string flat_name(const std::string& name_space, const std::string& name);

  std::vector<DeclaredTool> declared;
  std::vector<NamespacedTool> namespaced;
  std::vector<std::string> custom;
  bool client_tool_search = false;

 private:
  Result<void> declare_one(ToolEntry& entry,
                           const std::string& place,
                           bool found_by_search,
                           std::vector<std::string>& notes);
  Result<void> declare_namespace(ToolEntry& entry, const std::string& place);
  Result<void> declare_custom(ToolEntry& entry,
                              const std::string& place,
                              std::vector<std::string>& notes);
  void add(std::string name, ToolEntry& entry, const std::string& place);
  std::string unique_name(const std::string& name_space, const std::string& name);

  ModelVersion version_;
  const CodecOptions& options_;
  std::unordered_set<std::string> taken_;
  std::unordered_map<std::string, std::size_t> next_suffix_;  // by base name; lower ones are taken
  std::unordered_map<std::string, std::string> flat_names_;   // by pair_key
};

}  // namespace galley::recipe
