#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recipe/json.h"

// What a request of any protocol becomes before it is rendered (spec recipe 2.1). Plain values, no
// behaviour.
namespace galley::recipe {

enum class ModelVersion : std::uint8_t { kV4, kV41 };

enum class Role : std::uint8_t { kSystem, kUser, kAssistant, kTool, kLatestReminder };

// low and high differ in the prompt; xhigh renders as high; max changes text and default length
// (spec 2.4, 5.1).
enum class Effort : std::uint8_t { kLow, kHigh, kXhigh, kMax };

enum class ToolChoice : std::uint8_t { kAuto, kNone, kRequired };

enum class ImageDetail : std::uint8_t { kLow, kHigh, kOriginal, kAuto };

// An image of a message, not yet loaded: a link or the inline data URL, as sent.
struct Image {
  enum class Kind : std::uint8_t { kUrl, kDataUrl };
  std::size_t offset{};  // byte position in Content::text before which the placeholder stands
  Kind kind{};
  ImageDetail detail = ImageDetail::kHigh;
  std::string path;  // ".messages[2]", the place error texts name
  std::string reference;
};

// Text with image placeholders at byte offsets, ascending.
struct Content {
  std::string text;
  std::vector<Image> images;

  [[nodiscard]] bool empty() const { return text.empty() && images.empty(); }
  // Appends `other`, moving its image offsets.
  void append(Content other);
};

struct Tool {
  std::string name;
  std::optional<std::string> description;
  std::optional<Json> parameters;  // the schema that is rendered: normalised when strict (spec 5.4)
  // What a constraint enforces when that is more than `parameters` says: the keywords normalising
  // loses.
  std::optional<Json> constraint_parameters;
  std::optional<bool> strict;
  bool defer_loading = false;
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text as the client sent it; may be anything (spec 2.6)
};

struct Message {
  Role role{};
  Content content;
  std::vector<Tool> announced_tools;        // System only: schemas announced at this point (V4.1)
  std::optional<std::string> reasoning;     // Assistant only
  std::vector<ToolCall> tool_calls;         // Assistant only
  bool prefix = false;                      // Assistant only, last message: continue it (spec 2.9)
  std::optional<std::string> tool_call_id;  // Tool only
};

struct ResponseFormat {
  enum class Kind : std::uint8_t { kText, kJsonObject, kJsonSchema, kRegex };
  Kind kind = Kind::kText;
  Json schema;             // kJsonSchema: as sent, for the prompt
  Json constraint_schema;  // kJsonSchema: normalised when strict, for the constraint
  std::string regex;       // kRegex
};

struct Conversation {
  std::vector<Message> messages;
  bool thinking = true;
  std::optional<Effort> effort;  // absent outside thinking mode
  std::vector<Tool> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  ResponseFormat format;

  // Tools are in the prompt, hence calls are parsed and earlier reasoning is kept (spec 2.3).
  [[nodiscard]] bool has_tools() const {
    return tool_choice != ToolChoice::kNone && !tools.empty();
  }
};

}  // namespace galley::recipe
