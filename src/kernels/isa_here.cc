// isa_here NAME: exits with 77 when this machine lacks the instruction set, for CTest to skip.
#include "kernels/isa.h"

int main(int count, char** arguments) {
  constexpr int kSkip = 77;
  return count == 2 && galley::kernels::choose_isa(arguments[1]) ? 0 : kSkip;
}
