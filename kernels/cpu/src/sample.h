// Choosing one token from each row of logits.
//
// A row is changed by penalties, biases, what is impossible, and its mask. Then the likeliest token is taken
// (temperature 0), or one is drawn by the inverse of the cumulative distribution after temperature, top-k,
// top-p and min-p, in this order and each over what the one before left; ties at a cut are all kept.
// Everything is a function of the row alone, and sums run in one order whatever thread does them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include "pool.h"
#include "shared.h"
#include "vec.h"

namespace radish {

// How one row is to be chosen from.
struct Draw {
  int64_t row;                // of the logits
  const uint32_t* mask;       // bit i % 32 of word i / 32: token i is possible; null: all are
  const int64_t* seen;        // [num_seen] distinct tokens to be penalised...
  const float* counts;        // [num_seen] ...and how often each is in the output
  const int64_t* biased;      // [num_biased] distinct tokens...
  const float* biases;        // [num_biased] ...and what is added to the logit of each
  const int64_t* impossible;  // [num_impossible] tokens that are not chosen
  int64_t num_seen, num_biased, num_impossible;
  int64_t mask_words;         // of the mask; tokens beyond them are impossible
  double top_p;          // below 1: the smallest set of likeliest tokens whose probabilities reach it
  double noise;          // in [0, 1): where the cumulative distribution is cut
  float temperature;     // 0: the likeliest token, the first of equals
  float min_p;           // least probability, as a fraction of the likeliest token's
  float repetition;      // divides positive logits of tokens that were seen, multiplies others
  float presence;        // subtracted from the logit of a token in the output
  float frequency;       // the same for each time it is there
  int32_t top_k;         // 0: all
};

struct SampleJob {
  float* logits;       // [..., vocab]; rows that are drawn from are overwritten
  const Draw* draws;   // [count]
  int64_t* chosen;     // of each row that is drawn from, the id; -1 where the largest logit is not finite, or any
                       // possible one is NaN
  int64_t count, vocab;
};

constexpr int64_t kSummed = 16 * kLanes;  // tokens whose weights are summed, or searched, together
constexpr int64_t kInline = 1 << 18;     // logits that are not worth waking threads for
constexpr float kRuledOut = -std::numeric_limits<float>::infinity();

class Choice {
 public:
  Choice(const SampleJob& job, int64_t index)
      : logits_(job.logits + job.draws[index].row * job.vocab),
        draw_(job.draws[index]),
        size_(job.vocab),
        words_(draw_.mask_words) {}

  int64_t choose() {
    adjust();
    const int64_t likeliest = peak();
    if (likeliest < 0 || draw_.temperature == 0.0f) return likeliest;
    weigh();
    if (draw_.top_k > 0 && draw_.top_k < size_) cut_below(kth_largest());
    if (draw_.top_p < 1.0) cut_below(nucleus());
    if (draw_.min_p > 0.0f) cut_below(draw_.min_p);
    return find();
  }

 private:
  void adjust() {
    for (int64_t i = 0; i < draw_.num_seen; ++i) {
      float& logit = logits_[draw_.seen[i]];
      if (draw_.repetition != 1.0f) logit = logit > 0.0f ? logit / draw_.repetition : logit * draw_.repetition;
      logit = logit - draw_.frequency * draw_.counts[i] - (draw_.counts[i] > 0.0f ? draw_.presence : 0.0f);
    }
    for (int64_t i = 0; i < draw_.num_biased; ++i) logits_[draw_.biased[i]] += draw_.biases[i];
    for (int64_t i = 0; i < draw_.num_impossible; ++i) logits_[draw_.impossible[i]] = kRuledOut;
  }

  // The mask bits of the 16 tokens from `i` on.
  uint32_t bits(int64_t i) const {
    if (draw_.mask == nullptr) return 0xffff;
    return i / 32 < words_ ? draw_.mask[i / 32] >> (i % 32) & 0xffff : 0;
  }

  bool any_possible(int64_t begin, int64_t end) const {
    uint32_t found = 0;
    for (int64_t i = begin; i < end && found == 0; i += kLanes) found |= bits(i);
    return found != 0;
  }

  // Sixteen values from `i` on; what is masked or beyond the row is impossible.
  F possible(int64_t i) const {
    float tail[kLanes];
    const float* source = logits_ + i;
    if (size_ - i < kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) tail[lane] = i + lane < size_ ? source[lane] : kRuledOut;
      source = tail;
    }
    return draw_.mask == nullptr ? load(source) : keep_bits(load(source), bits(i), kRuledOut);
  }

  void put(int64_t i, F x) {
    if (size_ - i >= kLanes) {
      store(logits_ + i, x);
    } else {
      store_first(logits_ + i, x, static_cast<int>(size_ - i));
    }
  }

  // The likeliest token, the first of equals; its logit is left in top_.
  int64_t peak() {
    const F one = splat(1.0f);
    F numbers = one;  // 0 in a lane that met a NaN
    int64_t best = -1;
    top_ = kRuledOut;
    for (int64_t begin = 0; begin < size_; begin += kSummed) {
      const int64_t end = begin + kSummed < size_ ? begin + kSummed : size_;
      if (draw_.mask != nullptr && !any_possible(begin, end)) continue;
      F most = splat(kRuledOut);
      for (int64_t i = begin; i < end; i += kLanes) {
        const F x = possible(i);
        numbers = min(numbers, zero_below(one, x, kRuledOut));
        most = max(most, x);
      }
      if (const float top = largest(most); top > top_) {
        top_ = top;
        best = begin;
      }
    }
    const bool has_nan = largest(one - numbers) > 0.0f;
    if (has_nan || best < 0 || top_ == std::numeric_limits<float>::infinity()) return -1;
    for (int64_t i = best;; i += kLanes) {
      float lanes[kLanes];
      store(lanes, possible(i));
      for (int lane = 0; lane < kLanes; ++lane) {
        if (lanes[lane] == top_) return i + lane;
      }
    }
  }

  // Puts e^((logit - largest) / temperature) in the place of each logit.
  void weigh() {
    const F top = splat(top_), temperature = splat(draw_.temperature), log2_e = splat(1.44269504f);
    for (int64_t i = 0; i < size_; i += kLanes) {
      put(i, bits(i) == 0 ? zero() : exp2((possible(i) - top) / temperature * log2_e));
    }
  }

  void cut_below(float bound) {
    for (int64_t i = 0; i < size_; i += kLanes) {
      if (size_ - i >= kLanes) {
        const F w = load(logits_ + i);
        store(logits_ + i, zero_below(w, w, bound));
      } else {
        for (int64_t j = i; j < size_; ++j) logits_[j] = logits_[j] < bound ? 0.0f : logits_[j];
      }
    }
  }

  // Gathers the weights from `bound` up.
  void gather(float bound) {
    heavy_.clear();
    int64_t i = 0;
    for (; i + 4 * kLanes <= size_; i += 4 * kLanes) {
      const float* w = logits_ + i;
      const F most = max(max(load(w), load(w + kLanes)), max(load(w + 2 * kLanes), load(w + 3 * kLanes)));
      if (largest(most) < bound) continue;
      for (int64_t j = 0; j < 4 * kLanes; ++j) {
        if (w[j] >= bound) heavy_.push_back(w[j]);
      }
    }
    for (; i < size_; ++i) {
      if (logits_[i] >= bound) heavy_.push_back(logits_[i]);
    }
  }

  // Gathers the heaviest tokens until `enough()`, or all that weigh anything.
  template <class Enough>
  void gather_until(Enough enough) {
    for (float bound = 0x1p-4f;; bound *= 0x1p-4f) {
      gather(bound);
      if (bound < 0x1p-125f || enough()) return;
    }
  }

  // The largest positive float that `holds`, which is true up to some value and false above it; 0 if none.
  template <class Holds>
  static float last_that(Holds holds) {
    uint32_t low = 0, high = std::bit_cast<uint32_t>(1.0f) + 1;  // holds at low, not at high
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      (holds(std::bit_cast<float>(middle)) ? low : high) = middle;
    }
    return std::bit_cast<float>(low);
  }

  float kth_largest() {
    gather_until([&] { return static_cast<int64_t>(heavy_.size()) >= draw_.top_k; });
    return last_that([&](float bound) {
      int64_t count = 0;
      for (const float w : heavy_) count += w >= bound;
      return count >= draw_.top_k;
    });
  }

  // The smallest weight of the nucleus: a token is in it while the likelier ones together have less than top_p.
  float nucleus() {
    const double goal = total(logits_, size_) * draw_.top_p;
    gather_until([&] { return total(heavy_.data(), static_cast<int64_t>(heavy_.size())) >= goal; });
    // From this weight up the tokens reach the goal, above it they do not.
    const int64_t count = static_cast<int64_t>(heavy_.size());
    return last_that([&](float bound) { return total(heavy_.data(), count, bound) >= goal; });
  }

  // The sum of the weights from `bound` up.
  static double total(const float* weights, int64_t count, float bound = 0.0f) {
    double sums[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      float lanes[kLanes];
      const F w = load(weights + i);
      store(lanes, zero_below(w, w, bound));
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] += lanes[lane];
    }
    for (int lane = 0; i + lane < count; ++lane) sums[lane] += weights[i + lane] >= bound ? weights[i + lane] : 0.0f;
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
    }
    return sums[0];
  }

  // The first token whose cumulative weight exceeds `noise` of all.
  int64_t find() {
    double all = 0.0;
    blocks_.clear();
    for (int64_t begin = 0; begin < size_; begin += kSummed) {
      blocks_.push_back(all);
      all += total(logits_ + begin, begin + kSummed < size_ ? kSummed : size_ - begin);
    }
    const double target = all * draw_.noise;
    size_t block = blocks_.size() - 1;
    while (blocks_[block] > target) --block;
    int64_t last = -1;  // the two ways to add up a block may differ in the last bit
    double reached = blocks_[block];
    for (int64_t i = static_cast<int64_t>(block) * kSummed; i < size_; ++i) {
      if (logits_[i] == 0.0f) continue;
      last = i;
      reached += logits_[i];
      if (reached > target) break;
    }
    return last;
  }

  float* const logits_;
  const Draw& draw_;
  const int64_t size_, words_;
  float top_ = 0.0f;
  std::vector<float> heavy_;
  std::vector<double> blocks_;  // weight before each block
};

// Whether all tokens that rows name are in the vocabulary.
inline bool names_tokens(const SampleJob& job) {
  const auto within = [&](const int64_t* ids, int64_t count) {
    return std::all_of(ids, ids + count, [&](int64_t id) { return id >= 0 && id < job.vocab; });
  };
  return std::all_of(job.draws, job.draws + job.count, [&](const Draw& draw) {
    return within(draw.seen, draw.num_seen) && within(draw.biased, draw.num_biased) &&
           within(draw.impossible, draw.num_impossible);
  });
}

// Draws on the threads that are awake. Whether there was memory enough; else some of `chosen` are not written.
inline bool draw_awake(Pool& pool, const SampleJob& job) {
  Shared<bool> has_memory{true};
  pool.for_each(job.count, [&](Range draws, int) {
    try {
      for (int64_t i = draws.begin; i < draws.end; ++i) job.chosen[job.draws[i].row] = Choice(job, i).choose();
    } catch (const std::bad_alloc&) {  // must not leave a thread of the pool
      has_memory.store(false);
    }
  });
  return has_memory.load();
}

// The same between steps, while threads sleep.
inline bool draw(Pool& pool, const SampleJob& job) {
  if (job.count * job.vocab <= kInline) return draw_awake(pool, job);  // the caller does it alone
  const Pool::Awake awake(pool);
  return draw_awake(pool, job);
}

}  // namespace radish
