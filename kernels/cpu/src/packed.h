// How linear weights lie in memory, and the copy that brings them there.
//
// The N outputs are cut into panels of 32 (two vectors). Within a panel, step s holds the `pack` input
// elements that one dot product takes, for each of the 32 outputs:
//
//   float32   [N/32][K]     [32]
//   bfloat16  [N/32][K/2]   [32][2]
//   int8      [N/32][K/64] ([16][32][4] uint8 of w + 128, then [32] bfloat16 scales)
//
// so that a product with few rows reads its weights strictly in order. The layout is the same for every
// instruction set. N is padded to 32 and K to 64.
#pragma once

#include <cmath>
#include <cstring>

#include "abi.h"
#include "pool.h"
#include "vec.h"

namespace radish {

constexpr int64_t kPanel = 2 * kLanes;
constexpr int64_t kGroup = 64;                                // int8 weights that share a scale
constexpr int64_t kGroupWeights = kGroup * kPanel;            // bytes of one group of a panel...
constexpr int64_t kGroupBytes = kGroupWeights + kPanel * 2;   // ...with its scales

inline float source_element(const PackJob& job, int64_t row, int64_t column) {
  const int64_t index = row * job.columns + column;
  if (job.source_format == kF32) return static_cast<const float*>(job.source)[index];
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(job.source)[index]) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint16_t to_bf16(float x) {
  float lanes[kLanes] = {x};
  uint16_t rounded[kLanes];
  store_bf16(rounded, load(lanes));
  return rounded[0];
}

inline float from_bf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The least bfloat16 not below a positive x, so that x / scale never exceeds the code range.
inline uint16_t bf16_above(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>((bits + 0xffff) >> 16);
}

inline void pack_row_q8(const PackJob& job, int64_t row, char* panel, int64_t lane) {
  for (int64_t first = 0; first < job.columns; first += kGroup) {
    const int64_t width = std::min(kGroup, job.columns - first);
    float largest = 0.0f;
    for (int64_t i = 0; i < width; ++i) {
      largest = std::max(largest, std::fabs(source_element(job, row, first + i)));
    }
    const uint16_t half = bf16_above(largest / 127.0f);
    const float scale = from_bf16(half), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    char* group = panel + first / kGroup * kGroupBytes;
    for (int64_t i = 0; i < kGroup; ++i) {
      const float x = i < width ? source_element(job, row, first + i) : 0.0f;
      const long code = std::lrint(std::min(127.0f, std::max(-127.0f, x * inverse)));
      group[i / 4 * kPanel * 4 + lane * 4 + i % 4] = static_cast<char>(code + 128);
    }
    std::memcpy(group + kGroupWeights + lane * 2, &half, sizeof half);
  }
}

template <class T, int64_t kPack>
inline void pack_row(const PackJob& job, int64_t row, char* panel, int64_t lane) {
  T* target = reinterpret_cast<T*>(panel) + lane * kPack;
  for (int64_t i = 0; i < job.columns; ++i) {
    const float x = source_element(job, row, i);
    T* place = target + i / kPack * kPanel * kPack + i % kPack;
    if constexpr (kPack == 1) {
      *place = x;
    } else {
      *place = job.source_format == kBF16 ? static_cast<const uint16_t*>(job.source)[row * job.columns + i]
                                          : to_bf16(x);
    }
  }
}

inline int64_t panel_bytes(int32_t format, int64_t k) {
  if (format == kQ8) return k / kGroup * kGroupBytes;
  return k * kPanel * (format == kF32 ? 4 : 2);
}

// Source rows are shared out in blocks of 32, so threads hardly meet in a cache line.
inline void pack(Pool& pool, const PackJob& job) {
  pool.run([&](int thread) {
    const Range range = share(job.rows, thread, pool.threads(), kPanel);
    for (int64_t row = range.begin; row < range.end; ++row) {
      const int64_t place = job.offset + row / job.block * job.stride + row % job.block;
      char* panel = static_cast<char*>(job.target) + place / kPanel * panel_bytes(job.target_format, job.k);
      const int64_t lane = place % kPanel;
      if (job.target_format == kF32) {
        pack_row<float, 1>(job, row, panel, lane);
      } else if (job.target_format == kBF16) {
        pack_row<uint16_t, 2>(job, row, panel, lane);
      } else {
        pack_row_q8(job, row, panel, lane);
      }
    }
  });
}

// Row `row` of a packed float32 or bfloat16 weight, as float32: an embedding tied to the head is read
// from the head, so it is held once.
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

}  // namespace radish
