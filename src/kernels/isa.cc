#include "kernels/isa.h"

#include <algorithm>
#include <array>
#include <asm/prctl.h>
#include <cpuid.h>
#include <cstdlib>
#include <fmt/core.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/quote.h"

namespace galley::kernels {
namespace {

constexpr std::size_t kNameBytesMax = 64;  // shown of a wrong name

constexpr std::array<std::pair<Isa, std::string_view>, 4> kNames = {
    {{Isa::kAmx, "amx"},
     {Isa::kAvx512, "avx512"},
     {Isa::kAvx2, "avx2"},
     {Isa::kReference, "reference"}}};

// Tile registers are off until a process asks for them (Linux, Documentation/arch/x86/xstate.rst).
bool tiles_granted() {
#ifndef ARCH_REQ_XCOMP_PERM
  constexpr long ARCH_REQ_XCOMP_PERM = 0x1023;  // kernel headers before 5.16
#endif
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData) == 0;
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
}

// cpuid leaf 7: edx bit 22 amx-bf16, bit 24 amx-tile.
bool has_amx() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 7;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) {
    return false;
  }
  constexpr unsigned kBits = (1U << 22U) | (1U << 24U);
  return (edx & kBits) == kBits && has_avx512() && tiles_granted();
}

bool has(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    case Isa::kAvx512:
      return has_avx512();
    case Isa::kAmx:
      return has_amx();
  }
  std::unreachable();
}

}  // namespace

std::string_view isa_name(Isa isa) {
  for (const auto& [candidate, name] : kNames) {
    if (candidate == isa) {
      return name;
    }
  }
  std::unreachable();
}

std::span<const Isa> supported_isas() {
  static const std::vector<Isa> found = [] {
    std::vector<Isa> out;
    for (const auto& [isa, name] : kNames) {
      if (has(isa)) {
        out.push_back(isa);
      }
    }
    return out;
  }();
  return found;
}

Result<Isa> choose_isa(std::string_view wanted, std::span<const Isa> supported) {
  if (wanted.empty()) {
    return supported.front();
  }
  for (const auto& [isa, name] : kNames) {
    if (name != wanted) {
      continue;
    }
    if (std::ranges::find(supported, isa) == supported.end()) {
      return fail(Code::kInvalidArgument,
                  fmt::format("{}={}: this machine lacks it", kIsaVariable, name));
    }
    return isa;
  }
  return fail(Code::kInvalidArgument,
              fmt::format("{}={}: no such instruction set; there are amx, avx512, avx2, reference",
                          kIsaVariable, quoted(wanted, kNameBytesMax)));
}

std::string_view wanted_isa() {
  const char* const value = std::getenv(kIsaVariable);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

}  // namespace galley::kernels
