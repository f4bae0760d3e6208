// Threads that run one step together, each as far as it has a processor.
//
// The caller goes from job to job; helpers work on the one that is under way. A job is a number of units, of which a
// thread claims some at a time (guided self-scheduling: Polychronopoulos and Kuck, 1987). So a helper may come late or
// not at all: other threads and processes want processors as well, and threads with fixed shares would wait out the
// absence of any of them.
//
// Between steps helpers sleep: an idle server uses no processor time. An own pool rather than OpenMP keeps the
// library free of a second OpenMP runtime beside the one torch brings.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <new>
#include <vector>

#include "minmax.h"
#include "shared.h"
#include "wait.h"

namespace radish {

class Pool {
 public:
  // Throws std::bad_alloc when the system gives no more threads.
  explicit Pool(int threads) : helpers_(threads > 1 ? threads - 1 : 0) {
    for (Helper& helper : helpers_) {
      helper.pool = this;
      helper.thread = ++started_;
      if (pthread_create(&helper.handle, nullptr, &Pool::work, &helper) == 0) continue;
      --started_;
      stop();
      throw std::bad_alloc();
    }
  }

  ~Pool() { stop(); }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // While one exists, helpers look for work; else they sleep. One at a time.
  class Awake {
   public:
    explicit Awake(Pool& pool) : pool_(pool) { pool_.tell(pool_.awake_, true); }
    ~Awake() { pool_.awake_.store(false); }
    Awake(const Awake&) = delete;
    Awake& operator=(const Awake&) = delete;

   private:
    Pool& pool_;
  };

  // Calls task(range, thread) with ranges that make up [0, count), the caller being thread 0; returns when all are
  // done. Other threads take part while an `Awake` exists.
  template <class Task>
  void for_each(int64_t count, const Task& task) {
    if (count <= 0) return;
    if (count == 1 || helpers_.empty()) return task(Range{0, count}, 0);
    call_ = [](const void* task, Range range, int thread) { (*static_cast<const Task*>(task))(range, thread); };
    task_ = &task;
    count_ = count;
    done_.store(0);
    left_.store(++jobs_ << 32 | static_cast<uint64_t>(count));
    while (help(0)) {
    }
    wait_until([&] { return done_.load() == count; });
  }

 private:
  static constexpr int64_t kMost = 64;  // units that a thread claims at a time

  struct Helper {
    Pool* pool;
    int thread;
    pthread_t handle;
  };

  // Does a part of what is left of the job; false if nothing is.
  bool help(int thread) {
    uint64_t seen = left_.load();
    for (;;) {
      const int64_t left = static_cast<int64_t>(seen & 0xffffffff);
      if (left == 0) return false;
      const int64_t taken = min(kMost, (left + threads() - 1) / threads());
      if (!left_.replace(seen, seen - static_cast<uint64_t>(taken))) continue;
      call_(task_, {count_ - left, count_ - left + taken}, thread);
      done_.add(taken);
      return true;
    }
  }

  void tell(Shared<bool>& what, bool value) {
    pthread_mutex_lock(&mutex_);
    what.store(value);
    pthread_mutex_unlock(&mutex_);
    pthread_cond_broadcast(&told_);
  }

  void stop() {
    tell(stops_, true);
    for (int i = 0; i < started_; ++i) pthread_join(helpers_[i].handle, nullptr);
  }

  static void* work(void* argument) {
    const Helper& helper = *static_cast<Helper*>(argument);
    Pool& pool = *helper.pool;
    for (;;) {
      pthread_mutex_lock(&pool.mutex_);
      while (!pool.awake_.load() && !pool.stops_.load()) pthread_cond_wait(&pool.told_, &pool.mutex_);
      pthread_mutex_unlock(&pool.mutex_);
      if (pool.stops_.load()) return nullptr;
      wait_until([&] {
        while (pool.help(helper.thread)) {
        }
        return !pool.awake_.load();
      });
    }
  }

  std::vector<Helper> helpers_;
  int started_ = 0;
  // The job: written while nothing of one is left, read by who has claimed some of it, for whom the caller waits.
  void (*call_)(const void*, Range, int) = nullptr;
  const void* task_ = nullptr;
  int64_t count_ = 0;
  uint64_t jobs_ = 0;
  alignas(64) Shared<uint64_t> left_{0};  // number of the job << 32 | units that nobody has claimed
  alignas(64) Shared<int64_t> done_{0};
  alignas(64) Shared<bool> awake_{false};
  Shared<bool> stops_{false};
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t told_ = PTHREAD_COND_INITIALIZER;
};

}  // namespace radish
