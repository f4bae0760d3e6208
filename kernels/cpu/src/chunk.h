// The partial softmax of some queries over one chunk of keys, for pages of floats.
#pragma once

#include <cstring>

#include "abi.h"
#include "pages.h"
#include "rows.h"
#include "shared.h"
#include "state.h"
#include "vec.h"

namespace radish {

// The queries that read keys together: tokens [lows, highs) of its sequence each of them sees.
struct Sight {
  int count;
  int low, high;  // what any of them sees
  int lows[kQueries], highs[kQueries];
};

// Which keys: of a KV head, in the pages of a row.
struct Source {
  const int32_t* table;
  int layer, kv_head;
};

// What is read next, fetched line by line while products run that read lines of the same shape.
template <int NB>
struct AheadOf {
  const char* next[NB];
  int64_t stride;
  [[gnu::always_inline]] void fetch(int64_t step) const {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) prefetch(next[j] + step * stride);
  }
};

// The blocks of the chunk after this one. A page ends where the processor's own prefetching stops.
template <class Pages>
class Upcoming {
  using T = typename Pages::T;
  static constexpr int64_t kLine = kLanes * Pages::kPack * sizeof(T);

 public:
  // Tokens [begin, end) of a chunk. Blocks that pages hold in pieces are not fetched.
  void find(const Pages& pages, const Source& source, int begin, int end) {
    known_ = pages.block == kLanes && begin < end;
    const int page_size = static_cast<int>(pages.page_size);
    for (int b = 0; known_ && b < kChunk / kLanes; ++b) {
      const int token = min(begin / kChunk * kChunk + b * kLanes, end - 1);
      const int64_t page = source.table[token / page_size];
      const int block = token % page_size / kLanes * kLanes;
      keys_[b] = reinterpret_cast<const char*>(pages.keys(source.layer, page, source.kv_head) + block * pages.head_dim);
      values_[b] =
          reinterpret_cast<const char*>(pages.values(source.layer, page, source.kv_head) + block * pages.head_dim);
      if constexpr (Pages::kPack == 4) {
        const uint16_t* scales = pages.scales(source.layer, page, source.kv_head) + block;
        prefetch(scales);
        prefetch(scales + page_size);
      }
    }
  }

  // Where a tile that reads `lines` is to fetch: the same lines when it need not.
  template <int NB>
  AheadOf<NB> keys(bool wanted, int block, const T* const (&lines)[NB]) const {
    AheadOf<NB> ahead{{}, kLine};
    for (int j = 0; j < NB; ++j) {
      ahead.next[j] = reinterpret_cast<const char*>(lines[j]);
      if (wanted && known_) ahead.next[j] = keys_[block + j];
    }
    return ahead;
  }
  template <int NB>
  AheadOf<NB> values(bool wanted, int block, int64_t d, int64_t dim, const T* const (&lines)[NB]) const {
    AheadOf<NB> ahead{{}, dim / kLanes * kLine};
    for (int j = 0; j < NB; ++j) {
      ahead.next[j] = reinterpret_cast<const char*>(lines[j]);
      if (wanted && known_) ahead.next[j] = values_[block] + (d / kLanes + j) * kLine;
    }
    return ahead;
  }

 private:
  bool known_ = false;
  const char *keys_[kChunk / kLanes], *values_[kChunk / kLanes];
};

template <int MR, int NB>
[[gnu::always_inline]] inline void clear(F (&acc)[MR][NB]) {
  for (int m = 0; m < MR; ++m) {
    for (int j = 0; j < NB; ++j) acc[m][j] = zero();
  }
}

// Hides the scores of a query with keys outside [low, high) of a chunk, in blocks [first, last).
inline void hide(float* scores, int low, int high, int first, int last) {
  if (low <= first * kLanes && high >= last * kLanes) return;
  for (int b = first; b < last; ++b) {
    float* block = scores + b * kLanes;
    store(block, keep(load(block), low - b * kLanes, high - b * kLanes, kNever));
  }
}

// The largest score of each of MR queries, in blocks [first, last).
template <int MR>
inline void find_largest(const float* scores, int first, int last, float (&most)[kLanes]) {
  F lanes[(MR + 3) / 4 * 4];
  for (int m = 0; m < MR; ++m) {
    lanes[m] = load(scores + m * kChunk + first * kLanes);
    for (int b = first + 1; b < last; ++b) lanes[m] = max(lanes[m], load(scores + m * kChunk + b * kLanes));
  }
  for (int m = MR; m < (MR + 3) / 4 * 4; ++m) lanes[m] = lanes[0];
  for (int m = 0; m < MR; m += 4) largest4({lanes[m], lanes[m + 1], lanes[m + 2], lanes[m + 3]}, most + m);
}

// The whole number next to it.
template <int MR>
inline void find_most(const float* scores, int first, int last, float (&most)[kLanes]) {
  find_largest<MR>(scores, first, last, most);
  store(most, nearest(load(most)));
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
    int b = first;
    for (; b + kHeadVectors <= last; b += kHeadVectors) score_tile<MR, kHeadVectors>(query, b);
    for (; b + 2 <= last; b += 2) score_tile<MR, 2>(query, b);
    for (; b < last; ++b) score_tile<MR, 1>(query, b);
    for (int m = 0; m < MR; ++m) {
      hide(scores_ + m * kChunk, sight.lows[query + m] - start, sight.highs[query + m] - start, even(first),
           even(last + kPack - 1));
    }
  }

  template <int MR, int NB>
  void score_tile(int query, int block) {
    const T* lines[NB];
    for (int j = 0; j < NB; ++j) lines[j] = keys_[block + j];
    F acc[MR][NB];
    clear(acc);
    accumulate<Mul>(acc, queries_ + query * dim_, dim_, lines, kLanes * kPack, dim_ / kPack,
                    upcoming_.template keys<NB>(query == 0, block, lines));
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) store(scores_ + m * kChunk + (block + j) * kLanes, acc[m][j]);
    }
  }

  // Sums take what fills a line together: two blocks of bfloat16, from an even one on whatever queries see.
  static int even(int block) { return block / kPack * kPack; }

  // Softmax numerators of MR queries.
  template <int MR>
  Scales<MR> soften(int query, int first, int last, const State& state) {
    float most[kLanes] = {};
    find_most<MR>(scores_, first, last, most);
    Scales<MR> scales;
    scales.raise(state.most + query, most);
    T one[kPack];
    for (T& element : one) element = kPack == 1 ? T(1) : T(0x3f80);
    const typename Mul::Broadcast ones = Mul::broadcast(one);
    for (int m = 0; m < MR; ++m) {
      const float* scores = scores_ + m * kChunk;
      T* probs = probs_ + m * kChunk;
      const F base = splat(max(most[m], kLeast));
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
    int s = 0;
    do {  // there is at least one
      const T* lines[NB];
      for (int j = 0; j < NB; ++j) lines[j] = segment_[s].values + (d + j * kLanes) * kPack;
      accumulate<Mul>(acc, probs_ + segment_[s].token, kChunk, lines, dim_ * kPack, segment_[s].steps,
                      upcoming_.template values<NB>(query == 0, segment_[s].token / kLanes, d, dim_, lines));
    } while (++s < segments_);
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) scales.add(m, state.values + (query + m) * dim_ + d + j * kLanes, acc[m][j]);
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
