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
  // Stores `value` where it still is `seen`; else tells in `seen` what it is.
  bool replace(T& seen, T value) {
    return __atomic_compare_exchange_n(&value_, &seen, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }

 private:
  T value_;
};

// Numbers from `begin` up to `end`.
struct Range {
  int64_t begin, end;
};

}  // namespace radish
