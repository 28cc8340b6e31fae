#pragma once

#include <cstddef>
#include <cstdint>

// What probe.h times, one loop an instruction set and kind of work. Like matmul.h, this header is
// compiled with different target flags and so holds plain structs only.
namespace galley::kernels {

// Values of a compute loop, read from the first-level cache: pairs of bfloat16 of either sign,
// magnitudes in [0.5, 2), which read as float32 are the same. 64-byte aligned.
inline constexpr std::size_t kProbeValueBytes = std::size_t{32} << 10U;

// Does `operations` multiplications and additions, some hundred microseconds of them, on values at
// `values`[kProbeValueBytes]. The result depends on all of them: nothing may be left out.
struct ComputeLoop {
  double operations;
  float (*run)(const std::byte* values);
};

extern const ComputeLoop kAvx2FmaLoop;    // float32
extern const ComputeLoop kAvx512FmaLoop;  // float32
extern const ComputeLoop kAvx512DotLoop;  // pairs of bfloat16
extern const ComputeLoop kAmxTileLoop;    // tiles of bfloat16

// Reads every byte once, `bytes` a multiple of kReadStep, 64-byte aligned. The result depends on
// all of them.
using ReadLoop = std::uint64_t (*)(const std::byte* data, std::size_t bytes);
inline constexpr std::size_t kReadStep = 1024;
inline constexpr std::size_t kReadStreams = 4;
inline constexpr std::size_t kReadAhead = 2048;  // how far each stream is fetched ahead

extern const ReadLoop kAvx2ReadLoop;
extern const ReadLoop kAvx512ReadLoop;

}  // namespace galley::kernels
