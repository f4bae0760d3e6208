// The partial softmax of some queries over one chunk of keys, for int8 pages.
//
// Queries and probabilities become numbers of 15 bits, of which a product takes the upper and the lower
// half in turn: as many products as bfloat16 needs, over half the bytes, and nothing is lost beyond what
// the pages lost. Within a chunk sums are whole numbers; unwritten tokens count for nothing because their
// scores never are and their probabilities are 0.
#pragma once

#include <algorithm>
#include <cstring>

#include "abi.h"
#include "chunk.h"
#include "half.h"
#include "pages.h"
#include "state.h"
#include "vec.h"

namespace radish {

class ChunkQ8 {
  static constexpr int kPack = PageQ8::kPack;
  static constexpr int kBlocks = kChunk / kLanes;
  static constexpr int kPairs = kHeadRows > 1 ? kHeadRows / 2 : 1;  // queries of a tile, two halves each
  static constexpr float kUpper = 128.0f;                           // what one of the upper half is worth
  static constexpr float kMost = 127.0f * kUpper;

 public:
  ChunkQ8(const Geometry& g, Carver& carve) : pages_(g), dim_(g.head_dim) {
    queries_ = carve.take<int8_t>(2 * kQueries * dim_);
    probs_ = carve.take<int8_t>(2 * kQueries * kChunk);
    scores_ = carve.take<float>(kQueries * kChunk);
    staged_keys_ = carve.take<uint8_t>(kChunk * dim_);
    staged_values_ = carve.take<uint8_t>(kChunk * dim_);
  }

  static int64_t scratch_bytes(int64_t dim) {
    return 2 * kQueries * (dim + kChunk) + kQueries * kChunk * sizeof(float) + 2 * kChunk * dim +
           5 * 64;
  }

  void load_query(int i, const char* row, int head) {
    const float* query = reinterpret_cast<const float*>(row) + head * dim_;
    query_[i] = halve(query, dim_, queries_ + 2 * i * dim_, dim_);
  }

  void foresee(const Source& source, int begin, int end) { upcoming_.find(pages_, source, begin, end); }

  void run(const Sight& sight, const Source& source, int chunk, const State& out) {
    const int start = chunk * kChunk;
    const int low = std::max(sight.low - start, 0), high = std::min(sight.high - start, kChunk);
    const int first = low / kLanes, last = (high + kLanes - 1) / kLanes;
    for (int b = first; b < last; ++b) {
      locate(source, b, start + b * kLanes, sight.high);
      store(value_scales_ + b * kLanes, keep(load(value_scales_ + b * kLanes), low - b * kLanes, high - b * kLanes, 0.0f));
    }
    for (int i = 0; i < sight.count; i += kPairs) {
      with_rows<kPairs>(std::min(kPairs, sight.count - i), [&]<int MP>() { score<MP>(sight, start, i, first, last); });
    }
    for (int i = 0; i < sight.count; ++i) soften(i, first, last, out);
    for (int i = 0; i < sight.count; i += kPairs) {
      with_rows<kPairs>(std::min(kPairs, sight.count - i), [&]<int MP>() { weigh<MP>(i, first, last, out); });
    }
  }

 private:
  // A vector as whole numbers of 15 bits: each is step * (128 * upper + lower).
  struct Halves {
    float step;
    int32_t upper_start, lower_start;  // what takes back the 128 that codes in pages are shifted by
  };

  static Halves halve(const float* x, int64_t count, int8_t* upper, int64_t stride) {
    F most = zero(), uppers = zero(), lowers = zero();
    for (int64_t i = 0; i < count; i += kLanes) most = max(most, abs(load(x + i)));
    const float step = largest(most) / kMost;
    const F inverse = splat(step > 0.0f ? 1.0f / step : 0.0f);
    for (int64_t i = 0; i < count; i += kLanes) {
      const F whole = nearest(max(min(load(x + i) * inverse, splat(kMost)), splat(-kMost)));
      const F high = nearest(whole * splat(1.0f / kUpper)), low = whole - high * splat(kUpper);
      store_i8(upper + i, high);
      store_i8(upper + stride + i, low);
      uppers = uppers + high;
      lowers = lowers + low;
    }
    return {step, -128 * static_cast<int32_t>(sum(uppers)), -128 * static_cast<int32_t>(sum(lowers))};
  }

  // Finds block b of the chunk, whose first token is `token`; gathers it when pages hold it in pieces.
  void locate(const Source& source, int b, int token, int end) {
    if (pages_.block == kLanes) {
      const int64_t page = source.table[token / pages_.page_size], offset = token % pages_.page_size;
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

  template <int MR, int NB, class Fetch>
  [[gnu::always_inline]] static void multiply(I (&acc)[MR][NB], const int8_t* a, int64_t row_stride,
                                              const uint8_t* const (&b)[NB], int64_t step_stride, int64_t steps,
                                              Fetch ahead) {
    for (int64_t s = 0; s < steps; ++s) {
      ahead.fetch(s);
      MulQ8::Line line[NB];
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) line[j] = MulQ8::line(b[j] + s * step_stride);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) {
        const MulQ8::Broadcast x = MulQ8::broadcast(a + m * row_stride + s * kPack);
#pragma GCC unroll 16
        for (int j = 0; j < NB; ++j) acc[m][j] = MulQ8::dot(acc[m][j], x, line[j]);
      }
    }
  }

  template <int MP, int NB>
  [[gnu::always_inline]] static void start(I (&acc)[2 * MP][NB], const Halves* halves) {
    for (int m = 0; m < MP; ++m) {
      for (int j = 0; j < NB; ++j) {
        acc[2 * m][j] = MulQ8::start(halves[m].upper_start);
        acc[2 * m + 1][j] = MulQ8::start(halves[m].lower_start);
      }
    }
  }

  static F join(const I& upper, const I& lower) {
    return fma(MulQ8::to_float(upper), splat(kUpper), MulQ8::to_float(lower));
  }

  // Scores of MP queries with blocks [first, last); kNever for keys a query does not see.
  template <int MP>
  void score(const Sight& sight, int start, int query, int first, int last) {
    int b = first;
    for (; b + kHeadVectors <= last; b += kHeadVectors) score_tile<MP, kHeadVectors>(sight, start, query, b);
    for (; b < last; ++b) score_tile<MP, 1>(sight, start, query, b);
  }

  template <int MP, int NB>
  void score_tile(const Sight& sight, int start_token, int query, int block) {
    const uint8_t* lines[NB];
    for (int j = 0; j < NB; ++j) lines[j] = keys_[block + j];
    I acc[2 * MP][NB];
    start<MP, NB>(acc, query_ + query);
    const auto run = [&](auto ahead) {
      multiply(acc, queries_ + 2 * query * dim_, dim_, lines, kLanes * kPack, dim_ / kPack, ahead);
    };
    if (query == 0 && upcoming_) {
      run(upcoming_.keys<NB>(block));
    } else {
      run(Ahead<0>{});
    }
    for (int m = 0; m < MP; ++m) {
      for (int j = 0; j < NB; ++j) {
        const int inside = (block + j) * kLanes, token = start_token + inside;
        const F scale = load(key_scales_ + inside) * splat(query_[query + m].step);
        const F score = join(acc[2 * m][j], acc[2 * m + 1][j]) * scale;
        store(scores_ + (query + m) * kChunk + inside,
              keep(score, sight.lows[query + m] - token, sight.highs[query + m] - token, kNever));
      }
    }
  }

  // Softmax numerators of one query, times the scales of the values they will weigh.
  void soften(int query, int first, int last, const State& out) {
    float* scores = scores_ + query * kChunk;
    F most = splat(kNever);
    for (int b = first; b < last; ++b) most = max(most, load(scores + b * kLanes));
    const float top = largest(most);
    const F base = splat(top == kNever ? 0.0f : top);
    F total = zero();
    for (int b = first; b < last; ++b) {
      const F p = exp2(load(scores + b * kLanes) - base);
      total = total + p;
      store(scores + b * kLanes, p * load(value_scales_ + b * kLanes));
    }
    out.most[query] = top;
    out.total[query] = sum(total);
    prob_[query] = halve(scores + first * kLanes, (last - first) * kLanes, probs_ + 2 * query * kChunk + first * kLanes, kChunk);
  }

  // Values weighted by the probabilities of MP queries.
  template <int MP>
  void weigh(int query, int first, int last, const State& out) {
    int64_t d = 0;
    for (; d + kHeadVectors * kLanes <= dim_; d += kHeadVectors * kLanes) {
      weigh_tile<MP, kHeadVectors>(query, d, first, last, out);
    }
    for (; d < dim_; d += kLanes) weigh_tile<MP, 1>(query, d, first, last, out);
  }

  template <int MP, int NB>
  void weigh_tile(int query, int64_t d, int first, int last, const State& out) {
    I acc[2 * MP][NB];
    start<MP, NB>(acc, prob_ + query);
    for (int b = first; b < last; ++b) {
      const uint8_t* lines[NB];
      for (int j = 0; j < NB; ++j) lines[j] = values_[b] + (d + j * kLanes) * kPack;
      const auto run = [&](auto ahead) {
        multiply(acc, probs_ + 2 * query * kChunk + b * kLanes, kChunk, lines, dim_ * kPack, kLanes / kPack, ahead);
      };
      if (query == 0 && upcoming_) {
        run(upcoming_.values<NB>(b, d, dim_));
      } else {
        run(Ahead<0>{});
      }
    }
    for (int m = 0; m < MP; ++m) {
      for (int j = 0; j < NB; ++j) {
        store(out.values + (query + m) * dim_ + d + j * kLanes,
              join(acc[2 * m][j], acc[2 * m + 1][j]) * splat(prob_[query + m].step));
      }
    }
  }

  const Pages<PageQ8> pages_;
  const int64_t dim_;
  int8_t *queries_, *probs_;  // [queries][2][..] upper and lower halves
  float* scores_;
  uint8_t *staged_keys_, *staged_values_;
  Upcoming<Pages<PageQ8>> upcoming_;
  Halves query_[kQueries], prob_[kQueries];
  const uint8_t *keys_[kBlocks], *values_[kBlocks];
  float key_scales_[kChunk], value_scales_[kChunk];
};

}  // namespace radish
