#include "bench/kernels/peer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "base/check.h"
#include "bench/kernels/random_weights.h"
#include "kernels/formats.h"

namespace galley::bench {

struct Peer::State {
  int threads;
  dnnl::engine engine;
  dnnl::stream stream;
  dnnl::matmul::primitive_desc description;
  dnnl::matmul matmul;
  std::vector<std::byte> x;
  std::size_t results;
  std::unique_ptr<kernels::Buffer> y;
  dnnl::memory source;
  dnnl::memory weights;
  dnnl::memory destination;
};

bool Peer::available(kernels::Isa isa) {
  switch (isa) {
    case kernels::Isa::kAmx:
      return dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_amx) == dnnl::status::success;
    case kernels::Isa::kAvx512:
      return dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16) == dnnl::status::success;
    case kernels::Isa::kAvx2:
      return dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2) == dnnl::status::success;
    case kernels::Isa::kReference:
      return false;
  }
  std::unreachable();
}

Peer::Peer(kernels::Device& device,
           kernels::Isa isa,
           std::size_t rows,
           std::size_t outputs,
           std::size_t inputs,
           int threads) {
  using Type = dnnl::memory::data_type;
  using Tag = dnnl::memory::format_tag;
  const Type type = isa == kernels::Isa::kAvx2 ? Type::f32 : Type::bf16;
  omp_set_num_threads(threads);
  const auto m = static_cast<dnnl::memory::dim>(rows);
  const auto n = static_cast<dnnl::memory::dim>(outputs);
  const auto k = static_cast<dnnl::memory::dim>(inputs);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl::matmul::primitive_desc description(
      dnnl::matmul::desc({{m, k}, type, Tag::ab}, {{k, n}, type, Tag::any},
                         {{m, n}, Type::f32, Tag::ab}),
      engine);
  const std::vector<float> values = random_rows(rows, inputs);
  std::vector<std::byte> x(description.src_desc().get_size());
  if (type == Type::f32) {
    std::memcpy(x.data(), values.data(), x.size());
  } else {
    std::vector<std::uint16_t> narrow(values.size());
    std::ranges::transform(values, narrow.begin(), kernels::to_bf16);
    std::memcpy(x.data(), narrow.data(), x.size());
  }
  state_ = std::make_unique<State>(State{.threads = threads,
                                         .engine = engine,
                                         .stream = dnnl::stream(engine),
                                         .description = description,
                                         .matmul = dnnl::matmul(description),
                                         .x = std::move(x),
                                         .results = rows * outputs,
                                         .y = device.allocate(rows * outputs * sizeof(float))});
  State& s = *state_;
  s.source = dnnl::memory(description.src_desc(), engine, s.x.data());
  s.weights = dnnl::memory(description.weights_desc(), engine, nullptr);
  s.destination = dnnl::memory(description.dst_desc(), engine, s.y->data());
}

Peer::~Peer() = default;

std::size_t Peer::weight_bytes() const {
  return state_->description.weights_desc().get_size();
}

void Peer::run(const std::byte* weights) {
  State& s = *state_;
  omp_set_num_threads(s.threads);
  // Its interface has no read-only memory; it does not write weights.
  s.weights.set_data_handle(const_cast<std::byte*>(weights));
  s.matmul.execute(
      s.stream,
      {{DNNL_ARG_SRC, s.source}, {DNNL_ARG_WEIGHTS, s.weights}, {DNNL_ARG_DST, s.destination}});
  s.stream.wait();
}

bool Peer::sound() const {
  const std::span<const float> y(reinterpret_cast<const float*>(state_->y->data()),
                                 state_->results);
  return std::ranges::all_of(y, [](float v) { return std::isfinite(v); }) &&
         std::ranges::any_of(y, [](float v) { return v != 0; });
}

}  // namespace galley::bench
