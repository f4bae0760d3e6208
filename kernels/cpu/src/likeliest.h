// The likeliest token of a row, found while its logits are in registers.
#pragma once

#include <cstdint>
#include <limits>

#include "vec.h"

namespace radish {

// Of the logits one thread has seen.
class Likeliest {
 public:
  // Takes logits from `column` on, of which those before `columns` are a token's.
  template <int NB>
  void see(const F (&logits)[NB], int64_t column, int64_t columns) {
    const F one = splat(1.0f);
    F x[NB], most = splat(kImpossible), numbers = one;
    for (int j = 0; j < NB; ++j) {
      const int64_t left = columns - column - j * kLanes;
      x[j] = left >= kLanes ? logits[j] : keep(logits[j], 0, left > 0 ? static_cast<int>(left) : 0, kImpossible);
      numbers = numbers * zero_below(one, x[j], kImpossible);  // 0 in a lane that met a NaN
      most = max(most, x[j]);
    }
    has_nan_ |= sum(numbers) != kLanes;
    if (const float top = largest(most); top >= top_) find(x, top, column);
  }

  // Takes what another thread has seen.
  void join(const Likeliest& other) {
    has_nan_ |= other.has_nan_;
    take(other.top_, other.id_);
  }

  // The first of equals; -1 if the largest logit is not finite, or any is NaN.
  int64_t id() const { return has_nan_ || top_ == -kImpossible ? -1 : id_; }

 private:
  static constexpr float kImpossible = -std::numeric_limits<float>::infinity();

  void take(float top, int64_t id) {
    if (top > top_ || (top == top_ && id < id_)) {
      top_ = top;
      id_ = id;
    }
  }

  template <int NB>
  void find(const F (&x)[NB], float top, int64_t column) {
    for (int j = 0; j < NB; ++j) {
      float lanes[kLanes];
      store(lanes, x[j]);
      for (int lane = 0; lane < kLanes; ++lane) {
        if (lanes[lane] == top) return take(top, column + j * kLanes + lane);
      }
    }
  }

  float top_ = kImpossible;
  int64_t id_ = -1;
  bool has_nan_ = false;
};

}  // namespace radish
