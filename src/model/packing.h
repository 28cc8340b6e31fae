#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "kernels/device.h"
#include "kernels/weight.h"
#include "model/checkpoint.h"
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

// Where products find the packed forms of a model's matrices.
enum class PackedForm : std::uint8_t {
  kFile,    // mapped from a pack file (pack_file.h)
  kMemory,  // made when the model was loaded
  kNone,    // nowhere: a product packs its matrix on the way
};

// `bytes`: what the packed forms take together. A file that is there costs neither time nor memory
// of one's own, so it comes first.
[[nodiscard]] constexpr PackedForm choose_packed_form(std::size_t bytes,
                                                      std::size_t memory_max,
                                                      bool has_file) {
  if (bytes == 0) {
    return PackedForm::kNone;
  }
  return has_file              ? PackedForm::kFile
         : bytes <= memory_max ? PackedForm::kMemory
                               : PackedForm::kNone;
}

// What was chosen for a model, and what its matrices then point into.
struct PackedWeights {
  PackedForm form = PackedForm::kNone;
  std::size_t bytes{};         // of all packed forms
  std::filesystem::path file;  // the model's pack file, there or not; empty without a directory
  std::string refused;         // why it is not used although there is one; else empty
  MappedFile mapped;
  std::unique_ptr<kernels::Buffer> memory;
};

// Provides the matrices with their packed forms, as choose_packed_form() says. `directory` is where
// pack files lie; empty: there are none. The result lives as long as the weights.
[[nodiscard]] PackedWeights provide_packed(ModelWeights& weights,
                                           const Checkpoint& checkpoint,
                                           kernels::Device& device,
                                           const std::filesystem::path& directory,
                                           std::size_t memory_max = kPackInMemoryMax);

}  // namespace galley::model
