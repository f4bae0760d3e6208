// Tiles in plain C++, instruction by instruction as Intel's manual defines them, for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "half.h"

namespace radish::emulated {

// One thread's registers. All bytes beyond a tile's shape are zero.
struct State {
  bool configured = false;
  int rows[8] = {}, row_bytes[8] = {};
  alignas(64) uint8_t data[8][16][64] = {};
};

inline State& state() {
  static thread_local State registers;
  return registers;
}

// What faults on a processor ends the process here, too.
inline void require(bool allowed) {
  if (!allowed) std::abort();
}

inline void configure(const uint8_t (&rows)[16], const uint16_t (&row_bytes)[16]) {
  State& s = state();
  s = State{};
  for (int t = 0; t < 16; ++t) {
    require(rows[t] <= 16 && row_bytes[t] <= 64 && (rows[t] == 0) == (row_bytes[t] == 0));
    require(t < 8 || rows[t] == 0);
    if (t >= 8) continue;
    s.rows[t] = rows[t];
    s.row_bytes[t] = row_bytes[t];
  }
  s.configured = true;
}

inline void release() { state() = State{}; }

inline void zero(int tile) {
  require(state().configured && state().rows[tile] > 0);
  std::memset(state().data[tile], 0, sizeof state().data[tile]);
}

[[gnu::noinline]] inline void load(int tile, const char* rows, int64_t stride) {
  zero(tile);
  State& s = state();
  for (int r = 0; r < s.rows[tile]; ++r) std::memcpy(s.data[tile][r], rows + r * stride, s.row_bytes[tile]);
}

[[gnu::noinline]] inline void store(int tile, char* rows, int64_t stride) {
  State& s = state();
  require(s.configured && s.rows[tile] > 0);
  for (int r = 0; r < s.rows[tile]; ++r) std::memcpy(rows + r * stride, s.data[tile][r], s.row_bytes[tile]);
}

// That the shapes of a product fit, by the manual's list of faults.
inline void require_product(int c, int a, int b) {
  const State& s = state();
  require(s.configured && c != a && c != b && a != b);
  require(s.rows[c] > 0 && s.rows[a] > 0 && s.rows[b] > 0);
  require(s.row_bytes[a] % 4 == 0 && s.row_bytes[b] % 4 == 0 && s.row_bytes[c] % 4 == 0);
  require(s.rows[a] == s.rows[c] && s.row_bytes[b] == s.row_bytes[c] && s.row_bytes[a] / 4 == s.rows[b]);
}

// TDPBSSD: whole numbers, which wrap.
[[gnu::noinline]] inline void dot_i8(int c, int a, int b) {
  require_product(c, a, b);
  State& s = state();
  for (int m = 0; m < s.rows[c]; ++m) {
    uint32_t sums[16];
    std::memcpy(sums, s.data[c][m], sizeof sums);
    for (int k = 0; k < s.rows[b]; ++k) {
      for (int i = 0; i < 4; ++i) {
        const int x = static_cast<int8_t>(s.data[a][m][4 * k + i]);
        for (int n = 0; n < 16; ++n) sums[n] += static_cast<uint32_t>(x * static_cast<int8_t>(s.data[b][k][4 * n + i]));
      }
    }
    std::memcpy(s.data[c][m], sums, s.row_bytes[c]);
  }
}

// Subnormal numbers count as zero, in what is read and in what is written.
inline float flushed(float x) {
  const uint32_t bits = to_bits(x);
  return from_bits((bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits);
}

// TDPBF16PS: products of the even and of the odd elements are summed apart, each fused into its sum from zero in
// the order of k; then both sums are added, and that is added to C. Every step rounds to the nearest even.
[[gnu::noinline]] inline void dot_bf16(int c, int a, int b) {
  require_product(c, a, b);
  State& s = state();
  float columns[16][2][16];
  for (int k = 0; k < s.rows[b]; ++k) {
    uint16_t pairs[16][2];
    std::memcpy(pairs, s.data[b][k], sizeof pairs);
    for (int n = 0; n < 16; ++n) {
      for (int i = 0; i < 2; ++i) columns[k][i][n] = flushed(from_bf16(pairs[n][i]));
    }
  }
  for (int m = 0; m < s.rows[c]; ++m) {
    float sums[2][16] = {}, total[16];
    std::memcpy(total, s.data[c][m], sizeof total);
    for (int k = 0; k < s.rows[b]; ++k) {
      uint16_t pair[2];
      std::memcpy(pair, s.data[a][m] + 4 * k, sizeof pair);
      for (int i = 0; i < 2; ++i) {
        const float x = flushed(from_bf16(pair[i]));
        for (int n = 0; n < 16; ++n) sums[i][n] = flushed(std::fma(x, columns[k][i][n], sums[i][n]));
      }
    }
    for (int n = 0; n < 16; ++n) total[n] = flushed(flushed(total[n]) + flushed(sums[0][n] + sums[1][n]));
    std::memcpy(s.data[c][m], total, s.row_bytes[c]);
  }
}

}  // namespace radish::emulated
