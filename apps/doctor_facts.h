#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/isa.h"
#include "kernels/probe.h"

// What `galley doctor` finds out, before anybody judges it.
namespace galley::apps {

// Formats of weights that products are checked and timed with.
inline constexpr std::array<const char*, 3> kProductFormats = {"BF16", "FP8", "FP4"};

struct CpuFacts {
  std::string model;  // as the system names it, "" if it does not
  int online = 1;     // processors, hyper-threads counted
  int usable = 1;     // of them, those this process may run on
  int cores = 1;      // of the usable ones, hyper-threads of a core counted once
  double quota = 0;   // of processors, by the control group; 0: none
  double load = 0;    // threads that were running or ready in the last minute, on average
  // What the processor says it has, whether or not the system lets us use it.
  bool avx2 = false;
  bool avx512 = false;  // F, BW, DQ, VL
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool amx = false;  // tiles of bfloat16
  std::vector<kernels::Isa> supported;
  kernels::Isa chosen = kernels::Isa::kReference;
  std::string wanted;  // GALLEY_ISA
};

struct ProductCheck {
  kernels::Isa isa{};
  std::string format;
  // The largest error of a value and what rounding may make of that value: `share` of the two is
  // the largest of all values. Not a number where a product was none.
  double error = 0;
  double bound = 0;
  double share = 0;
};

// Of a number of threads. 0: this machine lacks it, or it was not measured.
struct RateFacts {
  int threads = 1;
  kernels::Limits limits;
  double product_limit = 0;  // of the chosen instruction set's multiplications
  std::array<double, kProductFormats.size()> products{};  // of the chosen instruction set
};

struct MemoryFacts {
  double total_bytes = 0;
  double available_bytes = 0;  // to this process: the control group counts, too
  std::string huge_pages;      // always, madvise, never; "": the system has none
};

struct DiskFacts {
  std::string directory;
  double bytes_per_second = 0;
  bool direct = false;   // past the page cache
  std::string problem;   // why nothing was measured
  std::string io_uring;  // why it cannot be used, "" if it can
};

struct LimitFacts {  // of this process; none: unlimited
  std::optional<std::uint64_t> locked_bytes;
  std::optional<std::uint64_t> open_files;
};

struct DoctorFacts {
  CpuFacts cpu;
  std::vector<ProductCheck> checks;
  MemoryFacts memory;
  RateFacts one;
  RateFacts all;
  DiskFacts disk;
  LimitFacts limits;
};

}  // namespace galley::apps
