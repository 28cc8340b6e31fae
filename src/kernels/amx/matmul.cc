#include "kernels/matmul.h"

#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "kernels/amx/tile_config-inl.h"
#include "kernels/avx512/widen-inl.h"

// Products of tiles (tdpbf16ps). Output n of a row is one chain over the tiles of 32 inputs in
// ascending order; inside a tile the hardware sums even and odd inputs apart and adds both to the
// chain. A tile's terms follow each other, leading bits first.
namespace galley::kernels {
namespace {

constexpr std::size_t kTileBytes = 1024;  // of bfloat16 activations, and of a wide tile of weights
constexpr std::size_t kBlockRows = 32;    // two tiles of rows against two groups: 4 of 8 registers

// Registers: 0 to 3 sums [rows block][group], 4 and 5 rows, 6 and 7 groups.
void configure(std::size_t first_rows, std::size_t second_rows, std::size_t groups) {
  TileConfig config = {};
  config.palette = 1;
  const auto set = [&config](int tile, std::size_t rows) {
    config.rows[tile] = static_cast<std::uint8_t>(rows);
    config.row_bytes[tile] = rows == 0 ? 0 : 64;
  };
  const bool two = groups > 1;
  set(0, first_rows);
  set(1, two ? first_rows : 0);
  set(2, second_rows);
  set(3, two ? second_rows : 0);
  set(4, first_rows);
  set(5, second_rows);
  set(6, kGroupRows);
  set(7, two ? kGroupRows : 0);
  load_config(config);
}

// Asks for what comes after this piece in memory while it is computed.
class Prefetcher {
 public:
  // `bytes` of each group from `at` on, in `steps` steps.
  Prefetcher(const std::byte* at,
             std::size_t group_bytes,
             std::size_t groups,
             std::size_t bytes,
             std::size_t steps)
      : at_(at),
        group_bytes_(groups > 1 ? group_bytes : 0),
        lines_((bytes + 64 * steps - 1) / (64 * steps)) {}
  void step() {
    for (std::size_t i = 0; i < lines_; ++i, at_ += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(at_), _MM_HINT_T1);
      if (group_bytes_ != 0) {
        _mm_prefetch(reinterpret_cast<const char*>(at_ + group_bytes_), _MM_HINT_T1);
      }
    }
  }

 private:
  const std::byte* at_;
  std::size_t group_bytes_;
  std::size_t lines_;
};

// Sums of a block of one or two tiles of rows times one or two groups, in registers 0 to 3.
template <bool TwoBlocks, bool TwoGroups>
struct Sums {
  static constexpr std::size_t kStride = (TwoGroups ? 2 : 1) * kGroupRows * sizeof(float);
  static constexpr std::size_t kBlockFloats = kGroupRows * kStride / sizeof(float);

  static void zero() {
    _tile_zero(0);
    if constexpr (TwoGroups) {
      _tile_zero(1);
    }
    if constexpr (TwoBlocks) {
      _tile_zero(2);
    }
    if constexpr (TwoBlocks && TwoGroups) {
      _tile_zero(3);
    }
  }
  static void load(const float* c) {
    _tile_loadd(0, c, kStride);
    if constexpr (TwoGroups) {
      _tile_loadd(1, c + kGroupRows, kStride);
    }
    if constexpr (TwoBlocks) {
      _tile_loadd(2, c + kBlockFloats, kStride);
    }
    if constexpr (TwoBlocks && TwoGroups) {
      _tile_loadd(3, c + kBlockFloats + kGroupRows, kStride);
    }
  }
  static void store(float* c) {
    _tile_stored(0, c, kStride);
    if constexpr (TwoGroups) {
      _tile_stored(1, c + kGroupRows, kStride);
    }
    if constexpr (TwoBlocks) {
      _tile_stored(2, c + kBlockFloats, kStride);
    }
    if constexpr (TwoBlocks && TwoGroups) {
      _tile_stored(3, c + kBlockFloats + kGroupRows, kStride);
    }
  }
  // += the groups' wide tiles times tile `tile` of the rows from block `block` on.
  static void add(const std::byte* first,
                  const std::byte* second,
                  const Activations& x,
                  std::size_t block,
                  std::size_t tile) {
    _tile_loadd(6, first, 64);
    if constexpr (TwoGroups) {
      _tile_loadd(7, second, 64);
    }
    for (std::size_t term = 0; term < kTermsMax && x.terms[term] != nullptr; ++term) {
      const std::byte* const rows = x.terms[term] + (block * x.tiles + tile) * kTileBytes;
      _tile_loadd(4, rows, 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (TwoGroups) {
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (TwoBlocks) {
        _tile_loadd(5, rows + x.tiles * kTileBytes, 64);
        _tile_dpbf16ps(2, 5, 6);
      }
      if constexpr (TwoBlocks && TwoGroups) {
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
};

// Few rows: the weights are read once, so a tile is used as soon as it is widened, or a little
// later, for a store must have reached the cache before a tile can be loaded from there.
template <bool TwoBlocks, bool TwoGroups>
void multiply_few(const PackedView& w, const Activations& x, float* c, std::byte* scratch) {
  using Block = Sums<TwoBlocks, TwoGroups>;
  constexpr std::size_t kGroups = TwoGroups ? 2 : 1;
  constexpr std::size_t kBehind = 2;
  constexpr std::size_t kSlots = 4;
  const std::size_t first_rows = x.rows < kGroupRows ? x.rows : kGroupRows;
  configure(first_rows, x.rows - first_rows, kGroups);
  Block::zero();
  const std::byte* wide[kSlots][kGroupsMax] = {};
  for (std::size_t tile = 0; tile < w.tiles + kBehind; ++tile) {
    if (tile < w.tiles) {
      const std::size_t slot = tile % kSlots;
      for (std::size_t group = 0; group < kGroups; ++group) {
        wide[slot][group] = wide_tile(w, kGroups, group, tile,
                                      scratch + (slot * kGroupsMax + group) * kWideTileBytes);
      }
      finish_stores();
    }
    if (tile >= kBehind) {
      const std::size_t slot = (tile - kBehind) % kSlots;
      Block::add(wide[slot][0], wide[slot][1], x, 0, tile - kBehind);
    }
  }
  Block::store(c);
}

template <bool TwoBlocks, bool TwoGroups>
void add_piece(const std::byte* const (&wide)[kGroupsMax],
               std::size_t first,
               std::size_t count,
               const Activations& x,
               std::size_t block,
               float* c,
               Prefetcher& ahead) {
  using Block = Sums<TwoBlocks, TwoGroups>;
  if (first == 0) {
    Block::zero();
  } else {
    Block::load(c);
  }
  for (std::size_t tile = 0; tile < count; ++tile) {
    Block::add(wide[0] + tile * kTileBytes, TwoGroups ? wide[1] + tile * kTileBytes : nullptr, x,
               block, first + tile);
    ahead.step();
  }
  Block::store(c);
}

// Many rows: a piece of the weights is widened once and stays in the first-level cache while all
// rows pass over it.
template <bool TwoGroups>
void multiply_many(const PackedView& w, const Activations& x, float* c, std::byte* scratch) {
  constexpr std::size_t kGroups = TwoGroups ? 2 : 1;
  const std::size_t whole = x.rows / kBlockRows * kBlockRows;
  const std::size_t rest = x.rows - whole;
  const std::size_t rest_first = rest < kGroupRows ? rest : kGroupRows;
  for (std::size_t first = 0; first < w.tiles; first += kPieceTiles) {
    const std::size_t left = w.tiles - first;
    const std::size_t count = left < kPieceTiles ? left : kPieceTiles;
    const std::byte* wide[kGroupsMax] = {};
    for (std::size_t group = 0; group < kGroups; ++group) {
      wide[group] = wide_tiles(w, kGroups, group, first, count,
                               scratch + group * kPieceTiles * kWideTileBytes);
    }
    finish_stores();
    // The next piece of these groups, or the first of those behind them.
    const std::byte* const next =
        w.data +
        (left > count ? tile_offset(w.format, w.tiles, first + count) : kGroups * w.group_bytes);
    Prefetcher ahead(next, w.group_bytes, kGroups,
                     kPieceTiles * (tile_bytes(w.format) + kGroupRows),
                     count * ((x.rows + kBlockRows - 1) / kBlockRows));
    if (whole > 0) {
      configure(kGroupRows, kGroupRows, kGroups);
    }
    for (std::size_t row = 0; row < whole; row += kBlockRows) {
      add_piece<true, TwoGroups>(wide, first, count, x, row / kGroupRows,
                                 c + row * kGroups * kGroupRows, ahead);
    }
    if (rest > 0) {
      configure(rest_first, rest - rest_first, kGroups);
    }
    float* const at = c + whole * kGroups * kGroupRows;
    if (rest > kGroupRows) {
      add_piece<true, TwoGroups>(wide, first, count, x, whole / kGroupRows, at, ahead);
    } else if (rest > 0) {
      add_piece<false, TwoGroups>(wide, first, count, x, whole / kGroupRows, at, ahead);
    }
  }
}

template <bool TwoGroups>
void multiply_groups(const PackedView& w, const Activations& x, float* c, std::byte* scratch) {
  if (x.rows <= kGroupRows) {
    multiply_few<false, TwoGroups>(w, x, c, scratch);
  } else if (x.rows <= kBlockRows) {
    multiply_few<true, TwoGroups>(w, x, c, scratch);
  } else {
    multiply_many<TwoGroups>(w, x, c, scratch);
  }
  _tile_release();  // an idle thread must not carry 8 KiB of state through context switches
  // A sum flushed to -0 would become +0 by adding the product of a zero term, so it is +0 always.
  for (std::size_t i = 0; i < x.rows * (TwoGroups ? 2 : 1) * kGroupRows; i += kGroupRows) {
    _mm512_storeu_ps(c + i, _mm512_add_ps(_mm512_loadu_ps(c + i), _mm512_setzero_ps()));
  }
}

void multiply(
    const PackedView& w, std::size_t groups, const Activations& x, float* c, std::byte* scratch) {
  if (groups == 1) {
    multiply_groups<false>(w, x, c, scratch);
  } else {
    multiply_groups<true>(w, x, c, scratch);
  }
}

}  // namespace

constinit const MatmulKernel kAmxMatmul = {ActivationForm::kBf16Terms, multiply};

}  // namespace galley::kernels
