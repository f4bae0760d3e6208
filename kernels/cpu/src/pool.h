// Threads that run one step together: parked between steps, spinning inside one (barrier.h).
//
// Between steps they sleep: an idle server uses no processor time. An own pool rather than OpenMP keeps the
// library free of a second OpenMP runtime beside the one torch brings.
#pragma once

#include <pthread.h>

#include <new>
#include <vector>

#include "barrier.h"

namespace radish {

class Pool {
 public:
  // Throws std::bad_alloc when the system gives no more threads.
  explicit Pool(int threads) : barrier_(threads), workers_(threads > 1 ? threads - 1 : 0) {
    for (Worker& worker : workers_) {
      worker.pool = this;
      worker.index = ++started_;
      if (pthread_create(&worker.thread, nullptr, &Pool::work, &worker) == 0) continue;
      --started_;
      stop();
      throw std::bad_alloc();
    }
  }

  ~Pool() { stop(); }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  Barrier& barrier() { return barrier_; }

  // Calls task(thread) on every thread, the caller being thread 0, and returns when all are done.
  template <class Task>
  void run(Task task) {
    task_ = [](void* context, int thread) { (*static_cast<Task*>(context))(thread); };
    context_ = &task;
    wake();
    task(0);
    barrier_.wait();
  }

 private:
  struct Worker {
    Pool* pool;
    int index;
    pthread_t thread;
  };

  void stop() {
    stopping_ = true;
    wake();
    for (int i = 0; i < started_; ++i) pthread_join(workers_[i].thread, nullptr);
  }

  void wake() {
    pthread_mutex_lock(&mutex_);
    ++epoch_;
    pthread_mutex_unlock(&mutex_);
    pthread_cond_broadcast(&woken_);
  }

  void sleep(uint32_t seen) {
    pthread_mutex_lock(&mutex_);
    while (epoch_ == seen) pthread_cond_wait(&woken_, &mutex_);
    pthread_mutex_unlock(&mutex_);
  }

  static void* work(void* argument) {
    const Worker& worker = *static_cast<Worker*>(argument);
    Pool& pool = *worker.pool;
    for (uint32_t seen = 0;; ++seen) {  // the caller waits for everyone, so no epoch is missed
      pool.sleep(seen);
      if (pool.stopping_) return nullptr;
      pool.task_(pool.context_, worker.index);
      pool.barrier_.wait();
    }
  }

  Barrier barrier_;
  std::vector<Worker> workers_;
  int started_ = 0;
  void (*task_)(void*, int) = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t woken_ = PTHREAD_COND_INITIALIZER;
  uint32_t epoch_ = 0;  // behind the mutex
};

}  // namespace radish
