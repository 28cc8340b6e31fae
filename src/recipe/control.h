#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// Around a gap to fill; a vocabulary has all of them or cannot fill gaps.
inline constexpr std::array kGapControls = {Control::kFimBegin, Control::kFimHole,
                                            Control::kFimEnd};

[[nodiscard]] std::string_view spelling(Control control);

// Ids of the control tokens in one vocabulary.
class ControlIds {
 public:
  // Looks every spelling up among the added tokens; the image placeholder also has the name that
  // the V4.1 checkpoint gives it. V4 has neither system nor image token: they are kAbsent. Error:
  // kInvalidArgument naming the first one that is missing and that `version` needs. Grounding and
  // FIM tokens are optional (a small vocabulary may lack them).
  static Result<ControlIds> find(const Tokenizer& tokenizer, ModelVersion version);

  static constexpr TokenId kAbsent = ~TokenId{0};
  [[nodiscard]] TokenId operator[](Control control) const {
    return ids_[static_cast<std::size_t>(control)];
  }

 private:
  std::array<TokenId, kControlCount> ids_{};
};

// For TokenizerOptions::rename: makes the V4 vocabulary file, whose ids V4.1 shares, name its
// tokens as V4.1 prompts do. A V4.1 file stays as it is, but for the image placeholder's second
// name.
[[nodiscard]] std::vector<std::pair<TokenId, std::string>> v41_renames();

}  // namespace galley::recipe
