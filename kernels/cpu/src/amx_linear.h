// Matrix products of many rows by tiles of AMX.
//
// Weights in blocks give the same whole numbers as dot products of vectors do and are added up in the same
// order, so few rows can take those. bfloat16 rounds in an order of its own: tiles take any number of rows,
// and what a row gives rests on no more than that a tile's rows do not touch.
#pragma once

#include "amx.h"

#if RADISH_AMX

#include <immintrin.h>

#include "context.h"
#include "finish.h"
#include "minmax.h"
#include "packed.h"
#include "rows.h"
#include "vec.h"

namespace radish {

constexpr int64_t kAmxNear = 4096;  // bytes that weights are fetched ahead of their use
constexpr int kAmxBlockRows = 12;   // of a tile whose sums are kept in registers as float32, two vectors a row

// Rows of a product in tiles of one height. The last may begin within the one before it: what both compute is
// the same, and is used once.
struct AmxCut {
  int64_t rows, tiles;
  int height;

  AmxCut(int64_t all, int most) : rows(all), tiles((all + most - 1) / most), height(static_cast<int>((all + tiles - 1) / tiles)) {}
  int64_t first(int64_t tile) const { return tile * height; }
  int64_t begin(int64_t tile) const { return min(tile * height, rows - height); }
};

// What is fetched into the second cache while tiles multiply: some lines a step.
struct AmxAhead {
  const char* next;
  int lines;
  [[gnu::always_inline]] void fetch() {
    for (int i = 0; i < lines; ++i, next += 64) _mm_prefetch(next, _MM_HINT_T1);
  }
};

// Finishes rows [first, ...) of tile `tile`, whose sums are those of rows from its beginning on.
inline void finish_tile(const Context& c, const Op& op, const AmxCut& cut, int64_t tile, const float* sums,
                        int64_t column) {
  const int64_t begin = cut.begin(tile);
  for (int64_t row = cut.first(tile); row < begin + cut.height; ++row) {
    const float* from = sums + (row - begin) * kPanel;
    const F acc[1][2] = {{load(from), load(from + kLanes)}};
    finish(c, op, acc, row, column);
  }
}

// A panel of bfloat16 weights with MT tiles of rows.
template <int MT>
inline void amx_bf16(const Context& c, const Op& op, const AmxCut& cut, int64_t tile, const char* weights,
                     int64_t column, AmxAhead ahead) {
  constexpr int64_t kStep = kAmxRows * kLine;
  const int64_t stride = c.buffers[op.src].row_bytes;
  const char* x[MT];
  for (int m = 0; m < MT; ++m) x[m] = c.row<char>(op.src, cut.begin(tile + m));
  zero_tile<0>();
  zero_tile<1>();
  if constexpr (MT == 2) {
    zero_tile<2>();
    zero_tile<3>();
  }
  for (int64_t k = 0; k < op.k / 32; ++k) {
    ahead.fetch();
    load_tile<6>(weights + k * kStep, kLine);
    load_tile<4>(x[0] + k * kAmxBytes, stride);
    dot_tiles_bf16<0, 4, 6>();
    load_tile<7>(weights + k * kStep + kAmxBytes, kLine);
    dot_tiles_bf16<1, 4, 7>();
    if constexpr (MT == 2) {
      load_tile<5>(x[1] + k * kAmxBytes, stride);
      dot_tiles_bf16<2, 5, 6>();
      dot_tiles_bf16<3, 5, 7>();
    }
  }
  alignas(64) float sums[MT][kAmxRows][kPanel];
  store_tile<0>(sums[0][0], sizeof sums[0][0]);
  store_tile<1>(sums[0][0] + kLanes, sizeof sums[0][0]);
  if constexpr (MT == 2) {
    store_tile<2>(sums[1][0], sizeof sums[0][0]);
    store_tile<3>(sums[1][0] + kLanes, sizeof sums[0][0]);
  }
  for (int m = 0; m < MT; ++m) finish_tile(c, op, cut, tile + m, sums[m][0], column);
}

inline void linear_amx_bf16(const Context& c, const Op& op, Range range) {
  constexpr int kLines = 2 * kAmxRows;  // of weights a step reads
  if (c.rows(op) == 0) return;  // a step that samples nothing
  const AmxCut cut(c.rows(op), kAmxRows);
  AmxConfig config;
  for (int t = 0; t < 8; ++t) config.set(t, t < 6 ? cut.height : kAmxRows, kAmxBytes);
  const AmxRegion region(config);
  const int64_t bytes = panel_bytes(kBF16, op.k, op.group), pairs = (cut.tiles + 1) / 2;
  const int lines = pairs == 1 ? 0 : static_cast<int>((kLines + pairs - 2) / (pairs - 1));
  for (int64_t panel = range.begin; panel < range.end; ++panel) {
    const char* weights = static_cast<const char*>(op.weight) + panel * bytes;
    // The first tiles read the weights from memory, those after them meanwhile fetch the next.
    AmxAhead ahead{weights + kAmxNear, kLines};
    for (int64_t tile = 0; tile < cut.tiles; tile += 2) {
      if (tile + 1 < cut.tiles) {
        amx_bf16<2>(c, op, cut, tile, weights, panel * kPanel, ahead);
      } else {
        amx_bf16<1>(c, op, cut, tile, weights, panel * kPanel, ahead);
      }
      ahead = {weights + bytes + tile / 2 * lines * 64 * (op.k / 32), panel + 1 < range.end ? lines : 0};
    }
  }
}

// Where inputs that share a scale lie in an unpacked panel: [step][output][4] codes, then scales in float32, then
// what is added.
template <class W>
class AmxCodes {
 public:
  explicit AmxCodes(int64_t group) : codes_(group / 4 * kLine) {}

  int64_t bytes() const { return codes_ + kScaleBytes * (W::kHasLeast ? 2 : 1); }

  // Unpacks packed codes that `scales` follow; returns the place of the next.
  const char* unpack(const char* packed, char* out) const {
    const __m512i shift = _mm512_set1_epi8(static_cast<char>(W::kShift));
    AmxAhead ahead{packed + kAmxNear, static_cast<int>((W::kCodes + W::kScales) / 64)};
    for (const char* end = out + codes_; out != end; out += kBlock / 4 * kLine, packed += W::kCodes) {
#pragma GCC unroll 8
      for (int s = 0; s < kBlock / 4; ++s) {
        for (int j = 0; j < 2; ++j) {
          // Flips the upper bit of what was stored as code + 128.
          _mm512_store_si512(out + s * kLine + j * kAmxBytes, _mm512_xor_si512(W::line(packed, s, j), shift));
        }
      }
      ahead.fetch();
    }
    for (int j = 0; j < 2; ++j) {
      const typename W::Scales scales = W::scales(packed, j);
      float* to = reinterpret_cast<float*>(out) + j * kLanes;
      store(to, scales.scale);
      if constexpr (W::kHasLeast) store(to + kPanel, scales.least);
    }
    return packed + W::kScales;
  }

  typename W::Scales scales(const char* unpacked, int vector) const {
    const float* from = reinterpret_cast<const float*>(unpacked + codes_) + vector * kLanes;
    if constexpr (W::kHasLeast) {
      return {load(from), load(from + kPanel)};
    } else {
      return {load(from)};
    }
  }

 private:
  static constexpr int64_t kScaleBytes = kPanel * 4;
  int64_t codes_;  // bytes of them
};

// A panel of weights in codes with one tile of MR rows. While tiles multiply the inputs of one scale, vectors add
// up those of the scale before the last: tiles 0 and 1 are the sums of an even one, 2 and 3 of an odd one.
template <class W, int MR>
class AmxCodesTile {
 public:
  // Rows of x lie `stride` bytes apart.
  AmxCodesTile(const char* panel, int64_t group, const Q8Row& x, int64_t stride, AmxAhead ahead)
      : panel_(panel), at_(group), group_(group), x_(x), stride_(stride), ahead_(ahead) {}

  void run(int64_t groups, float* sums) {
    F acc[MR][2];
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) acc[m][0] = acc[m][1] = zero();
    const int64_t last = groups - 1;
    multiply<0>(0);
    multiply<1>(min(int64_t{1}, last));
    keep<0>();
    for (int64_t g = 0; g < groups; g += 2) {
      multiply<0>(min(g + 2, last));
      keep<1>();
      add<0>(g, acc);
      multiply<1>(min(g + 3, last));
      keep<0>();
      if (g < last) add<1>(g + 1, acc);
    }
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < 2; ++j) store(sums + m * kPanel + j * kLanes, acc[m][j]);
    }
  }

 private:
  template <int P>
  [[gnu::always_inline]] void multiply(int64_t g) {
    const char* codes = panel_ + g * at_.bytes();
    load_tile<4 + P>(x_.values + g * group_, stride_);
    load_tile<6>(codes, kLine);
    zero_tile<2 * P>();
    dot_tiles_i8<2 * P, 4 + P, 6>();
    load_tile<7>(codes + kAmxBytes, kLine);
    zero_tile<2 * P + 1>();
    dot_tiles_i8<2 * P + 1, 4 + P, 7>();
  }

  template <int P>
  [[gnu::always_inline]] void keep() {
    store_tile<2 * P>(whole_[P][0], sizeof whole_[P][0]);
    store_tile<2 * P + 1>(whole_[P][0] + kLanes, sizeof whole_[P][0]);
  }

  template <int P>
  [[gnu::always_inline]] void add(int64_t g, F (&acc)[MR][2]) {
    ahead_.fetch();
    const char* codes = panel_ + g * at_.bytes();
    const typename W::Scales scales[2] = {at_.scales(codes, 0), at_.scales(codes, 1)};
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      const float scale = *offset(x_.scales + g, m * stride_), sum = *offset(x_.sums + g, m * stride_);
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const F dot = W::Mul::to_float({_mm512_load_si512(whole_[P][m] + j * kLanes)});
        acc[m][j] = W::add(acc[m][j], dot, scales[j], scale, sum);
      }
    }
  }

  const char* panel_;
  const AmxCodes<W> at_;
  const int64_t group_;
  const Q8Row x_;
  const int64_t stride_;
  AmxAhead ahead_;
  alignas(64) int32_t whole_[2][MR][kPanel];
};

template <class W>
inline void linear_amx_codes(const Context& c, const Op& op, Range range) {
  constexpr int kFewest = kBlockRows + 1;
  constexpr int kLeast = min(kFewest, kAmxBlockRows / 2 + 1);  // height of a tile
  const AmxCut cut(c.rows(op), kAmxBlockRows);
  AmxConfig config;
  for (int t = 0; t < 4; ++t) config.set(t, cut.height, kAmxBytes);
  for (int t = 4; t < 6; ++t) config.set(t, cut.height, op.group);
  for (int t = 6; t < 8; ++t) config.set(t, op.group / 4, kAmxBytes);
  const AmxRegion region(config);
  const AmxCodes<W> at(op.group);
  const int64_t bytes = panel_bytes(op.src_format, op.k, op.group), groups = op.k / op.group;
  const int lines = static_cast<int>((group_bytes<W>(op.group) / 64 + cut.tiles - 1) / cut.tiles);
  char* unpacked = c.scratch().panel.data();
  for (int64_t panel = range.begin; panel < range.end; ++panel) {
    const char* weights = static_cast<const char*>(op.weight) + panel * bytes;
    const char* packed = weights;
    for (int64_t g = 0; g < groups; ++g) packed = at.unpack(packed, unpacked + g * at.bytes());
    with_rows<kAmxBlockRows, kLeast>(cut.height, [&]<int MR>() {
      for (int64_t tile = 0; tile < cut.tiles; ++tile) {
        alignas(64) float sums[MR * kPanel];
        const AmxAhead ahead{weights + bytes + tile * lines * 64 * groups, panel + 1 < range.end ? lines : 0};
        const Q8Row x = q8_row(c.row<char>(op.src, cut.begin(tile)), op.k, op.group);
        AmxCodesTile<W, MR>{unpacked, op.group, x, c.buffers[op.src].row_bytes, ahead}.run(groups, sums);
        finish_tile(c, op, cut, tile, sums, panel * kPanel);
      }
    });
  }
}

}  // namespace radish

#endif
