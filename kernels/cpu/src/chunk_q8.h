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
#include "pages.h"
#include "shared.h"
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
    query_[i] = {step, -128 * static_cast<int32_t>(sum(total))};
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
    for (int i = 0; i < sight.count; i += kHeadRows) {
      with_rows<kHeadRows>(min(kHeadRows, sight.count - i), [&]<int MR>() {
        score<MR>(sight, start, i, first, last);
        const Scales<MR> scales = soften<MR>(i, first, last, state);
        weigh<MR>(i, first, last, scales, state);
      });
    }
  }

 private:
  // A query as int8: each number is step * code.
  struct Codes {
    float step;
    int32_t start;  // what takes back the 128 that codes in pages are shifted by: -128 * their sum
  };

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

  template <class Mul, int MR, int NB, class A, class Fetch>
  [[gnu::always_inline]] static void multiply(I (&acc)[MR][NB], const A* a, int64_t row_stride,
                                              const uint8_t* const (&b)[NB], int64_t step_stride, int64_t steps,
                                              Fetch ahead) {
    for (int64_t s = 0; s < steps; ++s) {
      ahead.fetch(s);
      typename Mul::Line line[NB];
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) line[j] = Mul::line(b[j] + s * step_stride);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) {
        const typename Mul::Broadcast x = Mul::broadcast(a + m * row_stride + s * kPack);
#pragma GCC unroll 16
        for (int j = 0; j < NB; ++j) acc[m][j] = Mul::dot(acc[m][j], x, line[j]);
      }
    }
  }

  // Scores of MR queries with blocks [first, last); kNever for keys a query does not see.
  template <int MR>
  void score(const Sight& sight, int start, int query, int first, int last) {
    int b = first;
    for (; b + kHeadVectors <= last; b += kHeadVectors) score_tile<MR, kHeadVectors>(query, b);
    for (; b + 2 <= last; b += 2) score_tile<MR, 2>(query, b);
    for (; b < last; ++b) score_tile<MR, 1>(query, b);
    for (int m = 0; m < MR; ++m) {
      hide(scores_ + m * kChunk, sight.lows[query + m] - start, sight.highs[query + m] - start, first, last);
    }
  }

  template <int MR, int NB>
  void score_tile(int query, int block) {
    const uint8_t* lines[NB];
    for (int j = 0; j < NB; ++j) lines[j] = keys_[block + j];
    I acc[MR][NB];
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) acc[m][j] = MulQ8::start(query_[query + m].start);
    }
    multiply<MulQ8>(acc, queries_ + query * dim_, dim_, lines, kLanes * kPack, dim_ / kPack,
             upcoming_.keys<NB>(query == 0, block, lines));
    for (int j = 0; j < NB; ++j) {
      const F scale = load(key_scales_ + (block + j) * kLanes);
      for (int m = 0; m < MR; ++m) {
        store(scores_ + m * kChunk + (block + j) * kLanes,
              MulQ8::to_float(acc[m][j]) * (scale * splat(query_[query + m].step)));
      }
    }
  }

  // Softmax numerators of MR queries, times the scales of the values they will weigh.
  template <int MR>
  Scales<MR> soften(int query, int first, int last, const State& state) {
    float most[kLanes] = {}, heaviest[kLanes] = {};
    find_most<MR>(scores_, first, last, most);
    Scales<MR> scales;
    scales.raise(state.most + query, most);
    for (int m = 0; m < MR; ++m) {
      float* scores = scores_ + m * kChunk;
      const F base = splat(max(most[m], kLeast));
      F total = zero();
      for (int b = first; b < last; ++b) {
        const F p = exp2_rough(load(scores + b * kLanes) - base);
        total = total + p;
        store(scores + b * kLanes, p * load(value_scales_ + b * kLanes));
      }
      scales.add(m, state.total + (query + m) * kLanes, total);
    }
    find_largest<MR>(scores_, first, last, heaviest);
    for (int m = 0; m < MR; ++m) {
      // The least float keeps the inverse a number when all values are zero.
      const float step = max(heaviest[m] / MulWeights::kMost, std::numeric_limits<float>::min());
      const F inverse = splat(1.0f / step);
      for (int b = first; b < last; ++b) {
        const int at = m * kChunk + b * kLanes;
        store_u8(probs_ + at, min(load(scores_ + at) * inverse, splat(MulWeights::kMost)));
      }
      prob_step_[m] = step;
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
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) acc[m][j] = MulQ8::start(0);
    }
    int b = first;
    do {  // there is at least one
      const uint8_t* lines[NB];
      for (int j = 0; j < NB; ++j) lines[j] = values_[b] + (d + j * kLanes) * kPack;
      multiply<MulWeights>(acc, probs_ + b * kLanes, kChunk, lines, dim_ * kPack, kLanes / kPack,
               upcoming_.values<NB>(query == 0, b, d, dim_, lines));
    } while (++b < last);
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) {
        scales.add(m, state.values + (query + m) * dim_ + d + j * kLanes,
                   MulQ8::to_float(acc[m][j]) * splat(prob_step_[m]));
      }
    }
  }

  const Pages<PageQ8> pages_;
  const int64_t dim_;
  int8_t* queries_;
  uint8_t* probs_;
  float* scores_;
  uint8_t *staged_keys_, *staged_values_;
  Upcoming<Pages<PageQ8>> upcoming_;
  Codes query_[kQueries];
  float prob_step_[kHeadRows];
  const uint8_t *keys_[kBlocks], *values_[kBlocks];
  float key_scales_[kChunk], value_scales_[kChunk];
};

}  // namespace radish
