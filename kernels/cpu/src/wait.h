// How a thread of a step waits for another.
//
// A step has a few hundred waits a few microseconds long, so threads spin, and yield when the wait grows, in case
// somebody else has the processor.
#pragma once

#include <sched.h>

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

}  // namespace radish
