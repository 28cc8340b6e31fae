#include "recipe/byte_trie.h"

#include <algorithm>
#include <span>
#include <utility>

namespace galley::recipe {

// Places the nodes depth first, and an only child beside its parent where it can: a search then
// touches few cache lines, and waiting for those is nearly all it does.
class ByteTrie::Builder {
 public:
  using Entries = std::vector<std::pair<std::string_view, std::uint32_t>>;

  explicit Builder(const Entries& entries) : entries_(entries) {}

  Result<std::vector<Node>> build() {
    grow();
    nodes_[kRoot].link = 0;
    if (!entries_.empty()) {
      waiting_.push_back({.node = kRoot, .begin = 0, .end = entries_.size(), .depth = 0});
    }
    while (!waiting_.empty()) {
      const Subtree subtree = waiting_.back();
      waiting_.pop_back();
      if (!place_children(subtree)) {
        return fail(Code::kTooLarge, "the strings need too many trie nodes");
      }
    }
    return std::move(nodes_);
  }

 private:
  // The strings of `entries_` in [begin, end) share the first `depth` bytes, which lead to `node`.
  struct Subtree {
    std::uint32_t node;
    std::size_t begin;
    std::size_t end;
    std::size_t depth;
  };

  // Doubles the array; always whole blocks of 256.
  void grow() {
    const std::size_t old = nodes_.size();
    const std::size_t size = std::max<std::size_t>(kFirstFree, old) * 2;
    nodes_.resize(size);
    base_used_.resize(size);
    next_free_.resize(size + 1);
    for (std::size_t node = std::max<std::size_t>(kFirstFree, old); node != size; ++node) {
      next_free_[node] = static_cast<std::uint32_t>(node + 1);
    }
  }

  [[nodiscard]] bool is_free(std::size_t node) const {
    return node >= kFirstFree && (nodes_[node].link & kLabelMask) == kNobody;
  }

  // The first free node at or behind `node`; shortens the way for the next one who asks.
  std::size_t free_from(std::size_t node) {
    std::size_t found = node;
    while (found < nodes_.size() && !is_free(found)) {
      found = next_free_[found];
    }
    while (node < found) {
      node = std::exchange(next_free_[node], static_cast<std::uint32_t>(found));
    }
    if (found >= nodes_.size()) {
      grow();
    }
    return found;
  }

  [[nodiscard]] bool fits(std::size_t base, std::span<const unsigned char> labels) const {
    return !base_used_[base] &&
           std::ranges::all_of(labels, [&](unsigned char label) { return is_free(base ^ label); });
  }

  // A base under which every label finds a free node; they lie in one aligned block of 256. A lone
  // child takes nearly any hole; where families go, the search leaves holes behind rather than try
  // the same few again every time.
  std::uint32_t find_base(std::uint32_t parent, std::span<const unsigned char> labels) {
    if (labels.size() == 1) {
      const std::size_t line = parent & ~(kNodesPerLine - 1);
      for (std::size_t node = line; node != line + kNodesPerLine; ++node) {
        if (fits(node ^ labels[0], labels)) {
          return static_cast<std::uint32_t>(node ^ labels[0]);
        }
      }
    }
    std::size_t& start = labels.size() == 1 ? lone_start_ : family_start_;
    start = free_from(start);
    std::size_t node = start;
    for (std::size_t tried = 1; !fits(node ^ labels[0], labels); ++tried) {
      node = free_from(node + 1);
      if (tried == kTriesMax) {
        start = node;
      }
    }
    return static_cast<std::uint32_t>(node ^ labels[0]);
  }

  bool place_children(const Subtree& subtree) {
    std::size_t begin = subtree.begin;
    if (entries_[begin].first.size() == subtree.depth) {
      nodes_[subtree.node].value = entries_[begin].second;
      ++begin;
    }
    if (begin == subtree.end) {
      return true;
    }
    labels_.clear();
    const std::size_t first_child = waiting_.size();
    for (std::size_t i = begin; i != subtree.end; ++i) {
      const auto label = static_cast<unsigned char>(entries_[i].first[subtree.depth]);
      if (labels_.empty() || labels_.back() != label) {
        labels_.push_back(label);
        waiting_.push_back({.node = 0, .begin = i, .end = i, .depth = subtree.depth + 1});
      }
      waiting_.back().end = i + 1;
    }
    const std::uint32_t base = find_base(subtree.node, labels_);
    if (nodes_.size() > kNodesMax) {
      return false;
    }
    base_used_[base] = true;
    nodes_[subtree.node].link |= base << kLabelBits;
    for (std::size_t i = 0; i != labels_.size(); ++i) {
      nodes_[base ^ labels_[i]].link = labels_[i];
      waiting_[first_child + i].node = base ^ labels_[i];
    }
    return true;
  }

  static constexpr std::size_t kNodesPerLine = 64 / sizeof(Node);
  static constexpr std::size_t kTriesMax = 32;
  static constexpr std::size_t kFirstFree = kRoot + 256;

  const Entries& entries_;
  std::vector<Node> nodes_;
  std::vector<bool> base_used_;
  std::vector<Subtree> waiting_;
  std::vector<unsigned char> labels_;
  std::vector<std::uint32_t> next_free_;  // of a node: where to look for a free one behind it
  std::size_t lone_start_ = kFirstFree;
  std::size_t family_start_ = kFirstFree;
};

Result<ByteTrie> ByteTrie::build(
    const std::vector<std::pair<std::string_view, std::uint32_t>>& entries) {
  ByteTrie trie;
  GALLEY_TRY(trie.nodes_, Builder(entries).build());
  return trie;
}

}  // namespace galley::recipe
