// Matrix products with packed weights and what follows them in registers.
#include <algorithm>

#include "abi.h"
#include "amx_linear.h"
#include "context.h"
#include "finish.h"
#include "operations.h"
#include "packed.h"
#include "rows.h"
#include "vec.h"

namespace radish {

// One tile of MR rows and G panels of float weights.
template <class Mul, int MR, int G, class Fetch>
void tile(const Context& c, const Op& op, int64_t row, const char* weights, int64_t column, Fetch ahead) {
  using T = typename Mul::T;
  constexpr int NB = 2 * G;
  const T* weight = reinterpret_cast<const T*>(weights);
  const T* lines[NB];
  for (int j = 0; j < NB; ++j) lines[j] = weight + j / 2 * kPanel * op.k + j % 2 * kLanes * Mul::kPack;
  F acc[MR][NB];
  for (int m = 0; m < MR; ++m) {
    for (int j = 0; j < NB; ++j) acc[m][j] = zero();
  }
  const int64_t row_stride = c.buffers[op.src].row_bytes / sizeof(T);
  accumulate<Mul>(acc, c.row<T>(op.src, row), row_stride, lines, kPanel * Mul::kPack, op.k / Mul::kPack, ahead);
  finish(c, op, acc, row, column);
}

// One tile of MR rows and G panels of weights in blocks: whole numbers within a block, float32 across them.
template <class W, int MR, int G, class Fetch>
void tile_blocks(const Context& c, const Op& op, int64_t row, const char* weights, int64_t column, Fetch ahead) {
  using Mul = typename W::Mul;
  constexpr int NB = 2 * G, kSteps = kBlock / 4;
  const int64_t blocks = op.k / kBlock, panel = blocks * W::kBytes, stride = c.buffers[op.src].row_bytes;
  const Q8Row x = q8_row(c.row<char>(op.src, row), op.k);
  F acc[MR][NB];
  for (int m = 0; m < MR; ++m) {
    for (int j = 0; j < NB; ++j) acc[m][j] = zero();
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const char* block[G];
    for (int i = 0; i < G; ++i) block[i] = weights + i * panel + b * W::kBytes;
    const int8_t* values = x.values + b * kBlock;
    I whole[MR][NB];
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) whole[m][j] = Mul::start(*offset(x.corrections + b, m * stride));
    }
#pragma GCC unroll 8
    for (int s = 0; s < kSteps; ++s) {
      typename Mul::Line line[NB];
      ahead.fetch(b * kSteps + s);
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) line[j] = W::line(block[j / 2], s, j % 2);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) {
        const typename Mul::Broadcast a = Mul::broadcast(values + m * stride + s * 4);
#pragma GCC unroll 16
        for (int j = 0; j < NB; ++j) whole[m][j] = Mul::dot(whole[m][j], a, line[j]);
      }
    }
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
      const typename W::Scales scales = W::scales(block[j / 2], j % 2);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) {
        acc[m][j] = W::add(acc[m][j], Mul::to_float(whole[m][j]), scales, *offset(x.scales + b, m * stride),
                           *offset(x.sums + b, m * stride));
      }
    }
  }
  finish(c, op, acc, row, column);
}

constexpr int64_t kNear = 4096;  // bytes that weights are fetched ahead of their use

// All rows of a product in tiles of nearly equal height. `run.template operator()<MR>(first row, what to
// fetch)` computes one. The first reads the weights from memory, those after it find them in the cache.
template <class Tiles, int G, class Run>
[[gnu::always_inline]] inline void for_tiles(int64_t rows, const char* weights, Run run) {
  const int64_t tiles = (rows + Tiles::kShape.rows - 1) / Tiles::kShape.rows;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t begin = rows * i / tiles, end = rows * (i + 1) / tiles;
    with_rows<Tiles::kShape.rows, Tiles::kLeast>(static_cast<int>(end - begin), [&]<int MR>() {
      if (Tiles::kAlone || i == 0) {
        run.template operator()<MR>(begin, Ahead<Tiles::kLines * G>{weights + kNear});
      } else if constexpr (!Tiles::kAlone) {
        run.template operator()<MR>(begin, Ahead<0>{});
      }
    });
  }
}

// Computes tiles of a product, and says how large they may be, how small they get, whether one takes all
// rows, and how many cache lines of a panel a step reads.
template <class Mul>
struct FloatTiles {
  static constexpr int kLines = 2;
  template <int MR, int G, class Fetch>
  static void run(const Context& c, const Op& op, int64_t row, const char* weights, int64_t column, Fetch ahead) {
    tile<Mul, MR, G>(c, op, row, weights, column, ahead);
  }
};

template <class Mul>
struct TallTiles : FloatTiles<Mul> {
  static constexpr TileShape kShape = kTall;
  static constexpr int kLeast = 1;
  static constexpr bool kAlone = true;
};

template <class Mul>
struct WideTiles : FloatTiles<Mul> {
  static constexpr TileShape kShape = kWide;
  static constexpr int kFewest = kTall.rows + 1;  // rows it is used for
  static constexpr int kLeast = kFewest / ((kFewest + kShape.rows - 1) / kShape.rows);
  static constexpr bool kAlone = false;
};

template <class W>
struct BlockTiles {
  static constexpr TileShape kShape = kBlocked;
  static constexpr int kLeast = 1;
  static constexpr bool kAlone = RADISH_AMX;
  static constexpr int kLines = W::kScales / (kBlock / 4) / 64;
  template <int MR, int G, class Fetch>
  static void run(const Context& c, const Op& op, int64_t row, const char* weights, int64_t column, Fetch ahead) {
    tile_blocks<W, MR, G>(c, op, row, weights, column, ahead);
  }
};

// The thread's share of a product: a few panels of weights at a time, with all rows.
template <class Tiles>
void linear(const Context& c, const Op& op, int thread) {
  constexpr int kTogether = Tiles::kShape.vectors / 2;
  const Range range = share(op.n / kPanel, thread, c.threads);
  const int64_t bytes = panel_bytes(op.src_format, op.k);
  const auto panels = [&]<int G>(int64_t panel) {
    const char* weights = static_cast<const char*>(op.weight) + panel * bytes;
    for_tiles<Tiles, G>(c.rows(op), weights, [&]<int MR>(int64_t row, auto ahead) {
      Tiles::template run<MR, G>(c, op, row, weights, panel * kPanel, ahead);
    });
  };
  int64_t panel = range.begin;
  for (; panel + kTogether <= range.end; panel += kTogether) panels.template operator()<kTogether>(panel);
  for (; panel < range.end; ++panel) panels.template operator()<1>(panel);
}

template <class Mul>
void linear_float(const Context& c, const Op& op, int thread) {
  if (c.rows(op) <= kTall.rows) {
    linear<TallTiles<Mul>>(c, op, thread);
  } else {
    linear<WideTiles<Mul>>(c, op, thread);
  }
}

template <class W>
void linear_blocks(const Context& c, const Op& op, int thread) {
#if RADISH_AMX
  if (c.rows(op) > kBlocked.rows) return linear_amx_blocks<W>(c, op, thread);
#endif
  linear<BlockTiles<W>>(c, op, thread);
}

template <Format format>
void linear(const Context& c, const Op& op, int thread) {
  if constexpr (format == kF32) linear_float<MulF32>(c, op, thread);
#if RADISH_AMX
  if constexpr (format == kBF16) linear_amx_bf16(c, op, thread);
#else
  if constexpr (format == kBF16) linear_float<MulBF16>(c, op, thread);
#endif
  if constexpr (format == kQ8) linear_blocks<Q8Weights>(c, op, thread);
  if constexpr (format == kQ4) linear_blocks<Q4Weights>(c, op, thread);
}

template <Format format>
int64_t linear_scratch_bytes(const Op& op) {
#if RADISH_AMX
  if constexpr (format == kQ8) return op.k / kBlock * static_cast<int64_t>(sizeof(AmxBlock<Q8Weights>));
  if constexpr (format == kQ4) return op.k / kBlock * static_cast<int64_t>(sizeof(AmxBlock<Q4Weights>));
#endif
  return 0;
}

template int64_t linear_scratch_bytes<RADISH_FORMAT>(const Op&);
template void linear<RADISH_FORMAT>(const Context&, const Op&, int);

}  // namespace radish
