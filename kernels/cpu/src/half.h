// Conversions of single numbers in 16-bit formats.
#pragma once

#include <cstdint>
#include <cstring>

namespace radish {

inline float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float from_bf16(uint16_t half) { return from_bits(static_cast<uint32_t>(half) << 16); }

// Nearest even.
inline uint16_t to_bf16(float x) {
  const uint32_t bits = to_bits(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The least bfloat16 not below a positive x, so that x / scale never exceeds the code range.
inline uint16_t bf16_above(float x) { return static_cast<uint16_t>((to_bits(x) + 0xffff) >> 16); }

// IEEE 754 binary16.
inline float from_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return from_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent == 0) return from_bits(sign | to_bits(static_cast<float>(fraction) * 0x1p-24f));
  return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

// Nearest even; infinity from 65520 on.
inline uint16_t to_f16(float x) {
  const uint32_t bits = to_bits(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float size = from_bits(bits & 0x7fffffff);
  if (!(size < 65520.0f)) return sign | 0x7c00;
  if (size < 0x1p-14f) return sign | static_cast<uint16_t>(__builtin_nearbyintf(size * 0x1p24f));
  const uint32_t rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded >> 13) - (112 << 10));
}

}  // namespace radish
