// What an operation sees of the running step.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "abi.h"
#include "memory.h"
#include "pages.h"
#include "pool.h"

namespace radish {

// One piece of attention: queries [first, last) of a row and KV head, counted token by token and, within
// a token, head by head of the group.
struct AttendItem {
  int32_t row, kv_head, first, last;
};

// Working memory of one thread.
struct Scratch {
  std::vector<float> norm;  // one row
  Memory attention;         // Attention carves it up
};

struct Buffer {
  int64_t row_bytes;
  Memory memory;
};

struct Context {
  const Geometry& geometry;
  const Step& step;
  std::vector<Buffer>& buffers;
  std::vector<Scratch>& scratches;
  const std::vector<AttendItem>& items;
  int64_t split_chunks;           // chunks of the longest row when items are split along keys, else 0
  const Memory& states;           // partial softmaxes of split items
  std::atomic<int64_t>* claimed;  // pieces of the running attention that threads took
  Pool& pool;
  int threads;

  int64_t rows(const Op& op) const { return op.rows == kAllTokens ? step.tokens : step.samples; }
  Scratch& scratch(int thread) const { return scratches[thread]; }

  template <class T>
  T* row(int buffer, int64_t i) const {
    Buffer& b = buffers[buffer];
    return reinterpret_cast<T*>(b.memory.data() + i * b.row_bytes);
  }
};

}  // namespace radish
