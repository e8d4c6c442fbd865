// The options that could have made a node's plan: along each axis those that do there what it does.
#include "planner/space/plan_check.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>

#include "planner/rules/numbered_rows.h"
#include "planner/space/strategy.h"

namespace shardrun {
namespace {

/// Along one axis.
bool lies_as(const Sharding& sharding, const Placement& placement, int axis) {
  const auto partial = std::find_if(sharding.partial.begin(), sharding.partial.end(),
                                    [&](const Sharding::Partial& p) { return p.axis == axis; });
  const auto cut = std::find_if(sharding.dims.begin(), sharding.dims.end(),
                                [&](const Axes& axes) { return axes.contains(axis); });
  switch (placement.kind) {
    case Placement::Kind::replicate:
      return partial == sharding.partial.end() && cut == sharding.dims.end();
    case Placement::Kind::shard:
      return partial == sharding.partial.end() &&
             cut - sharding.dims.begin() == std::ptrdiff_t{placement.dim};
    case Placement::Kind::partial:
      return partial != sharding.partial.end() && partial->op == placement.op &&
             cut == sharding.dims.end();
  }
  return false;
}

bool lies_as(const NodePlan& plan, const SpmdRule::Option& option, int axis) {
  for (size_t i = 0; i < plan.in.size(); ++i) {
    if (!lies_as(plan.in[i], option.in[i], axis)) return false;
  }
  for (size_t r = 0; r < plan.out.size(); ++r) {
    if (!lies_as(plan.out[r], option.out[r], axis)) return false;
  }
  return true;
}

class NodeCheck {
 public:
  NodeCheck(const Node& node, const Graph& graph, const Mesh& mesh, RuleCache& rules)
      : node_(node),
        mesh_(mesh),
        in_(graph.types(node.inputs)),
        out_(graph.types(node.outputs)),
        replicated_{std::vector<Placement>(in_.size()), std::vector<Placement>(out_.size())} {
    if (mesh.size() == 1) return;  // nothing can be cut, so nothing need be discovered
    rule_ = rules.rule(node, in_);
    const OpDef& def = op_def(node.op);
    const auto rows = def.numbered_rows ? def.numbered_rows(node, in_) : std::nullopt;
    if (!rows) return;
    for (SpmdRule::Option& option : row_options(rule_, *rows))
      rule_.options.push_back(std::move(option));
  }

  void run(const NodePlan& plan) const {
    std::vector<std::vector<const SpmdRule::Option*>> alike;
    for (int axis = 0; axis < mesh_.axis_count(); ++axis) {
      std::vector<const SpmdRule::Option*>& list = alike.emplace_back();
      for (const SpmdRule::Option* option : options(axis)) {
        if (lies_as(plan, option != nullptr ? *option : replicated_, axis)) list.push_back(option);
      }
    }
    bool allowed = false;
    each(alike, [&](NodePlan way) { allowed = allowed || differing(plan, way).empty(); });
    if (!allowed) refuse(plan);
  }

 private:
  /// Null: replicated.
  std::vector<const SpmdRule::Option*> options(int axis) const {
    std::vector<const SpmdRule::Option*> all{nullptr};
    if (mesh_.axis_size(axis) == 1) return all;
    for (const SpmdRule::Option& option : rule_.options) all.push_back(&option);
    return all;
  }

  template <typename Visit>
  void each(const std::vector<std::vector<const SpmdRule::Option*>>& lists, Visit&& visit) const {
    std::vector<size_t> chosen(lists.size(), 0), counts;
    for (const auto& list : lists) counts.push_back(list.size());
    if (std::count(counts.begin(), counts.end(), 0u) > 0) return;
    do {
      std::vector<const SpmdRule::Option*> along;
      for (size_t axis = 0; axis < lists.size(); ++axis) along.push_back(lists[axis][chosen[axis]]);
      if (std::optional<NodePlan> way = composed(node_, in_, out_, along, mesh_, true))
        visit(std::move(*way));
    } while (next_choice(chosen, counts));
  }

  struct Difference {
    std::string field, got, wanted;
  };
  /// `way` is the rule's, and gets the bounds of the plan's rows.
  std::vector<Difference> differing(const NodePlan& plan, NodePlan& way) const {
    std::vector<Difference> out;
    for (const bool result : {true, false}) {
      const std::vector<Sharding>&got = result ? plan.out : plan.in,
            &wanted = result ? way.out : way.in;
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] == wanted[i]) continue;
        out.push_back({str(result ? ".out[" : ".in[", i, "]"), to_string(got[i], mesh_),
                       to_string(wanted[i], mesh_)});
      }
    }
    for (size_t k = 0; k < std::min(plan.rows.size(), way.rows.size()); ++k) {
      way.rows[k].most_named = plan.rows[k].most_named;
      way.rows[k].most_owned = plan.rows[k].most_owned;
    }
    const auto compare = [&](const auto& got, const auto& wanted, const char* field) {
      if (got != wanted) out.push_back({field, described(plan), described(way)});
    };
    compare(plan.halos, way.halos, ".halos");
    compare(plan.blocks, way.blocks, ".blocks");
    compare(plan.rows, way.rows, ".rows");
    return out;
  }

  /// "[-, {h}] halo 1,1 in dim 1, [-, -] -> [-, {h}]".
  std::string described(const NodePlan& plan) const {
    std::string out;
    for (const bool result : {false, true}) {
      const size_t count = result ? plan.out.size() : plan.in.size();
      out += result ? " -> " : "";
      for (size_t i = 0; i < count; ++i)
        out += (i > 0 ? ", " : "") + to_string(plan, result, static_cast<int>(i), mesh_);
    }
    return out;
  }

  [[noreturn]] void refuse(const NodePlan& plan) const {
    std::vector<std::vector<const SpmdRule::Option*>> all;
    for (int axis = 0; axis < mesh_.axis_count(); ++axis) all.push_back(options(axis));
    size_t least = std::numeric_limits<size_t>::max();
    std::set<std::string> nearest;  // where another field may be the wrong one, there are several
    each(all, [&](NodePlan way) {
      const std::vector<Difference> differences = differing(plan, way);
      if (differences.size() > least) return;
      if (differences.size() < least) nearest.clear();
      least = differences.size();
      std::string text;
      for (const Difference& d : differences) {
        text += str(text.empty() ? "" : " and ", "nodes['", node_.name, "']", d.field, " is ",
                    d.got, ", allowed is ", d.wanted);
      }
      nearest.insert(text);
    });
    std::string text;
    for (const std::string& one : nearest) text += (text.empty() ? "" : ", or ") + one;
    fail(ErrorKind::invalid_input, "plan: op ", node_.op,
         " cannot run with the fields of this node: ", text, "; plan it again");
  }

  const Node& node_;
  const Mesh& mesh_;
  std::vector<TensorType> in_, out_;
  SpmdRule::Option replicated_;
  SpmdRule rule_;
};

}  // namespace

void check_strategies(const Plan& plan, const Graph& graph, RuleCache& rules) {
  for (const Node& node : graph.nodes())
    NodeCheck(node, graph, plan.mesh, rules).run(plan.nodes.at(node.name));
}

}  // namespace shardrun
