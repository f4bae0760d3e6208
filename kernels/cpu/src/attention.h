// Causal attention over pages, for decode rows and prefill chunks alike.
//
// The keys of a row are cut at fixed places, every 128 tokens of its sequence. Each chunk gives a partial
// softmax (maximum m, sum l, weighted values), and partials are merged in order of the chunks. What a
// query computes thus depends on its own context only, not on how queries share tiles, items and threads:
// alone, in a batch or in any prefill chunking the bits are the same. (Online softmax: Milakov and
// Gimelshein 2018; splitting along keys: Dao et al., Flash-Decoding, 2023.)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "abi.h"
#include "context.h"
#include "linear.h"
#include "vec.h"

namespace radish {

constexpr int kChunk = 128;    // tokens
constexpr int kQueries = 48;   // query vectors of an item at most
constexpr float kNever = -std::numeric_limits<float>::infinity();

// A partial softmax of some queries.
struct State {
  float* most;    // [queries] largest score, log2 units; kNever: no key seen
  float* total;   // [queries] sum of 2^(score - most)
  float* values;  // [queries][head_dim] values weighted by 2^(score - most)

  static int64_t floats(int64_t queries, int64_t head_dim) { return queries * (head_dim + 2); }
  static State at(float* memory, int64_t queries) {
    return {memory, memory + queries, memory + 2 * queries};
  }
};

// Consecutive value lines that one loop of products runs over.
template <class Mul>
struct Segment {
  const typename Mul::T* values;
  int token;  // its first, from the start of the chunk
  int steps;
};

template <class Mul>
class Attention {
  using T = typename Mul::T;
  static constexpr int kPack = Mul::kPack;
  static constexpr int kBlocks = kChunk / kLanes;

 public:
  Attention(const Context& c, const Op& op, int thread)
      : c_(c), op_(op), pages_(c.geometry), dim_(c.geometry.head_dim) {
    Carver carve{c.scratch(thread).attention.data()};
    queries_ = carve.template take<T>(kQueries * dim_);
    probs_ = carve.template take<T>(kQueries * kChunk);
    scores_ = carve.template take<float>(kQueries * kChunk);
    partial_ = State::at(carve.template take<float>(State::floats(kQueries, dim_)), kQueries);
    merged_ = State::at(carve.template take<float>(State::floats(kQueries, dim_)), kQueries);
    staged_keys_ = carve.template take<T>(kChunk * dim_);
    staged_values_ = carve.template take<T>(kChunk * dim_);
    edges_ = carve.template take<T>(2 * kBlocks * dim_ * kPack);
  }

  static int64_t scratch_bytes(int64_t dim) {
    const int64_t elements = kQueries * dim + kQueries * kChunk + 2 * kChunk * dim + 2 * kBlocks * dim * kPack;
    const int64_t floats = kQueries * kChunk + 2 * State::floats(kQueries, dim);
    return elements * sizeof(T) + floats * sizeof(float) + 8 * 64;
  }

  int first_chunk() const { return low_ / kChunk; }
  int end_chunk() const { return (high_ + kChunk - 1) / kChunk; }
  const State& partial() const { return partial_; }
  void use_partial(const State& state) { partial_ = state; }

  void open(const AttendItem& item) {
    const Geometry& g = c_.geometry;
    const int group = g.heads / g.kv_heads;
    const int begin = c_.step.query_starts[item.row], length = c_.step.query_starts[item.row + 1] - begin;
    const int before = c_.step.context_lens[item.row] - length;
    item_ = item;
    count_ = item.last - item.first;
    low_ = std::numeric_limits<int>::max();
    high_ = 0;
    for (int i = 0; i < count_; ++i) {
      const int token = (item.first + i) / group, head = item.kv_head * group + (item.first + i) % group;
      highs_[i] = before + token + 1;
      lows_[i] = op_.window > 0 ? std::max(0, highs_[i] - op_.window) : 0;
      low_ = std::min(low_, lows_[i]);
      high_ = std::max(high_, highs_[i]);
      std::memcpy(queries_ + i * dim_, c_.row<T>(op_.src, begin + token) + head * dim_, dim_ * sizeof(T));
    }
  }

  // The partial softmax over one chunk, in partial().
  void run_chunk(int chunk) {
    const int start = chunk * kChunk;
    const int low = std::max(low_ - start, 0), high = std::min(high_ - start, kChunk);
    const int first = low / kLanes, last = (high + kLanes - 1) / kLanes;
    for (int b = first; b < last; ++b) locate(b, start + b * kLanes);
    score(start, first, last);
    for (int i = 0; i < count_; ++i) soften(i, first, last);
    cut(low, high);
    for (int i = 0; i < count_; i += kHeadRows) {
      with_rows<kHeadRows>(std::min(kHeadRows, count_ - i), [&]<int MR>() { weigh<MR>(i); });
    }
  }

  void clear() { std::fill(merged_.most, merged_.most + count_, kNever); }

  // Adds a later chunk's partial to the merged state.
  void merge(const State& part) {
    for (int i = 0; i < count_; ++i) {
      if (part.most[i] == kNever) continue;
      float* into = merged_.values + i * dim_;
      const float* from = part.values + i * dim_;
      if (merged_.most[i] == kNever) {
        std::memcpy(into, from, dim_ * sizeof(float));
        merged_.most[i] = part.most[i];
        merged_.total[i] = part.total[i];
        continue;
      }
      const float most = std::max(merged_.most[i], part.most[i]);
      const F old_scale = exp2(splat(merged_.most[i] - most)), new_scale = exp2(splat(part.most[i] - most));
      for (int64_t d = 0; d < dim_; d += kLanes) {
        store(into + d, fma(load(from + d), new_scale, load(into + d) * old_scale));
      }
      float lanes[kLanes];
      store(lanes, fma(splat(part.total[i]), new_scale, splat(merged_.total[i]) * old_scale));
      merged_.total[i] = lanes[0];
      merged_.most[i] = most;
    }
  }

  void write() {
    const Geometry& g = c_.geometry;
    const int group = g.heads / g.kv_heads, begin = c_.step.query_starts[item_.row];
    for (int i = 0; i < count_; ++i) {
      const int token = (item_.first + i) / group, head = item_.kv_head * group + (item_.first + i) % group;
      char* out = c_.row<char>(op_.dst, begin + token);
      const F inverse = splat(1.0f / merged_.total[i]);
      for (int64_t d = 0; d < dim_; d += kLanes) {
        store_as(op_.dst_format, out, head * dim_ + d, load(merged_.values + i * dim_ + d) * inverse);
      }
    }
  }

 private:
  // Hands out aligned pieces of the thread's scratch.
  struct Carver {
    char* next;
    template <class U>
    U* take(int64_t count) {
      U* piece = reinterpret_cast<U*>(next);
      next += (count * sizeof(U) + 63) & ~int64_t{63};
      return piece;
    }
  };

  // Finds block b of the chunk, whose first token is `token`; gathers it when pages hold it in pieces.
  void locate(int b, int token) {
    const int32_t* table = c_.step.page_table + static_cast<int64_t>(item_.row) * c_.step.table_width;
    if (pages_.block == kLanes) {
      const int64_t page = table[token / pages_.page_size], inside = token % pages_.page_size * dim_;
      keys_[b] = pages_.keys(op_.layer, page, item_.kv_head) + inside;
      values_[b] = pages_.values(op_.layer, page, item_.kv_head) + inside;
      return;
    }
    T* keys = staged_keys_ + b * kLanes * dim_;
    T* values = staged_values_ + b * kLanes * dim_;
    keys_[b] = keys;
    values_[b] = values;
    for (int lane = 0; lane < kLanes && token + lane < high_; lane += pages_.block) {
      const int64_t page = table[(token + lane) / pages_.page_size];
      const int64_t inside = (token + lane) % pages_.page_size * dim_;
      gather(keys, values, lane, pages_.keys(op_.layer, page, item_.kv_head) + inside,
             pages_.values(op_.layer, page, item_.kv_head) + inside);
    }
  }

  void gather(T* keys, T* values, int lane, const T* page_keys, const T* page_values) const {
    const int64_t block = pages_.block;
    for (int64_t d = 0; d < dim_ / kPack; ++d) {
      std::memcpy(keys + (d * kLanes + lane) * kPack, page_keys + d * block * kPack, block * kPack * sizeof(T));
    }
    if (pages_.value_pack() == kPack) {
      std::memcpy(values + lane * dim_, page_values, block * dim_ * sizeof(T));
      return;
    }
    for (int64_t d = 0; d < dim_; ++d) {
      values[(lane / kPack * dim_ + d) * kPack + lane % kPack] = page_values[d];
    }
  }

  // Scores of all queries with blocks [first, last); kNever for keys a query does not see.
  void score(int start, int first, int last) {
    for (int i = 0; i < count_; i += kHeadRows) {
      with_rows<kHeadRows>(std::min(kHeadRows, count_ - i), [&]<int MR>() {
        int b = first;
        for (; b + kHeadVectors <= last; b += kHeadVectors) score_tile<MR, kHeadVectors>(start, i, b);
        for (; b < last; ++b) score_tile<MR, 1>(start, i, b);
      });
    }
  }

  template <int MR, int NB>
  void score_tile(int start, int query, int block) {
    const T* lines[NB];
    for (int j = 0; j < NB; ++j) lines[j] = keys_[block + j];
    F acc[MR][NB];
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) acc[m][j] = zero();
    }
    accumulate<Mul>(acc, queries_ + query * dim_, dim_, lines, kLanes * kPack, dim_ / kPack, Ahead<0>{});
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) {
        const int token = start + (block + j) * kLanes;
        const int low = lows_[query + m] - token, high = highs_[query + m] - token;
        float* out = scores_ + (query + m) * kChunk + (block + j) * kLanes;
        store(out, low <= 0 && high >= kLanes ? acc[m][j] : keep(acc[m][j], low, high, kNever));
      }
    }
  }

  // Softmax numerators of one query.
  void soften(int query, int first, int last) {
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
    partial_.most[query] = top;
    partial_.total[query] = sum(total);
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
  void weigh(int query) {
    int64_t d = 0;
    for (; d + kHeadVectors * kLanes <= dim_; d += kHeadVectors * kLanes) weigh_tile<MR, kHeadVectors>(query, d);
    for (; d < dim_; d += kLanes) weigh_tile<MR, 1>(query, d);
  }

  template <int MR, int NB>
  void weigh_tile(int query, int64_t d) {
    F acc[MR][NB];
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) acc[m][j] = zero();
    }
    for (int s = 0; s < segments_; ++s) {
      const T* lines[NB];
      for (int j = 0; j < NB; ++j) lines[j] = segment_[s].values + (d + j * kLanes) * kPack;
      accumulate<Mul>(acc, probs_ + query * kChunk + segment_[s].token, kChunk, lines, dim_ * kPack,
                      segment_[s].steps, Ahead<0>{});
    }
    for (int m = 0; m < MR; ++m) {
      for (int j = 0; j < NB; ++j) store(partial_.values + (query + m) * dim_ + d + j * kLanes, acc[m][j]);
    }
  }

  const Context& c_;
  const Op& op_;
  const Pages<Mul> pages_;
  const int64_t dim_;
  AttendItem item_{};
  int count_ = 0, low_ = 0, high_ = 0;  // of the item: queries, and the tokens any of them sees
  int lows_[kQueries], highs_[kQueries];
  T *queries_, *probs_, *staged_keys_, *staged_values_, *edges_;
  float* scores_;
  State partial_, merged_;
  const T *keys_[kBlocks], *values_[kBlocks];
  Segment<Mul> segment_[3 * kBlocks];
  int segments_ = 0;
};

}  // namespace radish
