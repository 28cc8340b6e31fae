#include "recipe/marker_scanner.h"

#include "base/check.h"

namespace galley::recipe {

void MarkerSet::add(int id, std::string_view literal, Options options) {
  GALLEY_ASSERT(!literal.empty());
  GALLEY_ASSERT(literal.size() < 65'536);  // positions in it are 16-bit
  Marker marker{.id = id,
                .mask = static_cast<std::uint16_t>(options.any_kind ? 0xff : 0x1ff),
                .newlines_before = options.newlines_before,
                .needs_text = options.needs_text};
  marker.symbols.reserve(literal.size());
  for (const char byte : literal) {
    marker.symbols.push_back({static_cast<unsigned char>(byte), 0});
  }
  if (!by_spelling_ && !options.any_kind && !options.plain_only) {
    for (const std::string_view control :
         {std::string_view("｜DSML｜"), std::string_view("</think>")}) {
      for (auto at = literal.find(control); at != std::string_view::npos;
           at = literal.find(control, at + control.size())) {
        for (std::size_t i = at; i < at + control.size(); ++i) {
          marker.symbols[i].value |= static_cast<std::uint16_t>(ByteKind::kControl);
        }
      }
    }
  }
  // Knuth, Morris, Pratt: `border` is the longest one of the first n symbols.
  std::size_t border = 0;
  for (std::size_t n = 1; n < marker.symbols.size(); ++n) {
    marker.symbols[n].fallback = static_cast<std::uint16_t>(border);
    while (border > 0 && marker.symbols[border].value != marker.symbols[n].value) {
      border = marker.symbols[border].fallback;
    }
    border += marker.symbols[border].value == marker.symbols[n].value ? 1 : 0;
  }
  add_start(literal.front());
  if (options.newlines_before) {
    add_start('\n');
  }
  markers_.push_back(std::move(marker));
}

void MarkerSet::add_start(char byte) {
  bool& known = starts_[static_cast<unsigned char>(byte)];
  if (known) {
    return;
  }
  known = true;
  if (start_count_ == 0) {
    few_starts_.fill(byte);
  } else if (start_count_ < few_starts_.size()) {
    few_starts_[start_count_] = byte;
  }
  ++start_count_;
}

std::size_t MarkerSet::find_start(std::string_view text, std::size_t from) const {
  constexpr std::size_t kBlock = 32;  // a vector register of bytes
  if (start_count_ <= few_starts_.size()) {
    const auto [a, b, c, d] = few_starts_;
    for (; from + kBlock <= text.size(); from += kBlock) {
      unsigned char hit = 0;
      for (std::size_t i = from; i < from + kBlock; ++i) {
        const char byte = text[i];
        hit =
            static_cast<unsigned char>(hit | (byte == a) | (byte == b) | (byte == c) | (byte == d));
      }
      if (hit != 0) {
        break;
      }
    }
  }
  while (from < text.size() && !starts_[static_cast<unsigned char>(text[from])]) {
    ++from;
  }
  return from;
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
    if (begun && marker.symbols[progress.matched].value != wanted) {
      progress.newlines = 0;
      do {
        progress.matched = marker.symbols[progress.matched].fallback;
      } while (progress.matched > 0 && marker.symbols[progress.matched].value != wanted);
    }
    if (marker.symbols[progress.matched].value == wanted) {
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
