// How linear weights lie in memory.
//
// The N outputs are cut into panels of 32 (two vectors). Within a panel, step s holds the `pack` input
// elements that one dot product takes, for each of the 32 outputs:
//
//   float32   [N/32][K]     [32]
//   bfloat16  [N/32][K/2]   [32][2]
//   8 bits    [N/32][K/G] ([G/4][32][4] uint8 of code + 128, then [32] float16 scales)
//   4 bits    [N/32][K/G] ([G/8][32][4] uint8 with an even step's code in the low half and the next step's in
//                          the high one, then [32] float16 scales, then [32] float16 of what is added)
//
// so that a product with few rows reads its weights strictly in order. G inputs share a scale: 32, as in GGUF's
// blocks, or 64. The layout is the same for every instruction set. N is padded to 32 and K to 64.
#pragma once

#include <cstdint>

#include "abi.h"
#include "blocks.h"
#include "half.h"
#include "vec.h"

namespace radish {

constexpr int64_t kPanel = 2 * kLanes;
constexpr int64_t kLine = kPanel * 4;  // bytes of one step of codes

// 8-bit weights: what a panel holds of the inputs that share a scale.
struct Q8Weights {
  using Mul = MulQ8;
  static constexpr bool kHasLeast = false;
  static constexpr int kShift = 128;  // what codes are shifted by
  static constexpr int64_t kCodes = kBlock / 4 * kLine;  // bytes of 32 inputs
  static constexpr int64_t kScales = kPanel * 2;         // bytes that follow the codes

  static void put(char* codes, int64_t lane, int64_t i, int code) {
    codes[i / 4 * kLine + lane * 4 + i % 4] = static_cast<char>(code + 128);
  }
  static int get(const char* codes, int64_t lane, int64_t i) {
    return static_cast<uint8_t>(codes[i / 4 * kLine + lane * 4 + i % 4]) - 128;
  }
  [[gnu::always_inline]] static Mul::Line line(const char* codes, int64_t step, int vector) {
    return Mul::line(reinterpret_cast<const uint8_t*>(codes) + step * kLine + vector * kLanes * 4);
  }
  struct Scales {
    F scale;
  };
  [[gnu::always_inline]] static Scales scales(const char* halves, int vector) {
    return {load_f16(reinterpret_cast<const uint16_t*>(halves) + vector * kLanes)};
  }
  // What `dot` of the codes adds, with the scale of the row's part and its scale * sum.
  [[gnu::always_inline]] static F add(F acc, F dot, Scales s, float row_scale, float) {
    return fma(dot * splat(row_scale), s.scale, acc);
  }
};

// 4-bit weights.
struct Q4Weights {
  using Mul = MulQ4;
  static constexpr bool kHasLeast = true;
  static constexpr int kShift = 0;
  static constexpr int64_t kCodes = kBlock / 8 * kLine;
  static constexpr int64_t kScales = 2 * kPanel * 2;

  static void put(char* codes, int64_t lane, int64_t i, int code) {
    codes[i / 8 * kLine + lane * 4 + i % 4] |= static_cast<char>(i / 4 % 2 ? code << 4 : code);
  }
  static int get(const char* codes, int64_t lane, int64_t i) {
    return codes[i / 8 * kLine + lane * 4 + i % 4] >> (i / 4 % 2 * 4) & 15;
  }
  [[gnu::always_inline]] static Mul::Line line(const char* codes, int64_t step, int vector) {
    const uint8_t* pairs = reinterpret_cast<const uint8_t*>(codes) + step / 2 * kLine + vector * kLanes * 4;
    return step % 2 ? Mul::high_line(pairs) : Mul::low_line(pairs);
  }
  struct Scales {
    F scale, least;
  };
  [[gnu::always_inline]] static Scales scales(const char* halves, int vector) {
    const uint16_t* scale = reinterpret_cast<const uint16_t*>(halves) + vector * kLanes;
    return {load_f16(scale), load_f16(scale + kPanel)};
  }
  [[gnu::always_inline]] static F add(F acc, F dot, Scales s, float row_scale, float row_sum) {
    return fma(splat(row_sum), s.least, fma(dot * splat(row_scale), s.scale, acc));
  }
};

// Bytes in a panel of `group` inputs that share a scale.
template <class W>
constexpr int64_t group_bytes(int64_t group) {
  return group / kBlock * W::kCodes + W::kScales;
}

// `group` counts where inputs share scales.
inline int64_t panel_bytes(int32_t format, int64_t k, int64_t group) {
  if (format == kQ8) return k / group * group_bytes<Q8Weights>(group);
  if (format == kQ4) return k / group * group_bytes<Q4Weights>(group);
  return k * kPanel * (format == kF32 ? 4 : 2);
}

// Row `row` of a packed weight as float32 [k]: embeddings lie as linear weights do, and those that are
// tied to the head are held once.
template <class T, int64_t kPack>
inline void unpack_row(const void* weight, int64_t row, int64_t k, float* out) {
  const T* source = static_cast<const T*>(weight) + row / kPanel * kPanel * k + row % kPanel * kPack;
  for (int64_t i = 0; i < k; ++i) {
    const T x = source[i / kPack * kPanel * kPack + i % kPack];
    if constexpr (kPack == 1) {
      out[i] = x;
    } else {
      out[i] = from_bf16(x);
    }
  }
}

template <class W>
inline void unpack_groups(const void* weight, int64_t row, int64_t k, int64_t group, float* out) {
  const int64_t bytes = group_bytes<W>(group), lane = row % kPanel;
  const char* codes = static_cast<const char*>(weight) + row / kPanel * (k / group * bytes);
  for (int64_t g = 0; g < k / group; ++g, codes += bytes) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(codes + bytes - W::kScales) + lane;
    const float scale = from_f16(halves[0]);
    const float least = W::kHasLeast ? from_f16(halves[kPanel]) : 0.0f;
    for (int64_t i = 0; i < group; ++i) {
      out[g * group + i] = scale * static_cast<float>(W::get(codes, lane, i)) + least;
    }
  }
}

inline void unpack(int32_t format, const void* weight, int64_t row, int64_t k, int64_t group, float* out) {
  switch (format) {
    case kF32: return unpack_row<float, 1>(weight, row, k, out);
    case kBF16: return unpack_row<uint16_t, 2>(weight, row, k, out);
    case kQ8: return unpack_groups<Q8Weights>(weight, row, k, group, out);
    case kQ4: return unpack_groups<Q4Weights>(weight, row, k, group, out);
  }
}

}  // namespace radish
