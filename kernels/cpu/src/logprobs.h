// Log-softmax of rows of logits where it is wanted: of one chosen token, and of the likeliest.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "abi.h"
#include "pool.h"
#include "shared.h"
#include "vec.h"

namespace radish {

class RowLogprobs {
 public:
  RowLogprobs(const float* logits, int64_t size) : logits_(logits), size_(size) {}

  // The logarithm of the sum of e^logit; NaN if a logit is.
  float normalizer() const {
    const F one = splat(1.0f);
    F most = splat(kLeast), numbers = one;
    for (int64_t i = 0; i < size_; i += kLanes) {
      const F x = at(i);
      numbers = min(numbers, zero_below(one, x, kLeast));
      most = max(most, x);
    }
    if (largest(one - numbers) > 0.0f) return std::numeric_limits<float>::quiet_NaN();
    const float top = largest(most);
    if (!std::isfinite(top)) return top;
    const F base = splat(top), log2_e = splat(1.44269504f);
    double total = 0.0;
    for (int64_t begin = 0; begin < size_; begin += kSummedTogether) {
      F part = zero();
      for (int64_t i = begin; i < std::min(size_, begin + kSummedTogether); i += kLanes) {
        part = part + exp2((at(i) - base) * log2_e);
      }
      total += sum(part);
    }
    return top + static_cast<float>(std::log(total));
  }

  // The ids of the `count` largest logits in their order, the first of equals first.
  void likeliest(int64_t count, int64_t* ids) {
    best_.clear();
    for (int64_t i = 0; i < size_ && count > 0; i += kLanes) {
      const F x = at(i);
      const bool is_full = static_cast<int64_t>(best_.size()) == count;
      if (is_full && !(largest(x) > logits_[best_.back()])) continue;
      for (int64_t id = i; id < std::min(size_, i + kLanes); ++id) insert(id, count);
    }
    std::copy(best_.begin(), best_.end(), ids);
  }

 private:
  static constexpr float kLeast = -std::numeric_limits<float>::infinity();
  static constexpr int64_t kSummedTogether = 16 * kLanes;

  F at(int64_t i) const {
    if (size_ - i >= kLanes) return load(logits_ + i);
    float tail[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) tail[lane] = i + lane < size_ ? logits_[i + lane] : kLeast;
    return load(tail);
  }

  void insert(int64_t id, int64_t count) {
    if (static_cast<int64_t>(best_.size()) == count) {
      if (!(logits_[id] > logits_[best_.back()])) return;
      best_.pop_back();
    }
    const auto is_less = [&](int64_t other) { return logits_[other] < logits_[id]; };
    best_.insert(std::find_if(best_.begin(), best_.end(), is_less), id);
  }

  const float* const logits_;
  const int64_t size_;
  std::vector<int64_t> best_;
};

// Whether there was memory enough; else some results are not written.
inline bool logprobs(Pool& pool, const LogprobJob& job) {
  Shared<bool> has_memory{true};
  const Pool::Awake awake(pool);
  pool.for_each(job.rows, [&](Range rows, int) {
    try {
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        const float* logits = job.logits + i * job.vocab;
        RowLogprobs row(logits, job.vocab);
        const float normalizer = row.normalizer();
        job.of_chosen[i] = logits[job.chosen[i]] - normalizer;
        int64_t* top = job.top + i * job.count;
        row.likeliest(job.count, top);
        for (int64_t j = 0; j < job.count; ++j) job.of_top[i * job.count + j] = logits[top[j]] - normalizer;
      }
    } catch (const std::bad_alloc&) {  // must not leave a thread of the pool
      has_memory.store(false);
    }
  });
  return has_memory.load();
}

}  // namespace radish
