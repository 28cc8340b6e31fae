// Goal: attention and index selection on a CPU look at the keys they should, whatever rows are
// taken together. Method: batches of several sequences on every instruction set against the
// reference functions called row by row, written out here from the definitions (spec
// model 2.4, 4.3, 4.4).
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/worker_pool.h"
#include "kernels/batch_views.h"
#include "kernels/isa.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/pack.h"
#include "kernels/rounding.h"
#include "kernels/selection.h"

namespace galley::kernels {
namespace {

constexpr std::size_t kRowsPerBlock = 8;

const RowKernels* rows_of(Isa isa) {
  return isa == Isa::kReference ? nullptr : isa == Isa::kAvx2 ? &kAvx2Rows : &kAvx512Rows;
}

const TileKernels* tiles_of(Isa isa) {
  return isa == Isa::kAmx ? &kAmxTiles : nullptr;
}

// Sequences of a batch with rings and compressed rows behind them.
struct World {
  std::size_t width;
  std::size_t heads;
  std::int64_t ratio;
  std::vector<SequenceView> sequences;
  std::vector<std::int64_t> positions;
  std::vector<std::vector<float>> ring_data;
  std::vector<RingView> rings;
  std::vector<std::vector<std::vector<std::byte>>> block_data;
  std::vector<std::vector<std::byte*>> blocks;
  std::vector<PagedView> pages;
  std::vector<float> q;
  std::vector<float> kv;
  std::vector<float> sinks;

  [[nodiscard]] std::size_t rows() const { return positions.size(); }
  [[nodiscard]] std::size_t visible(std::size_t row) const {
    return static_cast<std::size_t>((positions[row] + 1) / ratio);
  }
};

class AttentionTest : public testing::TestWithParam<Isa> {
 protected:
  std::vector<float> random(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> out(count);
    std::ranges::generate(out, [&] { return rounded(normal(random_), round_); });
    return out;
  }

  // Sequences of `rows` rows each, the first of which is at a random position.
  World make(std::size_t width, std::size_t heads, const std::vector<std::size_t>& rows) {
    World w{.width = width, .heads = heads, .ratio = 2};
    constexpr std::size_t kWindow = 6;
    std::size_t all = 0;
    for (const std::size_t count : rows) {
      const auto first = static_cast<std::int64_t>(random_() % 90);
      w.sequences.push_back({all, count, first});
      all += count;
      for (std::size_t r = 0; r < count; ++r) {
        w.positions.push_back(first + static_cast<std::int64_t>(r));
      }
      w.ring_data.push_back(random(kWindow * width));
      const auto end = static_cast<std::size_t>(w.positions.back() + 1);
      auto& data = w.block_data.emplace_back();
      const RowFormat format{
          .codec = RowCodec::kFp4E4m3, .width = width, .plain = width, .block = 16};
      for (std::size_t b = 0; b <= end / kRowsPerBlock; ++b) {
        auto& block = data.emplace_back(kRowsPerBlock * format.bytes());
        for (std::size_t r = 0; r < kRowsPerBlock; ++r) {
          reference::pack_row(format, random(width), block.data() + r * format.bytes());
        }
      }
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      w.rings.push_back({w.ring_data[i].data(), kWindow, width});
      auto& blocks = w.blocks.emplace_back();
      for (auto& block : w.block_data[i]) {
        blocks.push_back(block.data());
      }
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      w.pages.push_back(
          {w.blocks[i].data(),
           kRowsPerBlock,
           0,
           {.codec = RowCodec::kFp4E4m3, .width = width, .plain = width, .block = 16}});
    }
    w.q = random(all * heads * width);
    w.kv = random(all * width);
    w.sinks = random(heads);
    return w;
  }

  std::vector<float> compressed_row(const World& w, std::size_t sequence, std::size_t index) {
    std::vector<float> out(w.width);
    reference::unpack_row(w.pages[sequence].format,
                          w.pages[sequence].row(static_cast<std::int64_t>(index)), out);
    return out;
  }

  Round round_ = Round::kNone;  // of all rows
  WorkerPool pool_{2};
  std::mt19937_64 random_{1};  // NOLINT(cert-msc51-cpp): a fixed seed
};

// With lists (some repeated from row to row, one empty) and without.
TEST_P(AttentionTest, SeesWindowAndCompressedRows) {
  for (const std::size_t width :
       {16UL, 64UL, 20UL, 128UL}) {  // 20: no whole vector, left to the reference
    for (const auto& [lists, round] :
         {std::pair(true, Round::kNone), std::pair(false, Round::kNone),
          std::pair(true, Round::kBf16), std::pair(false, Round::kBf16)}) {
      round_ = round;
      World w = make(width, 5, {3, 1, 1, 20, 2, 7});
      constexpr std::size_t kListed = 5;
      std::vector<std::int32_t> list(w.rows() * kListed, -1);
      for (std::size_t row = 0; row < w.rows(); ++row) {
        std::set<std::int32_t> chosen;
        for (std::size_t n = 0; n < std::min(kListed, w.visible(row)) && row != 4; ++n) {
          chosen.insert(static_cast<std::int32_t>(random_() % w.visible(row)));
        }
        std::ranges::copy(chosen, list.begin() + static_cast<std::ptrdiff_t>(row * kListed));
      }
      const std::vector<std::int64_t> window_begin(w.rows(), 0);
      std::vector<float> out(w.q.size());
      Attention(pool_, rows_of(GetParam()), tiles_of(GetParam()))
          .run({.sequences = w.sequences,
                .positions = w.positions.data(),
                .window_begin = window_begin.data(),
                .heads = w.heads,
                .width = width,
                .window = 4,
                .q = w.q.data(),
                .kv = w.kv.data(),
                .rings = w.rings,
                .compressed = w.pages,
                .ratio = w.ratio,
                .list = lists ? list.data() : nullptr,
                .list_stride = kListed,
                .scale = 0.25F,
                .sinks = w.sinks,
                .out = out.data(),
                .round = round_});
      for (std::size_t row = 0; row < w.rows(); ++row) {
        const std::size_t i = sequence_of(w.sequences, row);
        std::vector<std::vector<float>> rows;
        for (std::int64_t p = std::max<std::int64_t>(0, w.positions[row] - 3);
             p <= w.positions[row]; ++p) {
          const float* const at = row_at(w.sequences[i], w.rings[i], w.kv.data(), p);
          rows.emplace_back(at, at + width);
        }
        for (std::size_t n = 0; n < (lists ? kListed : w.visible(row)); ++n) {
          const std::int32_t index = lists ? list[row * kListed + n] : static_cast<std::int32_t>(n);
          if (index >= 0) {
            rows.push_back(compressed_row(w, i, static_cast<std::size_t>(index)));
          }
        }
        std::vector<const float*> keys;
        for (const std::vector<float>& key : rows) {
          keys.push_back(key.data());
        }
        std::vector<float> want(width);
        for (std::size_t h = 0; h < w.heads; ++h) {
          const std::size_t at = (row * w.heads + h) * width;
          reference::attend({w.q.data() + at, width}, keys, 0.25F, w.sinks[h], want);
          for (std::size_t c = 0; c < width; ++c) {
            // Sums of at most 60 keys and 128 channels of size 1, then rounded to bfloat16.
            const float bound =
                round_ == Round::kNone ? 2e-5F : 2e-5F + std::fabs(want[c]) * 0x1p-8F;
            ASSERT_NEAR(out[at + c], want[c], bound) << "row " << row << " head " << h;
          }
        }
      }
    }
  }
}

// First a layer that publishes candidates, then one that scores those alone. 3: blocks that do not
// divide the stretches of keys that workers take.
TEST_P(AttentionTest, SelectsTheBestKeysAmongTheCandidates) {
  for (const auto& [block, round] : {std::pair(3UL, Round::kNone), std::pair(4UL, Round::kNone),
                                     std::pair(3UL, Round::kBf16), std::pair(4UL, Round::kBf16)}) {
    round_ = round;
    World w = make(32, 6, {2, 1, 19, 1, 4});
    constexpr std::size_t kTop = 7;
    constexpr std::size_t kStride = 8;
    const std::vector<float> weights = random(w.rows() * w.heads);
    std::vector<std::uint8_t> candidates(w.rows() * kStride, 0xff);
    for (const bool publish : {true, false}) {
      const std::vector<std::uint8_t> before = candidates;
      std::vector<std::int32_t> list(w.rows() * kTop);
      Selection(pool_, rows_of(GetParam()), tiles_of(GetParam()))
          .run({.sequences = w.sequences,
                .keys = w.pages,
                .positions = w.positions.data(),
                .ratio = w.ratio,
                .heads = w.heads,
                .width = w.width,
                .q = w.q.data(),
                .weights = weights.data(),
                .weight_scale = 0.5F,
                .round = round_,
                .top_k = kTop,
                .list = list.data(),
                .candidates = candidates.data(),
                .candidate_stride = kStride,
                .candidate_block = block,
                .candidate_blocks_kept = 5,
                .publish_candidates = publish});
      for (std::size_t row = 0; row < w.rows(); ++row) {
        const std::size_t i = sequence_of(w.sequences, row);
        std::vector<float> scaled(
            weights.begin() + static_cast<std::ptrdiff_t>(row * w.heads),
            weights.begin() + static_cast<std::ptrdiff_t>((row + 1) * w.heads));
        for (float& weight : scaled) {
          weight *= 0.5F;
        }
        std::vector<float> scores(w.visible(row), -std::numeric_limits<float>::infinity());
        for (std::size_t j = 0; j < scores.size(); ++j) {
          const std::size_t b = j / block;
          if (publish || ((before[row * kStride + b / 8] >> (b % 8)) & 1U) != 0) {
            scores[j] =
                reference::index_score({w.q.data() + row * w.heads * w.width, w.heads * w.width},
                                       scaled, compressed_row(w, i, j));
          }
        }
        std::vector<std::int32_t> want = reference::top_k(scores, kTop);
        want.resize(kTop, -1);
        const auto* const got = list.data() + row * kTop;
        EXPECT_EQ(std::vector<std::int32_t>(got, got + kTop), want) << "row " << row;
        if (publish) {
          std::vector<std::uint8_t> kept(scores.size());
          reference::keep_candidates(scores, block, 5, kept);
          for (std::size_t j = 0; j < kept.size(); ++j) {
            const std::size_t b = j / block;
            EXPECT_EQ((candidates[row * kStride + b / 8] >> (b % 8)) & 1U, kept[j])
                << row << " " << j;
          }
        }
      }
    }
  }
}

// Many equal scores, signs, zeros of both kinds, subnormals, infinities and nan, lists longer and
// shorter than what there is.
TEST(SelectionTest, BestScoresAreTheReferences) {
  std::mt19937_64 random(1);  // NOLINT(cert-msc51-cpp): a fixed seed
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {0.0F,
                                      -0.0F,
                                      1e-42F,
                                      -1e-42F,
                                      kInfinity,
                                      -kInfinity,
                                      3.0e38F,
                                      -3.0e38F,
                                      1.0F,
                                      1.0000001F,
                                      std::numeric_limits<float>::quiet_NaN()};
  for (int round = 0; round < 300; ++round) {
    std::vector<float> scores(random() % 400);
    std::normal_distribution<float> normal;
    for (float& score : scores) {
      score = random() % 3 == 0   ? special[random() % special.size()]
              : random() % 2 == 0 ? normal(random)
                                  : std::round(normal(random) * 2) / 2;
    }
    for (const std::size_t k : {1UL, 2UL, 7UL, 100UL, 500UL}) {
      std::vector<std::int32_t> list(k);
      list.resize(best_scores(scores, list));
      ASSERT_EQ(list, reference::top_k(scores, k))
          << "round " << round << ", " << k << " of " << scores.size();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa,
                         AttentionTest,
                         testing::ValuesIn(supported_isas().begin(), supported_isas().end()),
                         [](const auto& of) { return std::string(isa_name(of.param)); });

}  // namespace
}  // namespace galley::kernels
