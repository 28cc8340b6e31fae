#include "model/golden_file.h"

#include <algorithm>
#include <cstring>
#include <fmt/core.h>

#include "kernels/formats.h"

namespace galley::model {
namespace {

template <class T>
T at(const TensorView& view, std::size_t i) {
  T value;
  std::memcpy(&value, view.bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

std::int64_t integer_at(const TensorView& view, std::size_t i) {
  switch (view.dtype) {
    case Dtype::kI8:
      return at<std::int8_t>(view, i);
    case Dtype::kI16:
      return at<std::int16_t>(view, i);
    case Dtype::kI32:
      return at<std::int32_t>(view, i);
    case Dtype::kI64:
      return at<std::int64_t>(view, i);
    default:
      return at<std::uint8_t>(view, i);
  }
}

}  // namespace

void Golden::reject_unless(bool holds, const std::string& tensor, std::string_view what) {
  if (!holds) {
    problems_.try_emplace(tensor, what);
  }
}

const TensorView* Golden::find(const std::string& tensor, std::optional<std::size_t> count) {
  const TensorView* const view = file_.find(tensor);
  if (view == nullptr) {
    reject_unless(false, tensor, "is missing");
    return nullptr;
  }
  read_.insert(tensor);
  const auto elements = static_cast<std::size_t>(view->elements());
  if (elements != count.value_or(elements)) {
    reject_unless(false, tensor,
                  fmt::format("has shape {}, want {} values", view->shape_text(), *count));
    return nullptr;
  }
  return view;
}

std::vector<float> Golden::floats(const std::string& tensor, std::optional<std::size_t> count) {
  const TensorView* const view = find(tensor, count);
  const bool known = view != nullptr && (view->dtype == Dtype::kF32 || view->dtype == Dtype::kBf16);
  if (!known) {
    reject_unless(false, tensor, "has no dtype of floats, want F32 or BF16");
    return std::vector<float>(count.value_or(0));
  }
  std::vector<float> out(static_cast<std::size_t>(view->elements()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = view->dtype == Dtype::kBf16 ? kernels::from_bf16(at<std::uint16_t>(*view, i))
                                         : at<float>(*view, i);
  }
  return out;
}

std::vector<std::int64_t> Golden::integers(const std::string& tensor,
                                           IntegerRange range,
                                           std::optional<std::size_t> count) {
  const TensorView* const view = find(tensor, count);
  const bool possible = range.low <= range.high;
  reject_unless(possible, tensor,
                fmt::format("no value fits: want [{}, {}]", range.low, range.high));
  constexpr Dtype kIntegers[] = {Dtype::kBool, Dtype::kU8,  Dtype::kI8,
                                 Dtype::kI16,  Dtype::kI32, Dtype::kI64};
  if (view == nullptr || std::ranges::find(kIntegers, view->dtype) == std::end(kIntegers)) {
    reject_unless(false, tensor, "has no dtype of integers");
    const std::int64_t safe =
        possible ? std::clamp<std::int64_t>(0, range.low, range.high) : range.low;
    return std::vector<std::int64_t>(count.value_or(0), safe);
  }
  std::vector<std::int64_t> out(static_cast<std::size_t>(view->elements()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = integer_at(*view, i);
    if (out[i] < range.low || out[i] > range.high) {
      reject_unless(false, tensor,
                    fmt::format("value {} is {}, want [{}, {}]", i, out[i], range.low, range.high));
      out[i] = range.low;
    }
  }
  return out;
}

std::vector<std::int32_t> Golden::tokens(const std::string& tensor, int vocabulary) {
  const std::vector<std::int64_t> wide = integers(tensor, {0, vocabulary - 1});
  reject_unless(!wide.empty(), tensor, "is empty");
  return {wide.begin(), wide.end()};
}

std::vector<std::byte> Golden::bytes(const std::string& tensor, Dtype dtype, std::size_t count) {
  const TensorView* const view = find(tensor, count);
  if (view == nullptr || view->dtype != dtype) {
    reject_unless(false, tensor, fmt::format("want dtype {}", name(dtype)));
    return std::vector<std::byte>(count);
  }
  return {view->bytes.begin(), view->bytes.end()};
}

std::vector<std::string> Golden::unread() const {
  std::vector<std::string> out;
  for (const auto& [tensor, view] : file_.tensors()) {
    if (!read_.contains(tensor)) {
      out.push_back(tensor);
    }
  }
  return out;
}

}  // namespace galley::model
