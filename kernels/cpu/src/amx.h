// Tiles: Intel's Advanced Matrix Extensions, eight registers of up to 16 rows of 64 bytes that are multiplied
// whole (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and volume 2).
//
// With RADISH_AMX_EMULATED the same names are plain C++ that computes what the manual says, so that every path
// that uses tiles can be tested on a machine without them.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(RADISH_AMX_EMULATED)
#define RADISH_AMX 1
#include "amx_emulated.h"
#elif defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define RADISH_AMX 1
#else
#define RADISH_AMX 0
#endif

#if RADISH_AMX

namespace radish {

constexpr int kAmxRows = 16;  // of a tile, at most
constexpr int kAmxBytes = 64;  // of a row, at most

// The shapes of a thread's tiles, as the processor reads them.
struct alignas(64) AmxConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int tile_rows, int bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(AmxConfig) == 64);

#if defined(RADISH_AMX_EMULATED)

inline void configure_tiles(const AmxConfig& shapes) { emulated::configure(shapes.rows, shapes.row_bytes); }
inline void release_tiles() { emulated::release(); }

template <int T>
inline void zero_tile() {
  emulated::zero(T);
}
template <int T>
inline void load_tile(const void* rows, int64_t stride) {
  emulated::load(T, static_cast<const char*>(rows), stride);
}
template <int T>
inline void store_tile(void* rows, int64_t stride) {
  emulated::store(T, static_cast<char*>(rows), stride);
}
template <int C, int A, int B>
inline void dot_tiles_i8() {
  emulated::dot_i8(C, A, B);
}
template <int C, int A, int B>
inline void dot_tiles_bf16() {
  emulated::dot_bf16(C, A, B);
}

#else

// Assembly rather than intrinsics, which in some compilers do not say that a load reads memory. GCC is told which
// memory, as it would otherwise take every array out of its registers; Clang has no way to say so, and no need.
#if defined(__clang__)
#define RADISH_READ_ROWS
#define RADISH_WRITTEN_ROWS
#define RADISH_ANY_ROWS "memory"
#else
#define RADISH_READ_ROWS , "m"(*static_cast<const char(*)[]>(rows))
#define RADISH_WRITTEN_ROWS "=m"(*static_cast<char(*)[]>(rows))
#define RADISH_ANY_ROWS
#endif

inline void configure_tiles(const AmxConfig& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory"); }
inline void release_tiles() { asm volatile("tilerelease" : : : "memory"); }

template <int T>
[[gnu::always_inline]] inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}

// The rows of a tile lie `stride` bytes apart.
template <int T>
[[gnu::always_inline]] inline void load_tile(const void* rows, int64_t stride) {
  asm volatile("tileloadd (%[rows],%[stride],1), %%tmm%c[tile]"
               :
               : [rows] "r"(rows), [stride] "r"(stride), [tile] "i"(T) RADISH_READ_ROWS
               : RADISH_ANY_ROWS);
}
template <int T>
[[gnu::always_inline]] inline void store_tile(void* rows, int64_t stride) {
  asm volatile("tilestored %%tmm%c[tile], (%[rows],%[stride],1)"
               : RADISH_WRITTEN_ROWS
               : [rows] "r"(rows), [stride] "r"(stride), [tile] "i"(T)
               : RADISH_ANY_ROWS);
}

// C[m][n] += sum over k of A[m][k] * B[k / pack][n][k % pack]: int8 in groups of four into int32, exact...
template <int C, int A, int B>
[[gnu::always_inline]] inline void dot_tiles_i8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
// ...bfloat16 in pairs into float32, rounded in an order of its own (amx_emulated.h).
template <int C, int A, int B>
[[gnu::always_inline]] inline void dot_tiles_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

#endif

// This thread's tiles while an operation uses them. Other libraries give them other shapes, so none are assumed;
// released tiles cost a change of threads nothing.
class AmxRegion {
 public:
  explicit AmxRegion(const AmxConfig& shapes) { configure_tiles(shapes); }
  ~AmxRegion() { release_tiles(); }
  AmxRegion(const AmxRegion&) = delete;
  AmxRegion& operator=(const AmxRegion&) = delete;
};

}  // namespace radish

#endif
