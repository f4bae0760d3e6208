// What follows a matrix product.
#pragma once

#include "abi.h"
#include "context.h"
#include "packed.h"
#include "rows.h"
#include "vec.h"

namespace radish {

// Finishes `rows` rows from `row` on of 16 NB columns from `column` on. One function for all tiles of products: it
// would be most of each.
template <int NB>
[[gnu::noinline]] void finish_rows(const Context& c, const Op& op, const F (*sums)[NB], int rows, int64_t row,
                                   int64_t column) {
  for (int m = 0; m < rows; ++m) {
    F y[NB];
    for (int j = 0; j < NB; ++j) {
      y[j] = op.bias == nullptr ? sums[m][j] : sums[m][j] + load(op.bias + column + j * kLanes);
    }
    if (op.epilogue == kGated) {
      char* out = c.row<char>(op.dst, row + m);
      for (int j = 0; j < NB; j += 2) store_as(op.dst_format, out, (column + j * kLanes) / 2, silu(y[j]) * y[j + 1]);
    } else if (op.epilogue == kLogits) {
      const uint8_t want = c.step.wanted == nullptr ? uint8_t{kOnlyLogits} : c.step.wanted[row + m];
      if (want != kOnlyLogits) c.likeliest(row + m).see(y, column, op.columns);
      if (want == kOnlyLikeliest) continue;
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

// Finishes a tile of rows [row, row + MR) and columns [column, column + 16 NB).
template <int MR, int NB>
[[gnu::always_inline]] inline void finish(const Context& c, const Op& op, const F (&acc)[MR][NB], int64_t row,
                                          int64_t column) {
  F sums[MR][NB];  // in memory, while what products add to stays in registers
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) sums[m][j] = acc[m][j];
  }
  finish_rows<NB>(c, op, sums, MR, row, column);
}

}  // namespace radish
