#include "engine/acceptance.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace galley::engine {

double uniform(const Draw& draw, DrawPurpose purpose, std::size_t nth) {
  GALLEY_ASSERT(nth < 256);
  // gumbel() takes the lower half of a choice's counters.
  constexpr std::uint64_t kUpperHalf = std::uint64_t{1} << 31U;
  const std::uint64_t counter = std::uint64_t{draw.choice} << 32U | kUpperHalf |
                                std::uint64_t{nth} << 8U | static_cast<std::uint64_t>(purpose);
  const RandomBlock block =
      random_block(draw.seed, static_cast<std::uint64_t>(draw.position), counter);
  const std::uint64_t bits = std::uint64_t{block[1]} << 32U | block[0];
  return static_cast<double>(bits >> 11U) * 0x1p-53;
}

TokenId draw_from(std::span<const float> weights, double uniform) {
  double total = 0.0;
  for (const float weight : weights) {
    total += double{weight};
  }
  GALLEY_ASSERT(total > 0.0);
  const double wanted = uniform * total;
  double sum = 0.0;
  std::size_t last = 0;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] > 0.0F) {
      last = id;
      sum += double{weights[id]};
      if (wanted < sum) {
        break;
      }
    }
  }
  return static_cast<TokenId>(last);
}

TokenId draw_residual(std::span<const float> p, std::span<const float> q, double uniform) {
  GALLEY_ASSERT(p.size() == q.size());
  std::vector<float> residual(p.size());
  double mass = 0.0;
  for (std::size_t id = 0; id < p.size(); ++id) {
    residual[id] = std::max(0.0F, p[id] - q[id]);
    mass += double{residual[id]};
  }
  return draw_from(mass > kResidualMassMin ? residual : p, uniform);
}

Verified verify_ratio(const RatioRow& row) {
  const std::size_t vocabulary = row.vocabulary;
  GALLEY_ASSERT(row.p.size() == (row.drafts.size() + 1) * vocabulary);
  GALLEY_ASSERT(row.q.size() == row.drafts.size() * vocabulary);
  Draw draw = row.draw;
  for (std::size_t k = 0; k < row.drafts.size(); ++k, ++draw.position) {
    const auto p = row.p.subspan(k * vocabulary, vocabulary);
    const auto q = row.q.subspan(k * vocabulary, vocabulary);
    const TokenId draft = row.drafts[k];
    if (uniform(draw, DrawPurpose::kAccept) * double{q[draft]} >= double{p[draft]}) {
      return {.accepted = k, .next = draw_residual(p, q, uniform(draw, DrawPurpose::kResidual))};
    }
  }
  return {.accepted = row.drafts.size(),
          .next = draw_from(row.p.last(vocabulary), uniform(draw, DrawPurpose::kSample))};
}

Verified verify_exact(std::span<const TokenId> drafts, std::span<const TokenId> targets) {
  GALLEY_ASSERT(targets.size() == drafts.size() + 1);
  const auto differs = std::ranges::mismatch(drafts, targets);
  const auto accepted = static_cast<std::size_t>(differs.in1 - drafts.begin());
  return {.accepted = accepted, .next = targets[accepted]};
}

}  // namespace galley::engine
