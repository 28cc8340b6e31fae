#include "kernels/avx512/vec-inl.h"

namespace galley::kernels {
namespace {

constexpr std::size_t kDotRows = 2;  // on each side: 16 sums of 32 registers

}  // namespace
}  // namespace galley::kernels

#include "kernels/rows-inl.h"

namespace galley::kernels {

constinit const RowKernels kAvx512Rows = kRows;

}  // namespace galley::kernels
