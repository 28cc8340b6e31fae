#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "recipe/conversation.h"
#include "recipe/request.h"
#include "recipe/request_fields.h"

// A Chat Completions body as it was sent: typed, not judged (spec recipe 6.2). Internal to the
// request parser.
namespace galley::recipe {

struct ChatPart {
  enum class Kind : std::uint8_t { kText, kImageUrl, kFile };
  Kind kind{};
  std::string text;  // kText: the text, kImageUrl: the url
  ImageDetail detail = ImageDetail::kHigh;
  std::optional<std::string> file_id;
  std::optional<std::string> file_data;
  bool has_filename = false;
};

struct ChatContent {
  std::optional<std::string> text;  // content sent as one string
  std::vector<ChatPart> parts;
};

enum class ChatRole : std::uint8_t {
  kSystem,
  kUser,
  kAssistant,
  kTool,
  kLatestReminder,
  kDeveloper,
};

struct ChatMessage {
  ChatRole role{};
  std::optional<ChatContent> content;
  std::optional<std::string> reasoning;
  std::optional<std::vector<ToolCall>> tool_calls;
  bool prefix = false;
  std::string tool_call_id;
};

struct ChatBody {
  std::string model;
  std::vector<ChatMessage> messages;
  SamplingFields sampling;
  std::vector<std::pair<TokenId, float>> logit_bias;
  Stops stops;
  bool stream = false;
  bool has_stream_options = false;
  bool include_usage = false;
  bool has_response_format = false;
  ResponseFormat format;
  bool strict_schema = false;
  std::optional<GuidedFormat> guided;
  std::vector<DeclaredTool> tools;
  RequestedToolChoice tool_choice;
  bool parallel_tool_calls = true;
  std::optional<RequestedEffort> effort;
  std::optional<bool> thinking;
  std::string user;
};

// First step: types only, in the reference's order, and notes for what is not read.
[[nodiscard]] Result<ChatBody> read_chat_body(const Fields& body,
                                              bool galley,
                                              std::vector<std::string>& notes);

// `message` is the place of one that must not ask to be continued.
[[nodiscard]] std::unexpected<Error> misplaced_prefix(const Path& message);

}  // namespace galley::recipe
