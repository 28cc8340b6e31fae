#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "kernels/amx/tile_config-inl.h"
#include "kernels/avx512/vec-inl.h"
#include "kernels/exponential-inl.h"
#include "kernels/tile_kernels.h"

// Attention and index scores by tdpbf16ps. In attention all heads share their keys, so a row of the
// batch alone fills tiles: 16 keys against 16 heads for the scores, 16 heads against 16 channels
// for the values.
namespace galley::kernels {
namespace {

constexpr std::size_t kTileBytes = 1024;
constexpr std::size_t kLine = 64;
constexpr std::size_t kTilePairs = 16;     // rows of a tile on the right of a product
constexpr std::size_t kTileChannels = 32;  // inputs of a product
constexpr std::size_t kValueKeys = kTileValueKeys;
constexpr std::size_t kPieceTiles = kTilePieceKeys / kTileValueKeys;
constexpr std::size_t kTerms = kTileWeightTerms;
constexpr std::size_t kTileFloats = kTileBytes / sizeof(float);

// 32 float32 rounded to bfloat16, which changes nothing of bfloat16 numbers.
inline __m512i narrow32(const float* at) {
  const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(at + 16), _mm512_loadu_ps(at));
  return reinterpret_cast<const __m512i&>(both);
}

// rows[i] lane j <-> rows[j] lane i.
inline void transpose(__m512i (&rows)[16]) {
  __m512i a[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m512i b[16];  // b[4 i + c] holds columns c, c + 4, c + 8, c + 12 of rows 4 i ... 4 i + 3
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {
    const __m512i low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);
    const __m512i high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
    const __m512i high_odd = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
    rows[c] = _mm512_shuffle_i32x4(low, high, 0x88);
    rows[4 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    rows[8 + c] = _mm512_shuffle_i32x4(low, high, 0xdd);
    rows[12 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
  }
}

// Tiles of up to 16 rows of queries: [width / 32] of 16 rows x 32 channels, missing rows zero.
void fill_queries(const float* q, std::size_t heads, std::size_t width, std::byte* out) {
  for (std::size_t tile = 0; tile < width / kTileChannels; ++tile, out += kTileBytes) {
    for (std::size_t h = 0; h < kTileHeads; ++h) {
      _mm512_store_si512(out + h * kLine, h < heads ? narrow32(q + h * width + tile * kTileChannels)
                                                    : _mm512_setzero_si512());
    }
  }
}

// The leading 16 bits of both, those of `even` below; both become what is left, exactly.
inline __m512i take_pair(Vec& even, Vec& odd) {
  const __m512i leading = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  const __m512i low = _mm512_and_si512(_mm512_castps_si512(even.v), leading);
  const __m512i high = _mm512_and_si512(_mm512_castps_si512(odd.v), leading);
  even = sub(even, {_mm512_castsi512_ps(low)});
  odd = sub(odd, {_mm512_castsi512_ps(high)});
  return _mm512_or_si512(_mm512_srli_epi32(low, 16), high);
}

// A tile of 16 rows x 32 inputs to the other side of a product: 16 pairs of inputs x 16 columns.
void turn(const std::byte* tile, std::byte* out) {
  __m512i rows[kTilePairs];
  for (std::size_t i = 0; i < kTilePairs; ++i) {
    rows[i] = _mm512_load_si512(tile + i * kLine);
  }
  transpose(rows);
  for (std::size_t i = 0; i < kTilePairs; ++i) {
    _mm512_store_si512(out + i * kLine, rows[i]);
  }
}

std::size_t head_blocks(std::size_t heads) {
  return (heads + kTileHeads - 1) / kTileHeads;
}

class Attend {
 public:
  explicit Attend(const TileAttend& args)
      : args_(args),
        blocks_(head_blocks(args.heads)),
        padded_((args.count + kValueKeys - 1) / kValueKeys * kValueKeys),
        channel_tiles_(args.width / kTileChannels) {
    std::byte* at = args.scratch;  // as tile_attend_scratch adds up
    const auto take = [&at](std::size_t bytes) {
      std::byte* const here = at;
      at += bytes;
      return here;
    };
    queries_ = take(blocks_ * channel_tiles_ * kTileBytes);
    sums_ = reinterpret_cast<float*>(take(blocks_ * kTileHeads * args.width * sizeof(float)));
    piece_ = take(kPieceTiles * kValueKeys * args.width * sizeof(std::uint16_t));
    scores_ = reinterpret_cast<float*>(take(blocks_ * padded_ * kTileHeads * sizeof(float)));
    weights_ = take(blocks_ * padded_ / kValueKeys * kTerms * kTileBytes);
  }

  void run() {
    configure_whole_tiles();
    turn_queries();
    for (std::size_t key = 0; key < args_.count; key += kValueKeys) {
      score(key);
    }
    alignas(kLine) float totals[kTileHeadsMax];
    for (std::size_t block = 0; block < blocks_; ++block) {
      weigh(block, totals + block * kTileHeads);
    }
    for (std::size_t tile = 0; tile < padded_ / kValueKeys; tile += kPieceTiles) {
      const std::size_t left = padded_ / kValueKeys - tile;
      add_values(tile, left < kPieceTiles ? left : kPieceTiles);
    }
    _tile_release();  // an idle thread must not carry 8 KiB of state through context switches
    finish(totals);
  }

 private:
  void turn_queries() {
    for (std::size_t block = 0; block < blocks_; ++block) {
      const std::size_t first = block * kTileHeads;
      const std::size_t heads = args_.heads - first < kTileHeads ? args_.heads - first : kTileHeads;
      std::byte* const out = queries_ + block * channel_tiles_ * kTileBytes;
      fill_queries(args_.q + first * args_.width, heads, args_.width, out);
      for (std::size_t tile = 0; tile < channel_tiles_; ++tile) {
        turn(out + tile * kTileBytes, out + tile * kTileBytes);
      }
    }
  }

  // Two tiles of keys from `key` on against every head.
  void score(std::size_t key) {
    const std::size_t half = channel_tiles_ * kTileBytes;
    for (std::size_t r = 0; r < kValueKeys; ++r) {
      std::byte* const out = piece_ + r / kTileKeys * half + r % kTileKeys * kLine;
      const std::uint16_t* const row = key + r < args_.count ? args_.keys[key + r] : nullptr;
      for (std::size_t tile = 0; tile < channel_tiles_; ++tile) {
        _mm512_store_si512(out + tile * kTileBytes,
                           row == nullptr ? _mm512_setzero_si512()
                                          : _mm512_loadu_si512(row + tile * kTileChannels));
      }
    }
    finish_stores();
    for (std::size_t block = 0; block < blocks_; ++block) {
      const std::byte* const queries = queries_ + block * half;
      _tile_zero(0);
      _tile_zero(1);
      for (std::size_t tile = 0; tile < half; tile += kTileBytes) {
        _tile_loadd(6, queries + tile, kLine);
        _tile_loadd(4, piece_ + tile, kLine);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, piece_ + half + tile, kLine);
        _tile_dpbf16ps(1, 5, 6);
      }
      float* const out = scores_ + (block * padded_ + key) * kTileHeads;
      _tile_stored(0, out, kLine);
      _tile_stored(1, out + kTileFloats, kLine);
    }
  }

  // Scores to weights e^(score - largest), a lane a head: tiles of 16 heads x 32 keys, first their
  // leading bits, then the middle ones, then the last. `totals`: their sums with the sink's.
  void weigh(std::size_t block, float* totals) {
    float* const scores = scores_ + block * padded_ * kTileHeads;
    std::byte* out = weights_ + block * padded_ / kValueKeys * kTerms * kTileBytes;
    alignas(kLine) float sinks[kTileHeads] = {};
    for (std::size_t h = 0; h < kTileHeads && block * kTileHeads + h < args_.heads; ++h) {
      sinks[h] = args_.sinks[block * kTileHeads + h];
    }
    const Vec scale = set(args_.scale);
    Vec largest = load(sinks);
    for (std::size_t j = 0; j < args_.count; ++j) {
      largest = maximum(largest, mul(load(scores + j * kTileHeads), scale));
    }
    constexpr std::size_t kChains = 4;
    Vec sums[kChains] = {exponential(sub(load(sinks), largest)), set(0.0F), set(0.0F), set(0.0F)};
    for (std::size_t key = 0; key < padded_; key += kValueKeys) {
      __m512i pairs[kTerms][kTilePairs];
      for (std::size_t pair = 0; pair < kTilePairs; ++pair) {
        Vec weights[2];
        for (std::size_t i = 0; i < 2; ++i) {
          const std::size_t j = key + 2 * pair + i;
          weights[i] = set(0.0F);
          if (j < args_.count) {
            weights[i] = exponential(sub(mul(load(scores + j * kTileHeads), scale), largest));
          }
          sums[j % kChains] = add(sums[j % kChains], weights[i]);
        }
        for (std::size_t term = 0; term < kTerms; ++term) {
          pairs[term][pair] = take_pair(weights[0], weights[1]);
        }
      }
      for (std::size_t term = 0; term < kTerms; ++term, out += kTileBytes) {
        transpose(pairs[term]);
        for (std::size_t h = 0; h < kTileHeads; ++h) {
          _mm512_store_si512(out + h * kLine, pairs[term][h]);
        }
      }
    }
    store(totals, add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  }

  // Pairs of keys side by side: [tile of keys][width / 16] of 16 pairs x 16 channels. Of 32
  // channels the even quarters of a line come first (unpacklo), then the odd ones; finish() puts
  // them back.
  void pair_keys(std::size_t first, std::size_t tiles) {
    for (std::size_t pair = 0; pair < tiles * kTilePairs; ++pair) {
      const std::size_t key = first * kValueKeys + 2 * pair;
      const std::uint16_t* const even = key < args_.count ? args_.keys[key] : nullptr;
      const std::uint16_t* const odd = key + 1 < args_.count ? args_.keys[key + 1] : nullptr;
      std::byte* const out =
          piece_ + pair / kTilePairs * 2 * channel_tiles_ * kTileBytes + pair % kTilePairs * kLine;
      for (std::size_t tile = 0; tile < channel_tiles_; ++tile) {
        const std::size_t channel = tile * kTileChannels;
        const __m512i a =
            even == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(even + channel);
        const __m512i b =
            odd == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(odd + channel);
        _mm512_store_si512(out + 2 * tile * kTileBytes, _mm512_unpacklo_epi16(a, b));
        _mm512_store_si512(out + (2 * tile + 1) * kTileBytes, _mm512_unpackhi_epi16(a, b));
      }
    }
    finish_stores();
  }

  // sums += weights x values of some tiles of keys, four tiles of channels at a time.
  void add_values(std::size_t first, std::size_t tiles) {
    pair_keys(first, tiles);
    const std::size_t stride = args_.width * sizeof(float);
    for (std::size_t block = 0; block < blocks_; ++block) {
      const std::byte* const weights =
          weights_ + (block * padded_ / kValueKeys + first) * kTerms * kTileBytes;
      for (std::size_t tile = 0; tile < 2 * channel_tiles_; tile += 4) {
        float* const sums = sums_ + block * kTileHeads * args_.width + tile * kTileHeads;
        if (first == 0) {
          _tile_zero(0);
          _tile_zero(1);
          _tile_zero(2);
          _tile_zero(3);
        } else {
          _tile_loadd(0, sums, stride);
          _tile_loadd(1, sums + 16, stride);
          _tile_loadd(2, sums + 32, stride);
          _tile_loadd(3, sums + 48, stride);
        }
        for (std::size_t i = 0; i < tiles; ++i) {
          const std::byte* const values = piece_ + (i * 2 * channel_tiles_ + tile) * kTileBytes;
          const std::byte* const terms = weights + i * kTerms * kTileBytes;
          _tile_loadd(4, terms, kLine);
          _tile_loadd(5, terms + kTileBytes, kLine);
          _tile_loadd(6, terms + 2 * kTileBytes, kLine);
          _tile_loadd(7, values, kLine);
          _tile_dpbf16ps(0, 4, 7);
          _tile_dpbf16ps(0, 5, 7);
          _tile_dpbf16ps(0, 6, 7);
          _tile_loadd(7, values + kTileBytes, kLine);
          _tile_dpbf16ps(1, 4, 7);
          _tile_dpbf16ps(1, 5, 7);
          _tile_dpbf16ps(1, 6, 7);
          _tile_loadd(7, values + 2 * kTileBytes, kLine);
          _tile_dpbf16ps(2, 4, 7);
          _tile_dpbf16ps(2, 5, 7);
          _tile_dpbf16ps(2, 6, 7);
          _tile_loadd(7, values + 3 * kTileBytes, kLine);
          _tile_dpbf16ps(3, 4, 7);
          _tile_dpbf16ps(3, 5, 7);
          _tile_dpbf16ps(3, 6, 7);
        }
        _tile_stored(0, sums, stride);
        _tile_stored(1, sums + 16, stride);
        _tile_stored(2, sums + 32, stride);
        _tile_stored(3, sums + 48, stride);
      }
    }
  }

  // Sums over totals, channels in their own order again.
  void finish(const float* totals) const {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second =
        _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    for (std::size_t h = 0; h < args_.heads; ++h) {
      const Vec total = set(totals[h]);
      const float* const sums = sums_ + h * args_.width;
      float* const out = args_.out + h * args_.width;
      for (std::size_t c = 0; c < args_.width; c += kTileChannels) {
        const __m512 low = args_.count == 0 ? _mm512_setzero_ps() : _mm512_load_ps(sums + c);
        const __m512 high = args_.count == 0 ? _mm512_setzero_ps() : _mm512_load_ps(sums + c + 16);
        store(out + c, divide({_mm512_permutex2var_ps(low, first, high)}, total));
        store(out + c + 16, divide({_mm512_permutex2var_ps(low, second, high)}, total));
      }
    }
  }

  const TileAttend args_;
  std::size_t blocks_;         // of heads
  std::size_t padded_;         // keys, to whole tiles of kValueKeys
  std::size_t channel_tiles_;  // of a row
  std::byte* queries_;         // [block][channel tile] of 16 pairs of channels x 16 heads
  float* sums_;                // [block][16 heads, width]
  std::byte* piece_;           // keys or values that are being multiplied
  float* scores_;              // [block][padded keys, 16 heads]
  std::byte* weights_;         // [block][tile of keys][term] of 16 heads x 32 keys
};

void attend(const TileAttend& args) {
  Attend(args).run();
}

// Heads in ascending order for every key, a lane a key.
void index_scores(const TileScores& args) {
  const std::size_t channel_tiles = args.width / kTileChannels;
  const std::size_t blocks = head_blocks(args.heads);
  std::byte* const queries = args.scratch;
  auto* const dots = reinterpret_cast<float*>(args.scratch + blocks * channel_tiles * kTileBytes);
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t first = block * kTileHeads;
    const std::size_t heads = args.heads - first < kTileHeads ? args.heads - first : kTileHeads;
    fill_queries(args.q + first * args.width, heads, args.width,
                 queries + block * channel_tiles * kTileBytes);
  }
  finish_stores();
  configure_whole_tiles();
  for (std::size_t key = 0; key < args.count; key += kTileKeys) {
    const std::byte* const keys = args.keys + key / kTileKeys * channel_tiles * kTileBytes;
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::byte* const rows = queries + block * channel_tiles * kTileBytes;
      _tile_zero(0);
      for (std::size_t tile = 0; tile < channel_tiles; ++tile) {
        _tile_loadd(4, rows + tile * kTileBytes, kLine);
        _tile_loadd(6, keys + tile * kTileBytes, kLine);
        _tile_dpbf16ps(0, 4, 6);
      }
      _tile_stored(0, dots + block * kTileFloats, kLine);
    }
    Vec sum = set(0.0F);
    for (std::size_t h = 0; h < args.heads; ++h) {
      const Vec dot = maximum(load(dots + h * kTileKeys), set(0.0F));
      sum = fma(dot, set(args.weights[h]), sum);
    }
    store(args.scores + key, sum);
  }
  _tile_release();
}

void arrange_keys(const std::uint16_t* keys, std::size_t count, std::size_t width, std::byte* out) {
  for (std::size_t tile = 0; tile < width / kTileChannels; ++tile, out += kTileBytes) {
    __m512i rows[kTileKeys];
    for (std::size_t r = 0; r < kTileKeys; ++r) {
      rows[r] = r < count ? _mm512_loadu_si512(keys + r * width + tile * kTileChannels)
                          : _mm512_setzero_si512();
    }
    transpose(rows);
    for (std::size_t i = 0; i < kTilePairs; ++i) {
      _mm512_store_si512(out + i * kLine, rows[i]);
    }
  }
}

void unpack_fp4(const Fp4Row& row, std::uint16_t* out) {
  alignas(kLine) static constexpr float kValues[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,
                                                       4.0F,  6.0F,  -0.0F, -0.5F, -1.0F, -1.5F,
                                                       -2.0F, -3.0F, -4.0F, -6.0F};
  const __m512 values = _mm512_load_ps(kValues);
  const __m512i leading = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  const std::byte* scales = row.scales;
  const std::size_t apart = row.block < kTileChannels ? 1 : 0;  // scales of both halves of 32
  std::size_t left = row.block;                                 // channels of the scale
  for (std::size_t c = 0; c < row.width; c += kTileChannels) {
    // Lane i: the byte of channels 2 i and 2 i + 1.
    const __m512i codes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row.codes + c / 2)));
    const float first = row.scale_values[static_cast<std::uint8_t>(scales[0])];
    const float second = row.scale_values[static_cast<std::uint8_t>(scales[apart])];
    const __m512 scale =
        _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(first), _mm512_set1_ps(second));
    if (left <= kTileChannels) {
      scales += 1 + apart;
      left = row.block;
    } else {
      left -= kTileChannels;
    }
    // A permutation looks at the low four bits of a lane.
    const __m512i even =
        _mm512_castps_si512(_mm512_mul_ps(_mm512_permutexvar_ps(codes, values), scale));
    const __m512i odd = _mm512_castps_si512(
        _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), values), scale));
    _mm512_storeu_si512(
        out + c, _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, leading)));
  }
}

void narrow(const float* values, std::size_t count, std::uint16_t* out) {
  for (std::size_t i = 0; i < count; i += kTileChannels) {
    _mm512_storeu_si512(out + i, narrow32(values + i));
  }
}

}  // namespace

constinit const TileKernels kAmxTiles = {attend, index_scores, arrange_keys, unpack_fp4, narrow};

}  // namespace galley::kernels
