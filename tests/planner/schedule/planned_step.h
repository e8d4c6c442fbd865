// Small training steps, what a plan of them moves, and whether it trains as one rank does.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <string>

#include "graph/op_def.h"
#include "planner/planner.h"
#include "program/partition.h"
#include "tests/planner/gpt_step.h"
#include "tests/planner/perceptron.h"
#include "tests/support/sharded_run.h"

namespace shardrun::test {

inline RuleCache& rules() {
  static RuleCache cache;
  return cache;
}

/// "kind source" of rank 0's collectives that communicate.
inline std::vector<std::string> collectives(const Graph& graph, const Plan& plan) {
  std::vector<std::string> out;
  for (const Step& step : Partition(graph, plan, host_cluster()).program(0).steps) {
    if (step.kind != Step::Kind::collective) continue;
    const CollectiveTraits& kind = step.collective->traits();
    if (kind.local) continue;
    out.push_back(str(kind.name, " ", step.source));
  }
  return out;
}

/// What bounds the indices that the graph reads from `id`: every class and every row occurs.
inline int64_t bound_of(const Graph& graph, ValueId id) {
  int64_t bound = std::numeric_limits<int64_t>::max();
  for (const Node& node : graph.nodes()) {
    const OpDef& op = op_def(node.op);
    for (size_t i = 0; op.index_bound && i < node.inputs.size(); ++i) {
      if (node.inputs[i] != id) continue;
      bound = std::min(bound, op.index_bound(node, graph.types(node.inputs), i).value_or(bound));
    }
  }
  return bound;
}

/// The same batch again and again, so that its loss falls.
inline std::vector<NamedTensors> feeds(const Graph& graph, int steps) {
  std::mt19937 random(7);
  NamedTensors feed;
  for (ValueId id : graph.with_role(Role::batch)) {
    Tensor tensor(graph.type(id));
    const int64_t bound = bound_of(graph, id);
    for (int64_t i = 0; i < tensor.count(); ++i)
      tensor.as<int64_t>()[i] = static_cast<int64_t>(random()) % bound;
    feed.emplace(graph.value(id).name, tensor);
  }
  return std::vector<NamedTensors>(static_cast<size_t>(steps), feed);
}

/// The losses of 5 steps, and every parameter at the end, as on one rank. What a mesh does not
/// divide (4 heads, 16 columns and a batch of 10 over 3 ranks) included.
inline void expect_trains_as_one(const Graph& graph, const Plan& plan) {
  const std::vector<NamedTensors> batches = feeds(graph, 5);
  static std::map<std::string, ShardedRun> alone;  // by printed graph
  const auto [known, fresh] = alone.try_emplace(to_string(graph));
  if (fresh) {
    const Plan one = plan_shardings(graph, Mesh::parse("1"), host_cluster(), {}, rules(), nullptr);
    known->second = run_sharded(graph, one, batches, 1e-2);
  }
  const ShardedRun& one = known->second;
  const ShardedRun run = run_sharded(graph, plan, batches, 1e-2);
  EXPECT_EQ(run.allocated_bytes, run.predicted_bytes);
  for (size_t s = 0; s < batches.size(); ++s) {
    EXPECT_NEAR(run.metrics[s].at("loss"), one.metrics[s].at("loss"), 1e-5);
    EXPECT_NEAR(run.metrics[s].at("grad_norm"), one.metrics[s].at("grad_norm"), 1e-4);
  }
  for (const auto& [name, tensor] : one.persistent) {
    if (name.rfind("adam", 0) != 0) {
      EXPECT_LT(relative_difference(run.persistent.at(name), tensor), 2e-3) << name;
    }
  }
  EXPECT_GT(one.metrics[0].at("loss"), one.metrics[4].at("loss"));  // it did learn
}

/// Floats for every batch input, from -1 to 1.
inline std::vector<NamedTensors> float_feeds(const Graph& graph, int steps) {
  std::mt19937 random(7);
  NamedTensors feed;
  for (ValueId id : graph.with_role(Role::batch)) {
    Tensor tensor(graph.type(id));
    for (int64_t i = 0; i < tensor.count(); ++i)
      tensor.as<float>()[i] = std::uniform_real_distribution<float>(-1, 1)(random);
    feed.emplace(graph.value(id).name, tensor);
  }
  return std::vector<NamedTensors>(static_cast<size_t>(steps), feed);
}

/// The losses of 5 steps are those of one rank, to 1e-6 of them.
inline void expect_losses_of_one(const Graph& graph, const Plan& plan) {
  const std::vector<NamedTensors> batches = float_feeds(graph, 5);
  const Plan one = plan_shardings(graph, Mesh::parse("1"), host_cluster(), {}, rules());
  const ShardedRun alone = run_sharded(graph, one, batches, 1e-2),
                   run = run_sharded(graph, plan, batches, 1e-2);
  for (size_t s = 0; s < batches.size(); ++s) {
    const double loss = alone.metrics[s].at("loss");
    EXPECT_NEAR(run.metrics[s].at("loss"), loss, 1e-6 * std::abs(loss)) << "step " << s;
  }
}

}  // namespace shardrun::test
