// Weights laid out as kernels like to read them, by a step of their own or by their update:
//
//   pack_weights(w){layout} -> w laid out so (weight_layout.h)
//   adamw_packed and sgd_packed{layouts}: adamw and sgd of one parameter, with a result more for
//   each of the layouts, behind the others: the copy, or param' where there is none, laid out so
#pragma once

#include "graph/ops/optimizer.h"
#include "program/ops/weight_layout.h"

namespace shardrun {

/// The results of an update that may lay its parameter out.
struct PackedUpdate {
  UpdateForm update;                  // of the others
  std::vector<WeightLayout> layouts;  // none of adamw and sgd
  size_t first = 0;                   // result: in layouts[0], and behind it in the others

  /// The result that is laid out.
  size_t of_result() const { return update.copy[0].value_or(update.result(0, 0)); }

  /// Of a node with so many operands. Throws invalid_input where attributes do not fit them.
  static PackedUpdate of(const Node& node, size_t operands);
};

bool is_packed_update(const std::string& op);
/// The update, by what lays its parameter out in this layout, too.
Node with_layout(const Node& update, const WeightLayout& layout);
/// The update alone; any other node as it is.
Node without_layouts(const Node& node);

}  // namespace shardrun
