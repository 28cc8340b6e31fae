#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "apps/doctor_facts.h"
#include "base/clock.h"
#include "base/worker_pool.h"
#include "kernels/isa.h"

// Whether the products of this machine are right, and how fast they are.
namespace galley::apps {

// Products of every supported instruction set and format with random weights, against sums in
// double of the weights as the reference widens them.
[[nodiscard]] std::vector<ProductCheck> check_products(WorkerPool& pool);

// Fills error, bound and share of `check`: of the value nearest to its bound, or past it furthest.
void compare(std::span<const float> values,
             std::span<const double> exact,
             std::span<const double> bounds,
             ProductCheck& check);

// Random packed weights of every format and 256 rows to multiply them with.
class ProductTimer {
 public:
  // `isa` is one of supported_isas(), not the reference.
  ProductTimer(kernels::Isa isa, WorkerPool& pool);
  ~ProductTimer();
  ProductTimer(const ProductTimer&) = delete;
  ProductTimer& operator=(const ProductTimer&) = delete;

  // Operations a second with all threads of the pool, one measurement.
  [[nodiscard]] double rate(std::size_t format, WorkerPool& pool, const Clock& clock) const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace galley::apps
