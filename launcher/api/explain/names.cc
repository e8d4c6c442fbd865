// Layers and things in them, as their names tell.
#include "explain/names.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>

#include "graph/autodiff.h"
#include "graph/optimizer.h"
#include "graph/passes/recompute.h"

namespace shardrun {

std::string place_of(const Mesh& mesh, int64_t rank) {
  std::string out;
  const std::vector<int64_t> at = mesh.coordinates(rank);
  for (size_t a = 0; a < at.size(); ++a)
    out += str(a == 0 ? "" : ", ", mesh.axes()[a].name, "=", at[a]);
  return out;
}

void name_places(Communicator& comm, const Mesh& mesh) {
  const std::shared_ptr<Job>& job = comm.members().job;
  if (!job) return;
  std::vector<std::string> places(static_cast<size_t>(mesh.size()));
  for (int64_t r = 0; mesh.axis_count() > 1 && r < mesh.size(); ++r)
    places[static_cast<size_t>(r)] = place_of(mesh, r);
  job->set_places(std::move(places));
}

std::string folded(const std::string& name) {
  std::string out;
  for (char c : name) {
    if (!std::isdigit(static_cast<unsigned char>(c))) {
      out += c;
    } else if (out.empty() || out.back() != '*') {
      out += '*';
    }
  }
  return out;
}

std::string layer_in(std::string name) {
  if (!name.empty() && name[0] == '%') name.erase(0, 1);
  for (const char* prefix : {kAgain.c_str(), "update/", kGradientPrefix, kAccumulatedPrefix,
                             kFirstMomentPrefix, kSecondMomentPrefix, kMomentumPrefix, "%"}) {
    if (name.rfind(prefix, 0) == 0) name.erase(0, std::string(prefix).size());
  }
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find_first_of("./", begin), name.size());
    const bool number = end > begin && end < name.size() &&
                        std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin),
                                    name.begin() + static_cast<std::ptrdiff_t>(end),
                                    [](unsigned char c) { return std::isdigit(c); });
    if (number) return name.substr(0, end);
    begin = end + 1;
  }
  return "";
}

std::vector<std::string> layers_of(const Graph& graph) {
  std::vector<std::string> of_node(graph.nodes().size());
  std::vector<std::optional<std::string>> of_value(graph.values().size());
  for (size_t v = 0; v < of_value.size(); ++v) {
    const Role role = graph.values()[v].role;
    if (role == Role::parameter || role == Role::state)
      of_value[v] = layer_in(graph.values()[v].name);
  }
  for (size_t n = 0; n < of_node.size(); ++n) {
    const Node& node = graph.nodes()[n];
    std::optional<std::string> layer;
    if (const std::string own = layer_in(node.name); !own.empty()) layer = own;
    for (ValueId in : node.inputs) {
      if (!layer && graph.value(in).role == Role::parameter)
        layer = of_value[static_cast<size_t>(in)];
    }
    for (size_t k = node.inputs.size(); k-- > 0;) {
      if (!layer) layer = of_value[static_cast<size_t>(node.inputs[k])];
    }
    for (ValueId out : node.outputs) of_value[static_cast<size_t>(out)] = layer;
    of_node[n] = layer.value_or("");
  }
  return of_node;
}

std::string within(const std::string& name, const std::string& layer) {
  const bool inside = !layer.empty() && name.rfind(layer, 0) == 0 && name.size() > layer.size() &&
                      (name[layer.size()] == '.' || name[layer.size()] == '/');
  return inside ? name.substr(layer.size() + 1) : name;
}

std::vector<std::string> modules_of(const Graph& graph) {
  const std::vector<std::string> layers = layers_of(graph), subjects = subjects_of(graph);
  std::vector<std::string> modules(layers.size());
  for (size_t n = 0; n < layers.size(); ++n) {
    const auto folder = [](const std::string& name) {
      const size_t end = name.find_last_of("./");
      return end == std::string::npos || end == 0 ? std::string() : name.substr(0, end);
    };
    const std::string& subject = subjects[n];
    modules[n] = folder(subject.rfind("d ", 0) == 0 ? subject.substr(2) : subject);
    if (modules[n].empty() && !layer_in(graph.nodes()[n].name).empty())
      modules[n] = folder(graph.nodes()[n].name);
    if (modules[n].empty()) modules[n] = layers[n];
  }
  return modules;
}

std::set<ValueId> forward_values(const Graph& graph) {
  std::set<ValueId> seen;
  std::vector<ValueId> stack = graph.outputs;
  if (graph.loss != kNoValue) stack = {graph.loss};
  while (!stack.empty()) {
    const ValueId id = stack.back();
    stack.pop_back();
    if (id == kNoValue || !seen.insert(id).second) continue;
    const NodeId producer = graph.value(id).producer;
    if (producer < 0) continue;
    for (ValueId in : graph.node(producer).inputs) stack.push_back(in);
    for (ValueId other : graph.node(producer).outputs) seen.insert(other);
  }
  return seen;
}

const char* to_string(StepPart part) {
  static const char* const kNames[] = {"forward", "backward", "update"};
  return kNames[static_cast<int>(part)];
}

std::vector<StepPart> parts_of(const Graph& graph) {
  const std::set<ValueId> needed = forward_values(graph);
  std::set<ValueId> updated;  // what replaces a parameter
  for (const auto& [held, next] : graph.updates) {
    if (graph.value(held).role == Role::parameter) updated.insert(next);
  }
  const auto makes_any = [](const Node& node, const std::set<ValueId>& of) {
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId id) { return of.count(id) > 0; });
  };
  std::vector<StepPart> parts;
  for (const Node& node : graph.nodes()) {
    const bool update = node.phase == Phase::update || makes_any(node, updated);
    const bool forward = graph.updates.empty() || makes_any(node, needed);
    parts.push_back(update ? StepPart::update : forward ? StepPart::forward : StepPart::backward);
  }
  return parts;
}

std::vector<std::string> subjects_of(const Graph& graph) {
  std::vector<std::string> subjects(graph.nodes().size());
  for (const auto& [held, next] : graph.updates) {
    if (graph.value(held).role != Role::parameter) continue;
    const std::string& name = graph.value(held).name;
    const NodeId update = graph.value(next).producer;
    if (update < 0) continue;
    subjects[static_cast<size_t>(update)] = name;
    // Up from the update, through what reads nothing else: sums and casts of the gradient.
    std::set<NodeId> seen;
    std::vector<ValueId> stack;
    for (ValueId in : graph.node(update).inputs) {
      if (graph.type(in).shape == graph.type(held).shape && in != held) stack.push_back(in);
    }
    while (!stack.empty()) {
      const NodeId maker = graph.value(stack.back()).producer;
      stack.pop_back();
      if (maker < 0 || !seen.insert(maker).second) continue;
      std::string& subject = subjects[static_cast<size_t>(maker)];
      if (subject.empty()) subject = "d " + name;
      const Node& node = graph.node(maker);
      const OpDef& op = op_def(node.op);
      if (op.adds || op.reshapes || op.cost == CostClass::conversion)
        stack.insert(stack.end(), node.inputs.begin(), node.inputs.end());
    }
  }
  for (size_t n = 0; n < subjects.size(); ++n) {
    for (ValueId in : graph.nodes()[n].inputs) {
      if (subjects[n].empty() && graph.value(in).role == Role::parameter)
        subjects[n] = graph.value(in).name;
    }
  }
  return subjects;
}

}  // namespace shardrun
