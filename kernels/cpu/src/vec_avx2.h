// Sixteen float lanes in two AVX2 registers; bf16 is widened to float32, int8 multiplied by maddubs.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace radish {

struct F {
  __m256 v[2];
};

constexpr int kFloatRows = 2;
constexpr int kBlockRows = 2;
constexpr int kHeadRows = 2;
constexpr int kHeadVectors = 2;

inline F zero() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
inline F splat(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
inline F load(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
inline void store(float* p, F x) {
  _mm256_storeu_ps(p, x.v[0]);
  _mm256_storeu_ps(p + 8, x.v[1]);
}
inline void store_first(float* p, F x, int n) {
  float lanes[16];
  store(lanes, x);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}
inline F operator+(F a, F b) { return {{_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1])}}; }
inline F operator-(F a, F b) { return {{_mm256_sub_ps(a.v[0], b.v[0]), _mm256_sub_ps(a.v[1], b.v[1])}}; }
inline F operator*(F a, F b) { return {{_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1])}}; }
inline F operator/(F a, F b) { return {{_mm256_div_ps(a.v[0], b.v[0]), _mm256_div_ps(a.v[1], b.v[1])}}; }
inline F fma(F a, F b, F c) {
  return {{_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1])}};
}
inline F max(F a, F b) { return {{_mm256_max_ps(a.v[0], b.v[0]), _mm256_max_ps(a.v[1], b.v[1])}}; }
inline F min(F a, F b) { return {{_mm256_min_ps(a.v[0], b.v[0]), _mm256_min_ps(a.v[1], b.v[1])}}; }
inline F abs(F a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {{_mm256_andnot_ps(sign, a.v[0]), _mm256_andnot_ps(sign, a.v[1])}};
}
inline float sum(F x) {
  const __m256 eight = _mm256_add_ps(x.v[0], x.v[1]);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float largest(F x) {
  const __m256 eight = _mm256_max_ps(x.v[0], x.v[1]);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// Puts the largest lane of each of four vectors into lanes [at, at + 4) of another.
inline void put_largest4(F& to, int at, const F (&x)[4]) {
  float lanes[16];
  store(lanes, to);
  for (int i = 0; i < 4; ++i) lanes[at + i] = largest(x[i]);
  to = load(lanes);
}

// Lanes [low, high) of x; `other` in the rest.
inline F keep(F x, int low, int high, float other) {
  const __m256i first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  F result;
  for (int i = 0; i < 2; ++i) {
    const __m256i lane = _mm256_add_epi32(first, _mm256_set1_epi32(8 * i));
    const __m256i inside = _mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(low - 1)),
                                            _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane));
    result.v[i] = _mm256_blendv_ps(_mm256_set1_ps(other), x.v[i], _mm256_castsi256_ps(inside));
  }
  return result;
}

// Lanes of x whose bit is set, lane 0 the lowest; `other` in the rest.
inline F keep_bits(F x, uint32_t bits, float other) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  for (int i = 0; i < 2; ++i) {
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits >> (8 * i))), lane);
    const __m256 chosen = _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane));
    x.v[i] = _mm256_blendv_ps(_mm256_set1_ps(other), x.v[i], chosen);
  }
  return x;
}

// 2^n for the whole number n in each lane (-126..127), times x.
inline F scale2(F x, F n) {
  for (int i = 0; i < 2; ++i) {
    const __m256i bits = _mm256_slli_epi32(
        _mm256_add_epi32(_mm256_cvtps_epi32(n.v[i]), _mm256_set1_epi32(127)), 23);
    x.v[i] = _mm256_mul_ps(x.v[i], _mm256_castsi256_ps(bits));
  }
  return x;
}
inline F nearest(F x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {{_mm256_round_ps(x.v[0], mode), _mm256_round_ps(x.v[1], mode)}};
}
// x times 2^n, n rounded down, from -126 (0 below) to 127; 0 when n is -infinity.
inline F scale2_floor(F x, F n) {
  for (int i = 0; i < 2; ++i) {
    const __m256 whole = _mm256_floor_ps(n.v[i]);
    const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23);
    const __m256 inside = _mm256_cmp_ps(whole, _mm256_set1_ps(-126.0f), _CMP_GE_OQ);
    x.v[i] = _mm256_and_ps(_mm256_mul_ps(x.v[i], _mm256_castsi256_ps(bits)), inside);
  }
  return x;
}
// x less the whole number below it; no number when x is -infinity.
inline F fraction(F x) {
  return {{_mm256_sub_ps(x.v[0], _mm256_floor_ps(x.v[0])), _mm256_sub_ps(x.v[1], _mm256_floor_ps(x.v[1]))}};
}
inline F zero_below(F x, F test, float bound) {
  for (int i = 0; i < 2; ++i) {
    x.v[i] = _mm256_and_ps(x.v[i], _mm256_cmp_ps(test.v[i], _mm256_set1_ps(bound), _CMP_GE_OQ));
  }
  return x;
}

inline __m256 widen_bf16(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline F load_bf16(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {{widen_bf16(_mm_loadu_si128(halves)), widen_bf16(_mm_loadu_si128(halves + 1))}};
}
inline F load_f16(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {{_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))}};
}
inline __m256i round_bf16(__m256 x) {  // nearest even, in the low half of each lane
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}
inline void store_bf16(uint16_t* p, F x) {
  const __m256i mixed = _mm256_packus_epi32(round_bf16(x.v[0]), round_bf16(x.v[1]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xd8));
}
inline void store_bf16(uint16_t* p, F x, F y) {
  store_bf16(p, x);
  store_bf16(p + 16, y);
}
// Lanes rounded to the nearest whole number (ties to even), which must fit int8.
inline void store_i8(int8_t* p, F x) {
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_packs_epi32(_mm256_cvtps_epi32(x.v[0]), _mm256_cvtps_epi32(x.v[1])), 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

// The same of lanes that are not negative, as at most 127.
inline void store_u8(uint8_t* p, F x) { store_i8(reinterpret_cast<int8_t*>(p), x); }

[[gnu::always_inline]] inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

// acc[lane] += a . b[lane] over one element (float32), two (bf16).
struct MulF32 {
  using T = float;
  using Line = F;
  using Broadcast = __m256;
  static constexpr int kPack = 1;
  static Line line(const T* p) { return load(p); }
  static Broadcast broadcast(const T* p) { return _mm256_set1_ps(*p); }
  static F dot(F acc, Broadcast a, const Line& b) {
    return {{_mm256_fmadd_ps(a, b.v[0], acc.v[0]), _mm256_fmadd_ps(a, b.v[1], acc.v[1])}};
  }
};

struct MulBF16 {
  using T = uint16_t;
  struct Line {
    __m256i v[2];
  };
  struct Broadcast {
    __m256 even, odd;
  };
  static constexpr int kPack = 2;
  static __m256 even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static __m256 odd(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static Line line(const T* p) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(p);
    return {{_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)}};
  }
  static Broadcast broadcast(const T* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    const __m256i pairs = _mm256_set1_epi32(pair);
    return {even(pairs), odd(pairs)};
  }
  static F dot(F acc, const Broadcast& a, const Line& b) {
    for (int i = 0; i < 2; ++i) {
      acc.v[i] = _mm256_fmadd_ps(a.odd, odd(b.v[i]), acc.v[i]);
      acc.v[i] = _mm256_fmadd_ps(a.even, even(b.v[i]), acc.v[i]);
    }
    return acc;
  }
};

// Four int8 products a lane and step. Weights are stored as w + 128 in uint8. maddubs would overflow
// on 255 * 127 * 2, so |w| (at most 127) is multiplied with the activation carrying w's sign.
struct I {
  __m256i v[2];
};

struct MulQ8 {
  struct Line {
    __m256i v[2];
  };
  using Broadcast = __m256i;
  static constexpr int kPack = 4;
  static Line line(const uint8_t* p) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(p);
    const __m256i bias = _mm256_set1_epi8(static_cast<char>(0x80));
    return {{_mm256_xor_si256(_mm256_loadu_si256(halves), bias),
             _mm256_xor_si256(_mm256_loadu_si256(halves + 1), bias)}};
  }
  static Broadcast broadcast(const int8_t* p) {
    int32_t quad;
    __builtin_memcpy(&quad, p, sizeof quad);
    return _mm256_set1_epi32(quad);
  }
  static I start(int32_t) { return {{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }
  static I dot(I acc, Broadcast a, const Line& b) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < 2; ++i) {
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(b.v[i]), _mm256_sign_epi8(a, b.v[i]));
      acc.v[i] = _mm256_add_epi32(acc.v[i], _mm256_madd_epi16(pairs, ones));
    }
    return acc;
  }
  static F to_float(const I& acc) { return {{_mm256_cvtepi32_ps(acc.v[0]), _mm256_cvtepi32_ps(acc.v[1])}}; }
};

// The same of numbers 0..127, and nothing has to be taken back.
struct MulWeights : MulQ8 {
  static constexpr float kMost = 127.0f;
  static Broadcast broadcast(const uint8_t* p) { return MulQ8::broadcast(reinterpret_cast<const int8_t*>(p)); }
};

// The same with codes 0..15, two to a byte: maddubs takes them as they are.
struct MulQ4 : MulQ8 {
  static Line low_line(const uint8_t* p) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(p);
    const __m256i mask = _mm256_set1_epi8(15);
    return {{_mm256_and_si256(_mm256_loadu_si256(halves), mask),
             _mm256_and_si256(_mm256_loadu_si256(halves + 1), mask)}};
  }
  static Line high_line(const uint8_t* p) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(p);
    const __m256i mask = _mm256_set1_epi8(15);
    return {{_mm256_and_si256(_mm256_srli_epi16(_mm256_loadu_si256(halves), 4), mask),
             _mm256_and_si256(_mm256_srli_epi16(_mm256_loadu_si256(halves + 1), 4), mask)}};
  }
  static I dot(I acc, Broadcast a, const Line& b) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < 2; ++i) {
      acc.v[i] = _mm256_add_epi32(acc.v[i], _mm256_madd_epi16(_mm256_maddubs_epi16(b.v[i], a), ones));
    }
    return acc;
  }
};

}  // namespace radish
