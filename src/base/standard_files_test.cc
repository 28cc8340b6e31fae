// Goal: a process started without standard input, output or error never gives their numbers away.
// Method: a child closes them, calls the function and looks at what its numbers are.
#include "base/standard_files.h"

#include <cstdlib>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace galley {
namespace {

bool is_null_device(int number) {
  struct stat file{};
  struct stat null{};
  return ::fstat(number, &file) == 0 && ::stat("/dev/null", &null) == 0 &&
         file.st_rdev == null.st_rdev;
}

// Exit status: 0 when all is well, else which look failed.
[[noreturn]] void close_and_look(int first, int last) {
  for (int number = first; number <= last; ++number) {
    ::close(number);
  }
  open_standard_files();
  for (int number = first; number <= last; ++number) {
    if (!is_null_device(number)) {
      ::_exit(1);
    }
  }
  const int next = ::open("/", O_RDONLY);
  ::_exit(next > STDERR_FILENO ? 0 : 2);
}

TEST(StandardFiles, ClosedOnesBecomeTheNullDevice) {
  EXPECT_EXIT(close_and_look(0, 2), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(close_and_look(0, 0), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(close_and_look(1, 1), testing::ExitedWithCode(0), "");
}

TEST(StandardFiles, OpenOnesAndFurtherNumbersStay) {
  const int before = ::dup(STDOUT_FILENO);
  ::close(before);
  open_standard_files();
  const int after = ::dup(STDOUT_FILENO);
  ::close(after);
  EXPECT_EQ(before, after);  // nothing was left open
}

}  // namespace
}  // namespace galley
