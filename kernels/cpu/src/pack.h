// The copy that brings weights to where products read them (packed.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "abi.h"
#include "blocks.h"
#include "half.h"
#include "packed.h"
#include "pool.h"

namespace radish {

// One output's inputs that share a scale.
inline void quantize_group(const float* x, int64_t group, char* target, int64_t lane) {
  float largest = 0.0f;
  for (int64_t i = 0; i < group; ++i) largest = std::max(largest, std::fabs(x[i]));
  const uint16_t half = to_f16(largest / 127.0f);
  const float scale = from_f16(half), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (int64_t i = 0; i < group; ++i) {
    const float code = std::min(127.0f, std::max(-127.0f, x[i] * inverse));
    Q8Weights::put(target, lane, i, static_cast<int>(std::lrint(code)));
  }
  std::memcpy(target + group / kBlock * Q8Weights::kCodes + lane * 2, &half, 2);
}

// A block of the source as it is.
template <class W>
inline void put_block(const Block& block, char* target, int64_t lane) {
  for (int i = 0; i < kBlock; ++i) W::put(target, lane, i, block.codes[i]);
  std::memcpy(target + W::kCodes + lane * 2, &block.scale, 2);
  if constexpr (W::kHasLeast) std::memcpy(target + W::kCodes + (kPanel + lane) * 2, &block.least, 2);
}

// One row of codes: blocks of the source as they are where they are the target's, else made here.
// `x` [k] is the row as float32.
inline void pack_codes(const PackJob& job, const char* row, const float* x, char* panel, int64_t lane) {
  const int64_t group = job.group, within = job.columns / kBlock;  // whole blocks of the source
  if (job.target_format == kQ4) {
    for (int64_t b = 0; b < within; ++b) {  // zeros follow
      put_block<Q4Weights>(read_block(job.source_format, row, b), panel + b * group_bytes<Q4Weights>(group), lane);
    }
    return;
  }
  const bool same = job.source_format == kSourceQ8_0 && group == kBlock;
  for (int64_t g = 0; g < job.k / group; ++g) {
    char* target = panel + g * group_bytes<Q8Weights>(group);
    if (same && g < within) {
      put_block<Q8Weights>(read_block(job.source_format, row, g), target, lane);
    } else {
      quantize_group(x + g * group, group, target, lane);
    }
  }
}

template <class T, int64_t kPack>
inline void pack_row(const float* x, int64_t k, char* panel, int64_t lane) {
  T* target = reinterpret_cast<T*>(panel) + lane * kPack;
  for (int64_t i = 0; i < k; ++i) {
    T* place = target + i / kPack * kPanel * kPack + i % kPack;
    if constexpr (kPack == 1) {
      *place = x[i];
    } else {
      *place = to_bf16(x[i]);
    }
  }
}

// Source rows are shared out in blocks of 32, so threads hardly meet in a cache line.
inline void pack(Pool& pool, const PackJob& job) {
  const Pool::Awake awake(pool);
  pool.for_each((job.rows + kPanel - 1) / kPanel, [&](Range range, int) {
    std::vector<float> x(job.k);
    for (int64_t i = range.begin * kPanel; i < min(range.end * kPanel, job.rows); ++i) {
      const char* row = static_cast<const char*>(job.source) + i * source_row_bytes(job.source_format, job.columns);
      const int64_t place = job.offset + i / job.block * job.stride + i % job.block;
      char* panel = static_cast<char*>(job.target) + place / kPanel * panel_bytes(job.target_format, job.k, job.group);
      const int64_t lane = place % kPanel;
      read_row(job.source_format, row, job.columns, x.data());
      if (job.target_format == kF32) {
        pack_row<float, 1>(x.data(), job.k, panel, lane);
      } else if (job.target_format == kBF16) {
        pack_row<uint16_t, 2>(x.data(), job.k, panel, lane);
      } else {
        pack_codes(job, row, x.data(), panel, lane);
      }
    }
  });
}

}  // namespace radish
