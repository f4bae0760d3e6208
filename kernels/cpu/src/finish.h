// What follows a matrix product in registers.
#pragma once

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
      const uint8_t want = c.step.wanted == nullptr ? kOnlyLogits : c.step.wanted[row + m];
      if (want != kOnlyLogits) c.likeliest[row + m].see(y, column, op.columns);
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

}  // namespace radish
