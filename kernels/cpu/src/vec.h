// The vector type and products of the instruction set this library is built for, and what is the same on all.
#pragma once

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#include "vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "vec_avx2.h"
#else
#include "vec_portable.h"
#endif

namespace radish {

constexpr int kLanes = 16;

// 2^x. Exactly 0 below -126 (masked scores are -inf), saturating above 126. Relative error 2e-7:
// Taylor terms of 2^f on [-1/2, 1/2] to the seventh.
inline F exp2(F x) {
  const F bounded = max(min(x, splat(126.0f)), splat(-126.0f));
  const F whole = nearest(bounded);
  const F f = bounded - whole;
  F y = splat(1.5252734e-5f);
  y = fma(y, f, splat(1.5403530e-4f));
  y = fma(y, f, splat(1.3333558e-3f));
  y = fma(y, f, splat(9.6181291e-3f));
  y = fma(y, f, splat(5.5504109e-2f));
  y = fma(y, f, splat(2.4022651e-1f));
  y = fma(y, f, splat(6.9314718e-1f));
  y = fma(y, f, splat(1.0f));
  return zero_below(scale2(y, whole), x, -126.0f);
}

// The same to a relative 8e-5, for what is rounded to 8 bits afterwards: the best cubic for 2^f on [0, 1].
inline F exp2_rough(F x) {
  const F f = fraction(x);
  F y = splat(7.8024521e-2f);
  y = fma(y, f, splat(2.2606716e-1f));
  y = fma(y, f, splat(6.9583354e-1f));
  y = fma(y, f, splat(9.9992522e-1f));
  return scale2_floor(y, x);
}

inline F silu(F x) { return x / (splat(1.0f) + exp2(x * splat(-1.44269504f))); }

// Calls function.template operator()<MR>() for MR = rows, kLeast <= rows <= kMost.
template <int kMost, int kLeast = 1, class Function>
[[gnu::always_inline]] inline void with_rows(int rows, Function function) {
  if constexpr (kLeast == kMost) {
    function.template operator()<kLeast>();
  } else if (rows == kMost) {
    function.template operator()<kMost>();
  } else {
    with_rows<kMost - 1, kLeast>(rows, function);
  }
}

// acc[m][j] += sum over steps of a row m . line(j, step). Each accumulator adds its products in the order of
// the steps whatever MR and NB are: what makes a row's result independent of the rows beside it.
// ahead.fetch(step) fetches what is read later.
template <class Mul, class Sum, int MR, int NB, class A, class Line, class Fetch>
[[gnu::always_inline]] inline void accumulate(Sum (&acc)[MR][NB], const A* a, int64_t row_stride, int64_t steps,
                                              Line line, Fetch ahead) {
  for (int64_t s = 0; s < steps; ++s) {
    typename Mul::Line lines[NB];
    ahead.fetch(s);
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) lines[j] = Mul::line(line(j, s));
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      const typename Mul::Broadcast x = Mul::broadcast(a + m * row_stride + s * Mul::kPack);
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) acc[m][j] = Mul::dot(acc[m][j], x, lines[j]);
    }
  }
}

}  // namespace radish
