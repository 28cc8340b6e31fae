#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/safetensors.h"

namespace galley::model {

// What integers of a tensor may be: ids and positions become indices.
struct IntegerRange {
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
};

// A file of golden tensors, read without trust: a tensor that is missing, has another type or size,
// or holds an integer out of range becomes a problem, and the reader gets values of the size it
// asked for that are safe to use (zeros, or the lowest integer allowed). Remembers what was read,
// so that a check can tell what it forgot. Not thread-safe.
class Golden {
 public:
  // `file` outlives this.
  explicit Golden(const Safetensors& file) : file_(file) {}

  [[nodiscard]] bool has(std::string_view tensor) const { return file_.find(tensor) != nullptr; }
  // Of a tensor that is there.
  [[nodiscard]] const std::vector<std::int64_t>& shape(std::string_view tensor) const {
    return file_.find(tensor)->shape;
  }

  // F32 or BF16. `count`: how many there must be.
  [[nodiscard]] std::vector<float> floats(const std::string& tensor,
                                          std::optional<std::size_t> count = std::nullopt);
  // Any integers, or BOOL. A range that holds none (made from what the file says) is a problem.
  [[nodiscard]] std::vector<std::int64_t> integers(const std::string& tensor,
                                                   IntegerRange range = {},
                                                   std::optional<std::size_t> count = std::nullopt);
  [[nodiscard]] std::vector<std::int32_t> tokens(const std::string& tensor, int vocabulary);
  [[nodiscard]] std::int64_t scalar(const std::string& tensor, IntegerRange range = {}) {
    return integers(tensor, range, 1).front();
  }
  // As stored; `dtype` has one byte a value.
  [[nodiscard]] std::vector<std::byte> bytes(const std::string& tensor,
                                             Dtype dtype,
                                             std::size_t count);

  // A rule that no single read can state: `what` becomes a problem of the tensor unless it `holds`.
  void reject_unless(bool holds, const std::string& tensor, std::string_view what);
  // Counts a tensor as read that a check leaves out on purpose, if it is there.
  void pass_over(const std::string& tensor) { read_.insert(tensor); }

  // Tensor -> what is wrong with it; the first thing only.
  [[nodiscard]] const std::map<std::string, std::string>& problems() const { return problems_; }
  // Tensors that nobody read.
  [[nodiscard]] std::vector<std::string> unread() const;

 private:
  // Null, and a problem, unless the tensor is there with `count` values.
  const TensorView* find(const std::string& tensor, std::optional<std::size_t> count);

  const Safetensors& file_;
  std::set<std::string, std::less<>> read_;
  std::map<std::string, std::string> problems_;
};

}  // namespace galley::model
