// Attention to bfloat16 pages by tiles of AMX: sixteen queries at a time, whoever they belong to.
//
// What a query gets does not depend on the rows beside it in a tile, nor on blocks that only others see: its
// probabilities are 0 there, and a product adds +0.
#pragma once

#include "amx.h"

#if RADISH_AMX

#include <cstring>
#include <initializer_list>

#include "chunk.h"
#include "minmax.h"
#include "state.h"
#include "vec.h"

namespace radish {

class AmxChunk : public Chunk<MulBF16, kAmxRows> {
  static constexpr int kColumns = 4;           // tiles of values that are added up at the same time
  static constexpr int64_t kSumsStride = kColumns * kLanes * sizeof(float);
  static constexpr int kDepth = 32, kHalf = 16;  // elements that a product of whole tiles and one of half a tile take

 public:
  AmxChunk(const Geometry& g, Carver& carve) : Chunk(g, carve), tiles_(config()) {
    sums_ = carve.take<float>(kAmxRows * kColumns * kLanes);
  }

  static int64_t scratch_bytes(int64_t dim) {
    return Chunk::scratch_bytes(dim) + kAmxRows * kColumns * kLanes * sizeof(float) + 64;
  }

  // Adds a chunk to the softmax of all queries.
  void run(const Sight& sight, const Source& source, int chunk, const State& state) {
    const int start = chunk * kChunk;
    const int low = max(sight.low - start, 0), high = min(sight.high - start, kChunk);
    const int first = low / kLanes, last = (high + kLanes - 1) / kLanes;
    for (int b = first; b < last; ++b) locate(source, b, start + b * kLanes, sight.high);
    zero_edges(low, high);
    upcoming_.share_out(sight.count, kAmxRows);
    for (int i = 0; i < sight.count; i += kAmxRows) {
      const int rows = min(kAmxRows, sight.count - i);
      score(sight, start, i, rows, first, last);
      with_rows<kAmxRows>(rows, [&]<int MR>() {
        const Scales<MR> scales = soften<MR>(i, even(first), even(last + kPack - 1), state);
        weigh(i, first, last, scales, state);
      });
    }
  }

 private:
  // Tiles 0, 1, 6 and 7 are sums; 2 and 3 what is multiplied, 4 and 5 the same of half the depth.
  static AmxConfig config() {
    AmxConfig config;
    for (const int t : {0, 1, 2, 3, 6, 7}) config.set(t, kAmxRows, kAmxBytes);
    config.set(4, kAmxRows, kHalf * 2);
    config.set(5, kHalf / 2, kAmxBytes);
    return config;
  }

  // What lies outside tokens [low, high) may be no number at all, so blocks that reach there are copied with
  // zeros. At most the first and the last do.
  void zero_edges(int low, int high) {
    uint16_t* edge = edges_;
    for (const int b : {low / kLanes, (high - 1) / kLanes}) {
      const int from = max(low - b * kLanes, 0), to = min(high - b * kLanes, kLanes);
      if ((from == 0 && to == kLanes) || values_[b] == edges_) continue;
      const int64_t pair = dim_ * 2;
      std::memcpy(edge, values_[b], kLanes * dim_ * sizeof(uint16_t));
      for (int token = 0; token < kLanes; ++token) {
        if (token >= from && token < to) continue;
        for (int64_t d = 0; d < dim_; ++d) edge[token / 2 * pair + d * 2 + token % 2] = 0;
      }
      values_[b] = edge;
      edge += kLanes * dim_;
    }
  }

  // Scores of `rows` queries with blocks [first, last); kNever for keys a query does not see.
  void score(const Sight& sight, int start, int query, int rows, int first, int last) {
    const uint16_t* queries = queries_ + query * dim_;
    for (int b = first; b < last; b += 2) {
      const int blocks[2] = {b, min(b + 1, last - 1)};
      const uint16_t* keys[2] = {keys_[blocks[0]], keys_[blocks[1]]};
      for (int j = 0; j < 2; ++j) {
        const AheadOfKeys<1> ahead = upcoming_.keys<1>(query, blocks[j], {keys[j]});
        for (int64_t step = 0; step < dim_ / 2; ++step) ahead.fetch(step);
      }
      zero_tile<0>();
      zero_tile<1>();
      int64_t d = 0;
      for (; d + kDepth <= dim_; d += kDepth) {
        load_tile<2>(queries + d, dim_ * 2);
        load_tile<3>(keys[0] + d * kLanes, kAmxBytes);
        dot_tiles_bf16<0, 2, 3>();
        load_tile<3>(keys[1] + d * kLanes, kAmxBytes);
        dot_tiles_bf16<1, 2, 3>();
      }
      if (d < dim_) {
        load_tile<4>(queries + d, dim_ * 2);
        load_tile<5>(keys[0] + d * kLanes, kAmxBytes);
        dot_tiles_bf16<0, 4, 5>();
        load_tile<5>(keys[1] + d * kLanes, kAmxBytes);
        dot_tiles_bf16<1, 4, 5>();
      }
      store_tile<0>(scores_ + blocks[0] * kLanes, kChunk * sizeof(float));
      store_tile<1>(scores_ + blocks[1] * kLanes, kChunk * sizeof(float));
    }
    hide(scores_, sight, start, query, rows, even(first), even(last + kPack - 1));
  }

  // Values weighted by the probabilities of MR queries.
  template <int MR>
  void weigh(int query, int first, int last, const Scales<MR>& scales, const State& state) {
    for (int64_t d = 0; d < dim_; d += kColumns * kLanes) {
      const int columns = static_cast<int>(min<int64_t>(kColumns, (dim_ - d) / kLanes));
      with_rows<kColumns>(columns, [&]<int NB>() { multiply<NB>(query, d, first, last); });
      for (int m = 0; m < MR; ++m) {
        float* values = state.values + (query + m) * dim_ + d;
        for (int j = 0; j < columns; ++j) {
          scales.add(m, values + j * kLanes, load(sums_ + (m * kColumns + j) * kLanes));
        }
      }
    }
  }

  // Sums of NB vectors of values from d on.
  template <int NB>
  [[gnu::noinline]] void multiply(int query, int64_t d, int first, int last) {
    zero_tile<0>();
    if constexpr (NB > 1) zero_tile<1>();
    if constexpr (NB > 2) zero_tile<6>();
    if constexpr (NB > 3) zero_tile<7>();
    const int64_t stride = dim_ * 2 * sizeof(uint16_t);
    for (int b = first; b < last; ++b) {
      const uint16_t* values = values_[b] + d * 2;
      const AheadOfValues<NB> ahead = upcoming_.values<NB>(query, b, d, dim_, values);
      for (int64_t pair = 0; pair < kLanes / 2; ++pair) ahead.fetch(pair);
      load_tile<4>(probs_ + b * kLanes, kChunk * sizeof(uint16_t));
      add_column<0>(values, stride);
      if constexpr (NB > 1) add_column<1>(values + 2 * kLanes, stride);
      if constexpr (NB > 2) add_column<6>(values + 4 * kLanes, stride);
      if constexpr (NB > 3) add_column<7>(values + 6 * kLanes, stride);
    }
    store_tile<0>(sums_, kSumsStride);
    if constexpr (NB > 1) store_tile<1>(sums_ + kLanes, kSumsStride);
    if constexpr (NB > 2) store_tile<6>(sums_ + 2 * kLanes, kSumsStride);
    if constexpr (NB > 3) store_tile<7>(sums_ + 3 * kLanes, kSumsStride);
  }

  template <int C>
  [[gnu::always_inline]] void add_column(const uint16_t* values, int64_t stride) {
    load_tile<5>(values, stride);
    dot_tiles_bf16<C, 4, 5>();
  }

  const AmxRegion tiles_;
  float* sums_;  // [kAmxRows][kColumns][kLanes]
};

}  // namespace radish

#endif
