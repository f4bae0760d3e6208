// The C interface between Python and the step runtime. Mirrored field by field in ../abi.py.
#pragma once

#include <cstdint>

namespace radish {

// How a row of activations, a weight matrix or a KV page is stored.
enum Format : int32_t {
  kF32 = 0,
  kBF16 = 1,
  kQ8 = 2,  // int8 that share a scale: packed.h tells it of weights, rows.h of activations, pages.h of pages
  kQ4 = 3,  // weights only
};

// What a weight is packed from: plain numbers, or rows of a GGUF file's blocks.
enum Encoding : int32_t {
  kSourceF32 = 0,
  kSourceBF16 = 1,
  kSourceQ8_0 = 2,
  kSourceQ4_0 = 3,
  kSourceQ4_1 = 4,
};

enum Kind : int32_t {
  kEmbed = 0,     // dst[t] = weight[token_ids[t]], the table packed like a linear weight
  kNorm = 1,      // dst[i] = rms_norm(src[row i]) * weight, in dst_format
  kLinear = 2,    // dst = epilogue(src @ weight^T + bias)
  kRotate = 3,    // qkv -> (q, k norm) -> rotary -> queries in dst, keys and values in pages
  kAttend = 4,    // dst = attention(src) over the pages
  kQuantize = 5,  // dst[i] = src[i] in kQ8
  kHidden = 6,    // step.hidden[i] = rms_norm(src[embed_rows[i]]) * weight, only the true columns
  kKeep = 7,      // dst = the rows of src whose results are wanted; operations after it see only those
};

enum Epilogue : int32_t {
  kStore = 0,   // dst = y, in dst_format
  kAdd = 1,     // dst += y, float32 residual
  kGated = 2,   // dst = silu(gate) * up, in dst_format; weight rows alternate 16 of gate, 16 of up
  kLogits = 3,  // step.logits = y, only the true columns; or step.chosen
};

// Of a row of logits.
enum Wanted : uint8_t {
  kOnlyLogits = 0,
  kOnlyLikeliest = 1,
  kBoth = 2,
};

enum Rows : int32_t {
  kAllTokens = 0,
  kSamplingRows = 1,
};

struct Op {
  int32_t kind;
  int32_t rows;        // Rows
  int32_t gather;      // kNorm: read src at logit_rows
  int32_t src, dst;    // buffers
  int32_t src_format, dst_format;
  int32_t epilogue;
  int32_t n, k;        // kLinear: padded out and in features; others: n is the padded width
  int32_t group;       // 32 or 64, where weights or activations are in kQ8 or kQ4: inputs that share a scale
  int32_t columns;     // true width: of the logits, or of what a norm averages over
  int32_t layer;
  int32_t window;      // tokens a query sees, itself included; 0: all
  float eps;
  const void* weight;
  const float* bias;
  const float* q_norm;  // kRotate: [head_dim] gains, or null
  const float* k_norm;
};

class Backing;  // backing.h

struct Geometry {
  int32_t heads, kv_heads;
  int32_t head_dim;       // padded to 16
  int32_t true_head_dim;
  int32_t rotary_half;    // rotary pairs of a head
  int32_t page_size;
  int32_t kv_format;
  int32_t vocab;
  float query_scale;      // log2(e) / sqrt(true_head_dim)
  char* kv;               // see pages.h
  int64_t num_pages;
  Backing* backing;       // of `kv`, or null
};

struct Draw;  // sample.h

struct Step {
  int32_t tokens, rows, samples, table_width, embeds;
  int32_t pending;                // token ids that are known only once the step before has run
  int32_t previous_count, draw_count;
  int64_t* token_ids;             // [tokens]; the pending ones are filled in
  const int64_t* pending_at;      // [pending] indices of `token_ids`...
  const int64_t* pending_from;    // [pending] ...and of `previous`
  const int64_t* previous;        // [previous_count] what the step before has chosen; below 0: counts as 0
  const int64_t* positions;       // [tokens]
  const int64_t* kv_slots;        // [tokens]
  const int64_t* logit_rows;      // [samples]
  const int64_t* embed_rows;      // [embeds]
  const int32_t* query_starts;    // [rows + 1]
  const int32_t* context_lens;    // [rows]
  const int32_t* page_table;      // [rows, table_width]
  const float* rope;              // [rope_rows][2][rotary_half] cosines, then sines, of each position
  int64_t rope_rows;
  float* logits;                  // [samples, vocab]
  const uint8_t* wanted;          // [samples] Wanted
  int64_t* chosen;                // [samples] where wanted: the id of the largest logit, the first of equals; -1
                                  // where that is not finite, or any is NaN. Both null: only logits are wanted
  const Draw* draws;              // [draw_count] of rows whose logits are written: those give `chosen`
  float* hidden;                  // [embeds, columns of kHidden]
};

// What log-softmax says of rows of logits.
struct LogprobJob {
  const float* logits;    // [rows, vocab]
  const int64_t* chosen;  // [rows] ids
  float* of_chosen;       // [rows]
  int64_t* top;           // [rows, count] the likeliest ids, the first of equals first
  float* of_top;          // [rows, count]
  int64_t rows, vocab, count;
};

// Copies rows of a matrix into a packed weight (packed.h). The target starts as zeros, and rows that
// no job names stay so.
struct PackJob {
  const void* source;     // [rows, columns], rows contiguous
  int32_t source_format;  // Encoding
  int32_t target_format;
  int64_t rows, columns;
  int64_t n, k;           // padded size of the target
  int64_t group;          // 32 or 64, where the target is in kQ8 or kQ4
  int64_t offset;         // source row i goes to offset + i / block * stride + i % block
  int64_t block, stride;
  void* target;
};

}  // namespace radish
