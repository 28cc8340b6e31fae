#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/core.h>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/formats.h"
#include "model/golden_check.h"
#include "model/network.h"
#include "model/safetensors.h"

// What the checks of golden runs share: reading, comparing, recording.
namespace galley::model {

// ---- tensors of a golden file
// -----------------------------------------------------------------------------------

class Golden {
 public:
  explicit Golden(const Safetensors& file) : file_(file) {}

  [[nodiscard]] bool has(const std::string& tensor) const { return file_.find(tensor) != nullptr; }
  [[nodiscard]] const std::vector<std::int64_t>& shape(const std::string& tensor) const {
    return file_.find(tensor)->shape;
  }

  [[nodiscard]] std::vector<float> floats(const std::string& tensor) const {
    const TensorView& view = *file_.find(tensor);
    std::vector<float> out(static_cast<std::size_t>(view.elements()));
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = view.dtype == Dtype::kBf16 ? kernels::from_bf16(at<std::uint16_t>(view, i))
                                          : at<float>(view, i);
    }
    return out;
  }
  [[nodiscard]] std::vector<std::int64_t> integers(const std::string& tensor) const {
    const TensorView& view = *file_.find(tensor);
    std::vector<std::int64_t> out(static_cast<std::size_t>(view.elements()));
    for (std::size_t i = 0; i < out.size(); ++i) {
      switch (bytes_of(view.dtype)) {
        case 1:
          out[i] = at<std::uint8_t>(view, i);
          break;
        case 2:
          out[i] = at<std::int16_t>(view, i);
          break;
        case 4:
          out[i] = at<std::int32_t>(view, i);
          break;
        default:
          out[i] = at<std::int64_t>(view, i);
      }
    }
    return out;
  }
  [[nodiscard]] std::vector<std::int32_t> tokens(const std::string& tensor) const {
    const std::vector<std::int64_t> wide = integers(tensor);
    return {wide.begin(), wide.end()};
  }
  [[nodiscard]] std::int64_t scalar(const std::string& tensor) const {
    return integers(tensor).front();
  }

 private:
  template <class T>
  static T at(const TensorView& view, std::size_t i) {
    T value;
    std::memcpy(&value, view.bytes.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  const Safetensors& file_;
};

// ---- comparing
// --------------------------------------------------------------------------------------------------

struct Tolerance {
  double max_abs = 1e300;
  double relative_rms = 1e300;
};

class Report {
 public:
  explicit Report(std::string prefix) : prefix_(std::move(prefix)) {}

  void compare(const std::string& name,
               std::span<const float> want,
               std::span<const float> got,
               const Tolerance& tolerance) {
    GoldenOutcome outcome{.name = prefix_ + name};
    if (want.size() != got.size()) {
      outcome.detail = fmt::format("want {} values, got {}", want.size(), got.size());
      outcomes_.push_back(std::move(outcome));
      return;
    }
    double squares = 0;
    double reference = 0;
    std::size_t worst = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double error = std::fabs(static_cast<double>(want[i]) - got[i]);
      squares += error * error;
      reference += static_cast<double>(want[i]) * want[i];
      if (!(error <= outcome.max_error)) {
        outcome.max_error = std::isnan(error) ? HUGE_VAL : error;
        worst = i;
      }
    }
    outcome.relative_rms = reference > 0 ? std::sqrt(squares / reference) : std::sqrt(squares);
    outcome.passed =
        outcome.max_error <= tolerance.max_abs && outcome.relative_rms <= tolerance.relative_rms;
    if (!outcome.passed) {
      outcome.detail = fmt::format("value {}: want {}, got {}", worst, want[worst], got[worst]);
    }
    outcomes_.push_back(std::move(outcome));
  }

  // `mismatches` of `total` differ; at most `allowed` may.
  void count(const std::string& name,
             std::size_t mismatches,
             std::size_t total,
             std::size_t allowed) {
    outcomes_.push_back(
        {.name = prefix_ + name,
         .passed = mismatches <= allowed,
         .detail = fmt::format("{} of {} differ, {} allowed", mismatches, total, allowed)});
  }
  void require(const std::string& name, bool holds, std::string detail) {
    outcomes_.push_back(
        {.name = prefix_ + name, .passed = holds, .detail = holds ? "" : std::move(detail)});
  }

  [[nodiscard]] std::vector<GoldenOutcome> take() { return std::move(outcomes_); }

 private:
  std::string prefix_;
  std::vector<GoldenOutcome> outcomes_;
};

inline std::vector<float> select_rows(std::span<const float> values,
                                      std::size_t width,
                                      std::span<const std::int64_t> rows) {
  std::vector<float> out;
  for (const std::int64_t row : rows) {
    const auto part = values.subspan(static_cast<std::size_t>(row) * width, width);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

// Lists a row as sets: the number of rows whose sets differ, rows with `skip` left out.
inline std::size_t differing_rows(std::span<const std::int64_t> want,
                                  std::size_t want_width,
                                  std::span<const std::int64_t> got,
                                  std::size_t got_width,
                                  const std::function<bool(std::size_t)>& skip) {
  const auto set_of = [](std::span<const std::int64_t> row) {
    std::vector<std::int64_t> kept;
    std::ranges::copy_if(row, std::back_inserter(kept), [](std::int64_t v) { return v >= 0; });
    std::ranges::sort(kept);
    return kept;
  };
  std::size_t different = 0;
  for (std::size_t r = 0; r * want_width < want.size(); ++r) {
    different += !skip(r) && set_of(want.subspan(r * want_width, want_width)) !=
                                 set_of(got.subspan(r * got_width, got_width));
  }
  return different;
}

inline std::vector<std::int64_t> argmax_rows(std::span<const float> logits,
                                             std::size_t vocabulary) {
  std::vector<std::int64_t> out;
  for (std::size_t begin = 0; begin < logits.size(); begin += vocabulary) {
    const auto row = logits.subspan(begin, vocabulary);
    out.push_back(std::ranges::max_element(row) - row.begin());
  }
  return out;
}

inline std::size_t mismatches(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
  std::size_t count = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    count += a[i] != b[i];
  }
  return count;
}

// ---- a probe that records
// ---------------------------------------------------------------------------------------

class Recorder final : public Probe {
 public:
  // Layer -> what replaces its output.
  std::map<int, std::pair<std::vector<float>, std::vector<float>>> force;
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, std::vector<std::int64_t>> lists;

  void floats(std::string_view block,
              std::string_view what,
              std::span<const float> v,
              std::size_t) override {
    values[fmt::format("{}.{}", block, what)].assign(v.begin(), v.end());
  }
  void integers(std::string_view block,
                std::string_view what,
                std::span<const std::int64_t> v,
                std::size_t) override {
    lists[fmt::format("{}.{}", block, what)].assign(v.begin(), v.end());
  }
  void after_layer(int layer, std::span<float> streams, std::span<float> pre) override {
    if (const auto it = force.find(layer); it != force.end()) {
      std::ranges::copy(it->second.first, streams.begin());
      std::ranges::copy(it->second.second, pre.begin());
    }
  }
};

}  // namespace galley::model
