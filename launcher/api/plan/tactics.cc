// Tactics, colours and rules of a Model, for people.
#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "explain/explain.h"
#include "explain/text.h"
#include "model.h"
#include "plan/micro_batches.h"
#include "plan/plan.h"
#include "planner/rules/rule_file.h"
#include "planner/schedule/colours.h"
#include "ranks/backend.h"
#include "ranks/world.h"
#include "shardrun/play.h"

namespace shardrun {
namespace {

/// More than any plan needs.
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 4;

/// A plan under the first tactics.
struct Stage {
  std::string tactic;
  TacticReport report;
  Mesh mesh;  // of ranks, where the request leaves it to the planner
  std::vector<Unresolved> unresolved;
  /// Of the plan with all tactics but this one, less all of them.
  struct Without {
    double seconds = 0;
    int64_t bytes = 0;
  };
  std::optional<Without> without;  // nullopt: later tactics cannot do without it
};

PlannerKind planner_of(const PlanRequest& request) {
  return at_boundary([&] { return parse_planner(request.planner).kind; });
}

/// Tactics are finished by propagation, unless the request says how; whatever memory that takes.
PlanRequest of_tactics(PlanRequest request) {
  request.strict = false;
  request.memory_bytes = kNoLimit;
  request.arena_bytes = 0;
  if (planner_of(request) == PlannerKind::automatic)
    request.planner = name_of(kPlanners, PlannerKind::propagate);
  return request;
}

Stage stage_of(World& world, const Model& model, const PlanRequest& request) {
  const TrainingPlan made = make_plan(world, model, request);
  const TrainingPlan::Impl& plan = made.impl();
  const std::vector<int64_t> bytes = made.predicted_bytes();
  Stage out;
  out.tactic = request.tactics.empty() ? "(none)" : request.tactics.back();
  out.mesh = plan.train.mesh;
  out.report.seconds = plan.train.seconds;
  out.report.bytes = *std::max_element(bytes.begin(), bytes.end());
  out.unresolved = plan.report.unresolved;
  out.report.unresolved = out.unresolved.size();
  if (!world.leader()) return out;
  const PlanAnalysis analysis =
      analyse({step_of(model.impl(), plan), plan.train, plan.cluster, plan.bytes,
               [&](int64_t rank) { return compile_for_rank(model.impl(), plan, rank).train; }});
  std::set<std::string_view> local;
  for (const CollectiveTraits& kind : kCollectives) {
    if (kind.local) local.insert(kind.name);
  }
  for (const PlannedCollective& line : analysis.collectives) {
    if (local.count(line.kind) == 0) out.report.collectives[line.kind] += line.runs;
  }
  return out;
}

/// nullopt: a tactic is refused.
std::optional<TacticReport> possible(World& world, const Model& model, const PlanRequest& request) {
  try {
    return stage_of(world, model, request).report;
  } catch (const Failure& failure) {
    if (failure.kind() != Failure::Kind::call) throw;
    return std::nullopt;
  }
}

std::string stages_text(const std::vector<Stage>& stages) {
  std::map<std::string, size_t> kinds;  // with the columns that they take
  size_t width = 8;
  for (const Stage& stage : stages) {
    width = std::max(width, stage.tactic.size() + 2);
    for (const auto& [kind, count] : stage.report.collectives) kinds[kind] = kind.size() + 2;
  }
  std::string out = left("tactic", width) + right("step", 10) + right("a rank", 12);
  for (const auto& [kind, columns] : kinds) out += right(kind, columns);
  out += right("unresolved", 12) + right("left out", 13) + '\n';
  for (const Stage& stage : stages) {
    out += left(stage.tactic, width) + right(ms(stage.report.seconds), 10) +
           right(mib(stage.report.bytes), 12);
    for (const auto& [kind, columns] : kinds) {
      const auto it = stage.report.collectives.find(kind);
      out += right(str(it == stage.report.collectives.end() ? 0 : it->second), columns);
    }
    out += right(str(stage.report.unresolved), 12);
    if (stage.without) {
      out += right(signed_ms(stage.without->seconds), 13) +
             right(signed_mib(stage.without->bytes), 13);
    } else if (&stage != &stages.front()) {
      out += right("impossible", 13);
    }
    out += '\n';
  }
  return out;
}

/// A node where propagation stopped, for it and those that are like it.
struct Open {
  const Unresolved* first = nullptr;
  int count = 0;
};

std::vector<Open> open_of(const Graph& graph, const std::vector<Unresolved>& unresolved) {
  std::map<std::string, size_t> known;
  std::vector<Open> out;
  for (const Unresolved& one : unresolved) {
    std::string key = str(one.axis, ' ', graph.node(one.node).op);
    for (const auto& [number, way] : one.ways) key += to_string(way);
    const auto [it, fresh] = known.emplace(key, out.size());
    if (fresh) out.push_back({&one, 0});
    ++out[it->second].count;
  }
  return out;
}

/// What each way costs, if the first of those that are alike takes it.
std::string prices_text(World& world, const Model& model, const PlanRequest& request,
                        const Stage& last) {
  const Graph& graph = model.impl().train;
  const Mesh& mesh = last.mesh;
  const std::vector<Open> all = open_of(graph, last.unresolved);  // none but on rank 0
  const auto tactic = [&](const Unresolved& one, int way, const std::string& quote) {
    return str(quote.empty() ? "" : "\\Q", graph.node(one.node).name, quote, ':', way, '@',
               mesh.axes()[static_cast<size_t>(one.axis)].name);
  };
  const std::string asked = decide_on_rank0(world, [&] {
    nlohmann::json list = nlohmann::json::array();
    for (const Open& open : all) {
      for (const auto& [way, cut] : open.first->ways)
        list.push_back(tactic(*open.first, way, "\\E"));
    }
    return list.dump();
  });
  std::vector<Stage> priced;
  for (const nlohmann::json& text : nlohmann::json::parse(asked)) {
    PlanRequest resolved = request;
    resolved.mesh = mesh.to_string();
    resolved.tactics.push_back(text.get<std::string>());
    priced.push_back(stage_of(world, model, resolved));
  }
  std::string out;
  size_t next = 0;
  for (const Open& open : all) {
    const Node& node = graph.node(open.first->node);
    out += wrapped("unresolved: ",
                   str("'", node.name, "' (", node.op, ")",
                       open.count > 1 ? str(" and ", open.count - 1, " alike") : std::string(),
                       " can be cut in ", open.first->ways.size(), " ways along axis ",
                       mesh.axes()[static_cast<size_t>(open.first->axis)].name));
    for (const auto& [number, way] : open.first->ways) {
      const Stage& stage = priced[next++];
      out += wrapped(str("  ", left(to_string(way), 26), "  "),
                     str(signed_ms(stage.report.seconds - last.report.seconds), " and ",
                         signed_mib(stage.report.bytes - last.report.bytes),
                         " a rank with --tactic '", tactic(*open.first, number, ""), "'"));
    }
  }
  return out;
}

}  // namespace

std::string explain_tactics(World& world, const Model& model, const PlanRequest& request) {
  if (mesh_tactics(request.tactics).empty() && planner_of(request) != PlannerKind::propagate)
    return "";
  std::vector<Stage> stages;
  // Before the tactic that makes turns, a step is one of them.
  const bool turns = at_boundary([&] { return turns_of(request.tactics).has_value(); });
  std::optional<Model> one_turn;
  if (turns) {
    ModelOptions options = model.impl().options;
    options.batch = asked_batch(options);
    options.accumulate = 1;
    options.global_batch.reset();
    one_turn.emplace(load_model(world, model.impl().onnx, options));
  }
  const auto model_of = [&](const PlanRequest& asked) -> const Model& {
    return turns && !turns_of(asked.tactics) ? *one_turn : model;
  };
  PlanRequest upto = of_tactics(request);
  for (size_t count = 0; count <= request.tactics.size(); ++count) {
    upto.tactics.assign(request.tactics.begin(),
                        request.tactics.begin() + static_cast<std::ptrdiff_t>(count));
    stages.push_back(stage_of(world, model_of(upto), upto));
  }
  for (size_t left_out = 0; left_out < request.tactics.size(); ++left_out) {
    PlanRequest others = upto;
    others.tactics.erase(others.tactics.begin() + static_cast<std::ptrdiff_t>(left_out));
    const std::optional<TacticReport> without = left_out + 1 == request.tactics.size()
                                                    ? stages[left_out].report
                                                    : possible(world, model_of(others), others);
    const TacticReport& all = stages.back().report;
    if (without)
      stages[left_out + 1].without = {without->seconds - all.seconds, without->bytes - all.bytes};
  }
  std::string prices = prices_text(world, model, upto, stages.back());
  return world.leader() ? stages_text(stages) + prices : "";
}

TacticReport report_tactics(World& world, const Model& model, const PlanRequest& request) {
  return stage_of(world, model, of_tactics(request)).report;
}

std::string explain_colours(const Model& model) {
  return at_boundary([&] {
    RuleCache cache(rule_file_path());
    const Graph& graph = model.impl().train;
    return to_string(Colours(graph, rules_of(graph, cache)), graph);
  });
}

std::string explain_rules(const Model& model) {
  return at_boundary([&] {
    RuleCache cache(rule_file_path());
    const Graph& graph = model.impl().train;
    const RuleOf rule_of = rules_of(graph, cache);
    return rules_text(Colours(graph, rule_of), graph, rule_of);
  });
}

}  // namespace shardrun
