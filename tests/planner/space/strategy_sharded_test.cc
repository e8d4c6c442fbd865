// Every strategy that the planner may choose, of every op and sample: cut the operands, run the
// ranks' shards with the reference kernel, put the results together, compare with the unsharded op
// in f64.
#include <gtest/gtest.h>

#include <cstdio>

#include "planner/space/strategy.h"
#include "program/ops/pack.h"
#include "tests/support/strategy_run.h"

namespace shardrun {
namespace {

constexpr uint64_t kSeed = 20240;
constexpr size_t kMostOnThreeAxes = 32;  // of one sample's strategies: evenly taken

TEST(StrategySharded, EveryStrategyOfEveryOpEqualsUnsharded) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  const std::vector<Mesh> meshes = {Mesh::parse("2"),   Mesh::parse("3"),   Mesh::parse("4"),
                                    Mesh::parse("2x2"), Mesh::parse("2x3"), Mesh::parse("2x2x2")};
  const Cluster cluster = host_cluster();
  RuleCache rules;
  size_t total = 0;
  for (const OpDef* def : all_ops()) {
    size_t tested = 0, cut = 0, exchanged = 0, by_rows = 0;
    for (size_t k = 0; k < def->samples.size(); ++k) {
      const test::Sampled sample = test::sampled(*def, k, rules, kSeed);
      by_rows += sample.by_rows;
      for (const Mesh& mesh : meshes) {
        const std::vector<Strategy> strategies = test::strategies_of(sample, mesh, cluster);
        ASSERT_FALSE(strategies.empty());
        const size_t stride = mesh.axis_count() < 3 ? 1 : strategies.size() / kMostOnThreeAxes + 1;
        for (size_t i = k % stride; i < strategies.size(); i += stride) {
          const bool replicated = i == 0;
          std::string wrong;
          try {
            wrong = test::run_strategy(sample.small, sample.operands, sample.wanted,
                                       strategies[i].node_plan(), mesh, kSeed);
          } catch (const std::exception& e) {
            wrong = e.what();
          }
          EXPECT_EQ(wrong, "") << def->name << " sample " << k << " {"
                               << to_string(def->samples[k].attrs) << "} on mesh "
                               << mesh.to_string() << ": "
                               << test::describe(strategies[i].node_plan(), mesh);
          ++tested;
          cut += replicated ? 0 : 1;
          exchanged += strategies[i].node_plan().exchanges() ? 1 : 0;
        }
      }
    }
    std::printf("%-20s %3zu samples %5zu strategies, %5zu of them cut, %5zu with exchanges\n",
                def->name.c_str(), def->samples.size(), tested, cut, exchanged);
    EXPECT_EQ(by_rows > 0, bool(def->numbered_rows)) << def->name;
    // Steps alone have groups of rows, which each rank finds of its own numbers, and blocks of
    // weights.
    if (def->name != "group_rows" && !is_packed_update(def->name)) {
      EXPECT_GT(cut, 0u) << def->name << " has no strategy but replication";
    }
    total += tested;
  }
  std::printf("%zu strategies in all\n", total);
}

}  // namespace
}  // namespace shardrun
