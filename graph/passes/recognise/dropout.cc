// Dropout in pieces: a mask drawn for each sample, channel or element, and the division by the
// fraction that it keeps.
#include "graph/passes/match.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/recognise/recognise.h"

namespace shardrun {
namespace {

/// Ones with a probability of `keep`, else zeros.
struct Mask {
  const Node* drawn = nullptr;  // random_uniform
  double keep = 0;
};

/// A mask as floating numbers: u < keep, u >= 1 - keep, or floor(u + keep). Nothing else may use it
/// or what it is made of: dropout keeps as many, but others.
std::optional<Mask> mask_of(const Graph& g, const std::vector<int>& uses, ValueId id) {
  const auto used_once = [&](ValueId value) {
    return static_cast<size_t>(value) < uses.size() && uses[static_cast<size_t>(value)] == 1;
  };
  if (!used_once(id)) return std::nullopt;
  if (const Node* floor = made_by(g, id, "floor")) {
    const Node* sum = made_by(g, floor->inputs[0], "add");
    for (size_t i = 0; sum != nullptr && i < 2; ++i) {
      const Node* drawn = made_by(g, sum->inputs[i], "random_uniform");
      const std::optional<double> keep = uniform_value(g, sum->inputs[1 - i]);
      if (drawn != nullptr && keep && used_once(floor->inputs[0]) && used_once(sum->inputs[i]))
        return Mask{drawn, *keep};
    }
  }
  const Node* cast = made_by(g, id, "cast");
  if (cast == nullptr || !is_float(g.type(id).dtype)) return std::nullopt;
  for (const std::string op : {"less", "less_equal", "greater", "greater_equal"}) {
    const Node* compared = made_by(g, cast->inputs[0], op);
    if (compared == nullptr) continue;
    const Node* drawn = made_by(g, compared->inputs[0], "random_uniform");
    const std::optional<double> bound = uniform_value(g, compared->inputs[1]);
    if (drawn != nullptr && bound && used_once(cast->inputs[0]) && used_once(compared->inputs[0]))
      return Mask{drawn, op.starts_with("less") ? *bound : 1 - *bound};
  }
  return std::nullopt;
}

/// What `id` is the `divisor`-th part of.
std::optional<ValueId> divided_by(const Graph& g, ValueId id, double divisor) {
  if (g.value(id).producer < 0) return std::nullopt;
  const Node& node = g.nodes()[static_cast<size_t>(g.value(id).producer)];
  if (node.op == "div") {
    const std::optional<double> by = uniform_value(g, node.inputs[1]);
    if (by && close(*by, divisor)) return node.inputs[0];
  }
  for (size_t i = 0; node.op == "mul" && i < 2; ++i) {
    const std::optional<double> by = uniform_value(g, node.inputs[1 - i]);
    if (by && close(*by * divisor, 1)) return node.inputs[i];
  }
  return std::nullopt;
}

}  // namespace

int recognise_dropout(Graph& graph) {
  int count = 0;
  const std::vector<int> uses = use_counts(graph);
  Replacer replacer(graph);
  // mask / keep: dropout of ones.
  auto scaled = [&](const Mask& mask, const TensorType& type, const std::string& name) {
    const Attrs& drawn = mask.drawn->attrs;
    const Attrs attrs = {{"p", 1 - mask.keep},
                         {"key", drawn.i("key")},
                         {"seed", drawn.i("seed")},
                         {"global_shape", drawn.ints("global_shape")},
                         {"start", drawn.ints("start")}};
    const ValueId step = mask.drawn->inputs[0];
    const Attrs ones = {
        {"shape", type.shape}, {"dtype", std::string(to_string(type.dtype))}, {"value", 1.0}};
    return graph.add("dropout", {graph.add("fill", {}, ones, name), step}, attrs, name);
  };
  const size_t nodes = graph.nodes().size();
  for (size_t n = 0; n < nodes; ++n) {
    const Node node = graph.nodes()[n];
    if ((node.op != "div" && node.op != "mul") || !replacer.used(node.outputs[0])) continue;
    for (size_t i = 0; i < (node.op == "mul" ? 2 : 1); ++i) {
      const TensorType type = graph.type(node.inputs[i]);
      const std::optional<Mask> mask = mask_of(graph, uses, node.inputs[i]);
      if (!mask || mask->keep <= 0 || mask->keep > 1 ||
          mask->drawn->attrs.ints("shape") != type.shape)
        continue;
      ValueId result = kNoValue;
      if (divided_by(graph, node.outputs[0], mask->keep) == node.inputs[i]) {
        result = scaled(*mask, type, node.name);
      } else if (const auto x = divided_by(graph, node.inputs[1 - i], mask->keep);
                 x && node.op == "mul") {
        result = graph.add("mul", {*x, scaled(*mask, type, node.name)}, {}, node.name);
      }
      if (result == kNoValue || graph.type(result) != graph.type(node.outputs[0])) continue;
      replacer.replace(node.outputs[0], result);
      ++count;
      break;
    }
  }
  replacer.finish();
  return count;
}

}  // namespace shardrun
