// Matrix products with packed weights.
#include "abi.h"
#include "amx_linear.h"
#include "context.h"
#include "finish.h"
#include "operations.h"
#include "packed.h"
#include "rows.h"
#include "vec.h"

namespace radish {

constexpr int64_t kNear = 8192;  // bytes that weights are fetched ahead of their use by the only tile that reads them

// What a tile fetches while it computes: `bytes` in each of its steps, from `next` on.
struct Ahead {
  const char* next;
  int64_t bytes;

  // In a step that is worth two fetches at most.
  [[gnu::always_inline]] void fetch(int64_t step) const {
    const char* p = next + step * bytes;
    prefetch(p);
    prefetch(p + bytes / 2);
  }

  [[gnu::always_inline]] void fetch_all(int64_t step) const {
    const char* p = next + step * bytes;
    for (int64_t i = 0; i < bytes; i += 64) prefetch(p + i);
  }
};

// Fetches what a tile of `rows` rows and two vectors overwrites or adds to: results of a long prompt do not stay
// in the second cache.
[[gnu::always_inline]] inline void fetch_results(const Context& c, const Op& op, int rows, int64_t row, int64_t column) {
  if (op.epilogue == kLogits) return;
  const bool gated = op.epilogue == kGated;
  const int64_t bytes = gated && op.dst_format == kBF16 ? 2 : 4;
  const char* p = c.row<char>(op.dst, row) + (gated ? column / 2 : column) * bytes;
#pragma GCC unroll 1
  for (int m = 0; m < rows; ++m, p += c.buffers[op.dst].row_bytes) {
    prefetch(p);
    prefetch(p + (gated ? 0 : 64));
  }
}

// A panel of float weights with a tile of MR rows.
template <class Mul, int MR>
void tile(const Context& c, const Op& op, int64_t row, const char* panel, int64_t column, Ahead ahead) {
  using T = typename Mul::T;
  fetch_results(c, op, MR, row, column);
  const T* weights = reinterpret_cast<const T*>(panel);
  F acc[MR][2];
  for (int m = 0; m < MR; ++m) acc[m][0] = acc[m][1] = zero();
  const int64_t stride = c.buffers[op.src].row_bytes / sizeof(T);
  const auto line = [&](int j, int64_t step) { return weights + (step * kPanel + j * kLanes) * Mul::kPack; };
  accumulate<Mul>(acc, c.row<T>(op.src, row), stride, op.k / Mul::kPack, line, ahead);
  finish(c, op, acc, row, column);
}

// The same as `tile` of weights in codes: whole numbers where inputs share a scale, float32 across those.
template <class W, int MR>
void tile_codes(const Context& c, const Op& op, int64_t row, const char* panel, int64_t column, Ahead ahead) {
  using Mul = typename W::Mul;
  fetch_results(c, op, MR, row, column);
  const int64_t stride = c.buffers[op.src].row_bytes, groups = op.k / op.group;
  const Q8Row x = q8_row(c.row<char>(op.src, row), op.k, op.group);
  const int8_t* values = x.values;
  F acc[MR][2];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) acc[m][0] = acc[m][1] = zero();
  for (int64_t g = 0; g < groups; ++g, panel += W::kScales) {
    ahead.fetch_all(g);
    I whole[MR][2];
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) whole[m][0] = whole[m][1] = Mul::start(*offset(x.corrections + g, m * stride));
    const int8_t* end = values + op.group;
    do {
#pragma GCC unroll 8
      for (int s = 0; s < kBlock / 4; ++s) {
        const typename Mul::Line line[2] = {W::line(panel, s, 0), W::line(panel, s, 1)};
#pragma GCC unroll 16
        for (int m = 0; m < MR; ++m) {
          const typename Mul::Broadcast a = Mul::broadcast(values + m * stride + s * 4);
          for (int j = 0; j < 2; ++j) whole[m][j] = Mul::dot(whole[m][j], a, line[j]);
        }
      }
      values += kBlock;
      panel += W::kCodes;
    } while (values != end);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const typename W::Scales scales = W::scales(panel, j);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) {
        acc[m][j] = W::add(acc[m][j], Mul::to_float(whole[m][j]), scales, *offset(x.scales + g, m * stride),
                           *offset(x.sums + g, m * stride));
      }
    }
  }
  finish(c, op, acc, row, column);
}

// Some panels of a product, one at a time. Rows are cut into tiles of nearly equal height, at most
// kMost; run.template operator()<MR>(first row, panel, first column, what to fetch) computes one. All of them
// read the panel from the cache, where those of the panel before have brought it, each a part: so memory is
// read all the time. An only tile fetches what it is itself about to read.
template <int kMost, class Run>
void for_tiles(const Context& c, const Op& op, int64_t steps, Range range, Run run) {
  const int64_t rows = c.rows(op), tiles = (rows + kMost - 1) / kMost, bytes = panel_bytes(op.src_format, op.k, op.group);
  const int64_t fetched = tiles > 1 ? (bytes / steps + tiles - 1) / tiles : bytes / steps;
  for (int64_t p = range.begin; p < range.end; ++p) {
    const char* panel = static_cast<const char*>(op.weight) + p * bytes;
    Ahead ahead{panel + (tiles > 1 ? bytes : kNear), fetched};
    for (int64_t i = 0; i < tiles; ++i, ahead.next += steps * fetched) {
      const int64_t begin = rows * i / tiles, end = rows * (i + 1) / tiles;
      with_rows<kMost>(static_cast<int>(end - begin), [&]<int MR>() {
        run.template operator()<MR>(begin, panel, p * kPanel, ahead);
      });
    }
  }
}

template <class Mul>
void linear_float(const Context& c, const Op& op, Range panels) {
  const auto run = [&]<int MR>(int64_t row, const char* panel, int64_t column, Ahead ahead) {
    tile<Mul, MR>(c, op, row, panel, column, ahead);
  };
  for_tiles<kFloatRows>(c, op, op.k / Mul::kPack, panels, run);
}

template <class W>
void linear_codes(const Context& c, const Op& op, Range panels) {
#if RADISH_AMX
  if (c.rows(op) > kBlockRows) return linear_amx_codes<W>(c, op, panels);
#endif
  const auto run = [&]<int MR>(int64_t row, const char* panel, int64_t column, Ahead ahead) {
    tile_codes<W, MR>(c, op, row, panel, column, ahead);
  };
  for_tiles<kBlockRows>(c, op, op.k / op.group, panels, run);
}

template <Format format>
void linear_panels(const Context& c, const Op& op, Range panels) {
  if constexpr (format == kF32) linear_float<MulF32>(c, op, panels);
#if RADISH_AMX
  if constexpr (format == kBF16) linear_amx_bf16(c, op, panels);
#else
  if constexpr (format == kBF16) linear_float<MulBF16>(c, op, panels);
#endif
  if constexpr (format == kQ8) linear_codes<Q8Weights>(c, op, panels);
  if constexpr (format == kQ4) linear_codes<Q4Weights>(c, op, panels);
}

template <Format format>
void linear(const Context& c, const Op& op) {
  c.for_each(op.n / kPanel, [&](const Context& own, Range panels) { linear_panels<format>(own, op, panels); });
}

template <Format format>
int64_t linear_scratch_bytes([[maybe_unused]] const Op& op) {
#if RADISH_AMX
  if constexpr (format == kQ8) return op.k / op.group * AmxCodes<Q8Weights>(op.group).bytes();
  if constexpr (format == kQ4) return op.k / op.group * AmxCodes<Q4Weights>(op.group).bytes();
#endif
  return 0;
}

template int64_t linear_scratch_bytes<RADISH_FORMAT>(const Op&);
template void linear<RADISH_FORMAT>(const Context&, const Op&);

}  // namespace radish
