#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

// Which instruction set the kernels use. Each has one multiply-accumulate scheme for every shape,
// so that results depend on the instruction set and on nothing else of the machine.
namespace galley::kernels {

enum class Isa : std::uint8_t {
  kReference,  // the plain loops of reference/
  kAvx2,       // AVX2 and FMA: products in float32; any x86-64-v3 machine
  kAvx512,     // AVX-512 with VNNI and BF16: products of bfloat16 pairs
  kAmx,        // tiles of bfloat16
};

[[nodiscard]] std::string_view isa_name(Isa isa);

// Raised with every change that lets any instruction set compute other bits: what earlier versions
// stored is then not taken for exact any more.
inline constexpr std::uint32_t kArithmetic = 1;

// Of this machine, best first; kReference is always there. The first call asks the system for tile
// registers where the CPU has them.
[[nodiscard]] std::span<const Isa> supported_isas();

// The instruction set named by `wanted`, or the first of `supported` when it is empty. Error
// kInvalidArgument: no such name, or not among `supported`.
[[nodiscard]] Result<Isa> choose_isa(std::string_view wanted,
                                     std::span<const Isa> supported = supported_isas());

// What $GALLEY_ISA asks for, "" if nothing.
inline constexpr const char* kIsaVariable = "GALLEY_ISA";
[[nodiscard]] std::string_view wanted_isa();

}  // namespace galley::kernels
