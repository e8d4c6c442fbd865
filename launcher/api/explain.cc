// Plans in words: where time and bytes go, layer by layer, why a value lies as it does, and what
// two plans differ in.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <optional>
#include <sstream>

#include "analysis.h"
#include "graph/op_def.h"
#include "world.h"

namespace shardrun {
namespace {

constexpr size_t kDearest = 5;

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string ms(double seconds) {
  return seconds >= 0.9995 ? format("%.4g s", seconds) : format("%.3g ms", seconds * 1e3);
}
std::string tera(double flops) { return format("%.4g TFLOP", flops / 1e12); }
std::string mib(int64_t bytes) { return format("%.2f MiB", static_cast<double>(bytes) / 0x1p20); }

/// The largest first; what is below 1 % of the whole is summed up.
template <class T, class Text>
std::string parts(const std::map<std::string, T>& by_name, Text text) {
  std::vector<std::pair<T, std::string>> sorted;
  T sum{}, rest{};
  for (const auto& [name, part] : by_name) sum += part;
  for (const auto& [name, part] : by_name) {
    if (static_cast<double>(part) < 0.01 * static_cast<double>(sum)) {
      rest += part;
    } else {
      sorted.emplace_back(part, name);
    }
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string out;
  for (const auto& [part, name] : sorted)
    out += str(out.empty() ? "" : ", ", name, " ", text(part));
  if (static_cast<double>(rest) > 1e-3 * static_cast<double>(sum))
    out += str(out.empty() ? "" : ", ", "others ", text(rest));
  return out;
}

template <class T>
T total(const std::map<std::string, T>& by_name) {
  T sum{};
  for (const auto& [name, part] : by_name) sum += part;
  return sum;
}

/// "h.3.MatMul_2" -> "h.*.MatMul_*": equal for the same thing in every layer.
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

/// "%update/h.3.mlp.weight" -> "h.3"; "" if no part of the name is a number.
std::string layer_in(std::string name) {
  if (!name.empty() && name[0] == '%') name.erase(0, 1);
  for (const char* prefix : {"update/", "grad/", "adam_m/", "adam_v/", "momentum/", "%"}) {
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

/// The layer of every node: its own name's; else that of a parameter that it reads ("" for one
/// outside all layers); else that of its last operand that has one (a gradient's operands are those
/// of its layer).
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

std::string list(const NodePlan& plan, bool results, const Mesh& mesh) {
  std::string out;
  for (size_t i = 0; i < (results ? plan.out : plan.in).size(); ++i)
    out += (out.empty() ? "" : ", ") + to_string(plan, results, static_cast<int>(i), mesh);
  return out.empty() ? "nothing" : out;
}

struct Row {
  std::string text;
  double seconds = 0;
  int times = 1;
};

/// One layer's rows, in the order of the graph: forward, backward, update.
struct Layer {
  std::string name;
  std::vector<Row> rows;
  double compute = 0, communication = 0;

  std::string key() const {
    std::string out;
    for (const Row& row : rows) out += row.text + "\n";
    return out;
  }
};

void add_row(Layer& layer, std::string text, double seconds) {
  if (!layer.rows.empty() && layer.rows.back().text == text) {
    layer.rows.back().seconds += seconds;
    ++layer.rows.back().times;
  } else {
    layer.rows.push_back({std::move(text), seconds, 1});
  }
}

std::vector<Layer> layers(const Graph& graph, const Plan& plan, const PlanAnalysis& analysis) {
  const std::vector<std::string> names = layers_of(graph);
  std::vector<Layer> out;
  const auto layer = [&](const std::string& name) -> Layer& {
    const auto it =
        std::find_if(out.begin(), out.end(), [&](const Layer& l) { return l.name == name; });
    if (it != out.end()) return *it;
    out.push_back({name, {}, 0, 0});
    return out.back();
  };
  for (const Value& value : graph.values()) {
    if (value.role != Role::parameter) continue;
    add_row(layer(layer_in(value.name)),
            str("parameter ", folded(value.name), " ", to_string(value.type), " ",
                to_string(plan.values.at(value.name), plan.mesh)),
            0);
  }
  size_t next = 0;
  const auto collectives = [&](NodeId before) {
    for (; next < analysis.collectives.size() && analysis.collectives[next].before == before;
         ++next) {
      const PlannedCollective& c = analysis.collectives[next];
      const NodeId producer = graph.value(graph.find(c.value)).producer;
      Layer& l = layer(producer < 0 ? layer_in(c.value) : names[static_cast<size_t>(producer)]);
      add_row(l, str("  ", c.kind, " ", folded(c.value), ": ", c.from, " -> ", c.to), c.seconds);
      l.communication += c.seconds;
    }
  };
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (next < analysis.collectives.size() && analysis.collectives[next].before == -1 &&
        node.phase == Phase::update)
      collectives(-1);
    collectives(static_cast<NodeId>(n));
    const NodePlan& np = plan.nodes.at(node.name);
    Layer& l = layer(names[n]);
    add_row(l, str(node.op, ": ", list(np, false, plan.mesh), " -> ", list(np, true, plan.mesh)),
            analysis.node_seconds[n]);
    l.compute += analysis.node_seconds[n];
  }
  collectives(-1);
  return out;
}

/// Floating-point operations of the whole step, on all ranks together, by op.
std::map<std::string, double> arithmetic(const Graph& graph, int accumulate) {
  std::map<std::string, double> out;
  for (const Node& node : graph.nodes()) {
    const double times = node.phase == Phase::micro ? accumulate : 1;
    out[node.op] += times * node_flops(node, graph.types(node.inputs), graph.types(node.outputs));
  }
  return out;
}

int64_t parameter_count(const Graph& graph) {
  int64_t count = 0;
  for (ValueId id : graph.with_role(Role::parameter)) count += element_count(graph.type(id).shape);
  return count;
}

std::string totals(const Plan& plan) {
  return str("mesh ", plan.mesh.to_string(), ", planner ", plan.planner, ": step ",
             ms(plan.seconds), " (compute ", ms(plan.compute_seconds), ", communication ",
             ms(plan.comm_seconds), "), ", mib(plan.bytes), " a rank");
}

}  // namespace

std::string plan_details(const Model& model, const TrainingPlan& plan) {
  return at_boundary([&] {
    const TrainingPlan::Impl& impl = plan.impl();
    const PlanAnalysis a = analyse(model.impl(), impl);
    std::ostringstream out;
    out << "time of a step: " << ms(impl.train.seconds);
    if (impl.report.nodes > 0 && impl.report.cost > 0) {
      const double gap = std::max(0.0, 1 - impl.report.lower_bound / impl.report.cost);
      out << (gap < 1e-6
                  ? ", proven the least on this mesh"
                  : ", at most " + format("%.2g %%", gap * 100) + " above the best on this mesh");
    }
    out << "\n  compute " << ms(total(a.compute)) << ": " << parts(a.compute, ms);
    out << "\n  communication " << ms(total(a.communication));
    if (!a.communication.empty()) out << ": " << parts(a.communication, ms);
    const Graph& graph = model.impl().train;
    const auto flops = arithmetic(graph, model.impl().options.accumulate);
    out << "\narithmetic of a step: " << tera(total(flops)) << ": " << parts(flops, tera) << "\n"
        << parameter_count(graph) << " elements in parameters";
    out << "\nbytes of rank " << a.rank << " at the peak, in step '" << a.peak_step
        << "': " << mib(a.arena_bytes) << ": " << parts(a.bytes, mib) << "\n";

    struct Group {
      const PlannedCollective* first;
      double seconds = 0;
      int times = 0;
    };
    std::map<std::string, Group> groups;
    for (const PlannedCollective& c : a.collectives) {
      Group& group = groups[str(c.kind, folded(c.producer), c.from, c.to, folded(c.consumer))];
      if (group.times++ == 0) group.first = &c;
      group.seconds += c.seconds;
    }
    std::vector<Group> sorted;
    for (const auto& [key, group] : groups) sorted.push_back(group);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Group& x, const Group& y) { return x.seconds > y.seconds; });
    if (sorted.size() > kDearest) sorted.resize(kDearest);
    if (!sorted.empty()) out << "dearest collectives:\n";
    for (const Group& group : sorted) {
      const PlannedCollective& c = *group.first;
      out << "  " << ms(group.seconds) << "  " << c.kind << " of '" << c.value << "'";
      if (group.times > 1) out << " and " << group.times - 1 << " like it";
      out << ": " << c.from << " -> " << c.to << "\n      between " << c.producer << " and "
          << c.consumer << "\n";
    }
    return out.str();
  });
}

std::string explain_plan(const Model& model, const TrainingPlan& plan) {
  return at_boundary([&] {
    const TrainingPlan::Impl& impl = plan.impl();
    const PlanAnalysis analysis = analyse(model.impl(), impl);
    std::vector<Layer> all = layers(model.impl().train, impl.train, analysis);
    std::ostringstream out;
    out << totals(impl.train) << "\n";
    std::vector<bool> told(all.size(), false);
    for (size_t i = 0; i < all.size(); ++i) {
      if (told[i]) continue;
      std::vector<std::string> alike;
      const std::string key = all[i].key();
      for (size_t j = i; j < all.size(); ++j) {
        if (all[j].name.empty() != all[i].name.empty() || all[j].key() != key) continue;
        told[j] = true;
        alike.push_back(all[j].name);
      }
      out << "\n";
      if (all[i].name.empty()) {
        out << "outside layers";
      } else {
        out << (alike.size() > 1 ? str(alike.size(), " layers ") : "layer ");
        for (size_t k = 0; k < alike.size(); ++k) out << (k == 0 ? "" : ", ") << alike[k];
      }
      out << ": " << (alike.size() > 1 ? "each " : "") << "compute " << ms(all[i].compute)
          << ", communication " << ms(all[i].communication) << "\n";
      for (const Row& row : all[i].rows) {
        const std::string times = row.times > 1 ? format(" x%.0f", row.times) : "";
        out << "  " << (row.seconds > 0 ? format("%9.4f", row.seconds * 1e3) : std::string(9, ' '))
            << "  " << row.text << times << "\n";
      }
    }
    out << "\n(milliseconds of one rank, as predicted)\n";
    return out.str();
  });
}

std::string explain_why(const Model& model, const TrainingPlan& plan, const std::string& value,
                        const PlanRequest& request) {
  return at_boundary([&] {
    const TrainingPlan::Impl& impl = plan.impl();
    const Mesh& mesh = impl.train.mesh;
    const auto found = impl.train.values.find(value);
    SR_REQUIRE(found != impl.train.values.end(), invalid_input, "why: the plan has no value '",
               value, "'; 'shardrun explain' lists parameters, and shardrun train --verbose all");
    std::ostringstream out;
    out << "value '" << value << "' lies as " << to_string(found->second, mesh) << ", step "
        << ms(impl.train.seconds) << ", " << mib(impl.train.bytes) << " a rank\n";
    const PlanAnalysis analysis = analyse(model.impl(), impl);
    double seconds = 0;
    for (const PlannedCollective& c : analysis.collectives) {
      if (c.value != value) continue;
      seconds += c.seconds;
      out << "  " << c.kind << " to " << c.to << " for " << c.consumer << ": " << ms(c.seconds)
          << "\n";
    }
    if (seconds == 0) out << "  everybody takes it as it is\n";
    Plan other;
    try {
      other = plan_without(model.impl(), impl, request, value, found->second);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::out_of_memory && e.kind() != ErrorKind::invalid_input) throw;
      out << "next best: none; " << e.what() << "\n";
      return out.str();
    }
    const double more = other.seconds - impl.train.seconds;
    out << "next best: " << to_string(other.values.at(value), mesh) << ", step "
        << ms(other.seconds) << " (" << format("%+.2f %%", 100 * more / impl.train.seconds) << "), "
        << mib(other.bytes) << " a rank ("
        << format("%+.2f MiB", static_cast<double>(other.bytes - impl.train.bytes) / 0x1p20)
        << ")\n";
    if (more < 0)
      out << "  (faster: this plan is within the planner's gap of the best, not the best)\n";
    out << "  compute "
        << format("%+.3g ms", 1e3 * (other.compute_seconds - impl.train.compute_seconds))
        << ", communication "
        << format("%+.3g ms", 1e3 * (other.comm_seconds - impl.train.comm_seconds))
        << ", all else replanned\n";
    return out.str();
  });
}

std::string explain_difference(const TrainingPlan& plan, const TrainingPlan& other) {
  return at_boundary([&] {
    const Plan &a = plan.impl().train, &b = other.impl().train;
    std::ostringstream out;
    out << "this:  " << totals(a) << "\nother: " << totals(b) << "\n";
    out << "other is " << format("%+.2f %%", 100 * (b.seconds / a.seconds - 1)) << " in time, "
        << format("%+.2f %%",
                  100 * (static_cast<double>(b.bytes) / static_cast<double>(a.bytes) - 1))
        << " in bytes\n";
    std::map<std::string, std::pair<int, std::string>> changes;
    int count = 0;
    for (const auto& [name, sharding] : a.values) {
      const auto theirs = b.values.find(name);
      const std::string mine = to_string(sharding, a.mesh);
      const std::string its =
          theirs == b.values.end() ? "not there" : to_string(theirs->second, b.mesh);
      if (mine == its) continue;
      ++count;
      auto& change = changes[str(folded(name), ": ", mine, " -> ", its)];
      if (change.first++ == 0) change.second = name;
    }
    out << count << " of " << a.values.size() << " values lie differently\n";
    for (const auto& [text, change] : changes) {
      if (change.first == 1) {
        out << "  " << change.second << text.substr(folded(change.second).size()) << "\n";
      } else {
        out << "  " << text << "  x" << change.first << "\n";
      }
    }
    return out.str();
  });
}

}  // namespace shardrun
