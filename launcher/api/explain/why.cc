// Why a value lies as it does.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "explain/explain.h"
#include "explain/local_changes.h"
#include "explain/text.h"

namespace shardrun {

namespace {

constexpr size_t kMostOthers = 5;

const char* role_name(Role role) {
  switch (role) {
    case Role::batch: return "batch";
    case Role::scalar: return "scalar";
    case Role::parameter: return "parameter";
    case Role::state: return "state";
    case Role::constant: return "constant";
    case Role::computed: break;
  }
  return "";
}

/// The value of this name; of a computed one the % may be left out. Of a name that no value has,
/// those that contain it are named.
ValueId value_named(const Graph& graph, const Plan& plan, const std::string& name) {
  for (const std::string& full : {name, "%" + name}) {
    if (plan.values.count(full) > 0) return graph.find(full);
  }
  constexpr int kMostNamed = 4;
  std::string some;
  int count = 0;
  for (const Value& value : graph.values()) {
    if (name.empty() || value.name.find(name) == std::string::npos) continue;
    if (plan.values.count(value.name) == 0) continue;
    if (count++ < kMostNamed) some += str(some.empty() ? "" : ", ", "'", value.name, "'");
  }
  SR_REQUIRE(
      count > 0, invalid_input, "--why ", name, ": the plan has no value '", name,
      "' and none whose name contains it; 'shardrun explain' without --why names parameters");
  fail(ErrorKind::invalid_input, "--why ", name, ": no value has just this name, ", count,
       count == 1 ? " contains it: " : " contain it: ", some, count > kMostNamed ? ", …" : "",
       "; give one in full");
}

/// How the value comes to be, and who reads it how.
std::string account(const Graph& graph, const Plan& plan, const PlanAnalysis& analysis,
                    ValueId id) {
  const Value& value = graph.value(id);
  const Mesh& mesh = plan.mesh;
  const std::string role = role_name(value.role);
  std::string out = wrapped(
      "", str("value '", value.name, "' lies as ", to_string(plan.values.at(value.name), mesh),
              ": ", role.empty() ? "" : role + " ", to_string(value.type),
              value.producer < 0 ? ""
                                 : str(", made by ", graph.node(value.producer).op, " '",
                                       graph.node(value.producer).name, "'")));
  const auto row = [&](double seconds, const std::string& text) {
    out += wrapped(right(seconds > 0 ? ms(seconds) : "-", 12) + "  ", text);
  };
  std::set<NodeId> printed;
  std::map<std::string, std::pair<const Node*, int>> alike;  // how, and by nodes of which op
  for (const PlannedCollective& c : analysis.collectives) {
    if (c.of != id) continue;
    printed.insert(c.reader);
    row(c.seconds,
        str(c.runs > 1 ? str(c.runs, " x ") : "", c.kind, " to ", c.to, " for ", c.consumer));
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (printed.count(static_cast<NodeId>(n)) > 0) continue;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.inputs[k] != id) continue;
      const NodePlan& np = plan.nodes.at(node.name);
      const std::string how = np.in[k] == plan.values.at(value.name)
                                  ? "as it is"
                                  : "a copy, " + to_string(np.in[k], mesh) + ",";
      auto& [first, count] = alike[how + " for " + node.op];
      if (count++ == 0) first = &node;
      break;
    }
  }
  for (const auto& [how, nodes] : alike) {
    row(0, str(how, " '", nodes.first->name, "'",
               nodes.second > 1 ? str(" and ", nodes.second - 1, " more like it") : ""));
  }
  return out;
}

/// The cheapest changes of this value alone.
std::string others(const Explained& of, ValueId id) {
  LocalChanges changes(of.graph, of.plan, of.cluster);
  auto list = changes.others(id);
  if (list.empty()) return "";
  std::string out = "otherwise, all else as planned:\n";
  const size_t shown = std::min(list.size(), kMostOthers);
  for (size_t i = 0; i < shown; ++i) {
    const auto& [sharding, change] = list[i];
    out += wrapped(right(signed_ms(change.seconds), 12) + "  ",
                   to_string(sharding, of.plan.mesh) +
                       (change.bytes != 0 ? ", " + signed_mib(change.bytes) + " a rank held" : ""));
  }
  if (list.size() > shown) {
    out += str(right("", 12), "  and ", list.size() - shown, " more, to ",
               signed_ms(list.back().second.seconds), "\n");
  }
  return out;
}

}  // namespace

std::string why_text(
    const Explained& of, const std::string& value,
    const std::function<Plan(const std::string& value, const Sharding& sharding)>& without) {
  const Graph& graph = of.graph;
  const Plan& plan = of.plan;
  const Mesh& mesh = plan.mesh;
  const ValueId id = value_named(graph, plan, value);
  const std::string& name = graph.value(id).name;
  std::ostringstream out;
  out << wrapped("", plan_line(plan));
  out << account(graph, plan, analyse(of), id);
  out << others(of, id);
  Plan other;
  try {
    other = without(name, plan.values.at(name));
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::out_of_memory && e.kind() != ErrorKind::invalid_input) throw;
    out << wrapped("next best: ", str("none; ", e.what()));
    return out.str();
  }
  const double more = other.seconds - plan.seconds;
  out << "planned anew without it:\n";
  out << wrapped("  next best: ",
                 str(to_string(other.values.at(name), mesh), ", step ", ms(other.seconds), " (",
                     format("%+.2f %%", 100 * more / plan.seconds), "), ", mib(other.bytes),
                     " a rank (", signed_mib(other.bytes - plan.bytes), ")"));
  out << wrapped("             ",
                 str("compute ", signed_ms(other.compute_seconds - plan.compute_seconds),
                     ", communication ", signed_ms(other.comm_seconds - plan.comm_seconds)));
  if (more < 0) {
    out << wrapped("             ",
                   "faster: this plan is within the planner's gap of the best, not the best");
  }
  return out.str();
}

}  // namespace shardrun
