// Lowering of PyTorch's EmbeddingBag, which both of its exporters write as a loop with a turn for
// each bag. All bags are made at once, and where they begin may depend on data.
#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

/// Bag i has the rows from offsets[i] up to the next one's.
struct Bags {
  V rows = kNone;     // [rows, width]
  V offsets = kNone;  // [bags], ascending from 0
  V end = kNone;      // [1]: where the last bag ends; kNone: with the rows
  V counted = kNone;  // boolean [rows], the rows that are in a bag; kNone: all
  std::string mode;   // sum, mean or max
};

V sum_of_rows(Builder& b, V rows, V bag, int64_t bags) {
  return b.add("gather_grad", {rows, bag},
               {{"axis", int64_t{0}}, {"size", bags}, {"offset", int64_t{0}}});
}

/// The number of each row's bag, [rows]. A row behind the last bag's end has the number of bags.
V bags_of_rows(Builder& b, const Bags& bags) {
  const int64_t rows = b.shape(bags.rows)[0], count = b.shape(bags.offsets)[0];
  V begins = b.slice(bags.offsets, 0, 1, count);  // of all bags but the first
  if (bags.end != kNone) begins = b.concat({begins, bags.end}, 0);
  const int64_t marks = b.shape(begins)[0];
  if (marks == 0) return b.fill(0, DType::i64, {rows});
  // `ascending`: what data are held to that come to these indices (train/batches.h).
  const V begun =
      b.add("scatter_elements",
            {b.fill(0, DType::i64, {rows + 1}), b.cast(begins, DType::i64),
             b.fill(1, DType::i64, {marks})},
            {{"axis", int64_t{0}}, {"reduction", std::string("add")}, {"ascending", int64_t{1}}});
  const V running =
      b.add("cumsum", {begun},
            {{"axis", int64_t{0}}, {"exclusive", int64_t{0}}, {"reverse", int64_t{0}}});
  return b.slice(running, 0, 0, rows);
}

/// The largest of each bag's rows; 0 where it has none.
V largest(Builder& b, const Bags& bags, V bag, V sizes, int64_t width) {
  const int64_t count = b.shape(sizes)[0], rows = b.shape(bags.rows)[0];
  constexpr double kBelowAll = -3e38;
  V among = bags.rows;
  const V below = b.scalar(kBelowAll, b.dtype(among));
  if (bags.counted != kNone)
    among = b.add("where", {b.reshape(bags.counted, {rows, 1}), among, below});
  const V all =
      b.add("scatter_nd",
            {b.fill(kBelowAll, b.dtype(among), {count, width}), b.reshape(bag, {rows, 1}), among},
            {{"reduction", std::string("max")}});
  const V is_empty = b.with("equal", b.reshape(sizes, {count, 1}), 0);
  return b.add("where", {is_empty, b.scalar(0, b.dtype(among)), all});
}

V made_bags(Builder& b, const Bags& bags) {
  SR_REQUIRE(is_float(b.dtype(bags.rows)) && b.rank(bags.rows) == 2, invalid_input,
             "embeddings are ", b.type(bags.rows), ", wanted floats [rows, width]");
  SR_REQUIRE(b.rank(bags.offsets) == 1 && b.shape(bags.offsets)[0] > 0, invalid_input,
             "offsets are ", b.type(bags.offsets), ", wanted a number for each bag");
  const int64_t width = b.shape(bags.rows)[1], wanted = b.shape(bags.offsets)[0];
  const int64_t count = wanted + (bags.end != kNone ? 1 : 0);
  const V bag = bags_of_rows(b, bags);
  const DType dtype = b.dtype(bags.rows);
  V rows = bags.rows, ones = b.fill(1, dtype, {b.shape(rows)[0]});
  if (bags.counted != kNone) {
    ones = b.cast(bags.counted, dtype);
    rows = b.add("mul", {rows, b.reshape(ones, {b.shape(rows)[0], 1})});
  }
  V out = kNone;
  if (bags.mode == "sum") {
    out = sum_of_rows(b, rows, bag, count);
  } else {
    const V sizes = sum_of_rows(b, ones, bag, count);
    out = bags.mode == "max" ? largest(b, bags, bag, sizes, width)
                             : b.add("div", {sum_of_rows(b, rows, bag, count),
                                             b.reshape(b.with("max", sizes, 1), {count, 1})});
  }
  return b.slice(out, 0, 0, wanted);
}

// ---- the newer exporter's loop: it notes the call ----

/// What is read by Gather and Slice nodes of a subgraph and made outside it, in order.
void collect_tables(const ::onnx::GraphProto& graph, std::set<std::string> inner,
                    std::vector<std::string>& out) {
  for (const auto& input : graph.input()) inner.insert(input.name());
  for (const auto& node : graph.node())
    for (const std::string& made : node.output()) inner.insert(made);
  for (const auto& node : graph.node()) {
    const bool reads = node.op_type() == "Gather" || node.op_type() == "Slice";
    if (reads && node.input_size() > 0 && inner.count(node.input(0)) == 0)
      out.push_back(node.input(0));
    for (const auto& attribute : node.attribute())
      if (attribute.has_g()) collect_tables(attribute.g(), inner, out);
  }
}

/// aten.embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse,
/// per_sample_weights, include_last_offset, padding_idx). The loop reads rows that were looked up
/// and weighted before, and offsets with the end behind them.
std::optional<Bags> of_call(NodeContext& c, const ::onnx::GraphProto& body) {
  Builder& b = c.b;
  const FxCall* call = c.call_of("aten.embedding_bag");
  if (call == nullptr) call = c.call_of("aten._embedding_bag");
  if (call == nullptr || !c.named) return std::nullopt;
  SR_REQUIRE(!call->flag(3, "scale_grad_by_freq", false) || !b.options.training, unsupported,
             "an embedding_bag with scale_grad_by_freq=True is not supported; export it without");
  std::vector<std::string> tables;
  collect_tables(body, {}, tables);
  Bags out;
  V indices = kNone, bounds = kNone;
  for (const std::string& name : tables) {
    const V v = c.named(name);
    if (v == kNone) continue;
    if (is_float(b.dtype(v)) && b.rank(v) == 2)
      out.rows = v;
    else if (bounds == kNone || v == bounds)
      bounds = v;
    else
      indices = v;
  }
  if (out.rows == kNone || bounds == kNone || b.rank(bounds) != 1) return std::nullopt;
  constexpr std::array<const char*, 3> kModes = {"sum", "mean", "max"};
  const double mode = call->number(4, "mode", 0);
  if (!(mode == 0 || mode == 1 || mode == 2)) return std::nullopt;
  out.mode = kModes[static_cast<size_t>(mode)];
  const int64_t bags = b.shape(bounds)[0] - 1;
  if (bags < 1) return std::nullopt;
  out.offsets = b.slice(bounds, 0, 0, bags);
  if (call->flag(7, "include_last_offset", false)) out.end = b.slice(bounds, 0, bags, bags + 1);
  const FxArgument* padding = call->find(8, "padding_idx");
  if (padding != nullptr && padding->number()) {
    if (indices == kNone) return std::nullopt;
    const double left_out = *padding->number();
    out.counted = b.add("logical_not", {b.with("equal", indices, left_out)});
  }
  return out;
}

// ---- the older exporter's loop: its body says all ----

/// Nodes of a body without constants, and by op what they read.
struct Body {
  std::vector<const ::onnx::NodeProto*> nodes;

  explicit Body(const ::onnx::GraphProto& graph) {
    for (const auto& node : graph.node())
      if (node.op_type() != "Constant") nodes.push_back(&node);
  }
  bool has_ops(const std::vector<std::string>& ops) const {
    if (nodes.size() != ops.size()) return false;
    for (size_t i = 0; i < ops.size(); ++i) {
      const std::string& op = nodes[i]->op_type();
      if (op != ops[i] && !(ops[i] == "Reduce" && op.starts_with("Reduce"))) return false;
    }
    return true;
  }
  const std::string& in(size_t node, int i) const { return nodes[node]->input(i); }
  const std::string& out(size_t node) const { return nodes[node]->output(0); }
};

/// Turn i: the embeddings of indices[begins[i] : ends[i]], weighted perhaps, and their sum, mean or
/// maximum. begins are the offsets with the end behind them, ends the same without the first.
std::optional<Bags> of_body(NodeContext& c, const ::onnx::GraphProto& graph) {
  Builder& b = c.b;
  const Body body(graph);
  const std::vector<std::string> plain = {"Gather", "Gather", "Unsqueeze", "Unsqueeze",
                                          "Slice",  "Gather", "Reduce",    "Cast"};
  std::vector<std::string> weighted = plain;
  weighted.insert(weighted.begin() + 6, {"Slice", "Unsqueeze", "Mul"});
  const bool is_weighted = body.has_ops(weighted);
  if ((!is_weighted && !body.has_ops(plain)) || !c.named || graph.output_size() != 2)
    return std::nullopt;
  const std::string& turn = graph.input(0).name();
  const size_t reduce = is_weighted ? 9 : 6;
  const bool fits =
      body.in(0, 1) == turn && body.in(1, 1) == turn && body.in(2, 0) == body.out(0) &&
      body.in(3, 0) == body.out(1) && body.in(4, 1) == body.out(2) &&
      body.in(4, 2) == body.out(3) && body.in(5, 1) == body.out(4) &&
      (!is_weighted || (body.in(6, 1) == body.out(2) && body.in(6, 2) == body.out(3))) &&
      body.in(reduce, 0) == body.out(is_weighted ? 8 : 5);
  const std::string op = body.nodes[reduce]->op_type();
  Bags out;
  out.mode = op == "ReduceSum"    ? "sum"
             : op == "ReduceMean" ? "mean"
             : op == "ReduceMax"  ? "max"
                                  : "";
  const V bounds = c.named(body.in(0, 0)), ends = c.named(body.in(1, 0));
  const V indices = c.named(body.in(4, 0)), table = c.named(body.in(5, 0));
  const bool known = bounds != kNone && ends != kNone && indices != kNone && table != kNone;
  if (!fits || !known || out.mode.empty() || b.rank(indices) != 1 || b.rank(table) != 2)
    return std::nullopt;
  const int64_t bags = b.shape(ends)[0];
  if (bags < 1 || b.shape(bounds) != Shape{bags + 1}) return std::nullopt;
  out.offsets = b.slice(bounds, 0, 0, bags);
  out.end = b.slice(bounds, 0, bags, bags + 1);
  const Tensor* end = b.known(out.end);
  if (end != nullptr && end->int_at(0) == b.shape(indices)[0]) out.end = kNone;
  const V safe = normalise_indices(c, indices, b.shape(table)[0]);
  out.rows = b.add("gather", {table, safe}, {{"axis", int64_t{0}}});
  if (!is_weighted) return out;
  const V weights = c.named(body.in(6, 0));
  if (weights == kNone || b.shape(weights) != b.shape(indices)) return std::nullopt;
  out.rows = b.add("mul", {out.rows, b.reshape(weights, {b.shape(weights)[0], 1})});
  return out;
}

}  // namespace

bool lower_bags(NodeContext& c) {
  const auto* body = c.find("body");
  if (body == nullptr) return false;
  std::optional<Bags> bags = of_call(c, body->g());
  const bool of_sequence = bags.has_value();
  if (!bags) bags = of_body(c, body->g());
  if (!bags) return false;
  for (size_t i = 0; i < c.input_count(); ++i) c.has(i);
  const V made = made_bags(c.b, *bags);
  if (!of_sequence) {
    c.out(made);
    return true;
  }
  // A sequence of bags, and the number of turns, in either order: as what the loop carries.
  for (size_t i = 0; i < c.output_count(); ++i) {
    const bool is_list = c.b.items(c.in(i + 2)) != nullptr;
    c.out(i, is_list ? c.b.sequence({made}) : c.b.constant(Tensor::scalar_i64(c.b.shape(made)[0])));
  }
  return true;
}

}  // namespace shardrun::importer
