// Masks that are equal are one, and what rows that are not picked hold.
#include "graph/onnx/lower/picked_rows.h"

#include <algorithm>
#include <cstring>

namespace shardrun::importer {
namespace {

/// Is the node's result its operand with each element several times in a row, as [4, 1, 1] becomes
/// [4, 7, 6]?
bool repeats_elements(const Graph& graph, const Node& node) {
  if (node.op != "expand") return false;
  const Shape &from = graph.type(node.inputs[0]).shape, &to = graph.type(node.outputs[0]).shape;
  if (from.size() != to.size()) return false;
  const auto differs = std::mismatch(from.begin(), from.end(), to.begin()).first;
  return std::all_of(differs, from.end(), [](int64_t dim) { return dim == 1; });
}

/// Do both have the same numbers: are they one value, equal constants, or made alike of such? False
/// where that takes more than `left` comparisons. Reshapes do not count, for a mask counts rows in
/// their order.
bool are_same(const Graph& graph, ValueId a, ValueId b, int& left) {
  const auto behind_reshapes = [&](ValueId id) {
    while (graph.value(id).producer >= 0 && graph.node(graph.value(id).producer).op == "reshape")
      id = graph.node(graph.value(id).producer).inputs[0];
    return id;
  };
  a = behind_reshapes(a), b = behind_reshapes(b);
  if (a == b) return true;
  const Value &x = graph.value(a), &y = graph.value(b);
  if (--left < 0 || x.type.dtype != y.type.dtype ||
      element_count(x.type.shape) != element_count(y.type.shape))
    return false;
  if (x.role == Role::constant && y.role == Role::constant) {
    const Source &from = graph.sources.at(a), &other = graph.sources.at(b);
    return from.kind == Source::Kind::data && other.kind == Source::Kind::data &&
           std::memcmp(from.data.data(), other.data.data(),
                       static_cast<size_t>(byte_size(x.type))) == 0;
  }
  if (x.producer < 0 || y.producer < 0) return false;
  const Node &p = graph.node(x.producer), &q = graph.node(y.producer);
  if (repeats_elements(graph, p) && repeats_elements(graph, q))
    return are_same(graph, p.inputs[0], q.inputs[0], left);
  if (p.op != q.op || !(p.attrs == q.attrs) || p.inputs.size() != q.inputs.size()) return false;
  for (size_t i = 0; i < p.inputs.size(); ++i)
    if (!are_same(graph, p.inputs[i], q.inputs[i], left)) return false;
  return std::find(p.outputs.begin(), p.outputs.end(), a) - p.outputs.begin() ==
         std::find(q.outputs.begin(), q.outputs.end(), b) - q.outputs.begin();
}

}  // namespace

int pick_of(Builder& b, V mask) {
  constexpr int kMostComparisons = 200;
  const ValueId id = b.id(mask);
  for (size_t i = 0; i < b.picks.size(); ++i) {
    int left = kMostComparisons;
    const bool same = are_same(b.graph, id, b.id(b.picks[i].mask), left);
    if (same) return static_cast<int>(i);
    if (!b.budget.spend(kMostComparisons - left)) break;
  }
  b.picks.push_back({mask, kNone, kNone, b.node_name});
  return static_cast<int>(b.picks.size()) - 1;
}

Pick& pick_at(Builder& b, int pick) { return b.picks[static_cast<size_t>(pick)]; }

int64_t rows_of(Builder& b, int pick) { return b.shape(pick_at(b, pick).mask)[0]; }

V count_of(Builder& b, int pick) {
  Pick& p = pick_at(b, pick);
  if (p.count == kNone) p.count = b.sum(b.cast(p.mask, DType::i64), {0}, false);
  return p.count;
}

V as_dim(Builder& b, V rows, int64_t rank, int64_t axis) {
  Shape shape(static_cast<size_t>(rank), 1);
  shape[static_cast<size_t>(axis)] = b.shape(rows)[0];
  return b.reshape(rows, shape);
}

namespace {

V first_of(Builder& b, int pick) {
  Pick& p = pick_at(b, pick);
  if (p.first != kNone) return p.first;
  const V running =
      b.add("cumsum", {b.cast(p.mask, DType::i64)},
            {{"axis", int64_t{0}}, {"exclusive", int64_t{0}}, {"reverse", int64_t{0}}});
  return p.first = b.add("logical_and", {p.mask, b.with("equal", running, 1)});
}

}  // namespace

V safe(Builder& b, const Picked& rows) {
  if (rows.is_safe) return rows.all;
  const int64_t rank = b.rank(rows.all);
  const V mask = as_dim(b, pick_at(b, rows.pick).mask, rank, rows.axis);
  const DType dtype = b.dtype(rows.all);
  if (dtype == DType::boolean) return b.add("logical_and", {rows.all, mask});
  const V alone = b.add(
      "where", {as_dim(b, first_of(b, rows.pick), rank, rows.axis), rows.all, b.scalar(0, dtype)});
  const V first = b.add("identity", {b.sum(alone, {rows.axis}, true)}, {{"detach", int64_t{1}}});
  return b.add("where", {mask, rows.all, first});
}

V masked(Builder& b, const Picked& rows, double neutral) {
  const V mask = as_dim(b, pick_at(b, rows.pick).mask, b.rank(rows.all), rows.axis);
  return b.add("where", {mask, rows.all, b.scalar(neutral, b.dtype(rows.all))});
}

V all_positions(Builder& b, const Shape& shape) {
  constexpr int64_t kMostConstant = int64_t{1} << 16;
  const int64_t count = element_count(shape);
  const auto rank = static_cast<int64_t>(shape.size());
  const Shape strides = row_major_strides(shape);
  if (count * rank <= kMostConstant) {
    Tensor out({DType::i64, {rank, count}});
    auto* at = out.as<int64_t>();
    for (size_t d = 0; d < shape.size(); ++d)
      for (int64_t i = 0; i < count; ++i) *at++ = i / strides[d] % shape[d];
    return b.constant(std::move(out));
  }
  // A node of the graph, which is not computed now, nor at all where nothing looks up by it.
  const V flat = b.value(b.graph.add("iota", {},
                                     {{"shape", Shape{1, count}},
                                      {"dtype", std::string(to_string(DType::i64))},
                                      {"axis", int64_t{1}},
                                      {"start", int64_t{0}},
                                      {"step", int64_t{1}}},
                                     b.node_name));
  std::vector<V> lines;
  for (size_t d = 0; d < shape.size(); ++d) {
    const V row = b.with("div", flat, static_cast<double>(strides[d]));
    lines.push_back(b.with("mod", row, static_cast<double>(shape[d])));
  }
  return b.concat(lines, 0);
}

bool are_all_positions(Builder& b, const Picked& rows, const Shape& shape) {
  const auto k = static_cast<size_t>(b.rank(rows.all) == 1 ? 1 : b.shape(rows.all).back());
  if (rows.axis != 0 || b.rank(rows.all) > 2 || k > shape.size()) return false;
  const Shape dims(shape.begin(), shape.begin() + static_cast<int64_t>(k));
  if (rows.positions_in == dims) return true;
  const Tensor* known = b.known(rows.all);
  const Shape strides = row_major_strides(dims);
  bool same = known != nullptr && b.shape(rows.all)[0] == element_count(dims) &&
              b.budget.spend(static_cast<double>(known->count()));
  for (int64_t i = 0; same && i < known->count(); ++i) {
    const auto d = static_cast<size_t>(i) % k;
    same = known->int_at(i) == i / static_cast<int64_t>(k) / strides[d] % dims[d];
  }
  return same;
}

}  // namespace shardrun::importer
