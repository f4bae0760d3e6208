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

inline Block quantize_block(const float* x) {
  Block block{};
  float largest = 0.0f;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  block.scale = to_f16(largest / 127.0f);
  const float scale = from_f16(block.scale), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (int i = 0; i < kBlock; ++i) {
    block.codes[i] = static_cast<int8_t>(std::lrint(std::min(127.0f, std::max(-127.0f, x[i] * inverse))));
  }
  return block;
}

// One row of codes: blocks of the source as they are where it has the target's kind, else made here.
// `x` [k] is the row as float32.
inline void pack_blocks(const PackJob& job, const char* row, const float* x, char* panel, int64_t lane) {
  const bool exact = job.source_format >= kSourceQ8_0;
  for (int64_t b = 0; b < job.k / kBlock; ++b) {
    const bool within = exact && b < job.columns / kBlock;
    if (job.target_format == kQ4) {
      if (!within) continue;  // zeros
      const Block block = read_block(job.source_format, row, b);
      char* target = panel + b * Q4Weights::kBytes;
      for (int i = 0; i < kBlock; ++i) Q4Weights::put(target, lane, i, block.codes[i]);
      std::memcpy(target + Q4Weights::kScales + lane * 2, &block.scale, 2);
      std::memcpy(target + Q4Weights::kLeast + lane * 2, &block.least, 2);
    } else {
      const bool same = within && job.source_format == kSourceQ8_0;
      const Block block = same ? read_block(job.source_format, row, b) : quantize_block(x + b * kBlock);
      char* target = panel + b * Q8Weights::kBytes;
      for (int i = 0; i < kBlock; ++i) Q8Weights::put(target, lane, i, block.codes[i]);
      std::memcpy(target + Q8Weights::kScales + lane * 2, &block.scale, 2);
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
      char* panel = static_cast<char*>(job.target) + place / kPanel * panel_bytes(job.target_format, job.k);
      const int64_t lane = place % kPanel;
      read_row(job.source_format, row, job.columns, x.data());
      if (job.target_format == kF32) {
        pack_row<float, 1>(x.data(), job.k, panel, lane);
      } else if (job.target_format == kBF16) {
        pack_row<uint16_t, 2>(x.data(), job.k, panel, lane);
      } else {
        pack_blocks(job, row, x.data(), panel, lane);
      }
    }
  });
}

}  // namespace radish
