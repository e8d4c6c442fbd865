// Sums by index, windows, and distances.
#include "graph/onnx/exporter/older_exporter.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "graph/onnx/exporter/call_groups.h"

namespace shardrun::importer {
namespace {

bool makes_zeros(const ::onnx::NodeProto& node) {
  const bool fills = node.op_type() == "ConstantOfShape";
  if ((!fills && node.op_type() != "Constant") || node.output_size() != 1) return false;
  if (!fills && (node.attribute_size() != 1 || !node.attribute(0).has_t())) return false;
  const auto all_zero = [](const auto& numbers) {
    return std::all_of(numbers.begin(), numbers.end(), [](auto number) { return number == 0; });
  };
  return std::all_of(node.attribute().begin(), node.attribute().end(), [&](const auto& attribute) {
    const ::onnx::TensorProto& value = attribute.t();
    return all_zero(value.raw_data()) && all_zero(value.float_data()) &&
           all_zero(value.double_data()) && all_zero(value.int32_data()) &&
           all_zero(value.int64_data());
  });
}

/// Of a scatter onto zeros that are added to. PyTorch does not say what stands in a place that
/// comes twice where it is no sum. An initialiser may be a bias that begins with zeros.
void restore_added_elements(std::vector<FlatNode>& nodes, ImportReport& report) {
  std::set<std::string> zeros;
  std::map<std::string, FlatNode*> scattered;  // by the result
  std::map<std::string, int> uses;
  for (FlatNode& node : nodes) {
    const ::onnx::NodeProto& proto = node.proto;
    if (makes_zeros(proto)) zeros.insert(proto.output(0));
    const bool scatters = proto.op_type() == "ScatterND" || proto.op_type() == "ScatterElements";
    const bool reduces =
        std::any_of(proto.attribute().begin(), proto.attribute().end(),
                    [](const auto& attribute) { return attribute.name() == "reduction"; });
    if (scatters && !reduces && proto.input_size() == 3 && proto.output_size() == 1 &&
        zeros.count(proto.input(0)) > 0)
      scattered[proto.output(0)] = &node;
    for (const std::string& name : proto.input()) ++uses[name];
  }
  for (const FlatNode& node : nodes) {
    if (node.proto.op_type() != "Add") continue;
    for (const std::string& name : node.proto.input()) {
      const auto found = scattered.find(name);
      if (found == scattered.end() || uses[name] != 1) continue;
      ::onnx::NodeProto& scatter = found->second->proto;
      auto* reduction = scatter.add_attribute();
      reduction->set_name("reduction");
      reduction->set_type(::onnx::AttributeProto::STRING);
      reduction->set_s("add");
      const bool elements = scatter.op_type() == "ScatterElements";
      report.restored[elements ? "index_add of equal indices" : "accumulate=True"].push_back(
          scatter.name());
    }
  }
}

/// unfold() is slices side by side along a new dim. That dim takes the place of the one that is
/// cut, but where this is counted from the end, the exporter puts it one place too late.
class WindowRestorer {
 public:
  WindowRestorer(const ModelFile& model, std::vector<FlatNode>& nodes, ImportReport& report)
      : nodes_(nodes), report_(report), makers_(makers_of(nodes)) {
    for (const StoredTensor& tensor : model.initialisers) stored_[tensor.name] = &tensor;
  }

  void run() {
    for (FlatNode& node : nodes_) {
      if (node.proto.op_type() == "Concat") restore(node);
    }
    nodes_.insert(nodes_.begin(), std::make_move_iterator(axes_.begin()),
                  std::make_move_iterator(axes_.end()));
  }

 private:
  struct Window {
    ::onnx::NodeProto* unsqueeze;
    std::string of;
    int64_t begin, size;
  };

  ::onnx::NodeProto* maker(const std::string& value, const char* op) const {
    const auto found = makers_.find(value);
    ::onnx::NodeProto* node = found == makers_.end() ? nullptr : &nodes_[found->second].proto;
    return node != nullptr && node->op_type() == op ? node : nullptr;
  }

  /// The one number of an operand that is a constant.
  std::optional<int64_t> number(const ::onnx::NodeProto& node, int input) const {
    if (input >= node.input_size()) return std::nullopt;
    const auto stored = stored_.find(node.input(input));
    if (stored != stored_.end()) {
      const StoredTensor& tensor = *stored->second;
      const bool fits = tensor.type.dtype == DType::i64 && tensor.count() == 1;
      return fits ? std::optional(tensor.load().to_ints()[0]) : std::nullopt;
    }
    const ::onnx::NodeProto* constant = maker(node.input(input), "Constant");
    if (constant == nullptr || constant->attribute_size() != 1) return std::nullopt;
    const ::onnx::TensorProto& value = constant->attribute(0).t();
    int64_t out = 0;
    if (value.data_type() != ::onnx::TensorProto::INT64 || value.dims_size() > 1)
      return std::nullopt;
    if (value.int64_data_size() == 1) return value.int64_data(0);
    if (value.raw_data().size() != sizeof(out)) return std::nullopt;
    std::memcpy(&out, value.raw_data().data(), sizeof(out));
    return out;
  }

  std::optional<Window> window(const std::string& value, int64_t axis) const {
    ::onnx::NodeProto* unsqueeze = maker(value, "Unsqueeze");
    if (unsqueeze == nullptr || number(*unsqueeze, 1) != axis) return std::nullopt;
    const ::onnx::NodeProto* turned = maker(unsqueeze->input(0), "Transpose");  // but for the last
    const ::onnx::NodeProto* slice =
        maker(turned == nullptr ? unsqueeze->input(0) : turned->input(0), "Slice");
    if (slice == nullptr || (turned == nullptr) != (axis == -1) || slice->input_size() != 4)
      return std::nullopt;
    const auto begin = number(*slice, 1), end = number(*slice, 2), along = number(*slice, 3);
    if (!begin || !end || along != axis) return std::nullopt;
    return Window{unsqueeze, slice->input(0), *begin, *end - *begin};
  }

  void restore(FlatNode& concat) {
    ::onnx::AttributeProto* axis = nullptr;
    for (auto& attribute : *concat.proto.mutable_attribute()) {
      if (attribute.name() == "axis" && attribute.i() < 0) axis = &attribute;
    }
    if (axis == nullptr) return;
    std::vector<Window> windows;
    for (const std::string& value : concat.proto.input()) {
      const auto one = window(value, axis->i());
      if (!one) return;
      windows.push_back(*one);
    }
    const int64_t step = windows.size() > 1 ? windows[1].begin : 1;
    for (size_t i = 0; i < windows.size(); ++i) {
      if (windows[i].begin != static_cast<int64_t>(i) * step || windows[i].of != windows[0].of ||
          windows[i].size != windows[0].size)
        return;
    }
    axis->set_i(axis->i() - 1);
    FlatNode place;
    place.opset = concat.opset;
    place.label = concat.label;
    place.proto.set_op_type("Constant");
    place.proto.set_name(concat.proto.output(0) + ".axis");
    place.proto.add_output(place.proto.name());
    auto* value = place.proto.add_attribute();
    value->set_name("value_ints");
    value->set_type(::onnx::AttributeProto::INTS);
    value->add_ints(axis->i());
    for (const Window& one : windows) one.unsqueeze->set_input(1, place.proto.name());
    axes_.push_back(std::move(place));
    report_.restored["unfold() along a dim counted from the end"].push_back(concat.proto.name());
  }

  std::vector<FlatNode>& nodes_;
  ImportReport& report_;
  std::map<std::string, const StoredTensor*> stored_;
  const std::map<std::string, size_t> makers_;
  std::vector<FlatNode> axes_;
};

class DistanceRestorer {
 public:
  DistanceRestorer(std::vector<FlatNode>& nodes, ImportReport& report)
      : nodes_(nodes), report_(report), makers_(makers_of(nodes)) {}

  void run() {
    for (size_t n = 0; n < nodes_.size(); ++n) find(n);
    if (roots_.empty()) return;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      FlatNode node = std::move(nodes_[n]);
      if (const auto eps = powers_.find(n); eps != powers_.end()) make_positive(node, eps->second);
      if (roots_.count(n) > 0) {
        add_root(std::move(node));
      } else {
        out_.push_back(std::move(node));
      }
    }
    nodes_ = std::move(out_);
  }

 private:
  /// The node of this operator that makes an operand.
  std::optional<size_t> maker(const ::onnx::NodeProto& of, int input, const char* op) const {
    const auto found = input < of.input_size() ? makers_.find(of.input(input)) : makers_.end();
    return found != makers_.end() && nodes_[found->second].proto.op_type() == op
               ? std::optional(found->second)
               : std::nullopt;
  }

  /// Is it the root of such a distance?
  void find(size_t n) {
    const ::onnx::NodeProto& root = nodes_[n].proto;
    if (root.op_type() != "Pow") return;
    const auto inverse = maker(root, 1, "Div"), sum = maker(root, 0, "ReduceSum");
    const auto power = sum ? maker(nodes_[*sum].proto, 0, "Pow") : std::nullopt;
    const auto near = inverse ? maker(nodes_[*inverse].proto, 1, "Add") : std::nullopt;
    if (!power || !near || !maker(nodes_[*power].proto, 0, "Sub") ||
        !maker(nodes_[*near].proto, 0, "Constant") || !maker(nodes_[*near].proto, 1, "Constant"))
      return;
    const ::onnx::NodeProto& difference = nodes_[*maker(nodes_[*power].proto, 0, "Sub")].proto;
    const bool of_all = maker(difference, 0, "Unsqueeze") && maker(difference, 1, "Unsqueeze");
    powers_[*power] = of_all ? "" : nodes_[*near].proto.input(1);  // cdist adds none
    roots_.insert(n);
    nodes_[*inverse].proto.set_input(1, nodes_[*near].proto.input(0));  // 1 / p
    report_.restored["1 / p, eps and abs() of differences, no gradient of a distance of 0"]
        .push_back(root.name());
  }

  ::onnx::NodeProto& add(const FlatNode& at, const char* op, const std::vector<std::string>& inputs,
                         const std::string& result) {
    FlatNode one;
    one.opset = std::max<int64_t>(at.opset, 18);
    one.label = at.label;
    one.proto.set_op_type(op);
    one.proto.set_name(result);
    for (const std::string& input : inputs) one.proto.add_input(input);
    one.proto.add_output(result);
    out_.push_back(std::move(one));
    return out_.back().proto;
  }

  /// `eps`: the value that is added to the differences first; "": none.
  void make_positive(FlatNode& power, const std::string& eps) {
    const std::string name = power.proto.output(0);
    std::string difference = power.proto.input(0);
    if (!eps.empty()) {
      add(power, "CastLike", {eps, difference}, name + ".eps");
      add(power, "Add", {difference, name + ".eps"}, name + ".apart");
      difference = name + ".apart";
    }
    add(power, "Abs", {difference}, name + ".abs");
    power.proto.set_input(0, name + ".abs");
  }

  /// Of the sum where it is not 0.
  void add_root(FlatNode root) {
    const std::string name = root.proto.output(0), sum = root.proto.input(0);
    for (const auto& [number, called] : {std::pair(0.0F, ".zero"), {1.0F, ".one"}}) {
      auto* value = add(root, "Constant", {}, name + called + ".f32").add_attribute();
      value->set_name("value_float");
      value->set_type(::onnx::AttributeProto::FLOAT);
      value->set_f(number);
      add(root, "CastLike", {name + called + ".f32", sum}, name + called);
    }
    add(root, "Equal", {sum, name + ".zero"}, name + ".none");
    add(root, "Where", {name + ".none", name + ".one", sum}, name + ".some");
    root.proto.set_input(0, name + ".some");
    root.proto.set_output(0, name + ".root");
    out_.push_back(root);
    add(root, "Where", {name + ".none", name + ".zero", name + ".root"}, name);
  }

  std::vector<FlatNode>& nodes_;
  ImportReport& report_;
  const std::map<std::string, size_t> makers_;
  std::map<size_t, std::string> powers_;  // make_positive's eps
  std::set<size_t> roots_;
  std::vector<FlatNode> out_;
};

}  // namespace

void restore_older(const ModelFile& model, std::vector<FlatNode>& nodes, ImportReport& report) {
  // The newer one notes its calls.
  if (model.proto.producer_name() != "pytorch" || !call_groups(nodes).empty()) return;
  restore_added_elements(nodes, report);
  WindowRestorer(model, nodes, report).run();
  DistanceRestorer(nodes, report).run();
}

}  // namespace shardrun::importer
