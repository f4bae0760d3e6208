// The part of a step that its results depend on.
//
// Past the keys and values of the last layer, only tokens count whose logits or hidden states are wanted. They
// become a step of their own, in which runs of neighbouring tokens are rows.
#pragma once

#include <cstdint>
#include <vector>

#include "abi.h"

namespace radish {

class KeptStep {
 public:
  Step step{};

  const std::vector<int64_t>& tokens() const { return tokens_; }  // of the whole step, ascending

  // Whether there are tokens that do not count; if not, `step` is not set.
  bool choose(const Step& whole) {
    find_tokens(whole);
    if (tokens_.size() == static_cast<size_t>(whole.tokens)) return false;
    step = whole;
    step.tokens = static_cast<int32_t>(tokens_.size());
    cut_rows(whole);
    step.rows = static_cast<int32_t>(context_lens_.size());
    step.query_starts = query_starts_.data();
    step.context_lens = context_lens_.data();
    step.page_table = page_table_.data();
    step.logit_rows = place(whole.logit_rows, whole.samples, logit_rows_);
    step.embed_rows = place(whole.embed_rows, whole.embeds, embed_rows_);
    return true;
  }

 private:
  void find_tokens(const Step& whole) {
    places_.assign(whole.tokens, -1);
    for (int64_t i = 0; i < whole.samples; ++i) places_[whole.logit_rows[i]] = 0;
    for (int64_t i = 0; i < whole.embeds; ++i) places_[whole.embed_rows[i]] = 0;
    tokens_.clear();
    for (int64_t token = 0; token < whole.tokens; ++token) {
      if (places_[token] < 0) continue;
      places_[token] = static_cast<int64_t>(tokens_.size());
      tokens_.push_back(token);
    }
  }

  void cut_rows(const Step& whole) {
    query_starts_.assign(1, 0);
    context_lens_.clear();
    page_table_.clear();
    int32_t row = 0;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const int64_t token = tokens_[i];
      const bool follows = i > 0 && token == tokens_[i - 1] + 1 && token < whole.query_starts[row + 1];
      if (follows) {
        ++query_starts_.back();
        ++context_lens_.back();
        continue;
      }
      while (token >= whole.query_starts[row + 1]) ++row;
      const int32_t* pages = whole.page_table + static_cast<int64_t>(row) * whole.table_width;
      page_table_.insert(page_table_.end(), pages, pages + whole.table_width);
      const int32_t after = whole.query_starts[row + 1] - static_cast<int32_t>(token) - 1;
      context_lens_.push_back(whole.context_lens[row] - after);
      query_starts_.push_back(static_cast<int32_t>(i) + 1);
    }
  }

  // Where tokens of the whole step are in this one.
  const int64_t* place(const int64_t* tokens, int64_t count, std::vector<int64_t>& places) const {
    places.resize(count);
    for (int64_t i = 0; i < count; ++i) places[i] = places_[tokens[i]];
    return places.data();
  }

  std::vector<int64_t> tokens_, logit_rows_, embed_rows_;
  std::vector<int64_t> places_;  // of the whole step: where a token is in this one; -1: it does not count
  std::vector<int32_t> query_starts_, context_lens_, page_table_;
};

}  // namespace radish
