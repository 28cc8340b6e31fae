#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "recipe/conversation.h"
#include "recipe/request_fields.h"

// A Messages body as it was sent: typed, not judged (spec recipe 6.6). Internal to the request
// parser.
namespace galley::recipe {

struct ImageSource {
  enum class Kind : std::uint8_t { kBase64, kUrl, kFile };
  Kind kind{};
  std::string media_type;  // kBase64, canonical
  std::string data;        // payload or url
};

// A block of a message, of a tool result or of a document.
struct MessageBlock {
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
  ImageSource source;                      // image
  std::optional<std::string> result_text;  // tool_result with content sent as one string
  std::vector<MessageBlock> result;        // tool_result
};

enum class MessageRole : std::uint8_t { kUser, kAssistant, kSystem };

struct SourceMessage {
  MessageRole role{};
  std::optional<std::string> text;  // content sent as one string
  std::vector<MessageBlock> blocks;
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

struct SourceTool {
  std::optional<std::string> server_type;
  Tool tool;
  std::string place;
};

// First step: types only, in the reference's order, and notes for what is not read.
[[nodiscard]] Result<MessagesBody> read_messages_body(const Fields& body,
                                                      bool galley,
                                                      std::vector<std::string>& notes);
// Names, kinds and types of the tools. The reference finds unsupported kinds only after it knows
// the model, hence apart from the
// body.
[[nodiscard]] Result<std::vector<SourceTool>> read_messages_tools(const Fields& body,
                                                                  bool galley,
                                                                  std::vector<std::string>& notes);

}  // namespace galley::recipe
