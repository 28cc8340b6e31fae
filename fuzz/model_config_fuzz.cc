// Goal: no config.json crashes the reader or the plan, and what they accept is consistent. Method:
// the first byte is the number of draft stages, the rest the file.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/plan.h"

namespace {

void check(const galley::model::ModelPlan& plan) {
  using namespace galley::model;
  GALLEY_ASSERT(std::ssize(plan.layers) == plan.config.layers);
  std::size_t bytes = 0;
  for (const CacheSource& source : plan.cache.sources) {
    GALLEY_ASSERT(source.offset == bytes);
    bytes += source.bytes;
  }
  GALLEY_ASSERT(bytes == plan.cache.block_bytes);
  GALLEY_ASSERT(plan.cache.block_stride >= bytes);
  GALLEY_ASSERT(plan.keep >= plan.cache.ring_rows);
  for (int i = 0; i < plan.config.layers; ++i) {
    const LayerPlan& layer = plan.layers[static_cast<std::size_t>(i)];
    GALLEY_ASSERT(layer.kv_source <= i);
    GALLEY_ASSERT(layer.list_source <= i);
    GALLEY_ASSERT((layer.ratio > 0) == (layer.kv_source >= 0));
    GALLEY_ASSERT(layer.above_cut == (plan.cut >= 0 && i >= plan.cut));
  }
  constexpr int kListed = 512;  // tensors are counted for small models only, for speed
  if (plan.config.layers * plan.config.experts > kListed) {
    return;
  }
  std::set<std::string> names;
  for (const TensorSpec& spec : expected_tensors(plan)) {
    GALLEY_ASSERT(names.insert(spec.name).second);
    for (const std::int64_t side : spec.shape) {
      GALLEY_ASSERT(side > 0);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  auto config = galley::model::parse_config(text);
  if (!config) {
    GALLEY_ASSERT(!config.error().what.empty());
    return 0;
  }
  constexpr int kStages = 20;
  const auto plan = galley::model::make_plan(std::move(*config), data[0] % kStages);
  if (!plan) {
    GALLEY_ASSERT(!plan.error().where.empty());
    return 0;
  }
  check(*plan);
  return 0;
}
