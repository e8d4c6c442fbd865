// What shape rules and gradient rules of several op families share.
#include "graph/ops/gradients.h"

#include <algorithm>

namespace shardrun {

void require_operands(std::span<const TensorType> in, size_t count, size_t most) {
  const size_t limit = std::max(count, most);
  SR_REQUIRE(in.size() >= count && in.size() <= limit, invalid_input, "got ", in.size(),
             " operands, wanted ", count, limit > count ? str(" to ", limit) : "");
}

void require_float(const TensorType& type, std::string_view operand) {
  SR_REQUIRE(is_float(type.dtype) && type.dtype != DType::f16, invalid_input, operand, " is ", type,
             ", wanted f32, f64 or bf16");
}

void require_index(const TensorType& type, std::string_view operand) {
  SR_REQUIRE(type.dtype == DType::i64 || type.dtype == DType::i32, invalid_input, operand, " is ",
             type, ", wanted i64 or i32");
}

void require_same_dtype(const TensorType& a, const TensorType& b) {
  SR_REQUIRE(a.dtype == b.dtype, invalid_input, "operand types differ: ", a, " and ", b,
             "; cast one");
}

void require_axis(int64_t axis, size_t rank) {
  SR_REQUIRE(axis >= 0 && axis < static_cast<int64_t>(rank), invalid_input, "axis is ", axis,
             ", wanted 0 to ", static_cast<int64_t>(rank) - 1, " for rank ", rank);
}

Shape broadcast_shape(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < out.size(); ++i) {  // from the last dim
    const int64_t da = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t db = i < b.size() ? b[b.size() - 1 - i] : 1;
    SR_REQUIRE(da == db || da == 1 || db == 1, invalid_input,
               "shapes do not broadcast: ", to_string(a), " and ", to_string(b));
    out[out.size() - 1 - i] = da == 1 ? db : da;
  }
  return out;
}

ValueId unbroadcast(Graph& graph, ValueId grad, const Shape& shape) {
  const Shape from = graph.type(grad).shape;
  if (from == shape) return grad;
  const size_t added = from.size() - shape.size();
  std::vector<int64_t> axes;
  for (size_t d = 0; d < from.size(); ++d) {
    if (d < added || (shape[d - added] == 1 && from[d] != 1)) {
      axes.push_back(static_cast<int64_t>(d));
    }
  }
  ValueId result = grad;
  if (!axes.empty()) {
    const bool keep = added == 0;
    result = graph.add("reduce_sum", {grad}, {{"axes", axes}, {"keepdims", int64_t{keep}}});
  }
  if (graph.type(result).shape != shape) {
    result = graph.add("reshape", {result}, {{"shape", shape}});
  }
  return result;
}

ValueId fill(Graph& graph, const TensorType& type, double value) {
  return graph.add(
      "fill", {},
      {{"shape", type.shape}, {"dtype", std::string(to_string(type.dtype))}, {"value", value}});
}

ValueId scalar(Graph& graph, DType dtype, double value) { return fill(graph, {dtype, {}}, value); }

ValueId cast_to(Graph& graph, ValueId x, DType dtype) {
  if (graph.type(x).dtype == dtype) return x;
  return graph.add("cast", {x}, {{"to", std::string(to_string(dtype))}});
}

ValueId scale(Graph& graph, ValueId x, double factor) {
  return graph.add("mul", {x, scalar(graph, graph.type(x).dtype, factor)});
}

ValueId shift(Graph& graph, ValueId x, double term) {
  return graph.add("add", {x, scalar(graph, graph.type(x).dtype, term)});
}

int64_t shrunk_size(int64_t size, std::span<const TensorType> original,
                    std::span<const TensorType> shrunk) {
  for (size_t i = 0; i < original.size(); ++i) {
    for (size_t d = 0; d < original[i].shape.size(); ++d) {
      if (original[i].shape[d] == size) return shrunk[i].shape[d];
    }
  }
  return std::min<int64_t>(size, 6);
}

double no_flops(const Node&, std::span<const TensorType>, std::span<const TensorType>) { return 0; }

bool sums_powers(const Graph& graph, ValueId id, int depth) {
  const NodeId maker = graph.value(id).producer;
  if (maker < 0 || depth == 0) return false;
  const Node& node = graph.node(maker);
  const auto sums = [&](size_t i) { return sums_powers(graph, node.inputs[i], depth - 1); };
  const auto single = [&](size_t i) {
    return element_count(graph.type(node.inputs[i]).shape) == 1;
  };
  if (node.op == "reduce_sum") {
    const NodeId summed = graph.value(node.inputs[0]).producer;
    if (summed < 0) return false;
    const Node& power = graph.node(summed);
    const NodeId base = graph.value(power.inputs[0]).producer;
    return (power.op == "pow" && base >= 0 && graph.node(base).op == "abs") ||
           (power.op == "mul" && power.inputs[0] == power.inputs[1]);
  }
  if (node.op == "reshape" || node.op == "cast" || node.op == "expand") return sums(0);
  if (node.op == "div") return single(1) && sums(0);
  return node.op == "mul" && ((sums(0) && (single(1) || sums(1))) || (single(0) && sums(1)));
}

}  // namespace shardrun
