// What shape rules and gradient rules of several op families share.
#pragma once

#include "graph/op_def.h"

namespace shardrun {

using Types = std::vector<TensorType>;
using InTypes = std::span<const TensorType>;
using Grads = std::vector<ValueId>;
using Ints = std::vector<int64_t>;

/// Throws invalid_input unless there are `count` (or from `count` to `most`) operands.
void require_operands(std::span<const TensorType> in, size_t count, size_t most = 0);
void require_float(const TensorType& type, std::string_view operand);
void require_index(const TensorType& type, std::string_view operand);  // i32 or i64
void require_same_dtype(const TensorType& a, const TensorType& b);
/// Throws invalid_input unless 0 <= axis < rank.
void require_axis(int64_t axis, size_t rank);

/// Of sums and statistics of x.
inline DType statistics_type(DType x) { return x == DType::f64 ? DType::f64 : DType::f32; }

/// numpy broadcasting: broadcast_shape([3, 1], [4]) = [3, 4]. A dim of 1 stretches to any size, 0
/// too. Throws invalid_input.
Shape broadcast_shape(const Shape& a, const Shape& b);

/// Sums `grad` over the dims that broadcasting added to or stretched in an operand of `shape`:
/// unbroadcast(grad [2, 3, 4], [3, 1]) is reduce_sum over dims 0 and 2, reshaped to [3, 1].
ValueId unbroadcast(Graph& graph, ValueId grad, const Shape& shape);

/// A value of this type whose every element is `value`, made by a `fill` node.
ValueId fill(Graph& graph, const TensorType& type, double value);
/// A `fill` of rank 0: constants in gradient rules, which broadcast.
ValueId scalar(Graph& graph, DType dtype, double value);
/// x, or a cast of it if it is of another type.
ValueId cast_to(Graph& graph, ValueId x, DType dtype);
/// x * factor and x + term, in x's type.
ValueId scale(Graph& graph, ValueId x, double factor);
ValueId shift(Graph& graph, ValueId x, double term);

/// For OpDef::shrink: what became of a dim of `size` elements, so that an attribute that names a
/// size goes on naming the same dim; at most 6 where no operand has a dim of that size.
int64_t shrunk_size(int64_t size, std::span<const TensorType> original,
                    std::span<const TensorType> shrunk);

/// OpDef::flops of ops that only move data.
double no_flops(const Node&, std::span<const TensorType> in, std::span<const TensorType> out);

/// Is it a sum of squares or of powers of absolute values, one times or over a number, or a product
/// of two? Its root is a norm or a deviation, whose gradient is 0 where all that is summed is 0.
/// `depth`: nodes that are looked at.
bool sums_powers(const Graph& graph, ValueId id, int depth = 8);

}  // namespace shardrun
