// What an operation sees of the running step.
#pragma once

#include <cstdint>
#include <vector>

#include "abi.h"
#include "attend_items.h"
#include "likeliest.h"
#include "memory.h"
#include "pool.h"
#include "shared.h"
#include "state.h"

namespace radish {

// Working memory of one thread.
struct Scratch {
  Memory norm;       // one row of float32
  Memory panel;      // of weights, unpacked
  Memory attention;  // Attention carves it up
};

struct Buffer {
  int64_t row_bytes;
  Memory memory;
};

// How far the threads are with the items of one attention.
struct Progress {
  Shared<int64_t> claimed{0}, done{0};
};

struct Context {
  const Geometry& geometry;
  const Step& step;
  Buffer* buffers;
  Scratch* scratches;  // of each thread
  const AttendItems& attention;
  const Memory& states;  // partial softmaxes of items that are split along keys
  const State& carried;  // states of [tokens][heads] between items
  Progress& progress;    // of the running attention
  Pool& pool;
  std::vector<Likeliest>* seen;  // of each thread, [samples] of the logits that it has seen
  int thread;

  int64_t rows(const Op& op) const { return op.rows == kAllTokens ? step.tokens : step.samples; }
  Scratch& scratch() const { return scratches[thread]; }
  Likeliest& likeliest(int64_t row) const { return seen[thread][row]; }

  // Calls task(context of a thread, range) until the ranges make up [0, count).
  template <class Task>
  void for_each(int64_t count, const Task& task) const {
    pool.for_each(count, [&](Range range, int on) {
      Context own = *this;
      own.thread = on;
      task(own, range);
    });
  }

  template <class T>
  T* row(int buffer, int64_t i) const {
    const Buffer& b = buffers[buffer];
    return reinterpret_cast<T*>(b.memory.data() + i * b.row_bytes);
  }
};

}  // namespace radish
