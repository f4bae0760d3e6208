// GGUF's simple blocks: 32 weights of a row that share a scale. Sizes and codes as in ggml's block_q8_0,
// block_q4_0 and block_q4_1 (https://github.com/ggml-org/ggml, ggml-common.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "abi.h"
#include "half.h"

namespace radish {

constexpr int64_t kBlock = 32;

// A block as code * scale + least.
struct Block {
  uint16_t scale, least;  // float16
  int8_t codes[kBlock];   // Q8_0: -128..127; Q4: 0..15
};

inline int64_t source_row_bytes(int32_t source, int64_t columns) {
  switch (source) {
    case kSourceF32: return columns * 4;
    case kSourceBF16: return columns * 2;
    case kSourceQ8_0: return columns / kBlock * 34;
    case kSourceQ4_0: return columns / kBlock * 18;
    default: return columns / kBlock * 20;  // kSourceQ4_1
  }
}

inline Block read_block(int32_t source, const char* row, int64_t index) {
  Block block{};
  const char* raw = row + index * source_row_bytes(source, kBlock);
  std::memcpy(&block.scale, raw, 2);
  if (source == kSourceQ8_0) {
    std::memcpy(block.codes, raw + 2, kBlock);
    return block;
  }
  if (source == kSourceQ4_0) {
    block.least = to_f16(-8.0f * from_f16(block.scale));  // a power of two: exact
  } else {
    std::memcpy(&block.least, raw + 2, 2);
  }
  const char* pairs = raw + (source == kSourceQ4_0 ? 2 : 4);
  for (int i = 0; i < kBlock / 2; ++i) {
    block.codes[i] = pairs[i] & 15;
    block.codes[i + kBlock / 2] = pairs[i] >> 4 & 15;
  }
  return block;
}

// A row of any source as float32.
inline void read_row(int32_t source, const char* row, int64_t columns, float* out) {
  if (source == kSourceF32) {
    std::memcpy(out, row, columns * 4);
  } else if (source == kSourceBF16) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(row);
    for (int64_t i = 0; i < columns; ++i) out[i] = from_bf16(halves[i]);
  } else {
    for (int64_t i = 0; i < columns / kBlock; ++i) {
      const Block block = read_block(source, row, i);
      const float scale = from_f16(block.scale), least = from_f16(block.least);
      for (int j = 0; j < kBlock; ++j) out[i * kBlock + j] = scale * static_cast<float>(block.codes[j]) + least;
    }
  }
}

}  // namespace radish
