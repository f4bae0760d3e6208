// The large operations, each compiled on its own so that a build occupies several cores.
#pragma once

#include <cstdint>

#include "abi.h"
#include "context.h"

namespace radish {

// Matrix products with packed weights and what follows them in registers.
void linear(const Context& c, const Op& op, int thread);

// Norm and turn queries and keys, store keys and values in their pages.
void rotate(const Context& c, const Op& op, int thread);

// Attention of all rows over their pages.
void attend(const Context& c, const Op& op, int thread);

// Working memory that `attend` needs for each thread.
int64_t attention_scratch_bytes(const Geometry& geometry);

}  // namespace radish
