// The element-wise family, and attributes of activations that ONNX gives default values.
#pragma once

#include <string>
#include <string_view>

#include "graph/graph.h"

namespace shardrun {

/// Element i of each result comes from element i of the operands, spread to its shape, and from
/// nothing else. Not dropout, which draws by position.
bool is_elementwise(std::string_view op);

/// Attribute `name` of an activation node, or ONNX's default for that op: leaky_relu alpha 0.01,
/// elu and celu alpha 1, selu alpha 1.6732…, gamma 1.0507…, hard_sigmoid alpha 0.2, beta 0.5,
/// thresholded_relu alpha 1.
double activation_attr(const Node& node, const std::string& name);

}  // namespace shardrun
