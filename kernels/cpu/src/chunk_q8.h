// The partial softmax of some queries over one chunk of keys, for int8 pages.
//
// Queries become int8 with a scale each, and so do, within a chunk, the probabilities times the scales of the
// values they weigh: sums are whole numbers. Unwritten tokens count for nothing because their scores never
// are and their probabilities are 0. (Quantised queries and keys: Zhang et al., SageAttention, 2024.)
#pragma once

#include <cstring>
#include <limits>

#include "abi.h"
#include "chunk.h"
#include "half.h"
#include "minmax.h"
#include "pages.h"
#include "state.h"
#include "vec.h"

namespace radish {

class ChunkQ8 {
  static constexpr int kPack = PageQ8::kPack;
  static constexpr int kBlocks = kChunk / kLanes;

 public:
  ChunkQ8(const Geometry& g, Carver& carve) : pages_(g), dim_(g.head_dim) {
    queries_ = carve.take<int8_t>(kQueries * dim_);
    probs_ = carve.take<uint8_t>(kHeadRows * kChunk);
    scores_ = carve.take<float>(kHeadRows * kChunk);
    staged_keys_ = carve.take<uint8_t>(kChunk * dim_);
    staged_values_ = carve.take<uint8_t>(kChunk * dim_);
  }

  static int64_t scratch_bytes(int64_t dim) {
    return kQueries * dim + kHeadRows * kChunk * (1 + sizeof(float)) + 2 * kChunk * dim + 5 * 64;
  }

  void load_query(int i, const char* row, int head) {
    const float* query = reinterpret_cast<const float*>(row) + head * dim_;
    F most = zero(), total = zero();  // whole numbers, exact in float32
    for (int64_t d = 0; d < dim_; d += kLanes) most = max(most, abs(load(query + d)));
    const float step = largest(most) / 127.0f;
    const F inverse = splat(step > 0.0f ? 1.0f / step : 0.0f);
    for (int64_t d = 0; d < dim_; d += kLanes) {
      const F code = nearest(max(min(load(query + d) * inverse, splat(127.0f)), splat(-127.0f)));
      store_i8(queries_ + i * dim_ + d, code);
      total = total + code;
    }
    // A query of zeros, too, has scores that are numbers.
    steps_[i] = step > 0.0f ? step : 1.0f;
    starts_[i] = -128 * static_cast<int32_t>(sum(total));
  }

  void foresee(const Source& source, int begin, int end) { upcoming_.find(pages_, source, begin, end); }

  void run(const Sight& sight, const Source& source, int chunk, const State& state) {
    const int start = chunk * kChunk;
    const int low = max(sight.low - start, 0), high = min(sight.high - start, kChunk);
    const int first = low / kLanes, last = (high + kLanes - 1) / kLanes;
    for (int b = first; b < last; ++b) {
      locate(source, b, start + b * kLanes, sight.high);
      float* scales = value_scales_ + b * kLanes;
      store(scales, keep(load(scales), low - b * kLanes, high - b * kLanes, 0.0f));
    }
    upcoming_.share_out(sight.count, kHeadRows);
    for (int i = 0; i < sight.count; i += kHeadRows) {
      with_rows<kHeadRows>(min(kHeadRows, sight.count - i), [&]<int MR>() {
        score<MR>(sight, start, i, first, last);
        const Scales<MR> scales = soften<MR>(i, first, last, state);
        weigh<MR>(i, first, last, scales, state);
      });
    }
  }

 private:
  // Finds block b of the chunk, whose first token is `token`; gathers it when pages hold it in pieces.
  void locate(const Source& source, int b, int token, int end) {
    if (pages_.block == kLanes) {
      const int page_size = static_cast<int>(pages_.page_size);
      const int64_t page = source.table[token / page_size], offset = token % page_size;
      keys_[b] = pages_.keys(source.layer, page, source.kv_head) + offset * dim_;
      values_[b] = pages_.values(source.layer, page, source.kv_head) + offset * dim_;
      const uint16_t* scales = pages_.scales(source.layer, page, source.kv_head) + offset;
      store(key_scales_ + b * kLanes, load_bf16(scales));
      store(value_scales_ + b * kLanes, load_bf16(scales + pages_.page_size));
      return;
    }
    uint8_t* keys = staged_keys_ + b * kLanes * dim_;
    uint8_t* values = staged_values_ + b * kLanes * dim_;
    keys_[b] = keys;
    values_[b] = values;
    for (int lane = 0; lane < kLanes && token + lane < end; lane += pages_.block) {
      const int64_t page = source.table[(token + lane) / pages_.page_size];
      const int64_t offset = (token + lane) % pages_.page_size;
      pages_.gather(source.layer, page, source.kv_head, offset, lane, keys, values);
      const uint16_t* scales = pages_.scales(source.layer, page, source.kv_head) + offset;
      for (int64_t i = 0; i < pages_.block; ++i) {
        key_scales_[b * kLanes + lane + i] = from_bf16(scales[i]);
        value_scales_[b * kLanes + lane + i] = from_bf16(scales[pages_.page_size + i]);
      }
    }
  }

  // Scores of MR queries, less their step, with blocks [first, last); kNever for keys a query does not see.
  template <int MR>
  void score(const Sight& sight, int start, int query, int first, int last) {
    for_blocks(first, last, [&]<int NB>(int block) { score_tile<MR, NB>(query, block); });
    hide(scores_, sight, start, query, MR, first, last);
  }

  template <int MR, int NB>
  void score_tile(int query, int block) {
    const uint8_t* lines[NB];
    for (int j = 0; j < NB; ++j) lines[j] = keys_[block + j];
    I acc[MR][NB];
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) acc[m][j] = MulQ8::start(starts_[query + m]);
    }
    accumulate<MulQ8>(
        acc, queries_ + query * dim_, dim_, dim_ / kPack,
        [&](int j, int64_t step) { return lines[j] + step * kLanes * kPack; },
        upcoming_.keys<NB>(query, block, lines));
    float* scores = scores_ + block * kLanes;
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
      const F scale = load(key_scales_ + (block + j) * kLanes);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) store(scores + m * kChunk + j * kLanes, MulQ8::to_float(acc[m][j]) * scale);
    }
  }

  // Softmax numerators of MR queries, times the scales of the values they will weigh.
  template <int MR>
  Scales<MR> soften(int query, int first, int last, const State& state) {
    const F most = nearest(find_largest<MR>(scores_, first, last) * load(steps_ + query));
    Scales<MR> scales;
    scales.raise(state.most + query, most);
    float bases[kLanes];
    store(bases, splat(0.0f) - max(most, splat(kLeast)));
    for (int m = 0; m < MR; ++m) {
      float* scores = scores_ + m * kChunk;
      const F step = splat(steps_[query + m]), base = splat(bases[m]);
      F total = zero();
      for (int b = first; b < last; ++b) {
        const F p = exp2_rough(fma(load(scores + b * kLanes), step, base));
        total = total + p;
        store(scores + b * kLanes, p * load(value_scales_ + b * kLanes));
      }
      scales.add(m, state.total + (query + m) * kLanes, total);
    }
    // The least float keeps the inverse a number when all values are zero.
    const F heaviest = find_largest<MR>(scores_, first, last);
    const F least = splat(std::numeric_limits<float>::min());
    store(prob_steps_, max(heaviest * splat(1.0f / MulWeights::kMost), least));
    float inverses[kLanes];
    store(inverses, splat(1.0f) / load(prob_steps_));
    for (int m = 0; m < MR; ++m) {
      const F inverse = splat(inverses[m]);
      for (int b = first; b < last; ++b) {
        const int at = m * kChunk + b * kLanes;
        store_u8(probs_ + at, load(scores_ + at) * inverse);
      }
    }
    return scales;
  }

  // Values weighted by the probabilities of MR queries.
  template <int MR>
  void weigh(int query, int first, int last, const Scales<MR>& scales, const State& state) {
    int64_t d = 0;
    for (; d + kHeadVectors * kLanes <= dim_; d += kHeadVectors * kLanes) {
      weigh_tile<MR, kHeadVectors>(query, d, first, last, scales, state);
    }
    for (; d < dim_; d += kLanes) weigh_tile<MR, 1>(query, d, first, last, scales, state);
  }

  template <int MR, int NB>
  void weigh_tile(int query, int64_t d, int first, int last, const Scales<MR>& scales, const State& state) {
    I acc[MR][NB];
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) acc[m][j] = MulQ8::start(0);
    }
    const int64_t dim = dim_;
    for (int b = first; b < last; ++b) {
      const uint8_t* values = values_[b] + d * kPack;
      accumulate<MulWeights>(
          acc, probs_ + b * kLanes, kChunk, kLanes / kPack,
          [&](int j, int64_t step) { return values + (step * dim + j * kLanes) * kPack; },
          upcoming_.values<NB>(query, b, d, dim, values));
    }
    float* sums = state.values + query * dim + d;
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      const F step = splat(prob_steps_[m]);
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) scales.add(m, sums + m * dim + j * kLanes, MulQ8::to_float(acc[m][j]) * step);
    }
  }

  const Pages<PageQ8> pages_;
  const int64_t dim_;
  int8_t* queries_;
  uint8_t* probs_;
  float* scores_;
  uint8_t *staged_keys_, *staged_values_;
  Upcoming<Pages<PageQ8>> upcoming_;
  float steps_[kQueries + kLanes] = {};  // of queries as int8: each number is step * code
  int32_t starts_[kQueries];  // what takes back the 128 that codes in pages are shifted by: -128 * their sum
  float prob_steps_[kLanes];  // of the queries that compute: each weight is step * code
  const uint8_t *keys_[kBlocks], *values_[kBlocks];
  float key_scales_[kChunk], value_scales_[kChunk];
};

}  // namespace radish
