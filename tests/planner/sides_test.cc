// From one side of an op to how it is cut (the mesh RFC's getShardingOption), for every op of the
// registry: a result or an operand is given, along one axis, and the node takes a way that has it.
// Of two sides that no way has both are named.
#include <gtest/gtest.h>

#include <cstdio>

#include "graph/passes/channels_last.h"
#include "planner/planner.h"
#include "planner/schedule/colours.h"
#include "tests/graph/op_samples.h"

namespace shardrun {
namespace {

RuleCache& rules() {
  static RuleCache cache;
  return cache;
}

/// The op alone, "op", its operands "in0", "in1" …
Graph alone(const OpDef& def, const OpDef::Sample& sample) {
  Graph g;
  g.name = def.name;
  std::vector<ValueId> in;
  for (size_t k = 0; k < sample.in.size(); ++k)
    in.push_back(g.add_input("in" + std::to_string(k), sample.in[k], Role::batch));
  g.outputs = g.add_node(def.name, in, sample.attrs, "op");
  g.outputs_stay_cut = true;
  return g;
}

/// A side of a way: operand or result `place` cut along `dim`.
struct Side {
  bool result = false;
  size_t place = 0;
  int dim = 0;
  bool in(const Way& way) const { return (result ? way.out : way.in)[place] == dim; }
};

std::vector<Side> sides_of(const Way& way) {
  std::vector<Side> out;
  for (size_t r = 0; r < way.out.size(); ++r) {
    if (way.out[r] >= 0) out.push_back({true, r, way.out[r]});
  }
  for (size_t k = 0; k < way.in.size(); ++k) {
    if (way.in[k] >= 0) out.push_back({false, k, way.in[k]});
  }
  return out;
}

/// "in0>op=[-,m]", or of a result "op:1=[-,m]".
std::string request(const Graph& g, const Side& side) {
  const Node& node = g.nodes()[0];
  const Value& value = g.value(side.result ? node.outputs[side.place] : node.inputs[side.place]);
  const std::vector<int64_t> moved = moved_channels(
      g)[static_cast<size_t>(side.result ? node.outputs[side.place] : node.inputs[side.place])];
  const int64_t dim = moved.empty() ? side.dim : moved[static_cast<size_t>(side.dim)];
  std::string dims;
  for (size_t d = 0; d < value.type.shape.size(); ++d)
    dims += std::string(d > 0 ? "," : "") + (static_cast<int64_t>(d) == dim ? "m" : "-");
  return value.name + (side.result ? "" : ">op") + "=[" + dims + "]";
}

/// What the node does, or why there is no plan. `unresolved`: where several ways fit alike.
std::string planned(const Graph& g, const std::vector<std::string>& requests, Way& way,
                    bool& unresolved) {
  PlanOptions options;
  options.planner = parse_planner("propagate");
  options.requests = requests;
  PlanReport report;
  try {
    const Plan plan =
        plan_shardings(g, Mesh::parse("m=2"), host_cluster(), options, rules(), &report);
    const NodePlan& node = plan.nodes.at("op");
    const auto dim = [](const Sharding& s) {
      for (size_t d = 0; d < s.dims.size(); ++d) {
        if (!s.dims[d].empty()) return static_cast<int>(d);
      }
      return s.partial.empty() ? int{Way::kWhole} : int{Way::kPartial};
    };
    way = {};
    for (const Sharding& s : node.in) way.in.push_back(dim(s));
    for (const Sharding& s : node.out) way.out.push_back(dim(s));
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input) << e.what();
    return e.what();
  }
  unresolved = !report.unresolved.empty();
  return "";
}

TEST(Sides, GiveTheOptionOfEveryOp) {
  int given = 0, left = 0, contradictions = 0;
  for (const OpDef* def : all_ops()) {
    for (const OpDef::Sample& sample : def->samples) {
      const Graph g = alone(*def, sample);
      const RuleOf rule_of = [&](NodeId n) -> const SpmdRule& {
        return rules().rule(g.node(n), g.types(g.node(n).inputs));
      };
      const Colours colours(g, rule_of);
      // Here no operand is made in parts of a sum.
      std::vector<Way> ways(colours.ways(0).begin(), colours.ways(0).end());
      std::erase_if(ways, [](const Way& way) {
        return std::find(way.in.begin(), way.in.end(), int{Way::kPartial}) != way.in.end();
      });
      std::vector<Side> sides;
      for (const Way& way : ways) {
        for (const Side& side : sides_of(way)) sides.push_back(side);
      }
      const std::string what = test::describe(*def, sample);
      for (const Side& side : sides) {
        Way taken;
        bool unresolved = false;
        const std::string text = request(g, side);
        const std::string refused = planned(g, {text}, taken, unresolved);
        if (unresolved || !refused.empty()) {
          // It stopped, or asks for more than the node's sizes allow: several ways have the side.
          ++left;
          EXPECT_GT(
              std::count_if(ways.begin(), ways.end(), [&](const Way& way) { return side.in(way); }),
              1)
              << what << ' ' << text << ' ' << refused;
          continue;
        }
        ++given;
        EXPECT_TRUE(side.in(taken)) << what << ' ' << text << ' ' << to_string(taken);
      }
      for (size_t a = 0; a < sides.size(); ++a) {
        for (size_t b = a + 1; b < sides.size(); ++b) {
          const bool together = std::any_of(ways.begin(), ways.end(), [&](const Way& way) {
            return sides[a].in(way) && sides[b].in(way);
          });
          const bool same = sides[a].result == sides[b].result && sides[a].place == sides[b].place;
          if (together || same) continue;
          Way unread;
          bool unresolved = false;
          const std::string first = request(g, sides[a]), second = request(g, sides[b]);
          const std::string refused = planned(g, {first, second}, unread, unresolved);
          EXPECT_NE(refused.find(first), std::string::npos) << what << ' ' << refused;
          EXPECT_NE(refused.find(second), std::string::npos) << what << ' ' << refused;
          ++contradictions;
        }
      }
    }
  }
  std::printf("%d sides gave the way, %d had several, %d pairs contradict\n", given, left,
              contradictions);
  EXPECT_GT(given, 500);
  EXPECT_GT(contradictions, 100);
}

}  // namespace
}  // namespace shardrun
