// Completions bodies, see request_fuzz.h.
#include "fuzz/request_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  galley::recipe::fuzz_request(galley::recipe::Protocol::kCompletions, {data, size});
  return 0;
}
