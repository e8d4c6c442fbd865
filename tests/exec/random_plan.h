// A small model as a Graph, and random Plans for it: any cut that its ops allow, values held
// anywhere.
#pragma once

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "graph/optimizer.h"
#include "graph/passes/training.h"
#include "graph/plan.h"

namespace shardrun::test {

struct ModelOptions {
  int64_t batch = 6, in = 5, hidden = 7, classes = 3;
  OptimizerOptions optimizer;
  bool train = true;  // else the forward pass alone
  bool bf16 = false;  // of f32 weights; else f64 throughout
  DType dtype() const { return bf16 ? DType::f32 : DType::f64; }
};

/// relu(x w1 + b1) w2, cross entropy against labels, and the optimizer if asked for.
inline Graph small_model(const ModelOptions& o) {
  Graph g;
  auto normal = [&](const std::string& name, Shape shape) {
    Source source;
    source.kind = Source::Kind::normal;
    source.b = 0.5;
    source.stream = name;
    const ValueId id =
        g.add_persistent(name, {o.dtype(), std::move(shape)}, Role::parameter, source);
    g.trainable[id] = true;
    return id;
  };
  const ValueId x = g.add_input("x", {o.dtype(), {o.batch, o.in}}, Role::batch);
  const ValueId labels = g.add_input("labels", {DType::i64, {o.batch}}, Role::batch);
  const ValueId w1 = normal("w1", {o.in, o.hidden}), b1 = normal("b1", {o.hidden}),
                w2 = normal("w2", {o.hidden, o.classes});
  const ValueId product = g.add("matmul", {x, w1}, {{"equation", std::string("mk,kn->mn")}}, "fc1");
  const ValueId hidden = g.add("relu", {g.add("add", {product, b1}, {}, "bias")}, {}, "relu");
  const ValueId logits =
      g.add("matmul", {hidden, w2}, {{"equation", std::string("mk,kn->mn")}}, "fc2");
  const ValueId losses = g.add_node("cross_entropy", {logits, labels}, {}, "losses")[0];
  const ValueId total =
      g.add("reduce_sum", {losses}, {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}},
            "total");
  const ValueId share = g.add("fill", {},
                              {{"shape", std::vector<int64_t>{}},
                               {"dtype", std::string(to_string(o.dtype()))},
                               {"value", 1.0 / static_cast<double>(o.batch)}},
                              "share");
  g.loss = g.add("mul", {total, share}, {}, "loss");
  g.outputs = {logits};
  g.metrics["loss"] = g.loss;
  if (o.bf16) g = in_bf16(g);
  if (o.train) attach_optimizer(g, o.optimizer);
  remove_dead_nodes(g);
  return g;
}

/// Where one mesh axis puts the operands and results of a node: a dim, kKeep or kSum.
inline constexpr int kKeep = -1, kSum = -2;
struct AxisOption {
  std::vector<int> in, out;
};

inline std::vector<AxisOption> axis_options(const Graph& g, const Node& node) {
  const size_t inputs = node.inputs.size(), outputs = node.outputs.size();
  auto shape_in = [&](size_t i) -> const Shape& { return g.type(node.inputs[i]).shape; };
  auto shape_out = [&](size_t i) -> const Shape& { return g.type(node.outputs[i]).shape; };
  const AxisOption keep{std::vector<int>(inputs, kKeep), std::vector<int>(outputs, kKeep)};
  std::vector<AxisOption> options{keep};
  static const std::set<std::string> elementwise = {"add",     "sub",   "mul",  "div", "relu",
                                                    "greater", "where", "cast", "neg", "identity",
                                                    "sqrt",    "max",   "less", "sgd", "adamw"};
  if (elementwise.count(node.op)) {
    const Shape& out = shape_out(0);
    for (size_t d = 0; d < out.size(); ++d) {
      AxisOption o = keep;
      for (size_t i = 0; i < inputs; ++i) {
        const int at = static_cast<int>(d) - static_cast<int>(out.size() - shape_in(i).size());
        if (at >= 0 && shape_in(i)[static_cast<size_t>(at)] == out[d]) o.in[i] = at;
      }
      o.out.assign(outputs, static_cast<int>(d));
      if (out[d] > 1) options.push_back(o);
    }
    if (node.op == "add" && shape_in(0) == shape_in(1)) options.push_back({{kSum, kSum}, {kSum}});
  } else if (node.op == "matmul") {
    const std::string equation = node.attrs.s("equation");
    const size_t comma = equation.find(','), arrow = equation.find("->");
    const std::string a = equation.substr(0, comma),
                      b = equation.substr(comma + 1, arrow - comma - 1),
                      c = equation.substr(arrow + 2);
    std::set<char> letters(a.begin(), a.end());
    letters.insert(b.begin(), b.end());
    auto at = [](const std::string& s, char letter) {
      return s.find(letter) == std::string::npos ? kKeep : static_cast<int>(s.find(letter));
    };
    for (char letter : letters) {
      options.push_back(
          {{at(a, letter), at(b, letter)}, {at(c, letter) == kKeep ? kSum : at(c, letter)}});
    }
  } else if (node.op == "reduce_sum") {
    const auto& axes = node.attrs.ints("axes");
    const bool keepdims = node.attrs.i("keepdims") != 0;
    int kept = 0;
    for (size_t d = 0; d < shape_in(0).size(); ++d) {
      const bool summed = std::count(axes.begin(), axes.end(), static_cast<int64_t>(d)) > 0;
      options.push_back({{static_cast<int>(d)},
                         {summed     ? kSum
                          : keepdims ? static_cast<int>(d)
                                     : kept}});
      if (!summed) ++kept;
    }
    options.push_back({{kSum}, {kSum}});
  } else if (node.op == "reduce_sum_squares") {
    for (size_t d = 0; d < shape_in(0).size(); ++d)
      options.push_back({{static_cast<int>(d)}, {kSum}});
  } else if (node.op == "cross_entropy" || node.op == "cross_entropy_grad") {
    options.push_back({std::vector<int>(inputs, 0), std::vector<int>(outputs, 0)});
  }
  return options;
}

inline void place(Sharding& s, int axis, int where) {
  if (where >= 0) s.dims[static_cast<size_t>(where)].push_back(axis);
  if (where == kSum) s.partial.push_back({axis, ReduceOp::sum});
}

/// `pick(count)` chooses an option; 0 always keeps everything whole.
template <class Pick>
Plan make_plan(const Graph& g, const Mesh& mesh, Pick pick) {
  Plan plan;
  plan.mesh = mesh;
  for (const Value& v : g.values()) {
    if (v.role == Role::computed) continue;
    Sharding s = Sharding::replicated(v.type.shape.size());
    const bool zeroed = g.zeroed_each_step.count(g.find(v.name)) > 0;  // and may be summands
    for (int axis = 0; v.role != Role::scalar && axis < mesh.axis_count(); ++axis) {
      const size_t dims = v.type.shape.size(), chosen = pick(dims + (zeroed ? 2 : 1));
      place(s, axis, chosen > dims ? kSum : static_cast<int>(chosen) - 1);
    }
    plan.values[v.name] = s;
  }
  for (const Node& node : g.nodes()) {
    NodePlan np;
    for (ValueId id : node.inputs) np.in.push_back(Sharding::replicated(g.type(id).shape.size()));
    for (ValueId id : node.outputs) np.out.push_back(Sharding::replicated(g.type(id).shape.size()));
    const std::vector<AxisOption> options = axis_options(g, node);
    for (int axis = 0; axis < mesh.axis_count(); ++axis) {
      const AxisOption& o = options[pick(options.size())];
      for (size_t i = 0; i < np.in.size(); ++i) place(np.in[i], axis, o.in[i]);
      for (size_t i = 0; i < np.out.size(); ++i) place(np.out[i], axis, o.out[i]);
    }
    for (size_t i = 0; i < np.out.size(); ++i)
      plan.values[g.value(node.outputs[i]).name] = np.out[i];
    plan.nodes[node.name] = np;
  }
  return plan;
}

inline Plan random_plan(const Graph& g, const Mesh& mesh, uint32_t seed) {
  std::mt19937 random(seed);
  return make_plan(g, mesh, [&](size_t count) { return static_cast<size_t>(random() % count); });
}

inline Plan replicated_plan(const Graph& g, const Mesh& mesh) {
  return make_plan(g, mesh, [](size_t) { return size_t{0}; });
}

}  // namespace shardrun::test
