#include "apps/progress_bar.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fmt/core.h>
#include <unistd.h>

namespace galley::apps {
namespace {

constexpr std::uint64_t kSteps = 200;
constexpr std::size_t kWidth = 40;
// Between two texts of a bar whose figures change all the time.
constexpr Duration kShowInterval = std::chrono::milliseconds(200);

// "[####....]", `step` of kSteps.
std::string bar(std::uint64_t step) {
  const std::size_t filled = static_cast<std::size_t>(step) * kWidth / kSteps;
  return fmt::format("[{:#>{}}{:.>{}}]", "", filled, "", kWidth - filled);
}

// "1:05", "12:00:00"
std::string clock_text(std::int64_t seconds) {
  const std::int64_t minutes = seconds / 60;
  return minutes < 60 ? fmt::format("{}:{:02}", minutes, seconds % 60)
                      : fmt::format("{}:{:02}:{:02}", minutes / 60, minutes % 60, seconds % 60);
}

}  // namespace

ProgressBar::~ProgressBar() {
  if (open_) {
    fmt::print(stderr, "\n");
  }
}

void ProgressBar::show(std::uint64_t done, std::uint64_t total) {
  const std::uint64_t step = done * kSteps / total;
  if (::isatty(STDERR_FILENO) == 0 || step == shown_) {
    return;
  }
  shown_ = step;
  open_ = done != total;
  fmt::print(stderr, "\r{} {:5.1f} %  {:.2f} of {:.2f} GB{}", bar(step),
             100.0 * static_cast<double>(done) / static_cast<double>(total),
             static_cast<double>(done) / 1e9, static_cast<double>(total) / 1e9,
             done == total ? "\n" : "");
  std::fflush(stderr);
}

std::string batch_progress_text(const BatchProgress& progress) {
  const double seconds = std::chrono::duration<double>(progress.elapsed).count();
  std::string text = fmt::format("{} of {} lines", progress.done, progress.total);
  if (progress.failed > 0) {
    text += fmt::format(", {} failed", progress.failed);
  }
  if (seconds > 0) {
    text += fmt::format(", {:.1f} tokens/s", static_cast<double>(progress.tokens) / seconds);
  }
  const std::size_t done_now = progress.done - progress.done_before;
  if (done_now > 0 && progress.done < progress.total) {
    const double left = seconds * static_cast<double>(progress.total - progress.done) /
                        static_cast<double>(done_now);
    text += fmt::format(", {} left", clock_text(std::llround(left)));
  }
  return text;
}

BatchBar::~BatchBar() {
  if (shown_bytes_ > 0) {
    fmt::print(stderr, "\n");
  }
}

void BatchBar::show(const BatchProgress& progress) {
  const bool soon = shown_bytes_ > 0 && progress.elapsed - shown_at_ < kShowInterval;
  if (::isatty(STDERR_FILENO) == 0 || (soon && progress.done < progress.total)) {
    return;
  }
  const std::string text = batch_progress_text(progress);
  fmt::print(stderr, "\r{} {:{}}", bar(progress.done * kSteps / progress.total), text,
             std::max(shown_bytes_, text.size()));
  std::fflush(stderr);
  shown_bytes_ = text.size();
  shown_at_ = progress.elapsed;
}

}  // namespace galley::apps
