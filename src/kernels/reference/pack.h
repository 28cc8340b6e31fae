#pragma once

#include <cstddef>
#include <span>

#include "kernels/row_format.h"

namespace galley::kernels::reference {

// Quantises `row` (fake_quantise_* of quantise.h) and writes its codes; `out` has format.bytes().
void pack_row(const RowFormat& format, std::span<const float> row, std::byte* out);

// The values pack_row's quantiser left, bit for bit (channels that stay bfloat16: if they were).
void unpack_row(const RowFormat& format, const std::byte* in, std::span<float> row);

}  // namespace galley::kernels::reference
