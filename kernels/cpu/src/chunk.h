// The partial softmax of some queries over one chunk of keys, for pages of floats.
#pragma once

#include <cstring>

#include "abi.h"
#include "minmax.h"
#include "pages.h"
#include "rows.h"
#include "state.h"
#include "upcoming.h"
#include "vec.h"

namespace radish {

// The queries that read keys together: tokens [lows, highs) of its sequence each of them sees.
struct Sight {
  int count;
  int low, high;  // what any of them sees
  int lows[kQueries], highs[kQueries];
};

template <int MR, int NB>
[[gnu::always_inline]] inline void clear(F (&acc)[MR][NB]) {
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) acc[m][j] = zero();
  }
}

// Calls run.template operator()<NB>(block) for blocks [first, last), NB of them from `block` on.
template <class Run>
[[gnu::always_inline]] inline void for_blocks(int first, int last, Run run) {
  int b = first;
  for (; b + kHeadVectors <= last; b += kHeadVectors) run.template operator()<kHeadVectors>(b);
  for (; b + 2 <= last; b += 2) run.template operator()<2>(b);
  for (; b < last; ++b) run.template operator()<1>(b);
}

// Hides the scores of `rows` queries with keys they do not see, in blocks [first, last) of the chunk from `start` on.
inline void hide(float* scores, const Sight& sight, int start, int query, int rows, int first, int last) {
  for (int m = 0; m < rows; ++m, scores += kChunk) {
    const int low = sight.lows[query + m] - start, high = sight.highs[query + m] - start;
    if (low <= first * kLanes && high >= last * kLanes) continue;
    for (int b = first; b < last; ++b) {
      float* block = scores + b * kLanes;
      store(block, keep(load(block), low - b * kLanes, high - b * kLanes, kNever));
    }
  }
}

// The largest score of each of MR queries, in blocks [first, last), in a lane each.
template <int MR>
inline F find_largest(const float* scores, int first, int last) {
  F lanes[(MR + 3) / 4 * 4];
  for (int m = 0; m < MR; ++m) {
    lanes[m] = load(scores + m * kChunk + first * kLanes);
    for (int b = first + 1; b < last; ++b) lanes[m] = max(lanes[m], load(scores + m * kChunk + b * kLanes));
  }
  for (int m = MR; m < (MR + 3) / 4 * 4; ++m) lanes[m] = lanes[0];
  F most = zero();
  for (int m = 0; m < MR; m += 4) put_largest4(most, m, {lanes[m], lanes[m + 1], lanes[m + 2], lanes[m + 3]});
  return most;
}

// `kRows` queries are scored and weigh values together.
template <class Mul, int kRows = kHeadRows>
class Chunk {
 protected:
  using T = typename Mul::T;
  static constexpr int kPack = Mul::kPack;
  static constexpr int kBlocks = kChunk / kLanes;

 public:
  Chunk(const Geometry& g, Carver& carve) : pages_(g), dim_(g.head_dim) {
    queries_ = carve.template take<T>(kQueries * dim_);
    probs_ = carve.template take<T>(kRows * kChunk);
    scores_ = carve.template take<float>(kRows * kChunk);
    staged_keys_ = carve.template take<T>(kChunk * dim_);
    staged_values_ = carve.template take<T>(kChunk * dim_);
    edges_ = carve.template take<T>(2 * kBlocks * dim_ * kPack);
  }

  static int64_t scratch_bytes(int64_t dim) {
    const int64_t elements = kQueries * dim + kRows * kChunk + 2 * kChunk * dim + 2 * kBlocks * dim * kPack;
    return elements * sizeof(T) + kRows * kChunk * sizeof(float) + 6 * 64;
  }

  // Takes a head's query from a row of the queries' buffer.
  void load_query(int i, const char* row, int head) {
    std::memcpy(queries_ + i * dim_, reinterpret_cast<const T*>(row) + head * dim_, dim_ * sizeof(T));
  }

  // Says what the next run will read, at most: tokens [begin, end) of one chunk.
  void foresee(const Source& source, int begin, int end) { upcoming_.find(pages_, source, begin, end); }

  // Adds a chunk to the softmax of all queries. A few of them at a time, so that scores stay in registers and L1.
  void run(const Sight& sight, const Source& source, int chunk, const State& state) {
    const int start = chunk * kChunk;
    const int low = max(sight.low - start, 0), high = min(sight.high - start, kChunk);
    const int first = low / kLanes, last = (high + kLanes - 1) / kLanes;
    for (int b = first; b < last; ++b) locate(source, b, start + b * kLanes, sight.high);
    cut(low, high);
    upcoming_.share_out(sight.count, kRows);
    for (int i = 0; i < sight.count; i += kRows) {
      with_rows<kRows>(min(kRows, sight.count - i), [&]<int MR>() {
        score<MR>(sight, start, i, first, last);
        const Scales<MR> scales = soften<MR>(i, even(first), even(last + kPack - 1), state);
        weigh<MR>(i, scales, state);
      });
    }
  }

 protected:
  // Consecutive value lines that one loop of products runs over.
  struct Segment {
    const T* values;
    int token;  // its first, from the start of the chunk
    int steps;
  };

  // Finds block b of the chunk, whose first token is `token`; gathers it when pages hold it in pieces.
  void locate(const Source& source, int b, int token, int end) {
    if (pages_.block == kLanes) {
      const int page_size = static_cast<int>(pages_.page_size);
      const int64_t page = source.table[token / page_size], inside = token % page_size * dim_;
      keys_[b] = pages_.keys(source.layer, page, source.kv_head) + inside;
      values_[b] = pages_.values(source.layer, page, source.kv_head) + inside;
      return;
    }
    T* keys = staged_keys_ + b * kLanes * dim_;
    T* values = staged_values_ + b * kLanes * dim_;
    keys_[b] = keys;
    values_[b] = values;
    for (int lane = 0; lane < kLanes && token + lane < end; lane += pages_.block) {
      const int64_t page = source.table[(token + lane) / pages_.page_size];
      pages_.gather(source.layer, page, source.kv_head, (token + lane) % pages_.page_size, lane, keys, values);
    }
  }

  // Scores of MR queries with blocks [first, last); kNever for keys a query does not see.
  template <int MR>
  void score(const Sight& sight, int start, int query, int first, int last) {
    for_blocks(first, last, [&]<int NB>(int block) { score_tile<MR, NB>(query, block); });
    hide(scores_, sight, start, query, MR, even(first), even(last + kPack - 1));
  }

  template <int MR, int NB>
  void score_tile(int query, int block) {
    const T* lines[NB];
    for (int j = 0; j < NB; ++j) lines[j] = keys_[block + j];
    F acc[MR][NB];
    clear(acc);
    accumulate<Mul>(
        acc, queries_ + query * dim_, dim_, dim_ / kPack,
        [&](int j, int64_t step) { return lines[j] + step * kLanes * kPack; },
        upcoming_.template keys<NB>(query, block, lines));
    float* scores = scores_ + block * kLanes;
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) store(scores + m * kChunk + j * kLanes, acc[m][j]);
    }
  }

  // Sums take what fills a line together: two blocks of bfloat16, from an even one on whatever queries see.
  static int even(int block) { return block / kPack * kPack; }

  // Softmax numerators of MR queries.
  template <int MR>
  Scales<MR> soften(int query, int first, int last, const State& state) {
    const F most = nearest(find_largest<MR>(scores_, first, last));
    Scales<MR> scales;
    scales.raise(state.most + query, most);
    float bases[kLanes];
    store(bases, max(most, splat(kLeast)));
    T one[kPack];
    for (T& element : one) element = kPack == 1 ? T(1) : T(0x3f80);
    const typename Mul::Broadcast ones = Mul::broadcast(one);
    for (int m = 0; m < MR; ++m) {
      const float* scores = scores_ + m * kChunk;
      T* probs = probs_ + m * kChunk;
      const F base = splat(bases[m]);
      F total = zero();
      for (int b = first; b < last; b += kPack) {
        T* p = probs + b * kLanes;
        const F x = load(scores + b * kLanes) - base;
        if constexpr (kPack == 1) {
          store(p, exp2(x));
        } else {
          store_bf16(p, exp2_rough(x), exp2_rough(load(scores + (b + 1) * kLanes) - base));
        }
        total = Mul::dot(total, ones, Mul::line(p));  // as rounded: what values are weighted by
      }
      scales.add(m, state.total + (query + m) * kLanes, total);
    }
    return scales;
  }

  // Cuts tokens [low, high) of the chunk into segments. A pair of which one token is outside is copied
  // with that token's values zeroed: its probability is 0, but what lies there may be no number at all.
  void cut(int low, int high) {
    segments_ = 0;
    T* edge = edges_;
    const auto add_pair = [&](int b, int pair, bool keep_first, bool keep_second) {
      const T* source = values_[b] + pair % (kLanes / kPack) * dim_ * kPack;
      for (int64_t d = 0; d < dim_ && kPack == 2; ++d) {
        edge[2 * d] = keep_first ? source[2 * d] : T{};
        edge[2 * d + 1] = keep_second ? source[2 * d + 1] : T{};
      }
      segment_[segments_++] = {edge, pair * kPack, 1};
      edge += dim_ * kPack;
    };
    for (int b = low / kLanes; b * kLanes < high; ++b) {
      int from = max(low, b * kLanes), to = min(high, (b + 1) * kLanes);
      if (from % kPack != 0) {
        add_pair(b, from / kPack, false, true);
        ++from;
      }
      const bool odd_end = to > from && to % kPack != 0;
      if (odd_end) --to;
      if (to > from) {
        segment_[segments_++] = {values_[b] + (from - b * kLanes) * dim_, from, (to - from) / kPack};
      }
      if (odd_end) add_pair(b, to / kPack, true, false);
    }
  }

  // Values weighted by the probabilities of MR queries.
  template <int MR>
  void weigh(int query, const Scales<MR>& scales, const State& state) {
    int64_t d = 0;
    for (; d + kHeadVectors * kLanes <= dim_; d += kHeadVectors * kLanes) {
      weigh_tile<MR, kHeadVectors>(query, d, scales, state);
    }
    for (; d < dim_; d += kLanes) weigh_tile<MR, 1>(query, d, scales, state);
  }

  template <int MR, int NB>
  void weigh_tile(int query, int64_t d, const Scales<MR>& scales, const State& state) {
    F acc[MR][NB];
    clear(acc);
    const int64_t dim = dim_;
    for (int s = 0; s < segments_; ++s) {
      const T* values = segment_[s].values + d * kPack;
      accumulate<Mul>(
          acc, probs_ + segment_[s].token, kChunk, segment_[s].steps,
          [&](int j, int64_t step) { return values + (step * dim + j * kLanes) * kPack; },
          upcoming_.template values<NB>(query, segment_[s].token / kLanes, d, dim, values));
    }
    float* sums = state.values + query * dim + d;
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) scales.add(m, sums + m * dim + j * kLanes, acc[m][j]);
    }
  }

  const Pages<Mul> pages_;
  const int64_t dim_;
  T *queries_, *probs_, *staged_keys_, *staged_values_, *edges_;
  float* scores_;
  const T *keys_[kBlocks], *values_[kBlocks];
  Upcoming<Pages<Mul>> upcoming_;
  Segment segment_[3 * kBlocks];
  int segments_ = 0;
};

}  // namespace radish
