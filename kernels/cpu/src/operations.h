// The large operations. Each is compiled on its own and for each format on its own: a build occupies several
// cores, and a library may hold only the formats that are served. RADISH_FORMAT is the one being compiled;
// in the rest RADISH_WEIGHTS and RADISH_PAGES say by their bits which formats there are.
#pragma once

#include <cstdint>

#include "abi.h"
#include "context.h"

namespace radish {

// Matrix products with packed weights of a format and what follows them in registers.
template <Format format>
void linear(const Context& c, const Op& op);

// Working memory that `linear` needs for each thread.
template <Format format>
int64_t linear_scratch_bytes(const Op& op);

// For pages of a format: norm and turn queries and keys, store keys and values.
template <Format format>
void rotate(const Context& c, const Op& op);

// For pages of a format: attention of all rows.
template <Format format>
void attend(const Context& c, const Op& op);

// Working memory that `attend` needs for each thread.
template <Format format>
int64_t attention_scratch_bytes(const Geometry& geometry);

}  // namespace radish
