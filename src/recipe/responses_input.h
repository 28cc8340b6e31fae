#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "recipe/request_fields.h"
#include "recipe/responses_tools.h"

// `input` of the Responses protocol (spec recipe 6.4): items as read, and as messages.
namespace galley::recipe {

// One block of a content list.
struct InputBlock {
  enum class Kind : std::uint8_t { kText, kImage, kFile };
  Kind kind{};
  std::string text;                      // kText
  std::optional<std::string> image_url;  // kImage
  std::optional<std::string> file_id;    // kImage
  ImageDetail detail = ImageDetail::kHigh;
};

// A string or a list of blocks.
struct InputContent {
  bool is_list = false;
  std::vector<InputBlock> blocks;
};

struct InputItem {
  enum class Kind : std::uint8_t {
    kMessage,
    kReasoning,
    kCall,        // function_call, custom_tool_call and tool_search_call
    kCallOutput,  // function_call_output, custom_tool_call_output
    kSearchOutput,
    kWebSearchCall,
    kUnsupported
  };
  enum class Speaker : std::uint8_t { kUser, kAssistant, kSystem, kDeveloper };
  Kind kind{};
  std::string type;                       // as sent, empty for a message without
  Speaker speaker{};                      // kMessage
  InputContent content;                   // kMessage, kCallOutput
  std::string reasoning;                  // kReasoning
  std::optional<std::string> call_id;     // calls and outputs; only a function's output may lack it
  std::string name;                       // kCall
  std::optional<std::string> name_space;  // kCall
  std::string arguments;                  // kCall, JSON text
  std::vector<ToolEntry> tools;           // kSearchOutput
};

// Types only. Galley mode also reads a `refusal` block as text and takes missing arguments of a
// function call as none.
[[nodiscard]] Result<std::vector<InputItem>> read_items(JsonArray& items,
                                                        const ReadContext& context,
                                                        const Path& at);

// Where item `index` was sent, when the first `earlier_count` come from an earlier Response. `body`
// must outlive what is returned.
struct ItemPlaces {
  const Path body{};
  const Path input = body.member("input");
  const Path earlier = body.member("previous_response_id");
  std::size_t earlier_count = 0;

  [[nodiscard]] Path of(std::size_t index) const {
    return index < earlier_count ? earlier : input.element(index - earlier_count);
  }
};

// Appends `items` to `messages`. `tools` holds all declarations of the request; the tools a search
// found are declared here already, their names per item in `found`. The first `earlier_count` items
// were not sent with this request.
[[nodiscard]] Result<void> convert_items(std::vector<InputItem> items,
                                         std::size_t earlier_count,
                                         ModelVersion version,
                                         Compat compat,
                                         ResponsesTools& tools,
                                         const std::vector<std::vector<std::string>>& found,
                                         std::vector<Message>& messages,
                                         std::vector<std::string>& notes);

}  // namespace galley::recipe
