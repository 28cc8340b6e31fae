#include "base/standard_files.h"

#include <fcntl.h>
#include <unistd.h>

namespace galley {

void open_standard_files() {
  // open() takes the lowest free number: once it is above standard error, all three are in use.
  int number = 0;
  while (number >= 0 && number <= STDERR_FILENO) {
    number = ::open("/dev/null", O_RDWR);  // inherited by children, as the three are
  }
  if (number >= 0) {
    ::close(number);
  }
}

}  // namespace galley
