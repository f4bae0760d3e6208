// Sixteen float lanes in one AVX-512 register; bf16 dot products by AVX512-BF16, int8 by VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace radish {

struct F {
  __m512 v;
};

// Rows of a tile of a matrix product at most: what two vectors of sums a row leave registers for.
constexpr int kFloatRows = 12;
constexpr int kBlockRows = 6;  // of weights in blocks, which accumulate twice

// The same of a tile of attention: few queries share a key.
constexpr int kHeadRows = 6;
constexpr int kHeadVectors = 4;

inline F zero() { return {_mm512_setzero_ps()}; }
inline F splat(float x) { return {_mm512_set1_ps(x)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
inline void store_first(float* p, F x, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), x.v);
}
inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F abs(F a) { return {_mm512_abs_ps(a.v)}; }
inline float sum(F x) { return _mm512_reduce_add_ps(x.v); }
inline float largest(F x) { return _mm512_reduce_max_ps(x.v); }

// Puts the largest lane of each of four vectors into lanes [at, at + 4) of another; `at` is a multiple of 4.
inline void put_largest4(F& to, int at, const F (&x)[4]) {
  const __m512 low01 = _mm512_unpacklo_ps(x[0].v, x[1].v), high01 = _mm512_unpackhi_ps(x[0].v, x[1].v);
  const __m512 low23 = _mm512_unpacklo_ps(x[2].v, x[3].v), high23 = _mm512_unpackhi_ps(x[2].v, x[3].v);
  const __m512d pairs01 = _mm512_castps_pd(_mm512_max_ps(low01, high01));
  const __m512d pairs23 = _mm512_castps_pd(_mm512_max_ps(low23, high23));
  const __m512 fours = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(pairs01, pairs23)),
                                     _mm512_castpd_ps(_mm512_unpackhi_pd(pairs01, pairs23)));
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(fours), _mm512_extractf32x8_ps(fours, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  to.v = _mm512_mask_broadcast_f32x4(to.v, static_cast<__mmask16>(15 << at), four);
}

// Lanes [low, high) of x; `other` in the rest.
inline F keep(F x, int low, int high, float other) {
  const uint32_t below_high = high >= 16 ? 0xffffu : high <= 0 ? 0u : (1u << high) - 1;
  const uint32_t below_low = low >= 16 ? 0xffffu : low <= 0 ? 0u : (1u << low) - 1;
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(below_high & ~below_low), _mm512_set1_ps(other), x.v)};
}

// Lanes of x whose bit is set, lane 0 the lowest; `other` in the rest.
inline F keep_bits(F x, uint32_t bits, float other) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(bits), _mm512_set1_ps(other), x.v)};
}

// 2^n for the whole number n in each lane, times x.
inline F scale2(F x, F n) { return {_mm512_scalef_ps(x.v, n.v)}; }
// The same for any n, rounded down; 0 when n is -infinity.
inline F scale2_floor(F x, F n) { return {_mm512_scalef_ps(x.v, n.v)}; }
// x less the whole number below it; 0 when x is -infinity.
inline F fraction(F x) { return {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
inline F nearest(F x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F zero_below(F x, F test, float bound) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test.v, _mm512_set1_ps(bound), _CMP_GE_OQ), x.v)};
}

inline F load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
inline F load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_bf16(uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v)));
}
inline void store_bf16(uint16_t* p, F x, F y) {
  _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y.v, x.v)));
}
// Lanes rounded to the nearest whole number (ties to even), which must fit int8.
inline void store_i8(int8_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

// The same of lanes that are not negative, as at most 255.
inline void store_u8(uint8_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

[[gnu::always_inline]] inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

// acc[lane] += a . b[lane] over one element (float32), two (bf16).
struct MulF32 {
  using T = float;
  using Line = __m512;
  using Broadcast = __m512;
  static constexpr int kPack = 1;
  static Line line(const T* p) { return _mm512_loadu_ps(p); }
  static Broadcast broadcast(const T* p) { return _mm512_set1_ps(*p); }
  static F dot(F acc, Broadcast a, Line b) { return {_mm512_fmadd_ps(a, b, acc.v)}; }
};

struct MulBF16 {
  using T = uint16_t;
  using Line = __m512bh;
  using Broadcast = __m512bh;
  static constexpr int kPack = 2;
  static Line line(const T* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
  static Broadcast broadcast(const T* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
  }
  static F dot(F acc, Broadcast a, Line b) { return {_mm512_dpbf16_ps(acc.v, a, b)}; }
};

// Four int8 products a lane and step. Weights are stored as w + 128 in uint8 (what VNNI multiplies
// with int8); the accumulator starts from the activations' correction, -128 * their sum.
struct I {
  __m512i v;
};

struct MulQ8 {
  using Line = __m512i;
  using Broadcast = __m512i;
  static constexpr int kPack = 4;
  static Line line(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static Broadcast broadcast(const int8_t* p) {
    int32_t quad;
    __builtin_memcpy(&quad, p, sizeof quad);
    return _mm512_set1_epi32(quad);
  }
  static I start(int32_t correction) { return {_mm512_set1_epi32(correction)}; }
  static I dot(I acc, Broadcast a, Line b) {
    // The intrinsic costs two register moves a product in loops that GCC 12 does not unroll.
    asm("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(b), "v"(a));
    return acc;
  }
  static F to_float(I acc) { return {_mm512_cvtepi32_ps(acc.v)}; }
};

// The same of numbers 0..255, taken as uint8, while codes become int8: nothing has to be taken back.
struct MulWeights {
  using Line = __m512i;
  using Broadcast = __m512i;
  static constexpr int kPack = 4;
  static constexpr float kMost = 255.0f;
  static Line line(const uint8_t* p) { return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128)); }
  static Broadcast broadcast(const uint8_t* p) { return MulQ8::broadcast(reinterpret_cast<const int8_t*>(p)); }
  static I dot(I acc, Broadcast a, Line b) {
    asm("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(a), "v"(b));
    return acc;
  }
};

// The same with codes 0..15, two to a byte, which need no correction.
struct MulQ4 : MulQ8 {
  static Line low_line(const uint8_t* p) { return _mm512_and_si512(line(p), _mm512_set1_epi8(15)); }
  static Line high_line(const uint8_t* p) {
    return _mm512_and_si512(_mm512_srli_epi16(line(p), 4), _mm512_set1_epi8(15));
  }
  static I start(int32_t) { return {_mm512_setzero_si512()}; }
};

}  // namespace radish
