#include "recipe/control.h"

namespace galley::recipe {

std::string_view spelling(Control control) {
  constexpr std::array<std::string_view, kControlCount> kSpellings = {
      "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
      "<\uff5cend\u2581of\u2581sentence\uff5c>",
      "<\uff5cSystem\uff5c>",
      "<\uff5cUser\uff5c>",
      "<\uff5cAssistant\uff5c>",
      "<\uff5clatest_reminder\uff5c>",
      "<think>",
      "</think>",
      "\uff5cDSML\uff5c",
      "<\uff5cimage\uff5c>",
      "<\uff5cfim\u2581begin\uff5c>",
      "<\uff5cfim\u2581hole\uff5c>",
      "<\uff5cfim\u2581end\uff5c>",
      "<\uff5cref\uff5c>",
      "<\uff5c/ref\uff5c>",
      "<\uff5cbox\uff5c>",
      "<\uff5c/box\uff5c>",
      "<\uff5cpoint\uff5c>",
      "<\uff5c/point\uff5c>",
      "<\uff5cpolygon\uff5c>",
      "<\uff5c/polygon\uff5c>",
  };
  return kSpellings[static_cast<std::size_t>(control)];
}

}  // namespace galley::recipe
