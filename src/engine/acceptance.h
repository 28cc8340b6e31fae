#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "engine/sampler.h"

// Which drafts of a row stand, and the token behind them (spec runtime 3.4). Pure functions.
//
// Two lossless ways. The ratio test accepts most, and the law of the answer is that of plain
// sampling. Exact mode draws drafts and target with the same noise (engine/sampler.h: gumbel, hence
// sample) and accepts where they agree: the answer itself is that of plain sampling.
namespace galley::engine {

// A draw of the ratio test happens once for a position and purpose, but a position may be drafted
// in several steps. Those drafts must not share their noise: the confidences behind an earlier
// draft decide budgets of later steps, so a later draft equal to it would have a say in its own
// admission. So a draft's noise also has `nth`, its place in its window.
enum class DrawPurpose : std::uint8_t { kSample, kResidual, kAccept, kDraft };

// In [0, 1), a multiple of 2^-53; independent of every other purpose, nth < 256, position, choice,
// seed, and of gumbel(). In ratio mode `draw.seed` must be one that no other running request has,
// also where clients send equal seeds: else one request's tokens foretell another's noise, and with
// it the budget.
[[nodiscard]] double uniform(const Draw& draw, DrawPurpose purpose, std::size_t nth = 0);

// A sample of the law proportional to `weights`, the inverse of its distribution function at
// `uniform`. Weights are finite, at least 0, and not all 0.
[[nodiscard]] TokenId draw_from(std::span<const float> weights, double uniform);

// Less mass than this is rounding: the residual is then no law, and p takes its place.
inline constexpr double kResidualMassMin = 1e-8;

// The law of the token that replaces a rejected draft: max(0, p - q), or p where that is nothing.
[[nodiscard]] TokenId draw_residual(std::span<const float> p,
                                    std::span<const float> q,
                                    double uniform);

struct RatioRow {
  Draw draw;                        // position: of the first draft
  std::span<const TokenId> drafts;  // [verify length], sampled from q: an argmax would be biased
  std::size_t vocabulary{};
  // Laws after all transforms. p: [verify length + 1, vocabulary], the last row the law behind the
  // last draft; q: [verify length, vocabulary].
  std::span<const float> p;
  std::span<const float> q;
};

struct Verified {
  std::size_t accepted{};  // drafts that stand
  TokenId next{};          // the token behind them
};

// Accepts drafts from the left with chance min(1, p / q); the first that is rejected is replaced by
// a draw from the residual. Where all verified ones stand, the next token is drawn from p, also
// when the budget left drafts behind: those were never tested.
[[nodiscard]] Verified verify_ratio(const RatioRow& row);

// `targets`: [drafts + 1], what sample() gave for each position behind the drafts before it.
[[nodiscard]] Verified verify_exact(std::span<const TokenId> drafts,
                                    std::span<const TokenId> targets);

}  // namespace galley::engine
