// Lowering of what makes values of nothing: Constant, ConstantOfShape, Range; and of
// control flow that is known at import: If, Loop, Scan.
#include <algorithm>
#include <cmath>

#include "graph/onnx/file/model_file.h"
#include "graph/onnx/flatten.h"
#include "graph/onnx/lower/advice.h"
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

void constant(NodeContext& c) {
  if (const auto* value = c.find("value")) return c.out(c.b.constant(c.load_tensor(value->t())));
  if (c.has_attr("value_float")) return c.out(c.b.scalar(c.attr_f("value_float", 0), DType::f32));
  if (c.has_attr("value_int"))
    return c.out(c.b.constant(Tensor::scalar_i64(c.attr_i("value_int", 0))));
  if (c.has_attr("value_ints")) return c.out(c.b.ints(c.attr_ints("value_ints")));
  if (c.has_attr("value_floats")) {
    const std::vector<float> values = c.attr_floats("value_floats");
    return c.out(
        c.b.constant(Tensor::from(Shape{static_cast<int64_t>(values.size())}, values, DType::f32)));
  }
  for (const char* name : {"sparse_value", "value_string", "value_strings"}) {
    if (c.has_attr(name)) c.refuse_attr(name, "supported are tensors, floats and integers");
  }
  fail(ErrorKind::invalid_input, "has no value");
}

void constant_of_shape(NodeContext& c) {
  const std::vector<int64_t> shape = c.ints(0, "shape");
  Tensor value({DType::f32, {1}});
  if (const auto* given = c.find("value")) value = c.load_tensor(given->t());
  SR_REQUIRE(value.count() == 1, invalid_input, "value has ", value.count(), " elements, wanted 1");
  for (int64_t dim : shape)
    SR_REQUIRE(dim >= 0, invalid_input, "shape ", to_string(shape), " has a negative dim");
  if (const std::string weight = described_weight(c.proto); !weight.empty()) {
    Source source;
    source.kind = Source::Kind::constant;
    source.a = value.at(0);
    return c.out(c.add_parameter(source, {value.dtype(), shape}, weight == "parameter"));
  }
  c.out(c.b.fill(value.at(0), value.dtype(), shape));
}

/// start, start + delta, … before limit. Integers of any length; floats are computed now. The newer
/// exporter writes torch.arange(1.0, 6) with a limit of integers: then all are floats, as there.
void range(NodeContext& c) {
  c.ignore("stash_type");
  Tensor start = c.known(0, "start"), limit = c.known(1, "limit"), delta = c.known(2, "delta");
  SR_REQUIRE(start.count() == 1 && limit.count() == 1 && delta.count() == 1, invalid_input,
             "wants three scalars");
  DType dtype = start.dtype();
  if (c.call() != nullptr) {
    for (const Tensor* given : {&limit, &delta})
      if (!is_float(dtype)) dtype = given->dtype();
    for (Tensor* given : {&start, &limit, &delta})
      if (is_float(dtype) && !is_float(given->dtype())) *given = convert(*given, dtype);
  }
  SR_REQUIRE(start.dtype() == dtype && limit.dtype() == dtype && delta.dtype() == dtype,
             invalid_input, "start is ", start.type(), ", limit ", limit.type(), ", delta ",
             delta.type());
  SR_REQUIRE(delta.at(0) != 0, invalid_input, "delta is 0");
  const double steps = std::ceil((limit.at(0) - start.at(0)) / delta.at(0));
  SR_REQUIRE(std::isfinite(steps) && steps < 1e15, invalid_input, "is not finite");
  const int64_t count = std::max<int64_t>(static_cast<int64_t>(steps), 0);
  if (!is_float(dtype)) {
    return c.out(c.b.add("iota", {},
                         {{"shape", Shape{count}},
                          {"dtype", std::string(to_string(dtype))},
                          {"axis", int64_t{0}},
                          {"start", start.int_at(0)},
                          {"step", delta.int_at(0)}}));
  }
  SR_REQUIRE(count <= kFoldLimit, unsupported, "a floating range of ", count,
             " elements; use integers and Cast");
  Tensor out({dtype, {count}});
  for (int64_t i = 0; i < count; ++i) {
    const double value = start.at(0) + static_cast<double>(i) * delta.at(0);
    convert(&value, DType::f64, static_cast<char*>(out.data()) + i * size_of(dtype), dtype, 1);
  }
  c.out(c.b.constant(std::move(out)));
}

constexpr const char* kChooseOutside =
    "; compute both branches, and choose by torch.where, or export with the condition as a "
    "constant";

/// What a branch of an If reads of the values around it: the same numbers, but gradients pass only
/// where the branch is taken. So what the branch that is not taken makes of them, NaN too, reaches
/// nothing.
Outer taken_only(NodeContext& c, const ::onnx::GraphProto& branch, V taken) {
  Builder& b = c.b;
  Outer out;
  for (const std::string& name : names_read(branch)) {
    const V v = c.named(name);
    if (v == kNone || b.items(v) != nullptr) continue;
    if (b.rows(v) != nullptr) b.refuse_rows(v, "a branch of If");
    if (b.known(v) != nullptr || !is_float(b.dtype(v))) continue;
    const V held = b.add("identity", {v}, {{"detach", int64_t{1}}});
    out[name] = b.add("where", {taken, v, held});
  }
  return out;
}

/// Does a batch normalisation in it use the batch's statistics, and move running ones?
bool normalises_by_batch(const NodeContext& c, const ::onnx::GraphProto& branch) {
  return std::any_of(branch.node().begin(), branch.node().end(), [&](const auto& node) {
    if (node.op_type() == "BatchNormalization")
      return batch_norm_form(node, c.opset, c.b.options) != BatchNormForm::inference;
    const auto& attributes = node.attribute();
    return std::any_of(attributes.begin(), attributes.end(), [&](const auto& attribute) {
      return attribute.has_g() && normalises_by_batch(c, attribute.g());
    });
  });
}

/// A condition that depends on data: both branches are computed, and one result is chosen.
void if_of_data(NodeContext& c, const ::onnx::GraphProto& then,
                const ::onnx::GraphProto& otherwise) {
  Builder& b = c.b;
  const std::string name = b.node_name;
  const V taken = b.reshape(c.in(0), {});
  const auto updates = b.graph.updates;
  const auto lowered = [&](const ::onnx::GraphProto& branch, V is_taken, const char* scope) {
    const Outer outer = taken_only(c, branch, is_taken);
    std::vector<V> results = c.lower_subgraph(branch, {}, str(c.stream, scope), outer);
    SR_REQUIRE(results.size() == c.output_count(), invalid_input, "branch has ", results.size(),
               " outputs, node ", c.output_count());
    return results;
  };
  const std::vector<V> first = lowered(then, taken, "#then/");
  const std::vector<V> second = lowered(otherwise, b.add("logical_not", {taken}), "#else/");
  b.node_name = name;
  const bool moves = b.graph.updates != updates || normalises_by_batch(c, then) ||
                     normalises_by_batch(c, otherwise);
  SR_REQUIRE(!moves, unsupported,
             "its condition depends on data, and a branch moves running averages; take the "
             "normalisation out of the branch, or have it use stored ones (eval() of that module)");
  for (size_t i = 0; i < first.size(); ++i) {
    const V x = first[i], y = second[i];
    const std::string result = c.proto.output(static_cast<int>(i));
    for (const V v : {x, y}) {
      SR_REQUIRE(b.items(v) == nullptr, unsupported, "its condition depends on data, and result '",
                 result, "' is a sequence", kChooseOutside);
      if (b.rows(v) != nullptr) b.refuse_rows(v, "a branch of If");
    }
    SR_REQUIRE(b.type(x) == b.type(y), unsupported, "its condition depends on data, and result '",
               result, "' is ", b.type(x), " of one branch and ", b.type(y), " of the other",
               kChooseOutside);
    c.out(i, x == y ? x : b.add("where", {taken, x, y}));
  }
}

/// Of a condition known at import the branch is inlined.
void if_any(NodeContext& c) {
  const auto branch_of = [&](const char* name) {
    const auto* attribute = c.find(name);
    SR_REQUIRE(attribute != nullptr && attribute->has_g(), invalid_input, "has no ", name,
               ", which is a graph");
    return attribute;
  };
  const auto *then = branch_of("then_branch"), *otherwise = branch_of("else_branch");
  const TensorType& type = c.b.type(c.in(0));
  SR_REQUIRE(type.dtype == DType::boolean && element_count(type.shape) == 1, invalid_input,
             "its condition is ", type, ", wanted one boolean");
  const Tensor* condition = c.b.known(c.in(0));
  if (condition == nullptr) return if_of_data(c, then->g(), otherwise->g());
  const auto* branch = condition->at(0) != 0 ? then : otherwise;
  const std::vector<V> results = c.lower_subgraph(branch->g(), {}, "", {});
  SR_REQUIRE(results.size() == c.output_count(), invalid_input, "branch has ", results.size(),
             " outputs, node ", c.output_count());
  for (size_t i = 0; i < results.size(); ++i) c.out(i, results[i]);
}

constexpr int64_t kMostTurns = 4096;

/// Only as many turns as are known at import: they are written out.
void loop_known(NodeContext& c) {
  if (lower_bags(c)) return;
  Builder& b = c.b;
  const std::string name = b.node_name;
  const auto known = [&](V v, const char* what) {
    const Tensor* value = b.known(v);
    SR_REQUIRE(value != nullptr && value->count() == 1, unsupported, "its ", what,
               " depends on data", advice_for("Loop"));
    return value->int_at(0);
  };
  const auto* body = c.find("body");
  SR_REQUIRE(body != nullptr, invalid_input, "has no body");
  const int64_t turns = c.has(0) ? known(c.in(0), "number of turns") : kMostTurns + 1;
  const bool counts = c.has(0) && !c.has(1);  // then the body's condition is ignored
  bool goes_on = !c.has(1) || known(c.in(1), "condition") != 0;
  std::vector<V> carried;
  for (size_t i = 2; i < c.input_count(); ++i) carried.push_back(c.in(i));
  std::vector<std::vector<V>> scanned;
  for (int64_t turn = 0; goes_on && turn < turns; ++turn) {
    SR_REQUIRE(turn < kMostTurns, unsupported, "has more than ", kMostTurns, " turns");
    std::vector<V> in = {b.scalar(static_cast<double>(turn), DType::i64),
                         b.scalar(1, DType::boolean)};
    in.insert(in.end(), carried.begin(), carried.end());
    const std::vector<V> out = c.lower_subgraph(body->g(), in, str(c.stream, "#", turn, "/"), {});
    SR_REQUIRE(out.size() == c.output_count() + 1 && out.size() > carried.size(), invalid_input,
               "body has ", out.size(), " outputs, the node ", c.output_count());
    goes_on = counts || known(out[0], "condition") != 0;
    std::copy_n(out.begin() + 1, carried.size(), carried.begin());
    scanned.resize(c.output_count() - carried.size());
    for (size_t s = 0; s < scanned.size(); ++s) {
      const V row = out[1 + carried.size() + s];
      Shape shape = b.shape(row);
      shape.insert(shape.begin(), 1);
      scanned[s].push_back(b.reshape(row, shape));
    }
  }
  b.node_name = name;
  SR_REQUIRE(carried.size() + scanned.size() == c.output_count(), unsupported,
             "does not turn once: its results have no known shape");
  for (size_t i = 0; i < carried.size(); ++i) c.out(i, carried[i]);
  for (size_t s = 0; s < scanned.size(); ++s) c.out(carried.size() + s, b.concat(scanned[s], 0));
}

/// A turn for each slice of the scanned inputs, written out: the body gets the state and the
/// slices, and gives the next state and a slice of each scanned result.
void scan(NodeContext& c) {
  Builder& b = c.b;
  const std::string name = b.node_name;
  const auto* body = c.find("body");
  SR_REQUIRE(body != nullptr, invalid_input, "has no body");
  const int64_t scanned = c.attr_i("num_scan_inputs", 0);
  const auto inputs = static_cast<int64_t>(c.input_count());
  SR_REQUIRE(scanned >= 1 && scanned <= inputs, invalid_input, "num_scan_inputs is ", scanned,
             ", the node has ", inputs, " inputs");
  const auto states = static_cast<size_t>(inputs - scanned);
  SR_REQUIRE(c.output_count() >= states, invalid_input, "has ", c.output_count(),
             " outputs for a state of ", states, " tensors");
  const size_t results = c.output_count() - states;
  const auto listed = [&](const char* attribute, size_t count) {
    std::vector<int64_t> out = c.attr_ints(attribute);
    SR_REQUIRE(out.empty() || out.size() == count, invalid_input, attribute, " has ", out.size(),
               " entries, wanted ", count);
    out.resize(count, 0);
    return out;
  };
  const auto axes = listed("scan_input_axes", static_cast<size_t>(scanned)),
             backward = listed("scan_input_directions", static_cast<size_t>(scanned)),
             out_axes = listed("scan_output_axes", results),
             out_backward = listed("scan_output_directions", results);
  std::vector<V> state, sequences;
  for (size_t i = 0; i < states; ++i) state.push_back(c.in(i));
  int64_t turns = -1;
  for (size_t i = 0; i < static_cast<size_t>(scanned); ++i) {
    sequences.push_back(c.in(states + i));
    const int64_t axis = NodeContext::axis(axes[i], b.rank(sequences[i]));
    const int64_t steps = b.shape(sequences[i])[static_cast<size_t>(axis)];
    SR_REQUIRE(turns < 0 || steps == turns, invalid_input, "scanned inputs have ", turns, " and ",
               steps, " steps");
    turns = steps;
  }
  SR_REQUIRE(turns >= 1 && turns <= kMostTurns, unsupported, "has ", turns, " turns, wanted 1 to ",
             kMostTurns);
  std::vector<std::vector<V>> rows(results);
  for (int64_t turn = 0; turn < turns; ++turn) {
    std::vector<V> in = state;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int64_t axis = NodeContext::axis(axes[i], b.rank(sequences[i]));
      const int64_t at = backward[i] != 0 ? turns - 1 - turn : turn;
      Shape shape = b.shape(sequences[i]);
      shape.erase(shape.begin() + axis);
      in.push_back(b.reshape(b.slice(sequences[i], axis, at, at + 1), shape));
    }
    const std::vector<V> out = c.lower_subgraph(body->g(), in, str(c.stream, "#", turn, "/"), {});
    SR_REQUIRE(out.size() == c.output_count(), invalid_input, "body has ", out.size(),
               " outputs, the node ", c.output_count());
    std::copy_n(out.begin(), states, state.begin());
    for (size_t r = 0; r < results; ++r) {
      const int64_t axis = NodeContext::axis(out_axes[r], b.rank(out[states + r]) + 1);
      rows[r].push_back(b.unsqueeze(out[states + r], axis));
    }
  }
  b.node_name = name;
  for (size_t i = 0; i < states; ++i) c.out(i, state[i]);
  for (size_t r = 0; r < results; ++r) {
    if (out_backward[r] != 0) std::reverse(rows[r].begin(), rows[r].end());
    const int64_t axis = NodeContext::axis(out_axes[r], b.rank(rows[r][0]));
    c.out(states + r, b.concat(rows[r], axis));
  }
}

constexpr Lowering kConstantLowerings[] = {
    {"Constant", 1, constant}, {"ConstantOfShape", 9, constant_of_shape},
    {"Range", 11, range},      {"If", 11, if_any},
    {"Loop", 11, loop_known},  {"Scan", 9, scan}};

}  // namespace

std::span<const Lowering> constant_lowerings() { return kConstantLowerings; }

}  // namespace shardrun::importer
