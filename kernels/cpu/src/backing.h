// KV pages that the system backs before they are used.
//
// The system gives memory when it is first written to. Milliseconds pass until a huge page is found and zeroed, and
// keys and values of a token lie on as many of them as there are layers. So a thread writes to what lies ahead of
// use, in time that nobody else wants.
//
// It writes rather than ask (MADV_POPULATE_WRITE), which holds the lock of the whole address space: a thread that
// comes last would lose its processor with it, and whoever allocates memory would wait for that thread, for seconds
// where steps leave it no time. Since Linux 6.4 a fault locks its own mapping, and that only against who changes it;
// before, the thread runs like any other.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/utsname.h>

#include <cstdint>
#include <cstdio>

#include "memory.h"
#include "minmax.h"
#include "shared.h"

namespace radish {

// Keeps some of what lies ahead of use backed in memory of [layers][pages][page_bytes], the nearest pages first.
// Where there can be no such thread the system backs pages as they are used.
class Backing {
 public:
  // `ahead`: bytes over all layers.
  Backing(char* memory, int64_t layers, int64_t pages, int64_t page_bytes, int64_t ahead)
      : memory_(memory),
        layers_(layers),
        layer_bytes_(pages * page_bytes),
        page_bytes_(page_bytes),
        ahead_(max(ahead / layers, kHugePage)) {
    if (sem_init(&told_, 0, 0) != 0) return;
    runs_ = pthread_create(&thread_, nullptr, &Backing::run, this) == 0;
  }

  // Ends within a fault.
  ~Backing() {
    if (!runs_) return;
    stops_.store(true);
    sem_post(&told_);
    pthread_join(thread_, nullptr);
    sem_destroy(&told_);
  }

  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  // Says that a page is used; for one thread. No lock, which the other could lose its processor with.
  void reach(int64_t page) {
    const int64_t used = (page + 1) * page_bytes_;
    if (used < used_.load() + kHugePage || !runs_) return;
    used_.store(used);
    sem_post(&told_);
  }

 private:
  static constexpr int64_t kSmallPage = 4096;

  static void* run(void* argument) {
    Backing& backing = *static_cast<Backing*>(argument);
    backing.write(backing.memory_, {0, kSmallPage});  // the first of a mapping still locks everything
    if (faults_lock_little()) come_last();
    backing.work();
    return nullptr;
  }

  static bool faults_lock_little() {
    utsname system;
    int major = 0, minor = 0;
    return uname(&system) == 0 && std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
           (major > 6 || (major == 6 && minor >= 4));
  }

  // Where that is refused the thread runs like any other.
  static void come_last() {
#ifdef SCHED_IDLE
    const sched_param none{};
    pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
#endif
  }

  void work() {
    int64_t backed = 0;
    while (!stops_.load()) {
      const int64_t end = min(layer_bytes_, used_.load() + ahead_);
      if (backed == end) {
        sem_wait(&told_);
        continue;
      }
      const int64_t next = min(end, backed + kHugePage);
      for (int64_t layer = 0; layer < layers_; ++layer) write(memory_ + layer * layer_bytes_, {backed, next});
      backed = next;
    }
  }

  // Writes to every page without changing what it holds, whoever else writes to it meanwhile: what is not 0 has
  // been written to. Compilers leave out to add 0, or to set no bits.
  void write(char* layer, Range bytes) const {
    for (int64_t i = bytes.begin; i < bytes.end && !stops_.load(); i += kSmallPage) {
      char nothing = 0;
      __atomic_compare_exchange_n(layer + i, &nothing, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
  }

  char* const memory_;
  const int64_t layers_, layer_bytes_, page_bytes_, ahead_;  // `ahead_` of a layer
  Shared<int64_t> used_{0};                                  // bytes of a layer
  Shared<bool> stops_{false};
  bool runs_ = false;
  sem_t told_;
  pthread_t thread_;
};

}  // namespace radish
