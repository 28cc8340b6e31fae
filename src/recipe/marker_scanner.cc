#include "recipe/marker_scanner.h"

#include "base/check.h"

namespace galley::recipe {

void MarkerSet::add(int id, std::string_view literal, Options options) {
  GALLEY_ASSERT(!literal.empty());
  Marker marker{.id = id,
                .mask = static_cast<std::uint16_t>(options.any_kind ? 0xff : 0x1ff),
                .newlines_before = options.newlines_before,
                .needs_text = options.needs_text};
  for (const char byte : literal) {
    marker.symbols.push_back(static_cast<unsigned char>(byte));
  }
  if (!by_spelling_ && !options.any_kind && !options.plain_only) {
    for (const std::string_view control :
         {std::string_view("｜DSML｜"), std::string_view("</think>")}) {
      for (auto at = literal.find(control); at != std::string_view::npos;
           at = literal.find(control, at + control.size())) {
        for (std::size_t i = at; i < at + control.size(); ++i) {
          marker.symbols[i] |= static_cast<std::uint16_t>(ByteKind::kControl);
        }
      }
    }
  }
  marker.fallback.assign(marker.symbols.size() + 1, 0);
  for (std::size_t n = 1; n < marker.symbols.size(); ++n) {  // Knuth, Morris, Pratt
    std::uint32_t border = marker.fallback[n];
    while (border > 0 && marker.symbols[border] != marker.symbols[n]) {
      border = marker.fallback[border];
    }
    marker.fallback[n + 1] = border + (marker.symbols[border] == marker.symbols[n] ? 1U : 0U);
  }
  starts_[static_cast<unsigned char>(literal.front())] = true;
  if (options.newlines_before) {
    starts_[static_cast<unsigned char>('\n')] = true;
  }
  markers_.push_back(std::move(marker));
}

int MarkerScanner::advance(std::uint16_t symbol, std::size_t& hold) {
  int complete = -1;
  hold = 0;
  text_seen_ = text_seen_ || symbol != '\n';
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    const MarkerSet::Marker& marker = set_->markers_[i];
    Progress& progress = progress_[i];
    if (marker.needs_text && !text_seen_) {
      continue;
    }
    const auto wanted = static_cast<std::uint16_t>(symbol & marker.mask);
    const bool begun = progress.matched > 0;
    if (begun && marker.symbols[progress.matched] != wanted) {
      progress.newlines = 0;
      do {
        progress.matched = marker.fallback[progress.matched];
      } while (progress.matched > 0 && marker.symbols[progress.matched] != wanted);
    }
    if (marker.symbols[progress.matched] == wanted) {
      ++progress.matched;
      if (complete < 0 && progress.matched == marker.symbols.size()) {
        complete = static_cast<int>(i);
      }
    } else if (marker.newlines_before && symbol == '\n' && !(begun && forget_newlines_)) {
      ++progress.newlines;
    } else {
      progress.newlines = 0;
    }
    hold = std::max<std::size_t>(hold, progress.matched + progress.newlines);
  }
  return complete;
}

}  // namespace galley::recipe
