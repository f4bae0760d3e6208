// What a library does once before it is used: ask for what the system only gives on request, and try it out.
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "amx.h"
#include "half.h"

namespace radish {
namespace {

#if RADISH_AMX

// Tile registers are too large for the system to save them of every process unasked. Threads started later
// have what this one was given. Returns 0 or an error's number.
int32_t ask_for_tiles() {
#if defined(RADISH_AMX_EMULATED)
  return 0;
#else
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA: <asm/prctl.h>
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0 ? 0 : errno;
#endif
}

// Small products of tiles against the same in plain C++. Where float32 would round they differ by the order of
// additions, so bfloat16 is tried with whole numbers.
class Trial {
 public:
  // Tiles of `rows` rows and 16 columns, whose rows of A are `bytes` long.
  bool passes(int rows, int bytes) {
    rows_ = rows;
    bytes_ = bytes;
    AmxConfig config;
    config.set(0, rows, kAmxBytes);
    config.set(1, rows, bytes);
    config.set(2, bytes / 4, kAmxBytes);
    const AmxRegion region(config);
    for (char& x : a_) x = next();
    for (char& x : b_) x = next();
    run([] { dot_tiles_i8<0, 1, 2>(); });
    bool same = matches<int32_t, int8_t>([](int8_t x) { return int32_t{x}; });
    for (char* matrix : {a_, b_}) {
      for (int i = 0; i < kBytes; i += 2) put(matrix + i, to_bf16(static_cast<float>(next() % 16)));
    }
    run([] { dot_tiles_bf16<0, 1, 2>(); });
    return same && matches<float, uint16_t>(from_bf16);
  }

 private:
  static constexpr int kBytes = kAmxRows * kAmxBytes;

  template <class T>
  static void put(char* place, T value) {
    std::memcpy(place, &value, sizeof value);
  }
  template <class T>
  static T get(const char* place) {
    T value;
    std::memcpy(&value, place, sizeof value);
    return value;
  }

  char next() {
    random_ = random_ * 1664525 + 1013904223;
    return static_cast<char>(random_ >> 24);
  }

  // Twice the product of A and B.
  template <class Dot>
  void run(Dot dot) {
    std::memset(c_, 1, kBytes);
    load_tile<1>(a_, bytes_);
    load_tile<2>(b_, kAmxBytes);
    zero_tile<0>();
    dot();
    dot();
    store_tile<0>(c_, kAmxBytes);
  }

  template <class Sum, class T, class Widen>
  bool matches(Widen widen) const {
    constexpr int kPack = 4 / sizeof(T);
    for (int m = 0; m < rows_; ++m) {
      for (int n = 0; n < kAmxRows; ++n) {
        Sum sum{};
        for (int k = 0; k < bytes_ / 4 * kPack; ++k) {
          const char* b = b_ + k / kPack * kAmxBytes + (n * kPack + k % kPack) * static_cast<int>(sizeof(T));
          sum += widen(get<T>(a_ + m * bytes_ + k * static_cast<int>(sizeof(T)))) * widen(get<T>(b));
        }
        if (get<Sum>(c_ + m * kAmxBytes + n * 4) != 2 * sum) return false;
      }
    }
    return true;
  }

  uint32_t random_ = 1;
  int rows_ = 0, bytes_ = 0;
  alignas(64) char a_[kBytes], b_[kBytes], c_[kBytes];
};

#endif

}  // namespace
}  // namespace radish

#pragma GCC visibility push(default)
extern "C" {

// 0; what the system answered when it was asked for what this library needs; or -1: products come out wrong.
int32_t radish_start() {
#if RADISH_AMX
  if (const int32_t error = radish::ask_for_tiles(); error != 0) return error;
  radish::Trial trial;
  for (const int rows : {1, 7, 16}) {
    if (!trial.passes(rows, 32) || !trial.passes(rows, 64)) return -1;
  }
#endif
  return 0;
}

}  // extern "C"
#pragma GCC visibility pop
