#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

// A set of byte strings, each with a number, made for one question: which of them is the longest
// prefix of this text?
namespace galley::recipe {

// A double array: the child of a node for `byte` lies at `base of the node xor byte`, and belongs
// to it when it carries that byte as its label (no two nodes share a base). A step is one load of 8
// bytes. Immutable, any thread.
class ByteTrie {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Match {
    std::uint32_t value = kNone;
    std::size_t bytes{};
  };

  ByteTrie() = default;

  // `entries` are sorted by their strings, which are not empty and differ. Error: kTooLarge when
  // they need more nodes than a node's number can tell apart (2^23).
  static Result<ByteTrie> build(
      const std::vector<std::pair<std::string_view, std::uint32_t>>& entries);

  [[nodiscard]] Match longest_prefix(std::string_view text) const {
    Match best;
    std::uint32_t base = nodes_[kRoot].link >> kLabelBits;
    for (std::size_t i = 0; i != text.size(); ++i) {
      const std::uint32_t byte = static_cast<unsigned char>(text[i]);
      const Node node = nodes_[base ^ byte];
      if ((node.link & kLabelMask) != byte) {
        break;
      }
      if (node.value != kNone) {
        best = {node.value, i + 1};
      }
      base = node.link >> kLabelBits;
    }
    return best;
  }

 private:
  // Labels have a ninth bit for "nobody's node". Base 0 means "no children": its block of 256 nodes
  // stays nobody's.
  static constexpr unsigned kLabelBits = 9;
  static constexpr std::uint32_t kLabelMask = (1U << kLabelBits) - 1;
  static constexpr std::uint32_t kNobody = kLabelMask;
  static constexpr std::uint32_t kRoot = 256;
  static constexpr std::size_t kNodesMax = std::size_t{1} << (32 - kLabelBits);

  struct Node {
    std::uint32_t link = kNobody;  // base << kLabelBits | label
    std::uint32_t value = kNone;
  };

  class Builder;

  std::vector<Node> nodes_ = std::vector<Node>(kRoot + 256);
};

}  // namespace galley::recipe
