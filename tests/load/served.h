#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/types.h>

#include "base/result.h"
#include "tests/load/paced_source.h"

namespace galley::load {

// The gateway in a process of its own, in front of a PacedSource, until destruction.
class Served {
 public:
  // Before any thread exists: it forks.
  static Result<Served> start(Board& board);
  ~Served();
  Served(Served&& other) noexcept;
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  [[nodiscard]] const std::string& url() const { return url_; }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::size_t memory_bytes() const;  // that it has in RAM
  // Its threads' computing time so far.
  [[nodiscard]] double cpu_seconds() const;

 private:
  Served(pid_t process, int keep_open, std::uint16_t port);
  pid_t process_ = -1;
  int keep_open_ = -1;  // it ends once this is closed
  std::uint16_t port_ = 0;
  std::string url_;
};

}  // namespace galley::load
