// What threads share: numbers, and the parts of their work.
#pragma once

#include <cstdint>

namespace radish {

// A number that threads share. What was written before it is stored or added to is seen by whoever loads that.
// Of <atomic>, which takes a compiler long to read, no more is wanted.
template <class T>
class Shared {
 public:
  constexpr Shared(T value = {}) : value_(value) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T load() const { return __atomic_load_n(&value_, __ATOMIC_ACQUIRE); }
  void store(T value) { __atomic_store_n(&value_, value, __ATOMIC_RELEASE); }
  // Returns what it was.
  T add(T more) { return __atomic_fetch_add(&value_, more, __ATOMIC_ACQ_REL); }

 private:
  T value_;
};

// The part of [0, count) that is thread's, in whole units of `unit`.
struct Range {
  int64_t begin, end;
};

inline Range share(int64_t count, int thread, int threads, int64_t unit = 1) {
  const int64_t units = (count + unit - 1) / unit;
  const int64_t begin = units * thread / threads * unit, end = units * (thread + 1) / threads * unit;
  return {begin < count ? begin : count, end < count ? end : count};
}

}  // namespace radish
