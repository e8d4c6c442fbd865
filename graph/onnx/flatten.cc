// Flatten: inlining of functions, and the SSA checks of what results.
#include "graph/onnx/flatten.h"

#include <algorithm>
#include <utility>

#include "graph/onnx/lower/advice.h"
#include "graph/onnx/lower/lowering.h"
#include "graph/op_def.h"

namespace shardrun::importer {
namespace {

constexpr int kDeepestNesting = 32;
constexpr size_t kMostNodes = 200'000;
constexpr int64_t kNamesBytes = 500;  // in the sets and maps that checks keep of a node

std::string plain_domain(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

/// The name under which a user registers an op: 'acme::Swish'.
std::string user_op_name(const ::onnx::NodeProto& node) {
  const std::string domain = plain_domain(node.domain());
  return (domain.empty() ? "ai.onnx" : domain) + "::" + node.op_type();
}

using Renames = std::map<std::string, std::string>;

void rename(std::string* name, const Renames& renames) {
  auto it = renames.find(*name);
  if (it != renames.end()) *name = it->second;
}

/// Attributes that refer to the function's own take the caller's value, or the declared default.
void bind_attributes(::onnx::NodeProto* node, const ::onnx::NodeProto& call,
                     const ::onnx::FunctionProto& function) {
  for (int i = node->attribute_size() - 1; i >= 0; --i) {
    const std::string wanted = node->attribute(i).ref_attr_name();
    if (wanted.empty()) continue;
    const ::onnx::AttributeProto* value = nullptr;
    for (const auto& given : function.attribute_proto()) {
      if (given.name() == wanted) value = &given;
    }
    for (const auto& given : call.attribute()) {
      if (given.name() == wanted) value = &given;
    }
    const std::string own = node->attribute(i).name();
    if (value == nullptr) {
      node->mutable_attribute()->DeleteSubrange(i, 1);
    } else {
      *node->mutable_attribute(i) = *value;
      node->mutable_attribute(i)->set_name(own);
    }
  }
}

/// A call of a function, spelt out: what its subgraphs' names become, and their attributes.
struct Inlining {
  const ::onnx::NodeProto& call;
  const ::onnx::FunctionProto& function;
  const std::string& prefix;

  /// `renames`: of the names around it. Its own get the prefix, or they might be a caller's.
  void inline_graph(::onnx::GraphProto* graph, Renames renames) const {
    const auto make = [&](std::string* name) {
      if (name->empty()) return;
      renames[*name] = prefix + *name;
      rename(name, renames);
    };
    for (auto& input : *graph->mutable_input()) make(input.mutable_name());
    for (auto& tensor : *graph->mutable_initializer()) make(tensor.mutable_name());
    for (auto& node : *graph->mutable_node()) inline_node(&node, renames, make);
    for (auto& output : *graph->mutable_output()) rename(output.mutable_name(), renames);
  }
  /// `make` names a result.
  template <class Make>
  void inline_node(::onnx::NodeProto* node, const Renames& renames, const Make& make) const {
    for (auto& name : *node->mutable_input()) rename(&name, renames);
    bind_attributes(node, call, function);
    for (auto& attribute : *node->mutable_attribute()) {
      if (attribute.has_g()) inline_graph(attribute.mutable_g(), renames);
    }
    for (auto& name : *node->mutable_output()) make(&name);
  }
};

}  // namespace

Flattener::Flattener(const ::onnx::ModelProto& model, ImportBudget& budget)
    : budget_(budget), opset_(main_opset(model)) {
  for (const auto& function : model.functions()) {
    const auto [it, fresh] =
        functions_.emplace(key(function.domain(), function.name(), function.overload()), &function);
    SR_REQUIRE(fresh, invalid_input, "two functions are named '", function.name(), "'");
  }
}

std::vector<FlatNode> Flattener::run(const ::onnx::GraphProto& graph, int64_t opset) {
  for (const auto& node : graph.node())
    budget_.take(parsed_bytes(node, budget_.left() + 1), "its subgraphs");
  for (int i = 0; i < graph.node_size(); ++i) append(graph.node(i), opset, label(graph, i));
  return std::exchange(out_, {});
}

std::vector<FlatNode> Flattener::consume(::onnx::GraphProto& graph, int64_t opset) {
  for (int i = 0; i < graph.node_size(); ++i) {
    std::string text = label(graph, i);
    append(std::move(*graph.mutable_node(i)), opset, std::move(text), i);
  }
  return std::exchange(out_, {});
}

std::string Flattener::key(const std::string& domain, const std::string& name,
                           const std::string& overload) {
  return plain_domain(domain) + "::" + name + "::" + overload;
}

std::string Flattener::label(const ::onnx::GraphProto& graph, int i) {
  check_length(graph.node(i).name(), str("node ", i));
  return str("node ", i, " '", graph.node(i).name(), "'");
}

void Flattener::append(::onnx::NodeProto node, int64_t opset, std::string label, int64_t place) {
  const std::string own = user_op_name(node);
  const OpDef* registered = find_op(own);
  if (registered ==
      nullptr) {  // else before a function of that name, which spells out what it does
    const auto it = functions_.find(key(node.domain(), node.op_type(), node.overload()));
    if (it != functions_.end()) return inline_call(node, *it->second, label);
    SR_REQUIRE(plain_domain(node.domain()).empty(), unsupported, label, ": op ", own,
               " is not supported: it is no ai.onnx operator, no function of the model, and no op "
               "of that name is registered",
               advice_for(own));
  } else {
    node.set_op_type(own);
  }
  budget_.take(static_cast<int64_t>(sizeof(FlatNode) + label.size()) + kNamesBytes, "its nodes");
  SR_REQUIRE(out_.size() < kMostNodes, unsupported, "has more than ", kMostNodes,
             " nodes with functions inlined");
  out_.push_back({std::move(node), opset, std::move(label), registered, place});
}

void Flattener::inline_call(const ::onnx::NodeProto& call, const ::onnx::FunctionProto& function,
                            const std::string& label) {
  constexpr int64_t kCallBytes = 200, kNameBytes = 100;
  budget_.take(kCallBytes + kNameBytes * (function.input_size() + function.output_size() +
                                          function.node_size()),
               "its calls of functions");
  SR_REQUIRE(std::find(open_.begin(), open_.end(), &function) == open_.end(), invalid_input, label,
             ": function '", function.name(), "' calls itself");
  SR_REQUIRE(open_.size() < kDeepestNesting, unsupported, label, ": functions nest deeper than ",
             kDeepestNesting);
  open_.push_back(&function);
  SR_REQUIRE(
      call.input_size() <= function.input_size() && call.output_size() <= function.output_size(),
      invalid_input, label, ": function '", function.name(), "' takes ", function.input_size(),
      " inputs, got ", call.input_size());
  int64_t opset = opset_;
  for (const auto& import : function.opset_import()) {
    if (plain_domain(import.domain()).empty()) opset = import.version();
  }
  const std::string prefix =
      str(call.name().empty() ? function.name() : call.name(), "#", calls_++, "/");
  Renames renames;
  for (int i = 0; i < function.input_size(); ++i) {
    renames[function.input(i)] = i < call.input_size() ? call.input(i) : "";
  }
  for (int i = 0; i < function.output_size(); ++i) {
    const bool wanted = i < call.output_size() && !call.output(i).empty();
    // An output that is an input: one Identity makes the caller's name.
    if (wanted && renames.count(function.output(i)) > 0) continue;
    if (wanted) renames[function.output(i)] = call.output(i);
  }
  for (const auto& node : function.node()) {
    for (const auto& name : node.output()) {
      if (!name.empty()) renames.try_emplace(name, prefix + name);
    }
  }
  const Inlining inlining{call, function, prefix};
  for (int i = 0; i < function.node_size(); ++i) {
    check_length(function.node(i).name(), str("function '", function.name(), "': node ", i));
    ::onnx::NodeProto node = function.node(i);
    for (const auto& name : node.input()) {
      SR_REQUIRE(name.empty() || renames.count(name) > 0, invalid_input, label, ": function '",
                 function.name(), "' uses '", name, "', which nothing in it makes");
    }
    inlining.inline_node(&node, renames, [&](std::string* name) { rename(name, renames); });
    const std::string inner = node.name();
    node.set_name(prefix + (inner.empty() ? str(node.op_type(), "_", i) : inner));
    budget_.take(parsed_bytes(node, budget_.left() + 1), "its functions, inlined,");
    append(std::move(node), opset,
           str(label, " (function ", function.name(), ": node ", i, " '", inner, "')"));
  }
  for (int i = 0; i < call.output_size() && i < function.output_size(); ++i) {
    const std::string& made = renames[function.output(i)];
    if (call.output(i).empty() || made == call.output(i)) continue;
    ::onnx::NodeProto identity;
    identity.set_op_type("Identity");
    identity.set_name(prefix + "output_" + std::to_string(i));
    identity.add_input(made);
    identity.add_output(call.output(i));
    append(identity, opset, label);
  }
  open_.pop_back();
}

namespace {

void collect_reads(const ::onnx::NodeProto& node, std::vector<std::string>& out, int depth);

void collect_reads(const ::onnx::GraphProto& graph, std::vector<std::string>& out, int depth) {
  for (const auto& inner : graph.node()) collect_reads(inner, out, depth + 1);
  for (const auto& output : graph.output()) out.push_back(output.name());
}

void collect_reads(const ::onnx::NodeProto& node, std::vector<std::string>& out, int depth) {
  SR_REQUIRE(depth < kDeepestNesting, unsupported, "node '", node.name(),
             "': subgraphs nest deeper than ", kDeepestNesting);
  for (const auto& name : node.input()) {
    if (!name.empty()) out.push_back(name);
  }
  for (const auto& attribute : node.attribute())
    if (attribute.has_g()) collect_reads(attribute.g(), out, depth);
}

}  // namespace

int64_t main_opset(const ::onnx::ModelProto& model) {
  for (const auto& opset : model.opset_import()) {
    if (plain_domain(opset.domain()).empty()) return opset.version();
  }
  return 0;
}

std::map<std::string, size_t> makers_of(const std::vector<FlatNode>& nodes) {
  std::map<std::string, size_t> out;
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (const std::string& name : nodes[n].proto.output()) out[name] = n;
  }
  return out;
}

std::vector<std::string> names_read(const ::onnx::NodeProto& node) {
  std::vector<std::string> out;
  collect_reads(node, out, 0);
  return out;
}

std::vector<std::string> names_read(const ::onnx::GraphProto& graph) {
  std::vector<std::string> out;
  collect_reads(graph, out, 0);
  return out;
}

void check_names(const std::vector<FlatNode>& nodes, const ::onnx::GraphProto& graph,
                 const std::function<bool(const std::string&)>& is_outer) {
  std::set<std::string> made_here;
  const auto is_made = [&](const std::string& name) {
    return made_here.count(name) > 0 || is_outer(name);
  };
  std::map<std::string, std::string> makers;  // of names made later, too
  for (const FlatNode& node : nodes) {
    for (const auto& name : node.proto.output()) {
      if (name.empty()) continue;
      check_name(name, node.label + ": an output");
      SR_REQUIRE(
          !is_outer(name), invalid_input, node.label, ": output '", name,
          "' has the name of an input or initialiser; PyTorch's exporter writes that where a "
          "tensor of the outermost module is called like an operation: rename it there");
      SR_REQUIRE(makers.emplace(name, node.label).second, invalid_input, node.label, ": output '",
                 name, "' is made twice (also by ", makers[name], ")");
    }
  }
  for (const FlatNode& node : nodes) {
    for (const auto& name : node.proto.input()) {
      if (name.empty() || is_made(name)) continue;
      auto maker = makers.find(name);
      SR_REQUIRE(maker != makers.end(), invalid_input, node.label, ": input '", name,
                 "' is made nowhere");
      fail(ErrorKind::invalid_input, node.label, ": input '", name, "' is made later, by ",
           maker->second, " (a cycle, or nodes out of order)");
    }
    for (const auto& name : node.proto.output()) {
      if (!name.empty()) made_here.insert(name);
    }
  }
  for (const auto& output : graph.output()) {
    SR_REQUIRE(is_made(output.name()), invalid_input, "graph output '", output.name(),
               "' is made nowhere");
  }
}

void drop_dead(std::vector<FlatNode>& nodes, const ::onnx::GraphProto& graph,
               std::set<std::string> needed) {
  for (const auto& output : graph.output()) needed.insert(output.name());
  std::vector<FlatNode> kept;
  for (size_t i = nodes.size(); i-- > 0;) {
    const auto& outputs = nodes[i].proto.output();
    if (std::none_of(outputs.begin(), outputs.end(),
                     [&](const std::string& n) { return needed.count(n) > 0; }))
      continue;
    for (const std::string& name : names_read(nodes[i].proto)) needed.insert(name);
    kept.push_back(std::move(nodes[i]));
  }
  std::reverse(kept.begin(), kept.end());
  nodes = std::move(kept);
}

}  // namespace shardrun::importer
