// Where keys and values lie in the KV arena.
//
//   [layers][pages][kv_heads]( keys of the page, values of the page, int8: a scale of each )
//
// A page of one head is cut into blocks of b tokens, b the largest power of two that divides the page
// size, 16 at most. With `pack` elements to a dot product (1 float32, 2 bfloat16, 4 int8):
//
//   keys    [page_size / b] [head_dim / pack][b][pack]            16 scores a vector, no horizontal sum
//   values  [page_size / b] [b / vpack][head_dim][vpack]          vpack = min(pack, b): groups of tokens
//   scales  [2][page_size] bfloat16                           of a token's key, then of its value
//
// so no memory is padding. Blocks smaller than 16 tokens are gathered into full ones before use. int8 codes
// are stored as code + 128, what VNNI multiplies with int8; a scale is never below what the code range needs.
#pragma once

#include <cstdint>
#include <cstring>

#include "abi.h"
#include "vec.h"

namespace radish {

// int8 pages; floats are described by what multiplies them.
struct PageQ8 {
  using T = uint8_t;
  static constexpr int kPack = 4;
};

template <class Mul>
struct Pages {
  using T = typename Mul::T;
  static constexpr int kPack = Mul::kPack;

  explicit Pages(const Geometry& g)
      : base(reinterpret_cast<T*>(g.kv)),
        page_size(g.page_size),
        head_dim(g.head_dim),
        block(block_of(g.page_size)),
        head_stride(static_cast<int64_t>(g.page_size) * g.head_dim),
        page_stride(2 * head_stride + (kPack == 4 ? 4 * g.page_size : 0)),
        kv_heads(g.kv_heads),
        num_pages(g.num_pages) {}

  static int64_t block_of(int64_t page_size) {
    int64_t block = page_size & -page_size;
    return block < kLanes ? block : kLanes;
  }

  int64_t value_pack() const { return block < kPack ? block : kPack; }

  T* keys(int64_t layer, int64_t page, int64_t head) const {
    return base + ((layer * num_pages + page) * kv_heads + head) * page_stride;
  }
  T* values(int64_t layer, int64_t page, int64_t head) const {
    return keys(layer, page, head) + head_stride;
  }
  // Of int8 pages.
  uint16_t* scales(int64_t layer, int64_t page, int64_t head) const {
    return reinterpret_cast<uint16_t*>(keys(layer, page, head) + 2 * head_stride);
  }

  // Copies a block smaller than 16 tokens, at `offset` of its page, to `lane` of a full one.
  void gather(int64_t layer, int64_t page, int64_t head, int64_t offset, int64_t lane, T* to_keys, T* to_values) const {
    const T* from_keys = keys(layer, page, head) + offset * head_dim;
    const T* from_values = values(layer, page, head) + offset * head_dim;
    for (int64_t d = 0; d < head_dim / kPack; ++d) {
      std::memcpy(to_keys + (d * kLanes + lane) * kPack, from_keys + d * block * kPack, block * kPack * sizeof(T));
    }
    const int64_t pack = value_pack();
    if (pack == kPack) {
      std::memcpy(to_values + lane * head_dim, from_values, block * head_dim * sizeof(T));
      return;
    }
    for (int64_t d = 0; d < head_dim; ++d) {
      std::memcpy(to_values + (lane / kPack * head_dim + d) * kPack + lane % kPack, from_values + d * pack,
                  pack * sizeof(T));
    }
  }

  T* base;
  int64_t page_size, head_dim, block, head_stride, page_stride, kv_heads, num_pages;
};

}  // namespace radish
