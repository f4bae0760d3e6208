// How threads share out the attention of a step. No way changes what a query computes.
#include "amx_chunk.h"
#include "attention.h"
#include "operations.h"
#include "rows.h"
#include "wait.h"

namespace radish {

namespace {

// Whole items, taken by whichever thread is free: their lengths differ.
template <class Chunk>
void attend_some(const Context& c, const Op& op) {
  Attention<Chunk> attention(c, op);
  const AttendItem* items = c.attention.items;
  const int64_t count = c.attention.count;
  // An item is claimed while the one before it runs, so that its first keys can be fetched. Items are done
  // in order, so whoever waits for earlier ones waits for threads that do not.
  const auto claim = [&] { return c.progress.claimed.add(1); };
  for (int64_t i = claim(), next = claim(); i < count; i = next, next = claim()) {
    attention.open(items[i]);
    wait_until([&] { return c.progress.done.load() >= items[i].after; });
    attention.begin();
    for (int chunk = attention.first_chunk(); chunk < attention.end_chunk(); ++chunk) {
      attention.foresee(chunk + 1, next < count ? &items[next] : nullptr);
      attention.add_chunk(chunk);
    }
    attention.end();
    c.progress.done.add(1);
  }
}

template <class Chunk>
void attend_items(const Context& c, const Op& op) {
  c.progress.claimed.store(0);
  c.progress.done.store(0);
  c.for_each(c.pool.threads(), [&](const Context& own, Range) { attend_some<Chunk>(own, op); });
}

// Too few items to occupy the threads: they share out chunks, and partials are merged afterwards.
template <class Chunk>
void attend_chunks(const Context& c, const Op& op) {
  const AttendItem* items = c.attention.items;
  const int64_t count = c.attention.count, chunks = c.attention.split_chunks;
  const int64_t floats = State::floats(kQueries, c.geometry.head_dim);
  const auto state = [&](int64_t item, int64_t chunk) {
    return State::at(reinterpret_cast<float*>(c.states.data()) + (item * chunks + chunk) * floats, kQueries);
  };
  c.for_each(count * chunks, [&](const Context& own, Range range) {
    Attention<Chunk> attention(own, op);
    for (int64_t i = range.begin; i < range.end; ++i) {
      attention.open(items[i / chunks]);
      const int chunk = static_cast<int>(i % chunks);
      if (chunk < attention.first_chunk() || chunk >= attention.end_chunk()) continue;
      attention.run_chunk(chunk, state(i / chunks, chunk));
    }
  });
  c.for_each(count, [&](const Context& own, Range range) {
    Attention<Chunk> attention(own, op);
    for (int64_t i = range.begin; i < range.end; ++i) {
      attention.open(items[i]);
      attention.begin();
      for (int chunk = attention.first_chunk(); chunk < attention.end_chunk(); ++chunk) {
        attention.merge(state(i, chunk));
      }
      attention.end();
    }
  });
}

template <class Chunk>
void attend(const Context& c, const Op& op) {
  if (c.attention.split_chunks > 0) {
    attend_chunks<Chunk>(c, op);
  } else {
    attend_items<Chunk>(c, op);
  }
}

// What multiplies, and what attends to, pages of a format.
template <Format format>
struct PagesOf;
template <>
struct PagesOf<kF32> {
  using Mul = MulF32;
  using Chunk = radish::Chunk<MulF32>;
};
template <>
struct PagesOf<kBF16> {
  using Mul = MulBF16;
#if RADISH_AMX
  using Chunk = AmxChunk;
#else
  using Chunk = radish::Chunk<MulBF16>;
#endif
};
template <>
struct PagesOf<kQ8> {
  using Mul = PageQ8;
  using Chunk = ChunkQ8;
};

}  // namespace

template <Format format>
int64_t attention_scratch_bytes(const Geometry& geometry) {
  return Attention<typename PagesOf<format>::Chunk>::scratch_bytes(geometry.head_dim);
}

template <Format format>
void rotate(const Context& c, const Op& op) {
  c.for_each(c.step.tokens, [&](const Context& own, Range tokens) {
    rotate<typename PagesOf<format>::Mul>(own, op, tokens);
  });
}

template <Format format>
void attend(const Context& c, const Op& op) {
  attend<typename PagesOf<format>::Chunk>(c, op);
}

template int64_t attention_scratch_bytes<RADISH_FORMAT>(const Geometry&);
template void rotate<RADISH_FORMAT>(const Context&, const Op&);
template void attend<RADISH_FORMAT>(const Context&, const Op&);

}  // namespace radish
