#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "gateway/batch_lines.h"

namespace galley::gateway {

// The file a batch's answers are appended to. At any moment it holds whole lines and at most one
// torn one, at its end: a process that is killed loses no line and repeats none. One thread.
class BatchOutput {
 public:
  // Makes the file if need be, takes it for this process alone, reads what earlier runs wrote and
  // cuts off a torn last line. Errors, with the path in `where`: kUnavailable when it cannot be
  // opened, read or cut, or another process has it; those of BatchDoneReader, then the file is as
  // it was.
  static Result<BatchOutput> open(const std::string& path);

  BatchOutput(BatchOutput&& other) noexcept;
  BatchOutput& operator=(BatchOutput&& other) noexcept;
  ~BatchOutput();

  // As of opening.
  [[nodiscard]] const BatchDone& done() const { return done_; }

  // `line` with its end. Once this has returned, the line outlives the process. Error:
  // kUnavailable with the system's reason; then nothing more is to be written.
  Result<void> append(std::string_view line);

 private:
  BatchOutput() = default;

  std::string path_;
  int file_ = -1;
  BatchDone done_;
};

}  // namespace galley::gateway
