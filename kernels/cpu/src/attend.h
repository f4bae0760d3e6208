// How threads share out the attention of a step. Neither way changes what a query computes.
#pragma once

#include "attention.h"

namespace radish {

// Whole items, taken by whichever thread is free: their lengths differ.
template <class Mul>
void attend_items(const Context& c, const Op& op, int thread) {
  Attention<Mul> attention(c, op, thread);
  const int64_t count = static_cast<int64_t>(c.items.size());
  for (int64_t i; (i = c.claimed->fetch_add(1, std::memory_order_relaxed)) < count;) {
    attention.open(c.items[i]);
    attention.clear();
    for (int chunk = attention.first_chunk(); chunk < attention.end_chunk(); ++chunk) {
      attention.run_chunk(chunk);
      attention.merge(attention.partial());
    }
    attention.write();
  }
}

// Too few items to occupy the threads: they share out chunks, and partials are merged afterwards.
template <class Mul>
void attend_chunks(const Context& c, const Op& op, int thread) {
  Attention<Mul> attention(c, op, thread);
  const int64_t count = static_cast<int64_t>(c.items.size()), chunks = c.split_chunks;
  const int64_t floats = State::floats(kQueries, c.geometry.head_dim);
  const auto state = [&](int64_t item, int64_t chunk) {
    return State::at(reinterpret_cast<float*>(c.states.data()) + (item * chunks + chunk) * floats, kQueries);
  };
  for (int64_t i; (i = c.claimed->fetch_add(1, std::memory_order_relaxed)) < count * chunks;) {
    attention.open(c.items[i / chunks]);
    const int chunk = static_cast<int>(i % chunks);
    if (chunk < attention.first_chunk() || chunk >= attention.end_chunk()) continue;
    attention.use_partial(state(i / chunks, chunk));
    attention.run_chunk(chunk);
  }
  c.pool.barrier();
  for (int64_t i = thread; i < count; i += c.threads) {
    attention.open(c.items[i]);
    attention.clear();
    for (int chunk = attention.first_chunk(); chunk < attention.end_chunk(); ++chunk) {
      attention.merge(state(i, chunk));
    }
    attention.write();
  }
}

template <class Mul>
void attend(const Context& c, const Op& op, int thread) {
  if (c.split_chunks > 0) {
    attend_chunks<Mul>(c, op, thread);
  } else {
    attend_items<Mul>(c, op, thread);
  }
}

}  // namespace radish
