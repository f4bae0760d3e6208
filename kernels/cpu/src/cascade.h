// Which queries read which keys together in a step.
//
// Rows whose sequences begin alike hold the same pages first. Seen as a tree of chunks (state.h), a chunk
// on the way to several rows is read once, for the queries of all of them; the state of each query is left
// behind, and what follows goes on from it. (Prefix trees over pages: Zheng et al., SGLang, 2023; cascades:
// Ye et al., FlashInfer, 2024, which merges states where this continues them, so that bits do not change.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "abi.h"
#include "attend_items.h"
#include "state.h"

namespace radish {

class AttentionPlan {
 public:
  void plan(const Step& step, const Geometry& geometry, int threads) {
    step_ = &step;
    geometry_ = &geometry;
    threads_ = threads;
    order_.resize(step.rows);
    for (int32_t row = 0; row < step.rows; ++row) order_[row] = row;
    private_.assign(step.rows, 0);
    items_.clear();
    add_rows();
    const int64_t count = static_cast<int64_t>(items_.size()), chunks = longest();
    split_chunks_ = threads > 1 && chunks > 1 && count < 4 * threads ? chunks : 0;
    if (split_chunks_ == 0 && step.rows > 1) share();
  }

  // Until the next `plan`.
  AttendItems items() const {
    return {order_.data(), items_.data(), static_cast<int64_t>(items_.size()), split_chunks_};
  }

 private:
  // Keys that rows order_[rows_begin, rows_end) have in common, behind `above` other such nodes.
  struct Node {
    int32_t rows_begin, rows_end, begin, end, above;
  };

  int length(int32_t row) const { return step_->query_starts[row + 1] - step_->query_starts[row]; }

  // Chunks of a row that all of its queries see whole.
  int whole_chunks(int32_t row) const { return (step_->context_lens[row] - length(row)) / kChunk; }

  int longest() const {
    int most = 0;
    for (int32_t row = 0; row < step_->rows; ++row) most = std::max(most, step_->context_lens[row]);
    return (most + kChunk - 1) / kChunk;
  }

  const int32_t* pages(int32_t row) const {
    return step_->page_table + static_cast<int64_t>(row) * step_->table_width;
  }
  int64_t page_count(int32_t row) const {
    return static_cast<int64_t>(whole_chunks(row)) * kChunk / geometry_->page_size;
  }

  // What each row reads alone: from private_[row] on. Later queries see more keys: they go first.
  void add_rows() {
    const int group = geometry_->heads / geometry_->kv_heads;
    const int32_t after = static_cast<int32_t>(items_.size());
    for (int32_t at = 0; at < step_->rows; ++at) {
      for (int last = length(order_[at]) * group; last > 0; last -= kQueries) {
        for (int head = 0; head < geometry_->kv_heads; ++head) {
          items_.push_back({at, at + 1, head, std::max(0, last - kQueries), last, private_[order_[at]],
                           std::numeric_limits<int32_t>::max(), after, false});
        }
      }
    }
  }

  // Sorts the rows and replaces the items by those of the tree.
  void share() {
    std::sort(order_.begin(), order_.end(), [this](int32_t a, int32_t b) {
      const auto [at, other] = std::mismatch(pages(a), pages(a) + page_count(a), pages(b), pages(b) + page_count(b));
      const bool a_ends = at == pages(a) + page_count(a), b_ends = other == pages(b) + page_count(b);
      if (a_ends || b_ends) return a_ends == b_ends ? a < b : a_ends;
      return *at < *other;
    });
    common_.assign(order_.size(), 0);
    for (size_t i = 0; i + 1 < order_.size(); ++i) common_[i] = common(order_[i], order_[i + 1]);
    nodes_.clear();
    split(0, static_cast<int32_t>(order_.size()), 0, 0);
    items_.clear();
    size_t added = 0;
    for (int32_t above = 0; added < nodes_.size(); ++above) {
      const int32_t after = static_cast<int32_t>(items_.size());
      for (const Node& node : nodes_) {
        if (node.above != above) continue;
        add_node(node, after);
        ++added;
      }
    }
    add_rows();
  }

  // Chunks that two rows have in common.
  int common(int32_t a, int32_t b) const {
    const int64_t count = std::min(page_count(a), page_count(b));
    const int64_t equal = std::mismatch(pages(a), pages(a) + count, pages(b)).first - pages(a);
    return static_cast<int>(equal * geometry_->page_size / kChunk);
  }

  // Finds the nodes among rows that have `depth` chunks in common.
  void split(int32_t begin, int32_t end, int32_t depth, int32_t above) {
    if (end - begin < 2) return;
    const int32_t least = *std::min_element(common_.begin() + begin, common_.begin() + end - 1);
    if (least > depth) {
      nodes_.push_back({begin, end, depth, least, above++});
      for (int32_t i = begin; i < end; ++i) private_[order_[i]] = least;
    }
    for (int32_t from = begin, i = begin; i < end; ++i) {
      if (i + 1 < end && common_[i] > least) continue;
      split(from, i + 1, least, above);
      from = i + 1;
    }
  }

  // The queries of a node in pieces, so many that threads have equal shares where that is possible.
  void add_node(const Node& node, int32_t after) {
    const int group = geometry_->heads / geometry_->kv_heads, heads = geometry_->kv_heads;
    int queries = 0;
    for (int32_t i = node.rows_begin; i < node.rows_end; ++i) queries += length(order_[i]) * group;
    int pieces = (queries + kQueries - 1) / kQueries;
    const int most = (queries + kHeadRows - 1) / kHeadRows;
    while (heads * pieces % threads_ != 0 && heads * pieces < 4 * threads_ && pieces < most) ++pieces;
    for (int i = 0; i < pieces; ++i) {
      const int first = static_cast<int64_t>(queries) * i / pieces, last = static_cast<int64_t>(queries) * (i + 1) / pieces;
      for (int head = 0; head < heads; ++head) {
        items_.push_back({node.rows_begin, node.rows_end, head, first, last, node.begin, node.end, after, true});
      }
    }
  }

  const Step* step_ = nullptr;
  const Geometry* geometry_ = nullptr;
  int threads_ = 1;
  std::vector<int32_t> order_;
  std::vector<AttendItem> items_;
  int64_t split_chunks_ = 0;
  std::vector<int32_t> private_;  // by row: chunks that are read with others
  std::vector<int32_t> common_;   // chunks that order_[i] and order_[i + 1] have in common
  std::vector<Node> nodes_;
};

}  // namespace radish
