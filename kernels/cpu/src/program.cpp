// The step runtime: a model laid down once as a list of operations, executed by one call per step.

#include <algorithm>
#include <exception>
#include <new>

#include "abi.h"
#include "backing.h"
#include "cascade.h"
#include "context.h"
#include "kept.h"
#include "logprobs.h"
#include "memory.h"
#include "operations.h"
#include "pack.h"
#include "packed.h"
#include "pool.h"
#include "rows.h"
#include "sample.h"

namespace radish {
namespace {

// Calls function<format>(), if this library has the format: bit f of `kFormats` says so of format f.
template <uint32_t kFormats, int32_t kFirst = 0, class Function>
void with_format(int32_t format, Function function) {
  if constexpr ((kFormats >> kFirst) != 0) {
    if (format > kFirst) return with_format<kFormats, kFirst + 1>(format, function);
    if constexpr ((kFormats >> kFirst & 1) != 0) function.template operator()<Format(kFirst)>();
  }
}

enum Status : int32_t { kOk = 0, kNoMemory = 1, kBadToken = 2, kBadPlace = 3 };

class Program {
 public:
  Program(Pool& pool, const Geometry& geometry, const Op* ops, int64_t op_count, const int64_t* row_bytes,
          int64_t buffer_count)
      : pool_(pool), geometry_(geometry), ops_(ops, ops + op_count), scratches_(pool.threads()),
        likeliest_(pool.threads()) {
    int64_t widest = 0;
    for (int64_t i = 0; i < buffer_count; ++i) {
      buffers_.push_back({row_bytes[i], Memory()});
      widest = std::max(widest, row_bytes[i]);
    }
    keeps_ = op_count;
    for (int64_t i = 0; i < op_count; ++i) {
      if (ops_[i].kind == kKeep) keeps_ = i + 1;
    }
    int64_t attention = 0;
    with_format<RADISH_PAGES>(geometry.kv_format, [&]<Format f>() { attention = attention_scratch_bytes<f>(geometry); });
    int64_t panel = 0;
    for (const Op& op : ops_) {
      if (op.kind != kLinear) continue;
      with_format<RADISH_WEIGHTS>(op.src_format,
                                  [&]<Format f>() { panel = std::max(panel, linear_scratch_bytes<f>(op)); });
    }
    for (Scratch& scratch : scratches_) {
      scratch.norm.reserve(widest * sizeof(float));
      scratch.panel.reserve(panel);
      scratch.attention.reserve(attention);
    }
  }

  Status run(const Step& step) {
    if (!fill_pending(step)) return kBadPlace;
    if (const Status status = check(step); status != kOk) return status;
    if (geometry_.backing != nullptr) geometry_.backing->reach(last_page(step));
    // Of one token several rows of logits may be wanted.
    for (Buffer& buffer : buffers_) buffer.memory.reserve(std::max(step.tokens, step.samples) * buffer.row_bytes);
    attention_.plan(step, geometry_, pool_.threads());
    const bool fewer = kept_.choose(step);
    if (fewer) kept_attention_.plan(kept_.step, geometry_, pool_.threads());
    const AttendItems items = attention_.items(), kept_items = kept_attention_.items();
    const State carried = reserve_states(step);
    for (std::vector<Likeliest>& seen : likeliest_) seen.assign(step.samples, {});
    const auto context_of = [&](const Step& part, const AttendItems& items) {
      return Context{geometry_, part,      buffers_.data(), scratches_.data(), items, states_,
                     carried,   progress_, pool_,           likeliest_.data(), 0};
    };
    const Context whole = context_of(step, items), kept = context_of(kept_.step, kept_items);
    const Pool::Awake awake(pool_);
    for (size_t i = 0; i < ops_.size(); ++i) execute(fewer && i >= keeps_ ? kept : whole, ops_[i]);
    if (step.wanted != nullptr) join_likeliest(step);
    return draw_awake(pool_, draws_of(step)) ? kOk : kNoMemory;
  }

 private:
  void execute(const Context& c, const Op& op) const {
    const auto rows = [&](int64_t count, auto run) {
      c.for_each(count, [&](const Context& own, Range range) { run(own, op, range); });
    };
    switch (op.kind) {
      case kKeep: {
        const std::vector<int64_t>& tokens = kept_.tokens();
        return c.for_each(static_cast<int64_t>(tokens.size()),
                          [&](const Context& own, Range range) { keep_rows(own, op, tokens.data(), range); });
      }
      case kEmbed: return rows(c.step.tokens, embed);
      case kNorm: return rows(c.rows(op), norm);
      case kQuantize: return rows(c.rows(op), quantize);
      case kHidden: return rows(c.step.embeds, hidden);
      case kRotate: return with_format<RADISH_PAGES>(c.geometry.kv_format, [&]<Format f>() { rotate<f>(c, op); });
      case kAttend: return with_format<RADISH_PAGES>(c.geometry.kv_format, [&]<Format f>() { attend<f>(c, op); });
      case kLinear: return with_format<RADISH_WEIGHTS>(op.src_format, [&]<Format f>() { linear<f>(c, op); });
    }
  }

  SampleJob draws_of(const Step& s) const { return {s.logits, s.draws, s.chosen, s.draw_count, geometry_.vocab}; }

  // Takes over what the step before has chosen; false if a place is out of range.
  static bool fill_pending(const Step& s) {
    for (int32_t i = 0; i < s.pending; ++i) {
      const int64_t at = s.pending_at[i], from = s.pending_from[i];
      if (at < 0 || at >= s.tokens || from < 0 || from >= s.previous_count) return false;
      s.token_ids[at] = std::max(s.previous[from], int64_t{0});
    }
    return true;
  }

  // Everything that becomes an address is checked, so a wrong batch is an error and not a wild write.
  Status check(const Step& s) const {
    const int64_t slots = geometry_.num_pages * geometry_.page_size;
    for (int64_t t = 0; t < s.tokens; ++t) {
      if (s.token_ids[t] < 0 || s.token_ids[t] >= geometry_.vocab) return kBadToken;
      if (s.positions[t] < 0 || s.positions[t] >= s.rope_rows) return kBadPlace;
      if (s.kv_slots[t] < 0 || s.kv_slots[t] >= slots) return kBadPlace;
    }
    for (int64_t i = 0; i < s.samples; ++i) {
      if (s.logit_rows[i] < 0 || s.logit_rows[i] >= s.tokens) return kBadPlace;
    }
    for (int64_t i = 0; i < s.embeds; ++i) {
      if (s.embed_rows[i] < 0 || s.embed_rows[i] >= s.tokens) return kBadPlace;
    }
    for (int64_t i = 0; i < s.draw_count; ++i) {
      if (s.draws[i].row < 0 || s.draws[i].row >= s.samples) return kBadPlace;
    }
    if (!names_tokens(draws_of(s))) return kBadToken;
    if (s.query_starts[0] != 0 || s.query_starts[s.rows] != s.tokens) return kBadPlace;
    for (int64_t r = 0; r < s.rows; ++r) {
      const int length = s.query_starts[r + 1] - s.query_starts[r];
      const int64_t pages = (s.context_lens[r] + geometry_.page_size - 1) / geometry_.page_size;
      if (length < 0 || s.context_lens[r] < length || pages > s.table_width) return kBadPlace;
      for (int64_t p = 0; p < pages; ++p) {
        const int32_t page = s.page_table[r * s.table_width + p];
        if (page < 0 || page >= geometry_.num_pages) return kBadPlace;
      }
    }
    return kOk;
  }

  int64_t last_page(const Step& s) const {
    int64_t slot = 0;
    for (int64_t t = 0; t < s.tokens; ++t) slot = std::max(slot, s.kv_slots[t]);
    return slot / geometry_.page_size;
  }

  // Room for what attention leaves between its parts; returns that of states carried between items.
  State reserve_states(const Step& step) {
    int64_t queries = int64_t{step.tokens} * geometry_.heads;
    for (const AttentionPlan* plan : {&attention_, &kept_attention_}) {
      queries = std::max(queries, plan->items().count * plan->items().split_chunks * kQueries);
    }
    states_.reserve(State::floats(queries, geometry_.head_dim) * sizeof(float));
    return State::at(reinterpret_cast<float*>(states_.data()), queries);
  }

  void join_likeliest(const Step& step) {
    for (int64_t i = 0; i < step.samples; ++i) {
      for (size_t thread = 1; thread < likeliest_.size(); ++thread) likeliest_[0][i].join(likeliest_[thread][i]);
      if (step.wanted[i] != kOnlyLogits) step.chosen[i] = likeliest_[0][i].id();
    }
  }

  Pool& pool_;
  const Geometry geometry_;
  const std::vector<Op> ops_;
  std::vector<Buffer> buffers_;
  std::vector<Scratch> scratches_;
  size_t keeps_;  // operations up to the last that keeps rows; all if there is none
  KeptStep kept_;
  AttentionPlan attention_, kept_attention_;
  Progress progress_;
  Memory states_;
  std::vector<std::vector<Likeliest>> likeliest_;  // of each thread
};

}  // namespace
}  // namespace radish

#pragma GCC visibility push(default)
extern "C" {

// Sizes by which the caller checks that it describes the structs as this library does.
int64_t radish_struct_bytes(int32_t which) {
  const int64_t sizes[] = {sizeof(radish::Op), sizeof(radish::Geometry), sizeof(radish::Step), sizeof(radish::PackJob),
                           sizeof(radish::Draw), sizeof(radish::SampleJob), sizeof(radish::LogprobJob)};
  return sizes[which];
}

void* radish_map(int64_t bytes) { return radish::map_memory(radish::whole_pages(bytes)); }
void radish_unmap(void* memory, int64_t bytes) { munmap(memory, radish::whole_pages(bytes)); }

void* radish_pool_create(int32_t threads) {
  try {
    return new radish::Pool(threads);
  } catch (const std::exception&) {  // no thread or no memory
    return nullptr;
  }
}
void radish_pool_destroy(void* pool) { delete static_cast<radish::Pool*>(pool); }

int64_t radish_packed_bytes(int32_t format, int64_t n, int64_t k, int64_t group) {
  return n / radish::kPanel * radish::panel_bytes(format, k, group);
}
void radish_pack(void* pool, const radish::PackJob* job) { radish::pack(*static_cast<radish::Pool*>(pool), *job); }

int32_t radish_sample(void* pool, const radish::SampleJob* job) {
  if (!radish::names_tokens(*job)) return radish::kBadToken;
  return radish::draw(*static_cast<radish::Pool*>(pool), *job) ? radish::kOk : radish::kNoMemory;
}

int32_t radish_logprobs(void* pool, const radish::LogprobJob* job) {
  return radish::logprobs(*static_cast<radish::Pool*>(pool), *job) ? radish::kOk : radish::kNoMemory;
}

void* radish_program_create(void* pool, const radish::Geometry* geometry, const radish::Op* ops, int64_t op_count,
                            const int64_t* row_bytes, int64_t buffer_count) {
  try {
    return new radish::Program(*static_cast<radish::Pool*>(pool), *geometry, ops, op_count, row_bytes, buffer_count);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void radish_program_destroy(void* program) { delete static_cast<radish::Program*>(program); }

int32_t radish_program_run(void* program, const radish::Step* step) {
  try {
    return static_cast<radish::Program*>(program)->run(*step);
  } catch (const std::bad_alloc&) {
    return radish::kNoMemory;
  }
}

}  // extern "C"
#pragma GCC visibility pop
