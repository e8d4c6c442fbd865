// A user's op as an OpDef and a kernel of ours, and what is checked of it before it runs.
#pragma once

#include "graph/op_def.h"
#include "kernels/kernel.h"
#include "shardrun/op.h"

namespace shardrun {

/// register_op of the public header, throwing Error. `samples` are calls that the tests which loop
/// over the registry run, of the op and, extended, of its gradient.
void add_user_op(const UserOp& op, std::vector<OpDef::Sample> samples = {});

/// The attributes that a user's rules and kernels see.
Attributes user_attributes(const Attrs& attrs);
Attrs internal_attrs(const Attributes& attributes);
std::vector<TensorType> internal_types(const std::vector<TensorInfo>& infos);

/// The kernel of a registered op or of its gradient ('acme::Swish/gradient'), as it was given.
const OpKernel& user_kernel_of(const Node& node);

/// The node that computes a user's op's gradient, operands and results as in UserOp; nullopt if the
/// op has none. `in` are the types of the op's operands, `types` becomes those of the gradient's.
std::optional<Node> gradient_node(const Node& node, std::span<const TensorType> in,
                                  std::vector<TensorType>& types);

/// Runs every user's op of a graph on small operands, once for each kind of call. Throws
/// invalid_input naming the node where a kernel is not what it has to be (see examine_op). Returns
/// notes on ops whose kernel refuses small operands, so that they cannot be cut.
std::vector<std::string> check_user_ops(const Graph& graph);

}  // namespace shardrun
