#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "kernels/weight.h"
#include "model/weights.h"

// Matrices in the layout that products read (kernels/packed_weight.h), made once so that no product
// has to make it again.
namespace galley::model {

// Larger models are not packed in memory when they are loaded: it takes a second a GiB and a core.
inline constexpr std::size_t kPackInMemoryMax = std::size_t{1} << 30U;

// Every matrix of `weights` that is multiplied by activations, in a fixed order. Tables that are
// read by row are not among them.
[[nodiscard]] std::vector<kernels::Weight*> product_matrices(ModelWeights& weights);

// What their packed forms take together; 0 for one that has none.
[[nodiscard]] std::size_t packed_bytes(const kernels::Weight& matrix);

// Packs one matrix to `out` [packed_bytes(matrix)] and points it there, unless one of its groups
// has no packed form. Threads may pack different matrices.
void pack_matrix(kernels::Weight& matrix, std::byte* out);

// Packs all into memory of the device when they take at most `bytes_max` together. The result lives
// as long as the weights; null when nothing was packed.
[[nodiscard]] std::unique_ptr<kernels::Buffer> pack_in_memory(ModelWeights& weights,
                                                              kernels::Device& device,
                                                              std::size_t bytes_max);

}  // namespace galley::model
