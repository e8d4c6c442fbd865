// Masks: recognising that a value has one number below a diagonal and another above it.
#include <cmath>
#include <functional>

#include "graph/passes/match.h"

namespace shardrun {
namespace {

using Combine = std::function<double(double, double)>;

bool is_uniform(const Triangle& t) { return t.below == t.above; }

/// The diagonal that all of them have, or that those have which have one; nullopt if two differ.
std::optional<int64_t> common_offset(std::initializer_list<std::optional<Triangle>> parts) {
  std::optional<int64_t> out;
  for (const std::optional<Triangle>& part : parts) {
    if (!part) return std::nullopt;
    if (is_uniform(*part)) continue;
    if (out && *out != part->offset) return std::nullopt;
    out = part->offset;
  }
  return out.value_or(0);
}

std::optional<Triangle> combine(const std::optional<Triangle>& a, const std::optional<Triangle>& b,
                                const Combine& f) {
  const std::optional<int64_t> offset = common_offset({a, b});
  if (!offset) return std::nullopt;
  return Triangle{f(a->below, b->below), f(a->above, b->above), *offset};
}

/// Leading dims may only repeat the matrix; a last dim or the one before of size 1 would stretch
/// it.
std::optional<Triangle> of_data(const Tensor& data) {
  const Shape& shape = data.shape();
  if (shape.size() < 2 || data.count() == 0) return std::nullopt;
  const int64_t rows = shape[shape.size() - 2], columns = shape.back();
  Triangle out{data.at((rows - 1) * columns), data.at(columns - 1), 0};
  // Any row in which both numbers stand gives the diagonal: 3 below in row 1 is offset 1.
  for (int64_t t = 0; t < rows; ++t) {
    int64_t below = 0;
    while (below < columns && data.at(t * columns + below) == out.below) ++below;
    if (below == 0 || below == columns) continue;
    out.offset = below - 1 - t;
    break;
  }
  for (int64_t i = 0; i < data.count(); ++i) {
    const int64_t t = i % (rows * columns) / columns, s = i % columns;
    if (data.at(i) != (s <= t + out.offset ? out.below : out.above)) return std::nullopt;
  }
  return out;
}

/// The last two dims are the same and neither is stretched from 1.
bool same_matrix(const Shape& from, const Shape& to) {
  return from.size() >= 2 && to.size() >= 2 && from.back() == to.back() &&
         from[from.size() - 2] == to[to.size() - 2];
}

std::optional<Triangle> find(const Graph& g, ValueId id, int depth) {
  if (const std::optional<double> c = uniform_value(g, id)) return Triangle{*c, *c, 0};
  if (g.value(id).role == Role::constant) {
    const std::optional<Tensor> data = constant_data(g, id);
    return data ? of_data(*data) : std::nullopt;
  }
  const NodeId producer = g.value(id).producer;
  if (producer < 0 || depth == 0) return std::nullopt;
  const Node& node = g.node(producer);
  auto in = [&](size_t i) -> std::optional<Triangle> {
    const std::optional<Triangle> t = find(g, node.inputs[i], depth - 1);
    if (t && !is_uniform(*t) && !same_matrix(g.type(node.inputs[i]).shape, g.type(id).shape))
      return std::nullopt;
    return t;
  };
  auto map = [&](const std::function<double(double)>& f) -> std::optional<Triangle> {
    const std::optional<Triangle> t = in(0);
    if (!t) return std::nullopt;
    return Triangle{f(t->below), f(t->above), t->offset};
  };
  if (node.op == "cast") {
    const DType to = g.type(id).dtype;
    return map(
        [&](double x) { return convert(Tensor::from<double>({}, {x}, DType::f64), to).at(0); });
  }
  if (node.op == "identity" || node.op == "expand" || node.op == "reshape") {
    return in(0);
  }
  if (node.op == "logical_not") return map([](double x) { return x == 0 ? 1.0 : 0.0; });
  if (node.op == "neg") return map([](double x) { return -x; });
  if (node.op == "trilu") {
    const std::optional<double> c = uniform_value(g, node.inputs[0]);
    if (!c) return std::nullopt;
    const int64_t k = node.attrs.i("k", 0);
    return node.attrs.i("upper") != 0 ? Triangle{0, *c, k - 1} : Triangle{*c, 0, k};
  }
  if (node.op == "slice") {
    const std::optional<Triangle> t = find(g, node.inputs[0], depth - 1);
    const size_t rank = g.type(id).shape.size();
    const std::vector<int64_t>& steps = node.attrs.ints("steps");
    if (!t || rank < 2 || steps[rank - 1] != 1 || steps[rank - 2] != 1) return std::nullopt;
    const std::vector<int64_t>& starts = node.attrs.ints("starts");
    return Triangle{t->below, t->above, t->offset + starts[rank - 2] - starts[rank - 1]};
  }
  if (node.op == "where") {
    const std::optional<Triangle> condition = in(0), yes = in(1), no = in(2);
    const std::optional<int64_t> offset = common_offset({condition, yes, no});
    if (!offset) return std::nullopt;
    return Triangle{condition->below != 0 ? yes->below : no->below,
                    condition->above != 0 ? yes->above : no->above, *offset};
  }
  if (node.op == "equal")
    return combine(in(0), in(1), [](double x, double y) { return x == y ? 1.0 : 0.0; });
  if (node.op == "less")
    return combine(in(0), in(1), [](double x, double y) { return x < y ? 1.0 : 0.0; });
  if (node.op == "greater")
    return combine(in(0), in(1), [](double x, double y) { return x > y ? 1.0 : 0.0; });
  if (node.op == "mul") return combine(in(0), in(1), [](double x, double y) { return x * y; });
  if (node.op == "add") return combine(in(0), in(1), [](double x, double y) { return x + y; });
  if (node.op == "sub") return combine(in(0), in(1), [](double x, double y) { return x - y; });
  if (node.op == "logical_and")
    return combine(in(0), in(1), [](double x, double y) { return x * y; });
  return std::nullopt;
}

}  // namespace

std::optional<Triangle> triangle_of(const Graph& graph, ValueId id) { return find(graph, id, 16); }

}  // namespace shardrun
