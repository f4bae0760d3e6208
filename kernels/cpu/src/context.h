// What an operation sees of the running step.
#pragma once

#include <cstdint>

#include "abi.h"
#include "attend_items.h"
#include "barrier.h"
#include "likeliest.h"
#include "memory.h"
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
  Progress* progress;    // of the running attention
  Barrier& barrier;
  int threads;
  Likeliest* likeliest;  // [samples] of the logits this thread has seen

  int64_t rows(const Op& op) const { return op.rows == kAllTokens ? step.tokens : step.samples; }
  Scratch& scratch(int thread) const { return scratches[thread]; }

  template <class T>
  T* row(int buffer, int64_t i) const {
    const Buffer& b = buffers[buffer];
    return reinterpret_cast<T*>(b.memory.data() + i * b.row_bytes);
  }
};

}  // namespace radish
