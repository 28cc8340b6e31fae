#include "kernels/product.h"

#include <algorithm>
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

Product::Block Product::outputs(const Weight& weight,
                                std::size_t first,
                                std::size_t count,
                                const MatmulInput& x,
                                std::size_t row,
                                std::size_t rows) const {
  GALLEY_ASSERT(count <= kOutputs && rows <= kRowsMax);
  GALLEY_ASSERT(first + count <= weight.rows && x.columns() == weight.columns);
  thread_local Workspace work;
  float* const c = reserve_floats(work.c, kOutputs * kRowsMax);
  const std::size_t groups = ceil_div(count, kGroupRows);
  std::optional<PackedView> packed;
  if (kernel_ != nullptr && first % kGroupRows == 0) {
    packed = packed_shape(weight);
  }
  if (packed && weight.packed != nullptr) {
    packed->data = weight.packed + first / kGroupRows * packed->group_bytes;
  } else if (packed) {
    std::byte* const out = work.groups.reserve(groups * packed->group_bytes);
    packed->data = out;
    for (std::size_t group = 0; group < groups && packed; ++group) {
      if (!pack_group(weight, *packed, first / kGroupRows + group,
                      out + group * packed->group_bytes)) {
        packed.reset();
      }
    }
  }
  if (packed) {
    kernel_->multiply(*packed, groups, x.view(row, rows), c, work.scratch.reserve(kScratchBytes));
    return {c, groups * kGroupRows};
  }
  work.row.resize(weight.columns);
  for (std::size_t r = 0; r < count; ++r) {
    dequantise_row(weight, first + r, work.row);
    for (std::size_t t = 0; t < rows; ++t) {
      c[t * kOutputs + r] = reference::dot(work.row, {x.row(row + t), weight.columns});
    }
  }
  return {c, kOutputs};
}

}  // namespace galley::kernels
