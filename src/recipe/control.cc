#include "recipe/control.h"

#include <fmt/core.h>
#include <optional>
#include <string>

#include "base/check.h"
#include "recipe/tokenizer.h"

namespace galley::recipe {
namespace {

// The V4.1 checkpoint's own name of the placeholder; deepseek-recipe, and so spelling(), has the
// other one (spec recipe 1.2).
constexpr std::string_view kImageOfCheckpoint = "<｜deepseek_image｜>";

constexpr std::array<std::string_view, kControlCount> kSpellings = {
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜System｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜latest_reminder｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜image｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁hole｜>",
    "<｜fim▁end｜>",
    "<｜ref｜>",
    "<｜/ref｜>",
    "<｜box｜>",
    "<｜/box｜>",
    "<｜point｜>",
    "<｜/point｜>",
    "<｜polygon｜>",
    "<｜/polygon｜>",
};

bool only_v41(Control control) {
  return control == Control::kSystem || control == Control::kImage;
}

bool optional(Control control) {
  return control >= Control::kFimBegin;
}

std::optional<TokenId> find_id(const Tokenizer& tokenizer, Control control) {
  if (control == Control::kImage) {
    if (const auto id = tokenizer.find_added(kImageOfCheckpoint)) {
      return id;
    }
  }
  return tokenizer.find_added(spelling(control));
}

}  // namespace

std::string_view spelling(Control control) {
  const auto index = static_cast<std::size_t>(control);
  GALLEY_ASSERT(index < kControlCount);
  return kSpellings[index];
}

Result<ControlIds> ControlIds::find(const Tokenizer& tokenizer, ModelVersion version) {
  ControlIds found;
  found.ids_.fill(kAbsent);
  for (std::size_t index = 0; index != kControlCount; ++index) {
    const auto control = static_cast<Control>(index);
    // The V4 file has an <｜image｜> too, with another meaning.
    if (version == ModelVersion::kV4 && only_v41(control)) {
      continue;
    }
    const std::optional<TokenId> id = find_id(tokenizer, control);
    if (!id && !optional(control)) {
      return fail(Code::kInvalidArgument,
                  fmt::format("the tokenizer has no added token {}", spelling(control)));
    }
    found.ids_[index] = id.value_or(kAbsent);
  }
  return found;
}

std::vector<std::pair<TokenId, std::string>> v41_renames() {
  return {{128'799, std::string(spelling(Control::kSystem))},
          {129'264, std::string(spelling(Control::kImage))},
          {129'279, "<|place_holder_mm_span_0442|>"}};
}

}  // namespace galley::recipe
