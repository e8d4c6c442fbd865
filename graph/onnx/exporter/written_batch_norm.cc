// Forward from each sqrt(v + eps), by names.
#include "graph/onnx/exporter/written_batch_norm.h"

#include <map>
#include <optional>

namespace shardrun::importer {
namespace {

/// Keras, Flax and Equinox keep so much of a running average; such a file does not say.
constexpr float kOnnxMomentum = 0.99F;

class Gatherer {
 public:
  Gatherer(const ModelFile& model, std::vector<FlatNode>& nodes)
      : model_(model), nodes_(nodes), makers_(makers_of(nodes)) {
    for (const StoredTensor& tensor : model.initialisers) initialisers_[tensor.name] = &tensor;
    for (size_t n = 0; n < nodes.size(); ++n) {
      for (const std::string& name : names_read(nodes[n].proto)) uses_[name].push_back(n);
    }
    for (const auto& output : model.proto.graph().output())
      uses_[output.name()].push_back(kOutside);
  }

  void run() {
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (nodes_[n].proto.op_type() == "Sqrt" && is_usual(nodes_[n])) match(nodes_[n].proto);
    }
  }

 private:
  static constexpr size_t kOutside = ~size_t{0};

  /// An operator of ONNX with as many inputs as those that are followed have.
  static bool is_usual(const FlatNode& node) {
    static const std::set<std::string> binary = {"Add", "Div", "Mul", "Sub"};
    const std::string& op = node.proto.op_type();
    return node.own == nullptr &&
           (op == "Constant" || node.proto.input_size() > (binary.count(op) > 0 ? 1 : 0));
  }
  const ::onnx::NodeProto* made_by(const std::string& name, const char* op) const {
    const auto made = makers_.find(name);
    if (made == makers_.end() || !is_usual(nodes_[made->second])) return nullptr;
    const auto& node = nodes_[made->second].proto;
    return node.op_type() == op ? &node : nullptr;
  }
  static bool moves(const ::onnx::NodeProto& node) {
    static const std::set<std::string> movers = {"Cast", "Identity", "Reshape", "Squeeze",
                                                 "Unsqueeze"};
    return movers.count(node.op_type()) > 0;
  }
  /// Back over what only moves numbers.
  std::string origin(std::string name) const {
    for (auto made = makers_.find(name); made != makers_.end() && is_usual(nodes_[made->second]) &&
                                         moves(nodes_[made->second].proto);
         made = makers_.find(name))
      name = nodes_[made->second].proto.input(0);
    return name;
  }
  /// The nodes that read a value, none where one is outside of the graph or is a user's op.
  std::vector<const ::onnx::NodeProto*> readers(const std::string& name) const {
    std::vector<const ::onnx::NodeProto*> out;
    const auto found = uses_.find(name);
    if (found == uses_.end()) return out;
    for (size_t n : found->second) {
      if (n == kOutside || !is_usual(nodes_[n])) return {};
      out.push_back(&nodes_[n].proto);
    }
    return out;
  }
  const ::onnx::NodeProto* only_reader(const std::string& name) const {
    const auto all = readers(name);
    return all.size() == 1 ? all[0] : nullptr;
  }
  /// The other operand of a node of two.
  static std::string other_input(const ::onnx::NodeProto& node, const std::string& name) {
    return node.input(0) == name ? node.input(1) : node.input(0);
  }

  std::optional<double> number(const std::string& name) const {
    const std::string from = origin(name);
    const auto found = initialisers_.find(from);
    std::optional<Tensor> tensor;
    if (found != initialisers_.end() && found->second->count() == 1) {
      tensor = found->second->load();
    } else if (const auto* constant = made_by(from, "Constant"); constant != nullptr) {
      for (const auto& attribute : constant->attribute()) {
        if (attribute.name() == "value_float") return attribute.f();
        if (attribute.name() == "value")
          tensor = store_tensor(attribute.t(), *model_.external, *model_.budget).load();
      }
    }
    if (!tensor || tensor->count() != 1) return std::nullopt;
    return tensor->at(0);
  }
  /// The initialiser of `count` floats behind a name, or empty.
  std::string channels(const std::string& name, int64_t count) const {
    const auto found = initialisers_.find(origin(name));
    if (found == initialisers_.end()) return "";
    const TensorType& type = found->second->type;
    const bool fits = is_float(type.dtype) && type.shape == Shape{count};
    return fits ? found->first : "";
  }

  struct Parts {
    std::string x, scale, bias, mean, variance, factor;  // factor: what x is scaled by
    float eps = 0;
  };

  void match(const ::onnx::NodeProto& sqrt) {
    const auto* sum = made_by(origin(sqrt.input(0)), "Add");
    if (sum == nullptr) return;
    Parts p;
    for (int i = 0; i < 2; ++i) {
      const auto variance = initialisers_.find(origin(sum->input(i)));
      const auto eps = number(sum->input(1 - i));
      if (variance == initialisers_.end() || !eps || variance->second->type.shape.size() != 1)
        continue;
      count_ = variance->second->count();
      p.variance = channels(variance->first, count_);
      p.eps = static_cast<float>(*eps);
    }
    if (p.variance.empty() || count_ < 2) return;
    std::string last;
    if (!from_root(sqrt.output(0), p, last) || p.mean.empty()) return;
    replace(p, last);
  }

  /// Follows the root until x comes in.
  bool from_root(std::string at, Parts& p, std::string& last) const {
    bool inverted = false;
    for (;;) {
      const auto all = readers(at);
      if (all.size() == 2 && inverted)
        return shifted_by_product(*all[0], *all[1], at, p, last) ||
               shifted_by_product(*all[1], *all[0], at, p, last);
      if (all.size() != 1) return false;
      const auto& node = *all[0];
      const std::string& op = node.op_type();
      if (moves(node) && node.input(0) == at) {
        at = node.output(0);
      } else if (!inverted && (op == "Reciprocal" || (op == "Div" && node.input(1) == at &&
                                                      number(node.input(0)) == 1.0))) {
        inverted = true;
        at = node.output(0);
      } else if (inverted && op == "Mul" && p.scale.empty() &&
                 !channels(other_input(node, at), count_).empty()) {
        p.scale = channels(other_input(node, at), count_);
        at = node.output(0);
      } else if (inverted ? op == "Mul" : op == "Div" && node.input(1) == at) {
        p.factor = at;
        return centred(other_input(node, at), node.output(0), p, last);
      } else {
        return false;
      }
    }
  }

  /// (x - m) a, then a scale that is still to come, then the bias.
  bool centred(const std::string& difference, std::string at, Parts& p, std::string& last) const {
    const auto* sub = made_by(difference, "Sub");
    if (sub == nullptr || only_reader(difference) == nullptr) return false;
    p.x = sub->input(0);
    p.mean = channels(sub->input(1), count_);
    const auto* next = only_reader(at);
    if (next != nullptr && next->op_type() == "Mul" && p.scale.empty()) {
      p.scale = channels(other_input(*next, at), count_);
      if (!p.scale.empty()) {
        at = next->output(0);
        next = only_reader(at);
      }
    }
    if (next != nullptr && next->op_type() == "Add") {
      p.bias = channels(other_input(*next, at), count_);
      if (!p.bias.empty()) at = next->output(0);
    }
    last = at;
    return true;
  }

  /// x a + (b - m a), where `scaled` is x a and `moved` is m a or -m a.
  bool shifted_by_product(const ::onnx::NodeProto& scaled, const ::onnx::NodeProto& moved,
                          const std::string& factor, Parts& p, std::string& last) const {
    if (scaled.op_type() != "Mul" || moved.op_type() != "Mul") return false;
    std::string mean = origin(other_input(moved, factor));
    const auto* negated = made_by(mean, "Neg");
    bool negative = negated != nullptr;
    mean = channels(negative ? negated->input(0) : mean, count_);
    if (mean.empty()) return false;
    std::string shift = moved.output(0), bias;
    const auto* next = only_reader(shift);
    if (next != nullptr && next->op_type() == "Neg" && !negative) {
      negative = true;
      shift = next->output(0);
      next = only_reader(shift);
    }
    if (next == nullptr || next->op_type() != (negative ? "Add" : "Sub")) return false;
    if (negative || next->input(1) == shift) bias = channels(other_input(*next, shift), count_);
    if (!bias.empty()) {
      shift = next->output(0);
      next = only_reader(shift);
      if (next == nullptr || next->op_type() != "Add") return false;
    } else if (!negative && next->input(1) != shift) {
      return false;
    }
    if (other_input(*next, shift) != scaled.output(0) || only_reader(scaled.output(0)) != next)
      return false;
    p.x = other_input(scaled, factor);
    p.mean = mean, p.bias = bias, p.factor = factor;
    last = next->output(0);
    return true;
  }

  void replace(const Parts& p, const std::string& last) {
    FlatNode& node = nodes_[makers_.at(last)];
    ::onnx::NodeProto norm;
    norm.set_name(node.proto.name());
    norm.set_op_type("BatchNormalization");
    norm.set_domain(kWrittenOut);
    for (const std::string& name : {p.x, p.scale, p.bias, p.mean, p.variance, p.factor})
      norm.add_input(name);
    norm.add_output(last);
    for (const auto& [name, value] :
         {std::pair{"epsilon", p.eps}, std::pair{"momentum", kOnnxMomentum}}) {
      auto* attribute = norm.add_attribute();
      attribute->set_name(name);
      attribute->set_type(::onnx::AttributeProto::FLOAT);
      attribute->set_f(value);
    }
    node.proto = norm;
  }

  const ModelFile& model_;
  std::vector<FlatNode>& nodes_;
  std::map<std::string, const StoredTensor*> initialisers_;
  std::map<std::string, std::vector<size_t>> uses_;
  const std::map<std::string, size_t> makers_;
  int64_t count_ = 0;  // channels of the one that is looked at
};

}  // namespace

void gather_batch_norms(const ModelFile& model, std::vector<FlatNode>& nodes) {
  Gatherer(model, nodes).run();
}

}  // namespace shardrun::importer
