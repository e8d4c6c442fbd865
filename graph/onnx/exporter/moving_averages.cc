// Forward from each initialiser, as long as what reads it is linear.
#include "graph/onnx/exporter/moving_averages.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace shardrun::importer {
namespace {

constexpr int kLongestChain = 8;  // nodes between a tensor and what it becomes

/// A sum of multiples: of one tensor, and of all else.
struct Terms {
  double of_tensor = 0, of_rest = 0;
};
Terms operator*(double by, const Terms& t) { return {by * t.of_tensor, by * t.of_rest}; }
Terms operator+(const Terms& a, const Terms& b) {
  return {a.of_tensor + b.of_tensor, a.of_rest + b.of_rest};
}

class Averages {
 public:
  Averages(const ModelFile& model, const std::vector<FlatNode>& nodes)
      : model_(model), nodes_(nodes), makers_(makers_of(nodes)) {
    for (const StoredTensor& tensor : model.initialisers) stored_[tensor.name] = &tensor;
    for (size_t n = 0; n < nodes.size(); ++n) {
      for (const std::string& name : names_read(nodes[n].proto)) readers_[name].insert(n);
    }
    for (const auto& output : model.proto.graph().output()) outputs_.insert(output.name());
  }

  std::map<std::string, std::vector<std::string>> run() {
    std::map<std::string, std::vector<std::string>> out;
    for (const auto& [name, tensor] : stored_) {
      if (outputs_.count(name) > 0) continue;
      const bool floats = is_float(tensor->type.dtype);
      std::string next = floats ? average_of(name, true) : count_of(name, *tensor);
      while (!next.empty()) {
        out[name].push_back(next);
        next = floats ? average_of(next, false) : "";
      }
    }
    return out;
  }

 private:
  const ::onnx::NodeProto* maker(const std::string& name) const {
    const auto made = makers_.find(name);
    return made == makers_.end() || nodes_[made->second].own != nullptr
               ? nullptr
               : &nodes_[made->second].proto;
  }

  /// The number that a value is, whatever the data.
  std::optional<double> number(const std::string& name, int depth = 0) const {
    std::optional<Tensor> tensor;
    if (const auto found = stored_.find(name); found != stored_.end()) {
      if (found->second->count() == 1) tensor = found->second->load();
    } else if (const auto* node = maker(name); node != nullptr && depth < kLongestChain) {
      const std::string& op = node->op_type();
      if (op == "Constant") {
        for (const auto& attribute : node->attribute()) {
          if (attribute.name() == "value_float") return attribute.f();
          const auto& dims = attribute.t().dims();
          if (attribute.name() == "value" &&
              std::all_of(dims.begin(), dims.end(), [](int64_t dim) { return dim == 1; }))
            tensor = store_tensor(attribute.t(), *model_.external, *model_.budget).load();
        }
      } else if ((op == "Cast" || op == "Identity") && node->input_size() == 1) {
        return number(node->input(0), depth + 1);
      } else if ((op == "Sub" || op == "Less") && node->input_size() == 2) {
        const auto a = number(node->input(0), depth + 1), b = number(node->input(1), depth + 1);
        if (a && b) return op == "Sub" ? *a - *b : static_cast<double>(*a < *b);
      }
    }
    if (!tensor || tensor->count() != 1) return std::nullopt;
    return tensor->at(0);
  }

  /// `value` multiplied out; the nodes that were are added to `seen`.
  Terms terms_of(const std::string& value, const std::string& tensor, std::set<size_t>& seen,
                 int depth = 0) const {
    if (value == tensor) return {1, 0};
    const Terms whole = {0, 1};
    const auto* node = maker(value);
    if (node == nullptr || depth > kLongestChain) return whole;
    const std::string& op = node->op_type();
    const auto operand = [&](int i) { return terms_of(node->input(i), tensor, seen, depth + 1); };
    const auto linear = [&] { seen.insert(makers_.at(value)); };
    if ((op == "Identity" || op == "Cast") && node->input_size() == 1) {
      linear();
      return operand(0);
    }
    if (op == "Where" && node->input_size() == 3) {
      const auto condition = number(node->input(0));
      if (!condition) return whole;
      linear();
      return operand(*condition != 0 ? 1 : 2);
    }
    if (node->input_size() != 2) return whole;
    if (op == "Add" || op == "Sub") {
      linear();
      const Terms first = operand(0);
      return first + (op == "Add" ? 1.0 : -1.0) * operand(1);
    }
    if (op != "Mul" && op != "Div") return whole;
    const auto left = number(node->input(0)), right = number(node->input(1));
    if (right && (op == "Mul" || *right != 0)) {
      linear();
      return (op == "Mul" ? *right : 1 / *right) * operand(0);
    }
    if (!left || op == "Div") return whole;
    linear();
    return *left * operand(1);
  }

  /// The average that replaces a tensor; empty if there is none. `alone`: nothing else reads it.
  std::string average_of(const std::string& tensor, bool alone) {
    const auto readers = readers_.find(tensor);
    if (readers == readers_.end()) return "";
    std::vector<std::string> open = {tensor};
    std::set<std::string> met;
    for (size_t i = 0; i < open.size(); ++i) {
      const auto on = readers_.find(open[i]);
      if (on == readers_.end()) continue;
      for (size_t n : on->second) {
        if (nodes_[n].proto.output_size() != 1) return "";
        const std::string& value = nodes_[n].proto.output(0);
        if (!met.insert(value).second) continue;
        if (--left_ < 0) return "";
        std::set<size_t> seen;
        const Terms terms = terms_of(value, tensor, seen);
        const bool all = !alone || std::includes(seen.begin(), seen.end(), readers->second.begin(),
                                                 readers->second.end());
        const bool average = terms.of_tensor > 0.5 && terms.of_tensor < 1 &&
                             std::abs(terms.of_tensor + terms.of_rest - 1) < 1e-6;
        if (all && average) return value;
        if (terms.of_tensor != 0 && met.size() < kMostMet) open.push_back(value);
      }
    }
    return "";
  }

  std::string count_of(const std::string& name, const StoredTensor& tensor) const {
    const auto readers = readers_.find(name);
    if (tensor.type.dtype == DType::boolean || !tensor.type.shape.empty() ||
        readers == readers_.end() || readers->second.size() != 1)
      return "";
    const auto& node = nodes_[*readers->second.begin()].proto;
    if (node.op_type() != "Add" || node.input_size() != 2) return "";
    const std::string& other = node.input(node.input(0) == name ? 1 : 0);
    return other != name && number(other) ? node.output(0) : "";
  }

  static constexpr size_t kMostMet = 16;  // values that are multiplied out for a tensor

  int64_t left_ = 100'000;  // values that may be, in all: each takes some microseconds
  const ModelFile& model_;
  const std::vector<FlatNode>& nodes_;
  std::map<std::string, const StoredTensor*> stored_;
  std::map<std::string, std::set<size_t>> readers_;
  const std::map<std::string, size_t> makers_;
  std::set<std::string> outputs_;
};

}  // namespace

std::map<std::string, std::vector<std::string>> find_moving_averages(
    const ModelFile& model, const std::vector<FlatNode>& nodes) {
  return Averages(model, nodes).run();
}

}  // namespace shardrun::importer
