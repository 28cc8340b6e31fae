#pragma once

#include <cstdint>

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

}  // namespace galley::apps
