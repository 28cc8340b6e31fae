// Goal: no file crashes the safetensors reader, and what it accepts lies inside the file, byte for
// byte once, under every naming. Method: the input is a whole file.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "model/safetensors.h"
#include "model/tensor_names.h"

namespace {

using galley::model::NamedTensor;
using galley::model::TensorView;

void check_view(const TensorView& view, std::span<const std::byte> inside) {
  std::int64_t elements = 1;
  for (const std::int64_t side : view.shape) {
    GALLEY_ASSERT(side >= 0);
    elements *= side;
  }
  GALLEY_ASSERT(elements == view.elements());
  GALLEY_ASSERT(view.bytes.empty() ||
                (view.bytes.data() >= inside.data() &&
                 view.bytes.data() + view.bytes.size() <= inside.data() + inside.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  const auto tensors = galley::model::parse_safetensors(file);
  if (!tensors) {
    GALLEY_ASSERT(!tensors.error().what.empty());
    return 0;
  }
  std::size_t bytes = 0;
  for (const auto& [name, view] : *tensors) {
    check_view(view, file);
    bytes += view.bytes.size();
    const auto parts = galley::model::released_tensors(name, view);
    if (!parts) {
      GALLEY_ASSERT(!parts.error().what.empty());
      continue;
    }
    std::size_t in_parts = 0;
    for (const NamedTensor& part : *parts) {
      check_view(part.view, part.owned ? std::span<const std::byte>(*part.owned) : view.bytes);
      in_parts += part.view.bytes.size();
    }
    GALLEY_ASSERT(in_parts == view.bytes.size());
  }
  GALLEY_ASSERT(bytes <= size);
  return 0;
}
