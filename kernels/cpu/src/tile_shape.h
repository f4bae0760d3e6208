// What a tile of a matrix product keeps in registers.
#pragma once

namespace radish {

struct TileShape {
  int rows, vectors;  // of accumulators
};

}  // namespace radish
