#pragma once

#include <cstdint>
#include <span>

// Quantisers that are part of the model (spec model 2.3): a value is replaced by its dequantised
// one. Blocks run along the row; the last may be short. `codes` and `scales` receive what was
// chosen, where the caller asks (tests).
namespace galley::kernels::reference {

struct QuantiseParts {
  std::span<std::uint8_t> codes;  // empty, or one code a value
  std::span<float> scales;        // empty, or one scale a block
};

// e4m3 with a power-of-two scale a block: window rows (block 32, or 64 in V4), linear activations.
void fake_quantise_fp8(std::span<float> row, std::size_t block, QuantiseParts parts = {});

// e2m1 with a power-of-two scale a block: index keys and index queries (block 32).
void fake_quantise_fp4(std::span<float> row, std::size_t block, QuantiseParts parts = {});

// e2m1 with an e4m3 scale a block: compressed rows of V4.1 (block 16).
void fake_quantise_fp4_e4m3(std::span<float> row, std::size_t block, QuantiseParts parts = {});

// Sylvester-order Walsh-Hadamard transform times n^-0.5, n a power of two (V4 index keys and
// queries).
void hadamard(std::span<float> row);

}  // namespace galley::kernels::reference
