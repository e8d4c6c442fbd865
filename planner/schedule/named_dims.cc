// Finding the colours that have a part in training.
#include "planner/schedule/named_dims.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/at.h"

namespace shardrun {
namespace {

class NamedDimsFinder {
 public:
  NamedDimsFinder(const Graph& graph, const Colours& colours, const RuleOf& rule_of,
                  const StepRoles& roles)
      : graph_(graph),
        colours_(colours),
        rule_of_(rule_of),
        roles_(roles),
        dims_(find_batch_dims(graph, colours)) {}

  NamedDims find() {
    find_stream();
    find_weights();
    find_sequence();
    return std::move(dims_);
  }

 private:
  /// Does `to` depend on `from` through a product with a weight?
  bool passes_product(ValueId from, ValueId to, const std::vector<bool>& product) const {
    const NodeId begin = graph_.value(from).producer;  // -1: an input
    std::map<NodeId, bool, std::greater<>> open;       // last nodes first; passed a product yet?
    const auto reach = [&](ValueId id, bool passed) {
      const NodeId maker = graph_.value(id).producer;
      if (graph_.value(id).role != Role::computed || maker <= begin) return;
      bool& known = open[maker];
      known = known || passed;
    };
    reach(to, false);
    while (!open.empty()) {
      const auto [id, before] = *open.begin();
      open.erase(open.begin());
      const bool passed = before || product[at(id)];
      for (ValueId in : graph_.node(id).inputs) {
        if (in == from && passed) return true;
        reach(in, passed);
      }
    }
    return false;
  }

  /// The stream between blocks is what residual connections add to: x in x + f(x), where f has a
  /// product with a weight.
  void find_stream() {
    std::vector<bool> product(graph_.nodes().size(), false);
    for (size_t n = 0; n < product.size(); ++n) {
      const Node& node = graph_.nodes()[n];
      const bool weighs = std::any_of(node.inputs.begin(), node.inputs.end(),
                                      [&](ValueId id) { return roles_.of_weights[at(id)]; });
      if (!roles_.forward[n] || !weighs) continue;
      for (const SpmdRule::Option& option : rule_of_(static_cast<NodeId>(n)).options) {
        const auto cut = std::count_if(option.in.begin(), option.in.end(), [](const Placement& p) {
          return p.kind == Placement::Kind::shard;
        });
        const bool sums = std::any_of(option.out.begin(), option.out.end(), [](const Placement& p) {
          return p.kind == Placement::Kind::partial;
        });
        if (cut >= 2 && sums) product[n] = true;
      }
    }
    for (size_t n = 0; n < product.size(); ++n) {
      const Node& node = graph_.nodes()[n];
      const bool normalised = node.op == "batch_norm" && node.inputs.size() == 6;  // and then added
      if (!roles_.forward[n] || !(normalised || op_def(node.op).adds)) continue;
      const ValueId sum = node.outputs[0], a = node.inputs[0], b = node.inputs[normalised ? 5 : 1];
      const TensorType& type = graph_.type(sum);
      if (type.shape.size() < 2 || !is_float(type.dtype) || graph_.type(a) != type ||
          graph_.type(b) != type ||
          !(passes_product(a, b, product) || passes_product(b, a, product)))
        continue;
      for (size_t d = 0; d < type.shape.size(); ++d) {
        const int colour = colours_.of(sum, d);
        if (dims_.batch.count(colour) == 0 && dims_.sample.count(colour) == 0)
          dims_.stream.insert(colour);
      }
    }
  }

  /// A weight meets the batch in some node. Of its dims, those that are neither the batch's nor the
  /// stream's lie inside a block and are cut. Where residual connections do not tell, node after
  /// node: what a product sums over is the stream, and what it leaves lies inside; the next product
  /// sums over that, and leaves the stream.
  void find_weights() {
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      const bool meets = std::any_of(node.inputs.begin(), node.inputs.end(),
                                     [&](ValueId id) { return roles_.of_batch[at(id)]; });
      for (size_t k = 0; roles_.forward[n] && meets && k < node.inputs.size(); ++k) {
        if (roles_.of_weights[at(node.inputs[k])] && graph_.type(node.inputs[k]).shape.size() >= 2)
          find_weight(node, rule_of_(static_cast<NodeId>(n)), k);
      }
    }
  }

  void find_weight(const Node& node, const SpmdRule& rule, size_t operand) {
    std::set<int> summed, chosen,
        left;  // colours: of a contraction, of a table's rows, of the result
    for (const SpmdRule::Option& option : rule.options) {
      if (option.in[operand].kind != Placement::Kind::shard) continue;
      const int colour = colours_.of(node.inputs[operand], at(option.in[operand].dim));
      if (dims_.batch.count(colour) + dims_.sample.count(colour) > 0) continue;
      const auto cut = std::count_if(option.in.begin(), option.in.end(), [](const Placement& p) {
        return p.kind == Placement::Kind::shard;
      });
      const bool sums = option.out[0].kind == Placement::Kind::partial;
      (!sums ? left : cut > 1 ? summed : chosen).insert(colour);
    }
    const auto known = [&](int colour) {
      return dims_.stream.count(colour) + dims_.inner.count(colour) > 0;
    };
    for (int colour : chosen) {
      if (!known(colour)) dims_.inner.insert(colour);
    }
    const auto inside = [&](int colour) { return dims_.inner.count(colour) > 0; };
    const bool by_rows = std::any_of(summed.begin(), summed.end(), inside) ||
                         std::any_of(chosen.begin(), chosen.end(), inside);
    for (int colour : left) {
      if (!known(colour)) (by_rows ? dims_.stream : dims_.inner).insert(colour);
    }
    for (int colour : summed) {
      if (!known(colour)) dims_.stream.insert(colour);
    }
  }

  /// The sequence: what else the batch's values and the stream have in common.
  void find_sequence() {
    for (size_t v = 0; v < graph_.values().size(); ++v) {
      const auto id = static_cast<ValueId>(v);
      if (!roles_.of_batch[v] || !has(id, dims_.stream)) continue;
      for (size_t d = 0; d < graph_.type(id).shape.size(); ++d) {
        if (dims_.sample.count(colours_.of(id, d)) > 0) dims_.sequence.insert(colours_.of(id, d));
      }
    }
  }

  bool has(ValueId id, const std::set<int>& colours) const {
    const Shape& shape = graph_.type(id).shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] > 1 && colours.count(colours_.of(id, d)) > 0) return true;
    }
    return false;
  }

  const Graph& graph_;
  const Colours& colours_;
  const RuleOf& rule_of_;
  const StepRoles& roles_;
  NamedDims dims_;
};

}  // namespace

NamedDims find_batch_dims(const Graph& graph, const Colours& colours) {
  NamedDims out;
  for (ValueId id : graph.with_role(Role::batch)) {
    for (size_t d = 0; d < graph.type(id).shape.size(); ++d)
      (d == 0 ? out.batch : out.sample).insert(colours.of(id, d));
  }
  for (int colour : out.batch) out.sample.erase(colour);
  return out;
}

NamedDims find_named_dims(const Graph& graph, const Colours& colours, const RuleOf& rule_of,
                          const StepRoles& roles) {
  return NamedDimsFinder(graph, colours, rule_of, roles).find();
}

}  // namespace shardrun
