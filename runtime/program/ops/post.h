// What follows a product or a convolution within its step: element-wise ops on the result.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "graph/graph.h"

namespace shardrun {

/// One of them. Steps are fused so (runtime/program/fusion/patterns.h): matmul becomes matmul_post,
/// conv and conv_data_grad become conv_post and conv_data_grad_post. The result so far is in f32
/// (in f64 if the operands are), and rounded once, to the last one's type.
///
///   matmul_post(a, b, bias, x){equation=mk,kn->mn, post="add gelu_grad"}  is
///   gelu_grad(x, matmul(a, b) + bias): the second takes the result so far as its operand 1.
///
/// What one of them takes may be a second result, rounded to its own type, for others to read:
///
///   y, x = matmul_post(a, b, bias){post="add gelu", post_keep=1}: x is matmul(a, b) + bias
///
/// The last result may be the sum of one of the product's operands over what is multiplied away, of
/// the product's type: the gradient of a bias along with that of its weight.
///
///   dw, db = matmul_post(x, dy){equation=bm,bn->mn, post_sum=1}: db [n] is dy [b, n] summed over b
struct PostOp {
  Node node;                     // op and attributes
  size_t at = 0;                 // which of its operands the result so far is
  std::vector<size_t> operands;  // of the step's: the others, in order
};

/// How many operands a product and a convolution have themselves.
inline constexpr size_t kOwnOperands = 2;

/// Those of a step; none if there are none.
std::vector<PostOp> post_ops(const Node& node);
/// Operand types of one, the result so far, of type `so_far`, among them. `in`: those of the step.
std::vector<TensorType> types_of(const PostOp& post, const TensorType& so_far,
                                 std::span<const TensorType> in);
/// Which of them takes what is the second result.
std::optional<size_t> kept_before(const Node& node);
/// Appends one; `node` may be a product or convolution alone. Its other operands are the next that
/// the step takes. `keep`: what it takes itself is the step's second result.
void add_post_op(Node& node, const Node& next, size_t at, bool keep = false);
/// The product's operand whose sum is the last result.
std::optional<size_t> summed_operand(const Node& node);
void add_operand_sum(Node& node, size_t operand);
/// That sum as a reduce_sum, of an operand and a product of these types.
Node operand_sum(const Node& node, DType operand, DType product);
/// The product or convolution alone.
Node without_post_ops(const Node& node);
/// Has the op post-ops (matmul_post), or can it get some (matmul)?
bool has_post_ops(const std::string& op);
bool takes_post_ops(const std::string& op);
/// Is it an op that gives every element by the same element of its operands, where these have the
/// result's shape?
bool is_post_op(const std::string& op);

}  // namespace shardrun
