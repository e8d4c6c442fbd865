// The persistent values of a rank, read or made in pieces by all its threads.
#pragma once

#include <vector>

#include "graph/program.h"

namespace shardrun {

/// Some rows of a persistent value's shard, and where they go.
struct ValuePiece {
  const Binding* binding;
  Box box;
  char* to;
};

/// Adds the pieces of `shard`, of binding `b`, which are to lie at `to`.
void add_pieces(const Binding& b, const TensorView& shard, char* to,
                std::vector<ValuePiece>& pieces);
/// On the threads of the calling rank. Of several failures throws the first piece's.
void read_pieces(const std::vector<ValuePiece>& pieces, uint64_t seed);

}  // namespace shardrun
