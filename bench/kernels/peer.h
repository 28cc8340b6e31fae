#pragma once

#include <cstddef>
#include <memory>

#include "kernels/device.h"
#include "kernels/isa.h"

namespace galley::bench {

// oneDNN's product with float32 results, weights in the layout that it chooses for the number of
// rows. Rows and weights are bfloat16, or float32 on AVX2: it multiplies bfloat16 with AVX-512 and
// better only.
class Peer {
 public:
  // Whether it has such a product on this instruction set; then it uses no better one. The first
  // call decides for the process.
  [[nodiscard]] static bool available(kernels::Isa isa);

  // Results lie in memory of `device`, as ours do.
  Peer(kernels::Device& device,
       kernels::Isa isa,
       std::size_t rows,
       std::size_t outputs,
       std::size_t inputs,
       int threads);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  [[nodiscard]] std::size_t weight_bytes() const;
  // `weights`: weight_bytes() of bfloat16 numbers, 64-byte aligned. Random ones are random ones in
  // any layout, and two are a random float32.
  void run(const std::byte* weights);
  // Whether all results of the last run are numbers and some are not zero.
  [[nodiscard]] bool sound() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace galley::bench
