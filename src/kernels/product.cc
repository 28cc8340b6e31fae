#include "kernels/product.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/ceil_div.h"
#include "base/check.h"
#include "kernels/packed_weight.h"
#include "kernels/reference/ops.h"

namespace galley::kernels {
namespace {

const MatmulKernel* kernel_of(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return nullptr;
    case Isa::kAvx2:
      return &kAvx2Matmul;
    case Isa::kAvx512:
      return &kAvx512Matmul;
    case Isa::kAmx:
      return &kAmxMatmul;
  }
  std::unreachable();
}

// One thread's memory, kept between products.
struct Workspace {
  AlignedBytes scratch;
  AlignedBytes groups;
  AlignedBytes c;
  std::vector<float> row;
};

float* reserve_floats(AlignedBytes& bytes, std::size_t count) {
  return reinterpret_cast<float*>(bytes.reserve(count * sizeof(float)));
}

}  // namespace

Product::Product(Isa isa) : kernel_(kernel_of(isa)) {}

std::size_t Product::outputs_per_task(std::size_t outputs, std::size_t rows, int threads) {
  constexpr std::size_t kFewRows = 32;  // nothing to gain
  constexpr std::size_t kTasksOfWorker = 4;
  const std::size_t workers = static_cast<std::size_t>(threads) * kTasksOfWorker;
  const std::size_t stretches = rows <= kFewRows ? 1 : outputs / kOutputs / workers;
  return kOutputs * std::clamp<std::size_t>(stretches, 1, kStretchesMax);
}

Product::Block Product::outputs(const Weight& weight,
                                std::size_t first,
                                std::size_t count,
                                const MatmulInput& x,
                                std::size_t row,
                                std::size_t rows,
                                std::size_t stretch) const {
  GALLEY_ASSERT(rows <= kRowsMax);
  GALLEY_ASSERT(first % kGroupRows + count <= kOutputs);
  GALLEY_ASSERT(first + count <= weight.rows);
  GALLEY_ASSERT(x.columns() == weight.columns);
  thread_local Workspace work;
  constexpr std::size_t kFloats = kOutputs * kRowsMax;
  float* const c = reserve_floats(work.c, kStretchesMax * kFloats) + stretch * kFloats;
  const std::size_t first_group = first / kGroupRows;
  const std::size_t groups = ceil_div(first % kGroupRows + count, kGroupRows);
  std::optional<PackedView> packed;
  if (kernel_ != nullptr) {
    packed = packed_shape(weight);
  }
  if (packed && weight.packed != nullptr) {
    packed->data = weight.packed + first_group * packed->group_bytes;
    GALLEY_ASSERT(reinterpret_cast<std::uintptr_t>(packed->data) % kPackedAlignment == 0);
  } else if (packed) {
    std::byte* const out = work.groups.reserve(groups * packed->group_bytes);
    packed->data = out;
    for (std::size_t group = 0; group < groups && packed; ++group) {
      if (!pack_group(weight, *packed, first_group + group, out + group * packed->group_bytes)) {
        packed.reset();
      }
    }
  }
  if (packed) {
    kernel_->multiply(*packed, groups, x.view(row, rows), c, work.scratch.reserve(kScratchBytes));
    return {c + first % kGroupRows, groups * kGroupRows, count};
  }
  work.row.resize(weight.columns);
  for (std::size_t r = 0; r < count; ++r) {
    dequantise_row(weight, first + r, work.row);
    for (std::size_t t = 0; t < rows; ++t) {
      c[t * kOutputs + r] = reference::dot(work.row, {x.row(row + t), weight.columns});
    }
  }
  return {c, kOutputs, count};
}

}  // namespace galley::kernels
