// Causal attention over pages: the queries of one item, chunk by chunk.
#pragma once

#include <limits>

#include "chunk.h"
#include "chunk_q8.h"
#include "context.h"
#include "minmax.h"
#include "rows.h"
#include "state.h"

namespace radish {

template <class Chunk>
class Attention {
 public:
  Attention(const Context& c, const Op& op)
      : c_(c),
        op_(op),
        dim_(c.geometry.head_dim),
        carve_{c.scratch().attention.data()},
        chunk_(c.geometry, carve_) {
    merged_ = State::at(carve_.template take<float>(State::floats(kQueries, dim_)), kQueries);
  }

  static int64_t scratch_bytes(int64_t dim) {
    return Chunk::scratch_bytes(dim) + State::floats(kQueries, dim) * sizeof(float) + 64;
  }

  int first_chunk() const { return max(sight_.low / kChunk, item_.begin); }
  int end_chunk() const { return min((sight_.high + kChunk - 1) / kChunk, item_.end); }

  void open(const AttendItem& item) {
    item_ = item;
    const Step& step = c_.step;
    const int group = c_.geometry.heads / c_.geometry.kv_heads;
    sight_ = {};
    sight_.count = item.last - item.first;
    sight_.low = std::numeric_limits<int>::max();
    const int32_t* row = c_.attention.order + item.rows_begin;
    source_ = {step.page_table + static_cast<int64_t>(*row) * step.table_width, op_.layer, item.kv_head};
    int at = item.first;
    for (int i = 0; i < sight_.count; ++i, ++at) {
      int length = step.query_starts[*row + 1] - step.query_starts[*row];
      for (; at >= length * group; length = step.query_starts[*row + 1] - step.query_starts[*row]) {
        at -= length * group;
        ++row;
      }
      const int token = at / group, head = item.kv_head * group + at % group;
      const int high = step.context_lens[*row] - length + token + 1;
      sight_.highs[i] = high;
      sight_.lows[i] = op_.window > 0 ? max(0, high - op_.window) : 0;
      sight_.low = min(sight_.low, sight_.lows[i]);
      sight_.high = max(sight_.high, high);
      tokens_[i] = step.query_starts[*row] + token;
      heads_[i] = head;
      chunk_.load_query(i, c_.row<char>(op_.src, tokens_[i]), head);
    }
  }

  // Says that a later chunk of the item, or else the first one of another item, comes next.
  void foresee(int chunk, const AttendItem* other) {
    if (chunk < end_chunk()) {
      chunk_.foresee(source_, chunk * kChunk, min((chunk + 1) * kChunk, sight_.high));
    } else if (other == nullptr) {
      chunk_.foresee(source_, 0, 0);
    } else {
      const Step& step = c_.step;
      const int32_t row = c_.attention.order[other->rows_begin];
      const int length = step.context_lens[row];
      const int seen = op_.window > 0 ? max(0, length - op_.window) : 0;
      const int begin = max(other->begin, seen / kChunk) * kChunk;
      chunk_.foresee({step.page_table + static_cast<int64_t>(row) * step.table_width, op_.layer, other->kv_head},
                     begin, min(begin + kChunk, length));
    }
  }

  // Adds a chunk to the item's softmax.
  void add_chunk(int chunk) { chunk_.run(sight_, source_, chunk, merged_); }

  // The softmax over one chunk alone.
  void run_chunk(int chunk, const State& partial) {
    partial.clear(sight_.count, dim_);
    chunk_.run(sight_, source_, chunk, partial);
  }

  // The state that earlier items left, or none yet.
  void begin() {
    if (item_.begin == 0) return merged_.clear(sight_.count, dim_);
    for (int i = 0; i < sight_.count; ++i) merged_.copy(i, c_.carried, carried(i), dim_);
  }

  void merge(const State& part) { merged_.merge(part, sight_.count, dim_); }

  // Leaves the state for later items, or writes the result.
  void end() {
    if (!item_.leaves) return write();
    for (int i = 0; i < sight_.count; ++i) c_.carried.copy(carried(i), merged_, i, dim_);
  }

 private:
  int64_t carried(int i) const { return static_cast<int64_t>(tokens_[i]) * c_.geometry.heads + heads_[i]; }

  void write() {
    for (int i = 0; i < sight_.count; ++i) {
      char* out = c_.row<char>(op_.dst, tokens_[i]);
      const F inverse = splat(1.0f / sum(load(merged_.total + i * kLanes)));
      for (int64_t d = 0; d < dim_; d += kLanes) {
        store_as(op_.dst_format, out, heads_[i] * dim_ + d, load(merged_.values + i * dim_ + d) * inverse);
      }
    }
  }

  const Context& c_;
  const Op& op_;
  const int64_t dim_;
  Carver carve_;
  Chunk chunk_;
  AttendItem item_{};
  Source source_{};
  Sight sight_{};
  int tokens_[kQueries], heads_[kQueries];
  State merged_;
};

}  // namespace radish
