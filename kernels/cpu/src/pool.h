// Threads that run one step together: parked between steps, spinning inside one.
//
// A step has a few hundred barriers a few microseconds apart, so inside it threads spin (and yield
// when the wait grows, in case another process has the core). Between steps they sleep on a futex: an
// idle server uses no processor time. An own pool rather than OpenMP keeps the library free of a second
// OpenMP runtime beside the one torch brings.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace radish {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Spins until something is true, and yields when that takes long: another process may have the core.
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

class Pool {
 public:
  // Throws std::system_error when the system gives no more threads.
  explicit Pool(int threads) : threads_(threads) {
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Pool() { stop(); }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Calls task(thread) on every thread, the caller being thread 0, and returns when all are done.
  template <class Task>
  void run(Task task) {
    task_ = [](void* context, int thread) { (*static_cast<Task*>(context))(thread); };
    context_ = &task;
    wake();
    task(0);
    barrier();
  }

  // Every thread of a run must arrive before any leaves.
  void barrier() {
    const uint32_t generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      return;
    }
    wait_until([&] { return generation_.load(std::memory_order_acquire) != generation; });
  }

 private:
  void stop() {
    stopping_ = true;
    wake();
    for (auto& worker : workers_) worker.join();
  }

  void wake() {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }

  void work(int thread) {
    for (uint32_t seen = 0;;) {
      epoch_.wait(seen, std::memory_order_acquire);
      ++seen;  // the caller waits for everyone, so no epoch is missed
      if (stopping_) return;
      task_(context_, thread);
      barrier();
    }
  }

  const int threads_;
  std::vector<std::thread> workers_;
  void (*task_)(void*, int) = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
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
