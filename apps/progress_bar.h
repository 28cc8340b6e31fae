#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/units.h"

namespace galley::apps {

// One line of bytes done and to do on a terminal (standard error) that is written over; nothing
// elsewhere.
class ProgressBar {
 public:
  ProgressBar() = default;
  ~ProgressBar();  // ends the line of what was not finished
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(std::uint64_t done, std::uint64_t total);

 private:
  std::uint64_t shown_ = ~std::uint64_t{0};
  bool open_ = false;  // the line has no end yet
};

// How far a batch is.
struct BatchProgress {
  std::size_t done{};         // lines, those of earlier runs included
  std::size_t done_before{};  // of them
  std::size_t total{};
  std::size_t failed{};   // of this run's
  std::int64_t tokens{};  // of this run's answers, unfinished ones too
  Duration elapsed{};     // since it began
};
// "12 of 40 lines, 1 failed, 35.2 tokens/s, 1:05 left": the time as this run's lines took it, and
// no word of it before one is done.
[[nodiscard]] std::string batch_progress_text(const BatchProgress& progress);

// The same behind a bar, as ProgressBar.
class BatchBar {
 public:
  BatchBar() = default;
  ~BatchBar();  // ends the line
  BatchBar(const BatchBar&) = delete;
  BatchBar& operator=(const BatchBar&) = delete;

  void show(const BatchProgress& progress);

 private:
  std::size_t shown_bytes_ = 0;  // of the text that is written over
  Duration shown_at_{};          // BatchProgress::elapsed
};

}  // namespace galley::apps
