// Matrix products with packed weights and what follows them in registers.
#pragma once

#include <algorithm>

#include "abi.h"
#include "context.h"
#include "packed.h"
#include "rows.h"
#include "vec.h"

namespace radish {

// Finishes a tile of rows [row, row + MR) and columns [column, column + 16 NB).
template <int MR, int NB>
[[gnu::always_inline]] inline void finish(const Context& c, const Op& op, const F (&acc)[MR][NB], int64_t row,
                                          int64_t column) {
  for (int m = 0; m < MR; ++m) {
    F y[NB];
    for (int j = 0; j < NB; ++j) {
      y[j] = op.bias == nullptr ? acc[m][j] : acc[m][j] + load(op.bias + column + j * kLanes);
    }
    if (op.epilogue == kGated) {
      char* out = c.row<char>(op.dst, row + m);
      for (int j = 0; j < NB; j += 2) store_as(op.dst_format, out, (column + j * kLanes) / 2, silu(y[j]) * y[j + 1]);
    } else if (op.epilogue == kLogits) {
      float* out = c.step.logits + (row + m) * op.columns;
      for (int j = 0; j < NB; ++j) {
        const int64_t left = op.columns - column - j * kLanes;
        if (left >= kLanes) {
          store(out + column + j * kLanes, y[j]);
        } else if (left > 0) {
          store_first(out + column + j * kLanes, y[j], static_cast<int>(left));
        }
      }
    } else {
      float* out = c.row<float>(op.dst, row + m) + column;
      for (int j = 0; j < NB; ++j) {
        store(out + j * kLanes, op.epilogue == kAdd ? load(out + j * kLanes) + y[j] : y[j]);
      }
    }
  }
}

constexpr int64_t kNear = 4096;  // bytes that weights are fetched ahead

// One tile of MR rows and G panels of float weights.
template <class Mul, int MR, int G, int kLines>
void tile(const Context& c, const Op& op, int64_t row, int64_t panel, Ahead<kLines> ahead) {
  using T = typename Mul::T;
  constexpr int NB = 2 * G;
  const T* weight = static_cast<const T*>(op.weight) + panel * kPanel * op.k;
  const T* lines[NB];
  for (int j = 0; j < NB; ++j) lines[j] = weight + j / 2 * kPanel * op.k + j % 2 * kLanes * Mul::kPack;
  F acc[MR][NB];
  for (int m = 0; m < MR; ++m) {
    for (int j = 0; j < NB; ++j) acc[m][j] = zero();
  }
  const int64_t row_stride = c.buffers[op.src].row_bytes / sizeof(T);
  accumulate<Mul>(acc, c.row<T>(op.src, row), row_stride, lines, kPanel * Mul::kPack, op.k / Mul::kPack, ahead);
  finish(c, op, acc, row, panel * kPanel);
}

// One tile of MR rows and one panel of int8 weights: whole numbers within a group of activations, float32
// across groups.
template <int MR, int kLines>
void tile_q8(const Context& c, const Op& op, int64_t row, int64_t panel, Ahead<kLines>) {
  constexpr int NB = 2;
  constexpr int kSteps = kRowGroup / 4;
  const uint8_t* weight = static_cast<const uint8_t*>(op.weight) + panel * panel_bytes(kQ8, op.k);
  Q8Row x[MR];
  F acc[MR][NB];
  for (int m = 0; m < MR; ++m) {
    x[m] = q8_row(c.row<char>(op.src, row + m), op.k);
    for (int j = 0; j < NB; ++j) acc[m][j] = zero();
  }
  for (int64_t g = 0; g < op.k / kRowGroup; ++g) {
    const uint8_t* group = weight + g / (kGroup / kRowGroup) * kGroupBytes;
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(group + kGroupWeights);
    group += g % (kGroup / kRowGroup) * kRowGroup * kPanel;
    I whole[MR][NB];
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) whole[m][j] = MulQ8::start(x[m].corrections[g]);
    }
    for (int s = 0; s < kSteps; ++s) {
      const uint8_t* step = group + s * kPanel * 4;
      const MulQ8::Line first = MulQ8::line(step), second = MulQ8::line(step + kLanes * 4);
      Ahead<kLines>{reinterpret_cast<const char*>(step) + kNear}.fetch(0);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) {
        const MulQ8::Broadcast a = MulQ8::broadcast(x[m].values + g * kRowGroup + s * 4);
        whole[m][0] = MulQ8::dot(whole[m][0], a, first);
        whole[m][1] = MulQ8::dot(whole[m][1], a, second);
      }
    }
    for (int j = 0; j < NB; ++j) {
      const F scale = load_bf16(scales + j * kLanes);
      for (int m = 0; m < MR; ++m) {
        acc[m][j] = fma(MulQ8::to_float(whole[m][j]) * splat(x[m].scales[g]), scale, acc[m][j]);
      }
    }
  }
  finish(c, op, acc, row, panel * kPanel);
}

// Calls function.template operator()<MR>() for MR = rows, 1 <= rows <= Most.
template <int Most, class Function>
[[gnu::always_inline]] inline void with_rows(int rows, Function function) {
  if constexpr (Most == 1) {
    function.template operator()<1>();
  } else if (rows == Most) {
    function.template operator()<Most>();
  } else {
    with_rows<Most - 1>(rows, function);
  }
}

// All rows of a product in tiles of nearly equal height. `run.template operator()<MR>(first row, what to
// fetch)` computes one. The first reads the weights from memory, those after it find them in the cache.
template <int kRows, int kLines, class Run>
[[gnu::always_inline]] inline void for_tiles(int64_t rows, const char* weights, Run run) {
  const int64_t tiles = (rows + kRows - 1) / kRows;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t begin = rows * i / tiles, end = rows * (i + 1) / tiles;
    with_rows<kRows>(static_cast<int>(end - begin), [&]<int MR>() {
      if (i == 0) {
        run.template operator()<MR>(begin, Ahead<kLines>{weights + kNear});
      } else {
        run.template operator()<MR>(begin, Ahead<0>{});
      }
    });
  }
}

template <class Mul, int G>
void panels(const Context& c, const Op& op, int64_t panel) {
  const int64_t bytes = panel_bytes(op.src_format, op.k);
  const char* weights = static_cast<const char*>(op.weight) + panel * bytes;
  for_tiles<kTileRows, 2 * G>(c.rows(op), weights, [&]<int MR>(int64_t row, auto ahead) {
    tile<Mul, MR, G>(c, op, row, panel, ahead);
  });
}

template <class Mul>
void linear(const Context& c, const Op& op, int thread) {
  constexpr int kTogether = kTileVectors / 2;
  const Range range = share(op.n / kPanel, thread, c.threads);
  int64_t panel = range.begin;
  for (; panel + kTogether <= range.end; panel += kTogether) panels<Mul, kTogether>(c, op, panel);
  for (; panel < range.end; ++panel) panels<Mul, 1>(c, op, panel);
}

inline void linear_q8(const Context& c, const Op& op, int thread) {
  const Range range = share(op.n / kPanel, thread, c.threads);
  const int64_t bytes = panel_bytes(kQ8, op.k);
  for (int64_t panel = range.begin; panel < range.end; ++panel) {
    const char* weights = static_cast<const char*>(op.weight) + panel * bytes;
    for_tiles<kTileRowsQ8, 2>(c.rows(op), weights, [&]<int MR>(int64_t row, auto ahead) {
      tile_q8<MR>(c, op, row, panel, ahead);
    });
  }
}

}  // namespace radish
