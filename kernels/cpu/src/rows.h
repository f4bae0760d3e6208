// Operations on single rows of activations: embedding, norm, quantisation, rotary with KV write.
#pragma once

#include <cstring>

#include "abi.h"
#include "context.h"
#include "minmax.h"
#include "packed.h"
#include "pages.h"
#include "shared.h"
#include "vec.h"

namespace radish {

// A row of int8 activations: [k] values, then of each `group` (32 or 64) of them that share it a float32 scale,
// an int32 correction -128 * sum(values), which takes back the 128 that 8-bit weights are shifted by, and a
// float32 scale * sum(values), by which what is added to 4-bit weights counts; three arrays [k / group].
struct Q8Row {
  int8_t* values;
  float* scales;
  int32_t* corrections;
  float* sums;
};

inline Q8Row q8_row(char* row, int64_t k, int64_t group) {
  const int64_t groups = k / group;
  float* scales = reinterpret_cast<float*>(row + k);
  int32_t* corrections = reinterpret_cast<int32_t*>(scales + groups);
  return {reinterpret_cast<int8_t*>(row), scales, corrections, reinterpret_cast<float*>(corrections + groups)};
}

inline void quantize_row(const float* x, char* out, int64_t k, int64_t group) {
  const Q8Row row = q8_row(out, k, group);
  for (int64_t g = 0; g < k / group; ++g, x += group) {
    F most = zero();
    for (int64_t i = 0; i < group; i += kLanes) most = max(most, abs(load(x + i)));
    const float scale = largest(most) / 127.0f;
    const F inverse = splat(scale > 0.0f ? 1.0f / scale : 0.0f);
    F total = zero();  // whole numbers, exact in float32
    for (int64_t i = 0; i < group; i += kLanes) {
      const F code = nearest(max(min(load(x + i) * inverse, splat(127.0f)), splat(-127.0f)));
      store_i8(row.values + g * group + i, code);
      total = total + code;
    }
    const float whole = sum(total);
    row.scales[g] = scale;
    row.corrections[g] = -128 * static_cast<int32_t>(whole);
    row.sums[g] = scale * whole;
  }
}

// The place `bytes` after p, which is the same element of a later row.
template <class T>
inline const T* offset(const T* p, int64_t bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(p) + bytes);
}

// Writes vector i of a row in a float format.
inline void store_as(int32_t format, char* row, int64_t i, F x) {
  if (format == kF32) {
    store(reinterpret_cast<float*>(row) + i, x);
  } else {
    store_bf16(reinterpret_cast<uint16_t*>(row) + i, x);
  }
}

template <class Mul>
inline void store_as(typename Mul::T* p, F x) {
  if constexpr (Mul::kPack == 1) {
    store(p, x);
  } else {
    store_bf16(p, x);
  }
}

inline void embed(const Context& c, const Op& op, Range range) {
  for (int64_t t = range.begin; t < range.end; ++t) {
    unpack(op.src_format, op.weight, c.step.token_ids[t], op.k, op.group, c.row<float>(op.dst, t));
  }
}

inline float inverse_rms(const float* x, int64_t padded, int64_t columns, float eps) {
  F squares = zero();
  for (int64_t i = 0; i < padded; i += kLanes) {
    const F v = load(x + i);
    squares = fma(v, v, squares);
  }
  return 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(columns) + eps);
}

inline void norm(const Context& c, const Op& op, Range range) {
  const float* gain = static_cast<const float*>(op.weight);
  float* scratch = reinterpret_cast<float*>(c.scratch().norm.data());
  for (int64_t i = range.begin; i < range.end; ++i) {
    const float* x = c.row<float>(op.src, op.gather ? c.step.logit_rows[i] : i);
    char* out = c.row<char>(op.dst, i);
    const F scale = splat(inverse_rms(x, op.n, op.columns, op.eps));
    for (int64_t j = 0; j < op.n; j += kLanes) {
      const F y = load(x + j) * scale * load(gain + j);
      if (op.dst_format == kQ8) {
        store(scratch + j, y);
      } else {
        store_as(op.dst_format, out, j, y);
      }
    }
    if (op.dst_format == kQ8) quantize_row(scratch, out, op.n, op.group);
  }
}

// Embeddings keep float32: nothing is multiplied with them afterwards.
inline void hidden(const Context& c, const Op& op, Range range) {
  const float* gain = static_cast<const float*>(op.weight);
  float* scratch = reinterpret_cast<float*>(c.scratch().norm.data());
  for (int64_t i = range.begin; i < range.end; ++i) {
    const float* x = c.row<float>(op.src, c.step.embed_rows[i]);
    const F scale = splat(inverse_rms(x, op.n, op.columns, op.eps));
    for (int64_t j = 0; j < op.n; j += kLanes) store(scratch + j, load(x + j) * scale * load(gain + j));
    std::memcpy(c.step.hidden + i * op.columns, scratch, op.columns * sizeof(float));
  }
}

inline void quantize(const Context& c, const Op& op, Range range) {
  for (int64_t i = range.begin; i < range.end; ++i) {
    quantize_row(c.row<float>(op.src, i), c.row<char>(op.dst, i), op.n, op.group);
  }
}

// Brings rows of the whole step together.
inline void keep_rows(const Context& c, const Op& op, const int64_t* tokens, Range range) {
  const int64_t bytes = min(c.buffers[op.src].row_bytes, c.buffers[op.dst].row_bytes);
  for (int64_t i = range.begin; i < range.end; ++i) {
    std::memcpy(c.row<char>(op.dst, i), c.row<char>(op.src, tokens[i]), bytes);
  }
}

// Norms (when there is a gain) and rotates one head in place; pairs are (i, i + rotary_half).
inline void rotate_head(const Geometry& g, float* x, const float* gain, float eps, const float* angles) {
  if (gain != nullptr) {
    const F scale = splat(inverse_rms(x, g.head_dim, g.true_head_dim, eps));
    for (int i = 0; i < g.head_dim; i += kLanes) store(x + i, load(x + i) * scale * load(gain + i));
  }
  const float *cosines = angles, *sines = angles + g.rotary_half;
  float* second = x + g.rotary_half;
  int i = 0;
  for (; i + kLanes <= g.rotary_half; i += kLanes) {
    const F a = load(x + i), b = load(second + i), cosine = load(cosines + i), sine = load(sines + i);
    store(x + i, a * cosine - b * sine);
    store(second + i, b * cosine + a * sine);
  }
  for (; i < g.rotary_half; ++i) {
    const float a = x[i], b = second[i];
    x[i] = a * cosines[i] - b * sines[i];
    second[i] = b * cosines[i] + a * sines[i];
  }
}

// Puts one head of one token into its page (pages.h tells the layout).
template <class Mul>
inline void write_kv(const Pages<Mul>& pages, int layer, int64_t slot, int kv_head, const float* key,
                     const float* value) {
  using T = typename Mul::T;
  constexpr int kPack = Mul::kPack;
  const int64_t page = slot / pages.page_size, offset = slot % pages.page_size;
  const int64_t block = offset / pages.block, lane = offset % pages.block;
  T* keys = pages.keys(layer, page, kv_head) + block * pages.block * pages.head_dim + lane * kPack;
  T* values = pages.values(layer, page, kv_head) + block * pages.block * pages.head_dim;
  const int64_t value_pack = pages.value_pack();
  values += lane / value_pack * value_pack * pages.head_dim + lane % value_pack;
  T rounded_key[kLanes], rounded_value[kLanes];
  for (int64_t d = 0; d < pages.head_dim; d += kLanes) {
    store_as<Mul>(rounded_key, load(key + d));
    store_as<Mul>(rounded_value, load(value + d));
    for (int i = 0; i < kLanes; i += kPack) {
      std::memcpy(keys + (d + i) * pages.block, rounded_key + i, kPack * sizeof(T));
    }
    for (int i = 0; i < kLanes; ++i) values[(d + i) * value_pack] = rounded_value[i];
  }
}

// Stores the scale of a vector's int8 codes; returns its inverse.
inline float scale_token(const float* x, int64_t count, uint16_t* scale) {
  F most = zero();
  for (int64_t i = 0; i < count; i += kLanes) most = max(most, abs(load(x + i)));
  *scale = bf16_above(largest(most) / 127.0f);
  const float rounded = from_bf16(*scale);
  return rounded > 0.0f ? 1.0f / rounded : 0.0f;
}

// The same in int8, one scale for the key and one for the value.
inline void write_kv(const Pages<PageQ8>& pages, int layer, int64_t slot, int kv_head, const float* key,
                     const float* value) {
  constexpr int kPack = PageQ8::kPack;
  const int64_t page = slot / pages.page_size, offset = slot % pages.page_size;
  const int64_t block = offset / pages.block, lane = offset % pages.block, value_pack = pages.value_pack();
  const int64_t before = block * pages.block * pages.head_dim;
  uint8_t* keys = pages.keys(layer, page, kv_head) + before + lane * kPack;
  uint8_t* values = pages.values(layer, page, kv_head) + before + lane / value_pack * value_pack * pages.head_dim +
                    lane % value_pack;
  uint16_t* scales = pages.scales(layer, page, kv_head) + offset;
  const F key_inverse = splat(scale_token(key, pages.head_dim, scales));
  const F value_inverse = splat(scale_token(value, pages.head_dim, scales + pages.page_size));
  int8_t codes[kLanes];
  for (int64_t d = 0; d < pages.head_dim; d += kLanes) {
    store_i8(codes, load(key + d) * key_inverse);
    for (int i = 0; i < kLanes; i += kPack) {
      for (int k = 0; k < kPack; ++k) keys[(d + i) * pages.block + k] = static_cast<uint8_t>(codes[i + k] + 128);
    }
    store_i8(codes, load(value + d) * value_inverse);
    for (int i = 0; i < kLanes; ++i) values[(d + i) * value_pack] = static_cast<uint8_t>(codes[i] + 128);
  }
}

template <class Mul>
inline void rotate(const Context& c, const Op& op, Range range) {
  const Geometry& g = c.geometry;
  const Pages<Mul> pages(g);
  const F scale = splat(g.query_scale);
  for (int64_t t = range.begin; t < range.end; ++t) {
    float* qkv = c.row<float>(op.src, t);
    char* queries = c.row<char>(op.dst, t);
    const float* angles = c.step.rope + c.step.positions[t] * 2 * g.rotary_half;
    for (int h = 0; h < g.heads; ++h) {
      float* head = qkv + static_cast<int64_t>(h) * g.head_dim;
      rotate_head(g, head, op.q_norm, op.eps, angles);
      for (int i = 0; i < g.head_dim; i += kLanes) {
        store_as(g.kv_format == kBF16 ? kBF16 : kF32, queries, static_cast<int64_t>(h) * g.head_dim + i, load(head + i) * scale);
      }
    }
    float* keys = qkv + static_cast<int64_t>(g.heads) * g.head_dim;
    const float* values = keys + static_cast<int64_t>(g.kv_heads) * g.head_dim;
    for (int h = 0; h < g.kv_heads; ++h) {
      float* key = keys + static_cast<int64_t>(h) * g.head_dim;
      rotate_head(g, key, op.k_norm, op.eps, angles);
      write_kv(pages, op.layer, c.step.kv_slots[t], h, key, values + static_cast<int64_t>(h) * g.head_dim);
    }
  }
}

}  // namespace radish
