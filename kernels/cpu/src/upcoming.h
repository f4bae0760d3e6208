// The keys and values that are read next, fetched while the chunk before is computed.
#pragma once

#include <cstdint>

#include "minmax.h"
#include "pages.h"
#include "state.h"
#include "vec.h"

namespace radish {

// Which keys: of a KV head, in the pages of a row.
struct Source {
  const int32_t* table;
  int layer, kv_head;
};

// What is read next, fetched line by line while products run that read lines of the same shape: of keys, lines of
// several blocks...
template <int NB>
struct AheadOfKeys {
  const char* next[NB];
  int64_t stride;
  [[gnu::always_inline]] void fetch(int64_t step) const {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) prefetch(next[j] + step * stride);
  }
};

// ...and of values, neighbours.
template <int NB>
struct AheadOfValues {
  const char* next;
  int64_t stride;
  [[gnu::always_inline]] void fetch(int64_t step) const {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) prefetch(next + step * stride + j * 64);
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

  // Shares out the blocks among queries of which `together` compute at a time, so that memory is read all along.
  void share_out(int queries, int together) {
    const int parts = (queries + together - 1) / together;
    for (int b = 0; b < kChunk / kLanes; ++b) turn_[b] = b % parts * together;
  }

  // Where a tile of queries from `query` on, which reads `lines`, is to fetch: the same lines when it is not its turn.
  template <int NB>
  AheadOfKeys<NB> keys(int query, int block, const T* const (&lines)[NB]) const {
    AheadOfKeys<NB> ahead{{}, kLine};
    for (int j = 0; j < NB; ++j) {
      ahead.next[j] = reinterpret_cast<const char*>(lines[j]);
      if (is_turn(query, block + j)) ahead.next[j] = keys_[block + j];
    }
    return ahead;
  }
  template <int NB>
  AheadOfValues<NB> values(int query, int block, int64_t d, int64_t dim, const T* line) const {
    const char* now = reinterpret_cast<const char*>(line);
    return {is_turn(query, block) ? values_[block] + d / kLanes * kLine : now, dim / kLanes * kLine};
  }

 private:
  bool is_turn(int query, int block) const { return known_ && query == turn_[block]; }

  bool known_ = false;
  int turn_[kChunk / kLanes];
  const char *keys_[kChunk / kLanes], *values_[kChunk / kLanes];
};

}  // namespace radish
