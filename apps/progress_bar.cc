#include "apps/progress_bar.h"

#include <cstdio>
#include <fmt/core.h>
#include <unistd.h>

namespace galley::apps {

ProgressBar::~ProgressBar() {
  if (open_) {
    fmt::print(stderr, "\n");
  }
}

void ProgressBar::show(std::uint64_t done, std::uint64_t total) {
  constexpr std::uint64_t kSteps = 200;
  constexpr std::size_t kWidth = 40;
  const std::uint64_t step = done * kSteps / total;
  if (::isatty(STDERR_FILENO) == 0 || step == shown_) {
    return;
  }
  shown_ = step;
  open_ = done != total;
  const std::size_t filled = static_cast<std::size_t>(step) * kWidth / kSteps;
  fmt::print(stderr, "\r[{:#>{}}{:.>{}}] {:5.1f} %  {:.2f} of {:.2f} GB{}", "", filled, "",
             kWidth - filled, 100.0 * static_cast<double>(done) / static_cast<double>(total),
             static_cast<double>(done) / 1e9, static_cast<double>(total) / 1e9,
             done == total ? "\n" : "");
  std::fflush(stderr);
}

}  // namespace galley::apps
