// What the attention of a step consists of (cascade.h makes it).
#pragma once

#include <cstdint>

namespace radish {

// Queries [first, last) of some rows and a KV head, counted row by row, then token by token and, within a
// token, head by head of the group; and chunks [begin, end) of their keys.
struct AttendItem {
  int32_t rows_begin, rows_end;  // in AttendItems::order
  int32_t kv_head;
  int32_t first, last;
  int32_t begin, end;
  int32_t after;  // items that must be done before
  bool leaves;    // its state is for later items
};

struct AttendItems {
  const int32_t* order;     // rows, those that share pages side by side
  const AttendItem* items;  // [count] longest first within what may run at the same time
  int64_t count;
  int64_t split_chunks;     // chunks of the longest row when items are split along keys, else 0
};

}  // namespace radish
