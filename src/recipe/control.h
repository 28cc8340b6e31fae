#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"
#include "recipe/conversation.h"

// The control tokens a template or the output parser uses (spec recipe 1.2). Only the renderer
// writes them.
namespace galley::recipe {

class Tokenizer;

enum class Control : std::uint8_t {
  kBos,
  kEos,
  kSystem,  // V4.1 only
  kUser,
  kAssistant,
  kLatestReminder,
  kThinkOpen,
  kThinkClose,
  kDsml,   // ｜DSML｜, no angle brackets
  kImage,  // placeholder, V4.1 only
  kFimBegin,
  kFimHole,
  kFimEnd,
  kRefOpen,  // grounding, inside assistant text
  kRefClose,
  kBoxOpen,
  kBoxClose,
  kPointOpen,
  kPointClose,
  kPolygonOpen,
  kPolygonClose,
};
inline constexpr std::size_t kControlCount = 21;

[[nodiscard]] std::string_view spelling(Control control);

// Ids of the control tokens in one vocabulary.
class ControlIds {
 public:
  // Looks every spelling up among the added tokens. Error: kInvalidArgument naming the first one
  // that is missing and that `version` needs. Grounding and FIM tokens are optional (a small
  // vocabulary may lack them).
  static Result<ControlIds> find(const Tokenizer& tokenizer, ModelVersion version);

  static constexpr TokenId kAbsent = ~TokenId{0};
  [[nodiscard]] TokenId operator[](Control control) const {
    return ids_[static_cast<std::size_t>(control)];
  }

 private:
  std::array<TokenId, kControlCount> ids_{};
};

}  // namespace galley::recipe
