// Partial softmaxes and how they are merged.
//
// The keys of a row are cut at fixed places, every 128 tokens of its sequence. Each chunk gives a partial
// softmax, and partials are merged in order of the chunks. What a query computes thus depends on its own
// context only, not on how queries share tiles, items and threads: alone, in a batch, in any prefill
// chunking and whether keys are read for one row or for many the bits are the same. (Online softmax:
// Milakov and Gimelshein 2018; splitting along keys: Dao et al., Flash-Decoding, 2023.)
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "vec.h"

namespace radish {

constexpr int kChunk = 128;    // tokens
constexpr int kQueries = 48;   // query vectors of an item at most
constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kLeast = -1e30f;  // less than any score, but a number

// Powers of two that bring the sums of MR queries so far, and what is added, to the larger of their `most`.
template <int MR>
struct Scales {
  float before[kLanes], added[kLanes];

  // Raises most[MR] to those of a part. A whole vector of them is read.
  void raise(float* most, F other) {
    const F old = load(most), larger = max(old, other);
    const F base = max(larger, splat(kLeast));  // a number also when no key was seen
    store(before, exp2(old - base));
    store(added, exp2(other - base));
    store_first(most, larger, MR);
  }

  // Adds to sums of query m.
  [[gnu::always_inline]] void add(int m, float* sums, F part) const {
    store(sums, fma(part, splat(added[m]), load(sums) * splat(before[m])));
  }
};

// A softmax of some queries over the keys seen so far. Scores are in log2 units and numerators relative to a
// whole number, so that bringing two partials to the same one is exact, and sums stay apart by lane until
// the end.
struct State {
  float* most;    // [queries] the whole number next to the largest score; kNever: no key seen
  float* total;   // [queries][kLanes] sums of 2^(score - most)
  float* values;  // [queries][head_dim] values weighted by 2^(score - most)

  static int64_t floats(int64_t queries, int64_t head_dim) { return queries * (head_dim + kLanes + 1); }
  static State at(float* memory, int64_t queries) {
    return {memory, memory + queries, memory + queries * (kLanes + 1)};
  }

  void clear(int count, int64_t dim) const {
    for (int i = 0; i < count; ++i) most[i] = kNever;
    std::memset(total, 0, count * kLanes * sizeof(float));
    std::memset(values, 0, count * dim * sizeof(float));
  }

  // Takes query j of another state for query i of this one.
  void copy(int64_t i, const State& from, int64_t j, int64_t dim) const {
    most[i] = from.most[j];
    std::memcpy(total + i * kLanes, from.total + j * kLanes, kLanes * sizeof(float));
    std::memcpy(values + i * dim, from.values + j * dim, dim * sizeof(float));
  }

  // Adds a later partial for the first `count` queries.
  void merge(const State& part, int count, int64_t dim) const {
    for (int i = 0; i < count; ++i) {
      Scales<1> scales;
      scales.raise(most + i, load(part.most + i));
      scales.add(0, total + i * kLanes, load(part.total + i * kLanes));
      for (int64_t d = 0; d < dim; d += kLanes) scales.add(0, values + i * dim + d, load(part.values + i * dim + d));
    }
  }
};

// Hands out aligned pieces of a thread's scratch.
struct Carver {
  char* next;
  template <class T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(next);
    next += (count * sizeof(T) + 63) & ~int64_t{63};
    return piece;
  }
};

}  // namespace radish
