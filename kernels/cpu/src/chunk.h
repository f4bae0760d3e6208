// The partial softmax of some queries over one chunk of keys, for pages of floats.
#pragma once

#include <algorithm>
#include <cstring>

#include "abi.h"
#include "pages.h"
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
  explicit operator bool() const { return known_; }

  // Tokens [begin, end) of a chunk. Blocks that pages hold in pieces are not fetched.
  void find(const Pages& pages, const Source& source, int begin, int end) {
    known_ = pages.block == kLanes && begin < end;
    for (int b = 0; known_ && b < kChunk / kLanes; ++b) {
      const int token = std::min(begin / kChunk * kChunk + b * kLanes, end - 1);
      const int64_t page = source.table[token / pages.page_size];
      const int64_t inside = token % pages.page_size / kLanes * kLanes * pages.head_dim;
      keys_[b] = reinterpret_cast<const char*>(pages.keys(source.layer, page, source.kv_head) + inside);
      values_[b] = reinterpret_cast<const char*>(pages.values(source.layer, page, source.kv_head) + inside);
    }
  }

  template <int NB>
  AheadOf<NB> keys(int block) const {
    AheadOf<NB> ahead{{}, kLine};
    for (int j = 0; j < NB; ++j) ahead.next[j] = keys_[block + j];
    return ahead;
  }
  template <int NB>
  AheadOf<NB> values(int block, int64_t d, int64_t dim) const {
    AheadOf<NB> ahead{{}, dim / kLanes * kLine};
    for (int j = 0; j < NB; ++j) ahead.next[j] = values_[block] + (d / kLanes + j) * kLine;
    return ahead;
  }

 private:
  bool known_ = false;
  const char *keys_[kChunk / kLanes], *values_[kChunk / kLanes];
};

template <class Mul>
class Chunk {
  using T = typename Mul::T;
  static constexpr int kPack = Mul::kPack;
  static constexpr int kBlocks = kChunk / kLanes;

 public:
  Chunk(const Geometry& g, Carver& carve) : pages_(g), dim_(g.head_dim) {
    queries_ = carve.template take<T>(kQueries * dim_);
    probs_ = carve.template take<T>(kQueries * kChunk);
    scores_ = carve.template take<float>(kQueries * kChunk);
    staged_keys_ = carve.template take<T>(kChunk * dim_);
    staged_values_ = carve.template take<T>(kChunk * dim_);
    edges_ = carve.template take<T>(2 * kBlocks * dim_ * kPack);
  }

  static int64_t scratch_bytes(int64_t dim) {
    const int64_t elements = kQueries * dim + kQueries * kChunk + 2 * kChunk * dim + 2 * kBlocks * dim * kPack;
    return elements * sizeof(T) + kQueries * kChunk * sizeof(float) + 6 * 64;
  }

  // Takes a head's query from a row of the queries' buffer.
  void load_query(int i, const char* row, int head) {
    std::memcpy(queries_ + i * dim_, reinterpret_cast<const T*>(row) + head * dim_, dim_ * sizeof(T));
  }

  // Says what the next run will read, at most: tokens [begin, end) of one chunk.
  void foresee(const Source& source, int begin, int end) { upcoming_.find(pages_, source, begin, end); }

  void run(const Sight& sight, const Source& source, int chunk, const State& out) {
    const int start = chunk * kChunk;
    const int low = std::max(sight.low - start, 0), high = std::min(sight.high - start, kChunk);
    const int first = low / kLanes, last = (high + kLanes - 1) / kLanes;
    for (int b = first; b < last; ++b) locate(source, b, start + b * kLanes, sight.high);
    score(sight, start, first, last);
    for (int i = 0; i < sight.count; ++i) soften(i, first, last, out);
    cut(low, high);
    for (int i = 0; i < sight.count; i += kHeadRows) {
      with_rows<kHeadRows>(std::min(kHeadRows, sight.count - i), [&]<int MR>() { weigh<MR>(i, out); });
    }
  }

 private:
  // Consecutive value lines that one loop of products runs over.
  struct Segment {
    const T* values;
    int token;  // its first, from the start of the chunk
    int steps;
  };

  // Finds block b of the chunk, whose first token is `token`; gathers it when pages hold it in pieces.
  void locate(const Source& source, int b, int token, int end) {
    if (pages_.block == kLanes) {
      const int64_t page = source.table[token / pages_.page_size], inside = token % pages_.page_size * dim_;
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

  // Scores of all queries with blocks [first, last); kNever for keys a query does not see.
  void score(const Sight& sight, int start, int first, int last) {
    for (int i = 0; i < sight.count; i += kHeadRows) {
      with_rows<kHeadRows>(std::min(kHeadRows, sight.count - i), [&]<int MR>() {
        int b = first;
        for (; b + kHeadVectors <= last; b += kHeadVectors) score_tile<MR, kHeadVectors>(sight, start, i, b);
        for (; b < last; ++b) score_tile<MR, 1>(sight, start, i, b);
      });
    }
  }

  template <int MR, int NB>
  void score_tile(const Sight& sight, int start, int query, int block) {
    const T* lines[NB];
    for (int j = 0; j < NB; ++j) lines[j] = keys_[block + j];
    F acc[MR][NB];
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) acc[m][j] = zero();
    }
    const auto multiply = [&](auto ahead) {
      accumulate<Mul>(acc, queries_ + query * dim_, dim_, lines, kLanes * kPack, dim_ / kPack, ahead);
    };
    if (query == 0 && upcoming_) {
      multiply(upcoming_.template keys<NB>(block));
    } else {
      multiply(Ahead<0>{});
    }
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) {
        const int token = start + (block + j) * kLanes;
        const int low = sight.lows[query + m] - token, high = sight.highs[query + m] - token;
        float* out = scores_ + (query + m) * kChunk + (block + j) * kLanes;
        store(out, low <= 0 && high >= kLanes ? acc[m][j] : keep(acc[m][j], low, high, kNever));
      }
    }
  }

  // Softmax numerators of one query.
  void soften(int query, int first, int last, const State& out) {
    const float* scores = scores_ + query * kChunk;
    T* probs = probs_ + query * kChunk;
    F most = splat(kNever);
    for (int b = first; b < last; ++b) most = max(most, load(scores + b * kLanes));
    const float top = largest(most);
    const F base = splat(top == kNever ? 0.0f : top);
    F total = zero();
    for (int b = first; b < last; ++b) {
      const F p = exp2(load(scores + b * kLanes) - base);
      total = total + p;
      store_as<Mul>(probs + b * kLanes, p);
    }
    out.most[query] = top;
    out.total[query] = sum(total);
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
      int from = std::max(low, b * kLanes), to = std::min(high, (b + 1) * kLanes);
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
  void weigh(int query, const State& out) {
    int64_t d = 0;
    for (; d + kHeadVectors * kLanes <= dim_; d += kHeadVectors * kLanes) weigh_tile<MR, kHeadVectors>(query, d, out);
    for (; d < dim_; d += kLanes) weigh_tile<MR, 1>(query, d, out);
  }

  template <int MR, int NB>
  void weigh_tile(int query, int64_t d, const State& out) {
    F acc[MR][NB];
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) acc[m][j] = zero();
    }
    for (int s = 0; s < segments_; ++s) {
      const T* lines[NB];
      for (int j = 0; j < NB; ++j) lines[j] = segment_[s].values + (d + j * kLanes) * kPack;
      const auto multiply = [&](auto ahead) {
        accumulate<Mul>(acc, probs_ + query * kChunk + segment_[s].token, kChunk, lines, dim_ * kPack,
                        segment_[s].steps, ahead);
      };
      if (query == 0 && upcoming_) {
        multiply(upcoming_.template values<NB>(segment_[s].token / kLanes, d, dim_));
      } else {
        multiply(Ahead<0>{});
      }
    }
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) store(out.values + (query + m) * dim_ + d + j * kLanes, acc[m][j]);
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
