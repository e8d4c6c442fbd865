// Where the operands and results of an optimizer's update are: of one parameter or of several.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.h"

namespace shardrun {

/// adamw and sgd of `count` parameters, each with `moments` tensors like it. Example, sgd of two:
///   (param, grad, buffer,  param, grad, buffer,  lr, step, clip_scale)
///     -> param', buffer',  param', buffer'[, copy …]
struct UpdateForm {
  size_t count = 1, moments = 0;
  std::vector<double> decay;                // of each
  std::vector<std::optional<size_t>> copy;  // result, of each

  /// operand(p, 0) is the parameter, 1 the gradient, 2 and more the moments; result(p, 0) the new
  /// parameter, 1 and more the moments.
  size_t operand(size_t p, size_t which) const { return p * (2 + moments) + which; }
  size_t result(size_t p, size_t which) const { return p * (1 + moments) + which; }
  size_t lr() const { return count * (2 + moments); }
  size_t step() const { return lr() + 1; }
  size_t clip_scale() const { return lr() + 2; }
  size_t operands() const { return lr() + 3; }
  size_t results() const;

  /// Of a node with so many operands. Throws invalid_input where attributes do not fit them.
  static UpdateForm of(const Node& node, size_t operands);
};

/// Is it adamw or sgd?
bool is_update(const std::string& op);
/// One update of all the parameters that `nodes` update, which have equal attributes but for
/// weight_decay and copy.
Node fused_update(const std::vector<const Node*>& nodes);

}  // namespace shardrun
