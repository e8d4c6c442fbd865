// Every strategy of an op, on 2 and 4 ranks, with kernels of the GPU for the ranks' shards: in
// f32, as these compute, against the unsharded op in f64.
#pragma once

#include <functional>
#include <iostream>

#include "tests/support/kernel_cases.h"
#include "tests/support/strategy_run.h"

namespace shardrun {

/// A rank's shard in f32. What its op wants in f64, as sums of batch norm, stays so.
inline Case in_f32(const Node& node, std::span<const Tensor> shard) {
  Case c;
  c.node = node;
  for (const auto& [name, attr] : node.attrs.all()) {
    const auto* text = std::get_if<std::string>(&attr);
    if (text != nullptr && *text == "f64") c.node.attrs.set(name, std::string("f32"));
  }
  for (uint32_t keep = 0; keep < (1u << shard.size()); ++keep) {
    c.in.clear();
    for (size_t i = 0; i < shard.size(); ++i) {
      c.in.push_back(shard[i].type());
      if (c.in[i].dtype == DType::f64 && (keep >> i & 1) == 0) c.in[i].dtype = DType::f32;
    }
    try {
      c.out = infer_types(c.node, c.in);
      return c;
    } catch (const Error&) {
    }
  }
  ADD_FAILURE() << describe(c) << " has no types";
  return c;
}

/// Of a shard, by a kernel of the GPU; nothing where it has none that is to be run.
using RunCase =
    std::function<std::vector<Tensor>(const Case& shard, const std::vector<Tensor>& operands)>;

/// Prints how many shards of the op were run so.
inline void check_strategies(const OpDef& op, const RunCase& run) {
  constexpr uint64_t kSeed = 20261123;
  const std::vector<Mesh> meshes = {Mesh::parse("2"), Mesh::parse("4"), Mesh::parse("2x2")};
  const Cluster cluster = host_cluster();
  RuleCache rules;
  int64_t strategies = 0, shards = 0, ours = 0;
  const test::RunShard shard = [&](const Node& node, std::span<const Tensor> operands) {
    const Case c = in_f32(node, operands);
    std::vector<Tensor> in;
    for (size_t i = 0; i < operands.size(); ++i) in.push_back(convert(operands[i], c.in[i].dtype));
    std::vector<Tensor> out = run(c, in);
    ++shards;
    ours += out.empty() ? 0 : 1;
    if (out.empty()) out = run_reference(c.node, in);
    for (Tensor& t : out) {
      if (is_float(t.dtype())) t = convert(t, DType::f64);
    }
    return out;
  };
  for (size_t k = 0; k < op.samples.size(); ++k) {
    const test::Sampled sample = test::sampled(op, k, rules, kSeed, DType::f32);
    for (const Mesh& mesh : meshes) {
      for (const Strategy& strategy : test::strategies_of(sample, mesh, cluster)) {
        const NodePlan plan = strategy.node_plan();
        std::string wrong;
        try {
          wrong = test::run_strategy(sample.small, sample.operands, sample.wanted, plan, mesh,
                                     kSeed, shard, 1e-4);
        } catch (const Error& e) {
          wrong = e.what();
        }
        EXPECT_EQ(wrong, "") << op.name << " sample " << k << " {" << to_string(op.samples[k].attrs)
                             << "} on mesh " << mesh.to_string() << ": "
                             << test::describe(plan, mesh);
        ++strategies;
      }
    }
  }
  std::cout << op.name << ": " << strategies << " strategies, " << ours << " of " << shards
            << " shards by the GPU's kernels, seed " << kSeed << "\n";
}

}  // namespace shardrun
