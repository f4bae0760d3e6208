// Partial softmaxes and how they are merged.
//
// The keys of a row are cut at fixed places, every 128 tokens of its sequence. Each chunk gives a partial
// softmax, and partials are merged in order of the chunks. What a query computes thus depends on its own
// context only, not on how queries share tiles, items and threads: alone, in a batch, in any prefill
// chunking and whether keys are read for one row or for many the bits are the same. (Online softmax:
// Milakov and Gimelshein 2018; splitting along keys: Dao et al., Flash-Decoding, 2023.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

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

  void clear(int count) const { std::fill(most, most + count, kNever); }

  // Takes query j of another state for query i of this one.
  void copy(int64_t i, const State& from, int64_t j, int64_t dim) const {
    most[i] = from.most[j];
    total[i] = from.total[j];
    std::memcpy(values + i * dim, from.values + j * dim, dim * sizeof(float));
  }

  // Adds a later chunk's partial for the first `count` queries.
  void merge(const State& part, int count, int64_t dim) const {
    for (int i = 0; i < count; ++i) {
      if (part.most[i] == kNever) continue;
      if (most[i] == kNever) {
        copy(i, part, i, dim);
        continue;
      }
      float* into = values + i * dim;
      const float* from = part.values + i * dim;
      const float highest = std::max(most[i], part.most[i]);
      const F old_scale = exp2(splat(most[i] - highest)), new_scale = exp2(splat(part.most[i] - highest));
      for (int64_t d = 0; d < dim; d += kLanes) {
        store(into + d, fma(load(from + d), new_scale, load(into + d) * old_scale));
      }
      float lanes[kLanes];
      store(lanes, fma(splat(part.total[i]), new_scale, splat(total[i]) * old_scale));
      total[i] = lanes[0];
      most[i] = highest;
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
