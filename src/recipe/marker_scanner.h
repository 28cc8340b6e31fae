#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Finding markers (`</think>`, `<｜DSML｜`, stop strings) in text that arrives in pieces, holding
// back only what may still become one (spec recipe 3.2). Internal to the output parser.
namespace galley::recipe {

// Where bytes come from: plain tokens (and text without ids), or the spelling of a control token.
enum class ByteKind : std::uint16_t { kPlain = 0, kControl = 0x100 };

// The markers one parser state looks for, in priority order. Immutable once built.
class MarkerSet {
 public:
  struct Options {
    bool newlines_before = false;  // any newlines directly before belong to the marker
    bool any_kind = false;         // matches whatever tokens spell it (stop strings)
    bool plain_only = false;       // has no control part, even where it spells one
    bool needs_text = false;       // not while everything since enter() was newlines
  };

  // `by_spelling`: text was fed without ids, so kinds are unknown and every byte counts as plain.
  explicit MarkerSet(bool by_spelling) : by_spelling_(by_spelling) {}

  // The parts `｜DSML｜` and `</think>` of `literal` (not empty) match control bytes only, the rest
  // plain bytes only.
  void add(int id, std::string_view literal, Options options);
  void add(int id, std::string_view literal) { add(id, literal, Options{}); }

 private:
  friend class MarkerScanner;
  struct Symbol {
    std::uint16_t value;     // byte | kind
    std::uint16_t fallback;  // longest proper border of the symbols before this one
  };
  struct Marker {
    int id{};
    std::vector<Symbol> symbols;
    std::uint16_t mask = 0x1ff;
    bool newlines_before{};
    bool needs_text{};
  };

  void add_start(char byte);
  // First position from `from` on at which a marker may begin.
  [[nodiscard]] std::size_t find_start(std::string_view text, std::size_t from) const;

  bool by_spelling_;
  std::vector<Marker> markers_;
  std::array<bool, 256> starts_{};  // bytes at which some marker may begin
  // The same bytes while they are few, for comparing many positions at once; else count > 4.
  std::array<char, 4> few_starts_{};
  std::size_t start_count_ = 0;
};

class MarkerScanner {
 public:
  // `forget_newlines`: a newline that ends a failed partial match does not count as one before the
  // next marker. deepseek-recipe 0.2.0 does so (spec 9.5, defect 3).
  explicit MarkerScanner(bool forget_newlines) : forget_newlines_(forget_newlines) {}

  // Starts a state. Nothing may be held. `set` must outlive its use.
  void enter(const MarkerSet& set, bool text_seen = true) {
    set_ = &set;
    text_seen_ = text_seen;
    progress_.assign(set.markers_.size(), Progress{});
  }

  struct Step {
    static constexpr int kNone = -1;
    std::size_t consumed{};
    int marker = kNone;
  };

  // Reads up to the end of `text` or of the first marker, whichever comes first. Calls
  // `on_text(std::string_view)` for what is no marker; what may still become one is held. After a
  // marker nothing is held and every marker starts afresh.
  template <class OnText>
  Step feed(std::string_view text, ByteKind kind, OnText&& on_text);

  // End of the stream: what is held is text after all.
  template <class OnText>
  void flush(OnText&& on_text) {
    const std::string last = std::exchange(held_, {});
    enter(*set_);
    if (!last.empty()) {
      on_text(std::string_view(last));
    }
  }

  [[nodiscard]] std::string_view held() const { return held_; }
  void drop_held() { held_.clear(); }

 private:
  struct Progress {
    std::uint32_t matched{};
    std::uint32_t newlines{};
  };

  // Advances every marker by one byte. Index of the first one that is complete, or -1; sets `hold`
  // to the length of the longest partial match.
  int advance(std::uint16_t symbol, std::size_t& hold);

  template <class OnText>
  void release(std::string_view text, std::size_t end, OnText&& on_text) {
    if (!held_.empty()) {
      on_text(std::string_view(held_).substr(0, std::min(end, held_.size())));
    }
    if (end > held_.size()) {
      on_text(text.substr(0, end - held_.size()));
    }
  }

  bool forget_newlines_;
  bool text_seen_ = true;
  const MarkerSet* set_ = nullptr;
  std::vector<Progress> progress_;
  std::string held_;  // tail of what was fed: the longest partial match
};

template <class OnText>
MarkerScanner::Step MarkerScanner::feed(std::string_view text, ByteKind kind, OnText&& on_text) {
  const auto kind_bit = set_->by_spelling_ ? std::uint16_t{0} : static_cast<std::uint16_t>(kind);
  std::size_t hold = held_.size();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (hold == 0) {  // nothing begun: skip to where something can begin
      const std::size_t from = i;
      i = set_->find_start(text, i);
      text_seen_ = text_seen_ || i > from;
      if (i == text.size()) {
        break;
      }
    }
    const auto symbol = static_cast<std::uint16_t>(static_cast<unsigned char>(text[i]) | kind_bit);
    const int complete = advance(symbol, hold);
    if (complete >= 0) {
      const auto index = static_cast<std::size_t>(complete);
      const std::size_t length = progress_[index].newlines + set_->markers_[index].symbols.size();
      const std::size_t end = held_.size() + i + 1 - length;
      if (end > 0) {
        release(text, end, on_text);
      }
      held_.clear();
      enter(*set_, text_seen_);
      return {i + 1, set_->markers_[index].id};
    }
  }
  const std::size_t total = held_.size() + text.size();
  if (total > hold) {
    release(text, total - hold, on_text);
  }
  if (hold <= text.size()) {
    held_.assign(text.substr(text.size() - hold));
  } else {
    held_.erase(0, total - hold).append(text);
  }
  return {text.size(), Step::kNone};
}

}  // namespace galley::recipe
