// Forms that stay finite: logarithms of sigmoids, of sums of exponentials and of probabilities, and
// angles.
#include <cmath>
#include <limits>

#include "graph/ops/gradients.h"
#include "graph/passes/match.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/recognise/recognise.h"

namespace shardrun {
namespace {

class StableForms {
 public:
  explicit StableForms(Graph& graph) : graph_(graph) {}

  int run() {
    int count = 0;
    const size_t nodes = graph_.nodes().size();
    for (size_t n = 0; n < nodes; ++n) {
      const auto id = static_cast<NodeId>(n);
      const std::string op = graph_.node(id).op;
      if (op == "log") count += of_sigmoid(id) || of_exponentials(id) ? 1 : 0;
      if (op == "max") count += of_cross_entropy(id) ? 1 : 0;
      if (op == "atan") count += of_quotient(id) ? 1 : 0;
    }
    if (count > 0) sort_nodes(graph_);
    remove_dead_nodes(graph_);
    return count;
  }

 private:
  /// p of 1 - p, or of -p + 1; else kNoValue.
  ValueId rest_of(ValueId id) const {
    const auto is_one = [&](ValueId value) { return uniform_value(graph_, value) == 1.0; };
    if (const Node* sub = made_by(graph_, id, "sub"))
      return is_one(sub->inputs[0]) ? sub->inputs[1] : kNoValue;
    const Node* sum = made_by(graph_, id, "add");
    for (const size_t i : {0, 1}) {
      const Node* minus = sum == nullptr ? nullptr : made_by(graph_, sum->inputs[i], "neg");
      if (minus != nullptr && is_one(sum->inputs[1 - i])) return minus->inputs[0];
    }
    return kNoValue;
  }

  bool of_sigmoid(NodeId log) {
    const Node node = graph_.node(log);
    ValueId of = node.inputs[0];
    const ValueId rest = rest_of(of);
    if (rest != kNoValue) of = rest;
    const Node* sigmoid = made_by(graph_, of, "sigmoid");
    if (sigmoid == nullptr || graph_.type(of) != graph_.type(node.outputs[0])) return false;
    ValueId x = sigmoid->inputs[0];
    if (rest == kNoValue) x = graph_.add("neg", {x}, {}, node.name);
    become(log, "neg", {graph_.add("softplus", {x}, {}, node.name)});
    return true;
  }

  bool of_exponentials(NodeId log) {
    const Node node = graph_.node(log);
    const Node* sum = made_by(graph_, node.inputs[0], "add");
    if (sum == nullptr) return false;
    const Node* first = made_by(graph_, sum->inputs[0], "exp");
    const Node* second = made_by(graph_, sum->inputs[1], "exp");
    if (first == nullptr || second == nullptr) return false;
    const ValueId a = first->inputs[0], b = second->inputs[0];
    auto add = [&](const char* op, std::vector<ValueId> of, const Attrs& attrs = {}) {
      return graph_.add(op, std::move(of), attrs, node.name);
    };
    // Two minus infinities have no difference.
    const Attrs lowest = {{"min", static_cast<double>(std::numeric_limits<float>::lowest())}};
    const ValueId difference = add("sub", {add("clip", {a}, lowest), add("clip", {b}, lowest)});
    const ValueId far = add("neg", {add("abs", {difference})});
    const ValueId larger = add("max", {a, b});
    become(log, "add", {larger, add("softplus", {far})});
    return true;
  }

  /// PyTorch's gradient of a binary cross entropy is (p - t) / max(p (1 - p), 1e-12) for a target
  /// t. It is the sum of what t log(p) and (1 - t) log(1 - p) have where a logarithm of v has this:
  ///   (1 - v) / max(v (1 - v), 1e-12), which is 1 / v, but finite where v is 0
  bool of_cross_entropy(NodeId max) {
    const Node node = graph_.node(max);
    for (const size_t i : {0, 1}) {
      const Node* log = made_by(graph_, node.inputs[i], "log");
      if (log == nullptr || uniform_value(graph_, node.inputs[1 - i]) != -100.0) continue;
      const ValueId v = log->inputs[0];
      auto add = [&](const char* op, std::vector<ValueId> of, const Attrs& attrs = {}) {
        return graph_.add(op, std::move(of), attrs, node.name);
      };
      auto number = [&](double value) { return scalar(graph_, graph_.type(v).dtype, value); };
      const ValueId held = add("identity", {v}, {{"detach", int64_t{1}}});
      const ValueId rest = add("sub", {number(1), held});
      const ValueId divisor = add("max", {add("mul", {held, rest}), number(1e-12)});
      std::vector<ValueId> operands = node.inputs;
      operands[i] = add("log", {held});
      const ValueId value = add("max", std::move(operands));
      const ValueId zero = add("sub", {v, held});  // whose gradient is what follows
      become(max, "add", {value, add("mul", {zero, add("div", {rest, divisor})})});
      return true;
    }
    return false;
  }

  /// atan(y / x), of which atan2 is made, with PyTorch's gradient of that, and nothing where both
  /// are 0; a zero's sign is none:
  ///   (x dy - y dx) / (x^2 + y^2)
  bool of_quotient(NodeId atan) {
    const Node node = graph_.node(atan);
    const Node* quotient = made_by(graph_, node.inputs[0], "div");
    if (quotient == nullptr || uniform_value(graph_, quotient->inputs[1])) return false;
    const ValueId y = quotient->inputs[0], x = quotient->inputs[1];
    auto add = [&](const char* op, std::vector<ValueId> of, const Attrs& attrs = {}) {
      return graph_.add(op, std::move(of), attrs, node.name);
    };
    auto number = [&](double value) { return scalar(graph_, graph_.type(x).dtype, value); };
    const Attrs detached = {{"detach", int64_t{1}}};
    const ValueId held_y = add("identity", {y}, detached), held_x = add("identity", {x}, detached);
    const ValueId least = number(std::numeric_limits<float>::min());
    const ValueId divisor = add("where", {add("equal", {held_x, number(0)}), least, held_x});
    const ValueId value = add("atan", {add("div", {held_y, divisor})});
    const ValueId squares =
        add("add", {add("mul", {held_x, held_x}), add("mul", {held_y, held_y})});
    // Zeros, whose gradients are what they are multiplied by.
    const ValueId across = add("sub", {add("mul", {add("sub", {y, held_y}), held_x}),
                                       add("mul", {add("sub", {x, held_x}), held_y})});
    become(atan, "add", {value, add("div", {across, add("max", {squares, least})})});
    return true;
  }

  /// The node keeps its name and its result.
  void become(NodeId id, const char* op, std::vector<ValueId> inputs) {
    Node& node = graph_.node(id);
    node.op = op;
    node.inputs = std::move(inputs);
    node.attrs = {};
  }

  Graph& graph_;
};

}  // namespace

int take_stable_forms(Graph& graph) { return StableForms(graph).run(); }

}  // namespace shardrun
