// Where the threads of a step wait for each other.
//
// A step has a few hundred barriers a few microseconds apart, so threads spin, and yield when the wait grows, in
// case another process has the core.
#pragma once

#include <sched.h>

#include <cstdint>

#include "shared.h"

namespace radish {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until something is true, and yields when that takes long.
template <class Condition>
inline void wait_until(Condition condition) {
  for (int spins = 0; !condition(); ++spins) {
    if (spins < 2000) {
      relax();
    } else {
      sched_yield();
    }
  }
}

class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}

  // Every thread must arrive before any leaves.
  void wait() {
    const uint32_t generation = generation_.load();
    if (arrived_.add(1) + 1 == threads_) {
      arrived_.store(0);
      generation_.store(generation + 1);
      return;
    }
    wait_until([&] { return generation_.load() != generation; });
  }

 private:
  const int threads_;
  alignas(64) Shared<int> arrived_{0};
  alignas(64) Shared<uint32_t> generation_{0};
};

}  // namespace radish
