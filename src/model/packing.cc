#include "model/packing.h"

#include <optional>
#include <utility>

#include "base/ceil_div.h"
#include "base/cpu_count.h"
#include "base/worker_pool.h"
#include "kernels/packed_weight.h"
#include "model/pack_file.h"

namespace galley::model {
namespace {

class Collector {
 public:
  void add(kernels::Weight& matrix) {
    if (!matrix.empty()) {
      matrices_.push_back(&matrix);
    }
  }
  void add(kernels::ExpertWeights& expert) {
    add(expert.w1);
    add(expert.w2);
    add(expert.w3);
  }
  void add(CompressorWeights& compressor) {
    add(compressor.wkv);
    add(compressor.wgate);
  }
  void add(BlockWeights& block) {
    for (kernels::Weight* const matrix :
         {&block.wq_a, &block.wq_b, &block.wkv, &block.wo_a, &block.wo_b, &block.gate}) {
      add(*matrix);
    }
    add(block.compressor);
    add(block.indexer.wq_b);
    add(block.indexer.weights_proj);
    add(block.indexer.wk);
    add(block.indexer.compressor);
    for (kernels::ExpertWeights& expert : block.experts) {
      add(expert);
    }
    add(block.shared);
    if (block.engram) {
      add(block.engram->wkv);
    }
  }
  void add(DraftWeights& draft) {
    for (BlockWeights& stage : draft.stages) {
      add(stage);
    }
    for (kernels::Weight* const matrix :
         {&draft.embed_proj, &draft.hidden_proj, &draft.main_proj, &draft.markov_head}) {
      add(*matrix);
    }
  }
  [[nodiscard]] std::vector<kernels::Weight*> take() { return std::move(matrices_); }

 private:
  std::vector<kernels::Weight*> matrices_;
};

}  // namespace

std::vector<kernels::Weight*> product_matrices(ModelWeights& weights) {
  Collector collector;
  for (BlockWeights& layer : weights.layers) {
    collector.add(layer);
  }
  collector.add(weights.head);
  if (weights.draft) {
    collector.add(*weights.draft);
  }
  return collector.take();
}

std::size_t packed_bytes(const kernels::Weight& matrix) {
  const std::optional<kernels::PackedView> shape = kernels::packed_shape(matrix);
  return shape ? ceil_div(matrix.rows, kernels::kGroupRows) * shape->group_bytes : 0;
}

void pack_matrix(kernels::Weight& matrix, std::byte* out) {
  const std::optional<kernels::PackedView> shape = kernels::packed_shape(matrix);
  const std::size_t groups = shape ? ceil_div(matrix.rows, kernels::kGroupRows) : 0;
  for (std::size_t group = 0; group < groups; ++group) {
    if (!kernels::pack_group(matrix, *shape, group, out + group * shape->group_bytes)) {
      return;
    }
  }
  matrix.packed = groups > 0 ? out : nullptr;
}

PackedWeights provide_packed(ModelWeights& weights,
                             const Checkpoint& checkpoint,
                             kernels::Device& device,
                             const std::filesystem::path& directory,
                             std::size_t memory_max) {
  PackedWeights out;
  const std::vector<kernels::Weight*> matrices = product_matrices(weights);
  std::vector<std::size_t> offsets;
  for (const kernels::Weight* const matrix : matrices) {
    offsets.push_back(out.bytes);
    out.bytes += packed_bytes(*matrix);
  }
  bool has_file = false;
  if (!directory.empty() && out.bytes > 0) {
    const std::string key = checkpoint.fingerprint();
    out.file = pack_file_path(directory, key);
    if (auto mapped = map_pack_file(out.file, key, matrices)) {
      out.mapped = std::move(*mapped);
      has_file = true;
    } else if (mapped.error().code != Code::kNotFound) {
      out.refused = std::move(mapped.error().what);
    }
  }
  out.form = choose_packed_form(out.bytes, memory_max, has_file);
  if (out.form == PackedForm::kMemory) {
    out.memory = device.try_allocate(out.bytes);
    if (out.memory == nullptr) {
      out.form = PackedForm::kNone;
      return out;
    }
    WorkerPool pool(cpu_count());
    pool.run(matrices.size(),
             [&](std::size_t i) { pack_matrix(*matrices[i], out.memory->data() + offsets[i]); });
  }
  return out;
}

}  // namespace galley::model
