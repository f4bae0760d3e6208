// Sixteen float lanes as a plain array, for any processor: the compiler makes of it what it can.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"

namespace radish {

struct F {
  float v[16];
};

constexpr int kFloatRows = 1;
constexpr int kBlockRows = 1;
constexpr int kHeadRows = 1;
constexpr int kHeadVectors = 2;

template <class Function>
inline F each(Function function) {
  F result;
  for (int i = 0; i < 16; ++i) result.v[i] = function(i);
  return result;
}

inline F splat(float x) {
  return each([&](int) { return x; });
}
inline F zero() { return splat(0.0f); }
inline F load(const float* p) {
  return each([&](int i) { return p[i]; });
}
inline void store(float* p, const F& x) { std::memcpy(p, x.v, sizeof x.v); }
inline void store_first(float* p, const F& x, int n) { std::memcpy(p, x.v, n * sizeof(float)); }
inline F operator+(const F& a, const F& b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline F operator-(const F& a, const F& b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline F operator*(const F& a, const F& b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline F operator/(const F& a, const F& b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
inline F fma(const F& a, const F& b, const F& c) {
  return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline F max(const F& a, const F& b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F min(const F& a, const F& b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F abs(const F& a) {
  return each([&](int i) { return std::fabs(a.v[i]); });
}
inline float sum(const F& x) {
  float total = 0.0f;
  for (int i = 0; i < 16; ++i) total += x.v[i];
  return total;
}
inline float largest(const F& x) {
  float result = x.v[0];
  for (int i = 1; i < 16; ++i) result = x.v[i] > result ? x.v[i] : result;
  return result;
}

// Puts the largest lane of each of four vectors into lanes [at, at + 4) of another.
inline void put_largest4(F& to, int at, const F (&x)[4]) {
  float lanes[16];
  store(lanes, to);
  for (int i = 0; i < 4; ++i) lanes[at + i] = largest(x[i]);
  to = load(lanes);
}

// Lanes [low, high) of x; `other` in the rest.
inline F keep(const F& x, int low, int high, float other) {
  return each([&](int i) { return i >= low && i < high ? x.v[i] : other; });
}

// Lanes of x whose bit is set, lane 0 the lowest; `other` in the rest.
inline F keep_bits(const F& x, uint32_t bits, float other) {
  return each([&](int i) { return bits >> i & 1 ? x.v[i] : other; });
}

// 2^n for the whole number n in each lane (-126..127), times x.
inline F scale2(const F& x, const F& n) {
  return each([&](int i) {
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return x.v[i] * power;
  });
}
inline F nearest(const F& x) {
  return each([&](int i) { return std::nearbyint(x.v[i]); });
}
// x times 2^n, n rounded down, from -126 (0 below) to 127; 0 when n is -infinity.
inline F scale2_floor(const F& x, const F& n) {
  return each([&](int i) {
    const float whole = std::floor(n.v[i]);
    return whole >= -126.0f ? std::ldexp(x.v[i], static_cast<int>(whole)) : 0.0f;
  });
}
// x less the whole number below it; no number when x is -infinity.
inline F fraction(const F& x) {
  return each([&](int i) { return x.v[i] - std::floor(x.v[i]); });
}
inline F zero_below(const F& x, const F& test, float bound) {
  return each([&](int i) { return test.v[i] >= bound ? x.v[i] : 0.0f; });
}

inline F load_bf16(const uint16_t* p) {
  return each([&](int i) { return from_bf16(p[i]); });
}
inline F load_f16(const uint16_t* p) {
  return each([&](int i) { return from_f16(p[i]); });
}
inline void store_bf16(uint16_t* p, const F& x) {
  for (int i = 0; i < 16; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &x.v[i], sizeof bits);
    p[i] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // nearest even
  }
}
inline void store_bf16(uint16_t* p, const F& x, const F& y) {
  store_bf16(p, x);
  store_bf16(p + 16, y);
}
// Lanes rounded to the nearest whole number (ties to even), which must fit int8.
inline void store_i8(int8_t* p, const F& x) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(std::nearbyint(x.v[i]));
}

// The same of lanes that are not negative, as at most 255.
inline void store_u8(uint8_t* p, const F& x) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(std::nearbyint(std::fmin(x.v[i], 255.0f)));
}

[[gnu::always_inline]] inline void prefetch(const void* p) { __builtin_prefetch(p); }

// acc[lane] += a . b[lane] over one element (float32), two (bf16).
struct MulF32 {
  using T = float;
  using Line = F;
  using Broadcast = float;
  static constexpr int kPack = 1;
  static Line line(const T* p) { return load(p); }
  static Broadcast broadcast(const T* p) { return *p; }
  static F dot(const F& acc, Broadcast a, const Line& b) {
    return each([&](int i) { return acc.v[i] + a * b.v[i]; });
  }
};

struct MulBF16 {
  using T = uint16_t;
  struct Line {
    uint32_t v[16];
  };
  struct Broadcast {
    float even, odd;
  };
  static constexpr int kPack = 2;
  static Line line(const T* p) {
    Line result;
    std::memcpy(result.v, p, sizeof result.v);
    return result;
  }
  static Broadcast broadcast(const T* p) { return {from_bf16(p[0]), from_bf16(p[1])}; }
  static F dot(const F& acc, const Broadcast& a, const Line& b) {
    return each([&](int i) {
      const uint32_t low = b.v[i] << 16, high = b.v[i] & 0xffff0000u;
      float even, odd;
      std::memcpy(&even, &low, sizeof even);
      std::memcpy(&odd, &high, sizeof odd);
      return acc.v[i] + a.odd * odd + a.even * even;
    });
  }
};

// Four int8 products a lane and step; weights are stored as w + 128 in uint8.
struct I {
  int32_t v[16];
};

struct MulQ8 {
  struct Line {
    uint8_t v[64];
  };
  using Broadcast = const int8_t*;
  static constexpr int kPack = 4;
  static Line line(const uint8_t* p) {
    Line result;
    std::memcpy(result.v, p, sizeof result.v);
    return result;
  }
  static Broadcast broadcast(const int8_t* p) { return p; }
  static I start(int32_t correction) {
    I result;
    for (int i = 0; i < 16; ++i) result.v[i] = correction;
    return result;
  }
  static I dot(I acc, Broadcast a, const Line& b) {
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < 4; ++k) acc.v[i] += a[k] * b.v[4 * i + k];
    }
    return acc;
  }
  static F to_float(const I& acc) {
    return each([&](int i) { return static_cast<float>(acc.v[i]); });
  }
};

// The same of numbers 0..255, and nothing has to be taken back.
struct MulWeights : MulQ8 {
  using Broadcast = const uint8_t*;
  static constexpr float kMost = 255.0f;
  static Broadcast broadcast(const uint8_t* p) { return p; }
  static I dot(I acc, Broadcast a, const Line& b) {
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < 4; ++k) acc.v[i] += a[k] * (b.v[4 * i + k] - 128);
    }
    return acc;
  }
};

// The same with codes 0..15, two to a byte, which need no correction.
struct MulQ4 : MulQ8 {
  static Line low_line(const uint8_t* p) {
    Line result = line(p);
    for (uint8_t& code : result.v) code &= 15;
    return result;
  }
  static Line high_line(const uint8_t* p) {
    Line result = line(p);
    for (uint8_t& code : result.v) code >>= 4;
    return result;
  }
  static I start(int32_t) { return MulQ8::start(0); }
};

}  // namespace radish
