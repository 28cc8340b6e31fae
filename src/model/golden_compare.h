#pragma once

#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/golden_check.h"
#include "model/golden_file.h"
#include "model/network.h"

// What the checks of golden runs share: comparing values, lists and choices, a report of what came
// out, and a probe that records what to compare. Files are read by golden_file.h.
namespace galley::model {

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
    if (want.empty() || want.size() != got.size()) {
      outcome.detail = fmt::format("want {} values, got {}", want.size(), got.size());
      outcomes_.push_back(std::move(outcome));
      return;
    }
    double squares = 0;
    double reference = 0;
    std::size_t worst = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double error =
          want[i] == got[i] ? 0.0 : std::fabs(static_cast<double>(want[i]) - got[i]);
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

  // `mismatches` of `total` differ; at most `allowed` may. `left_out`: what was not compared.
  void count(const std::string& name,
             std::size_t mismatches,
             std::size_t total,
             std::size_t allowed,
             std::string_view left_out = "") {
    outcomes_.push_back({.name = prefix_ + name,
                         .passed = mismatches <= allowed,
                         .detail = fmt::format("{} of {} differ, {} allowed{}", mismatches, total,
                                               allowed, left_out)});
  }
  void require(const std::string& name, bool holds, std::string detail) {
    outcomes_.push_back(
        {.name = prefix_ + name, .passed = holds, .detail = holds ? "" : std::move(detail)});
  }

  // A failure for every tensor that is missing or garbled, which may have ended the check early; if
  // there is none, for every one that nobody read or passed over.
  void file_problems(const Golden& golden) {
    for (const auto& [tensor, what] : golden.problems()) {
      require(tensor, false, what);
    }
    if (!golden.problems().empty()) {
      return;
    }
    for (const std::string& tensor : golden.unread()) {
      require(tensor, false, "is compared with nothing");
    }
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

// Lists of `rows` rows, compared as sets: the number of rows that differ, rows with `skip` left
// out. Lists may be padded to other widths.
inline std::size_t differing_rows(std::span<const std::int64_t> want,
                                  std::span<const std::int64_t> got,
                                  std::size_t rows,
                                  const std::function<bool(std::size_t)>& skip = {}) {
  if (rows == 0 || want.size() % rows != 0 || got.size() % rows != 0) {
    return std::max<std::size_t>(rows, 1);
  }
  const auto set_of = [rows](std::span<const std::int64_t> lists, std::size_t r) {
    const std::size_t width = lists.size() / rows;
    std::vector<std::int64_t> kept;
    std::ranges::copy_if(lists.subspan(r * width, width), std::back_inserter(kept),
                         [](std::int64_t v) { return v >= 0; });
    std::ranges::sort(kept);
    return kept;
  };
  std::size_t different = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    different += !(skip && skip(r)) && set_of(want, r) != set_of(got, r);
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

// In how many of `rows` places another token may win: in one where only rounding noise is between
// us and the golden, else in the rest of `share`.
inline std::size_t other_winners(std::size_t rows, bool exact, double share) {
  return exact ? 1 : static_cast<std::size_t>((1 - share) * static_cast<double>(rows));
}

// ---- a probe that records
// ---------------------------------------------------------------------------------------

class Recorder final : public Probe {
 public:
  // Layer -> what replaces its output.
  std::map<int, std::pair<std::vector<float>, std::vector<float>>> force;
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, std::vector<std::int64_t>> lists;

  // What was seen of `what`; empty when nothing was.
  [[nodiscard]] std::vector<float> value(const std::string& what) const {
    const auto it = values.find(what);
    return it == values.end() ? std::vector<float>() : it->second;
  }
  [[nodiscard]] std::vector<std::int64_t> list(const std::string& what) const {
    const auto it = lists.find(what);
    return it == lists.end() ? std::vector<std::int64_t>() : it->second;
  }

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
