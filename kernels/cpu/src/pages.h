// Where keys and values lie in the KV arena.
//
//   [layers][pages][kv_heads]( keys of the page, values of the page )
//
// A page of one head is cut into blocks of b tokens, b the largest power of two that divides the page
// size, 16 at most. With `pack` elements to a dot product (1 float32, 2 bfloat16):
//
//   keys    [page_size / b] [head_dim / pack][b][pack]            16 scores a vector, no horizontal sum
//   values  [page_size / b] [b / vpack][head_dim][vpack]          vpack = min(pack, b): pairs of tokens
//
// so no memory is padding. Blocks smaller than 16 tokens are gathered into full ones before use.
#pragma once

#include <cstdint>

#include "abi.h"
#include "vec.h"

namespace radish {

template <class Mul>
struct Pages {
  using T = typename Mul::T;

  explicit Pages(const Geometry& g)
      : base(reinterpret_cast<T*>(g.kv)),
        page_size(g.page_size),
        head_dim(g.head_dim),
        block(block_of(g.page_size)),
        head_stride(static_cast<int64_t>(g.page_size) * g.head_dim),
        kv_heads(g.kv_heads),
        num_pages(g.num_pages) {}

  static int64_t block_of(int64_t page_size) {
    int64_t block = page_size & -page_size;
    return block < kLanes ? block : kLanes;
  }

  int64_t value_pack() const { return block < Mul::kPack ? block : Mul::kPack; }

  T* keys(int64_t layer, int64_t page, int64_t head) const {
    return base + ((layer * num_pages + page) * kv_heads + head) * 2 * head_stride;
  }
  T* values(int64_t layer, int64_t page, int64_t head) const {
    return keys(layer, page, head) + head_stride;
  }

  T* base;
  int64_t page_size, head_dim, block, head_stride, kv_heads, num_pages;
};

}  // namespace radish
