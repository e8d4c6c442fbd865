// Narrow copies of weights, which updates write.
#include <gtest/gtest.h>

#include "tests/program/fused_program.h"

namespace shardrun::test {
namespace {

/// Both casts, as where the second is computed again in the backward pass.
TEST(KeepCasts, TheUpdateWritesTheCopy) {
  FusedProgram f;
  const ValueId x = f.batch("x", {DType::bf16, {2, 3}}), w = f.weight("w", {3, 5});
  f.g.outputs = {f.product(x, f.narrow(w), "p"), f.product(x, f.narrow(w), "q")};
  f.update(w);
  f.start_plan();
  EXPECT_EQ(kinds(f.fused()), "cast matmul cast matmul sgd");
  const Program p = f.fused(true);
  ASSERT_EQ(kinds(p), "matmul matmul sgd");
  ASSERT_EQ(p.setup.size(), 1u);
  const BufferId copy = p.setup[0].out[0];
  EXPECT_EQ(p.setup[0].node.op, "cast");
  EXPECT_EQ(p.buffers[static_cast<size_t>(p.setup[0].in[0])].name, "w");
  for (size_t s : {0, 1}) EXPECT_EQ(p.steps[s].in[1], copy);
  const Step& update = p.steps[2];
  ASSERT_EQ(update.out.size(), 3u);
  EXPECT_EQ(update.out[2], copy);
  EXPECT_EQ(update.node.outputs, update.out);
  EXPECT_EQ(update.node.attrs.s("copy"), "bf16");
  // w and momentum of 60 bytes, the copy of 30, each on a line of its own.
  EXPECT_EQ(p.persistent_bytes, 3 * kArenaAlignment);
  EXPECT_EQ(p.buffers[static_cast<size_t>(copy)].offset, 2 * kArenaAlignment);
}

TEST(KeepCasts, AFrozenWeightsCopyNeedsNoUpdate) {
  FusedProgram f;
  f.g.outputs = {
      f.product(f.batch("x", {DType::bf16, {2, 3}}), f.narrow(f.weight("w", {3, 5})), "p")};
  f.start_plan();
  const Program p = f.fused(true);
  EXPECT_EQ(kinds(p), "matmul");
  EXPECT_EQ(p.setup.size(), 1u);
}

TEST(KeepCasts, CopiesShardsBeforeTheyAreGathered) {
  FusedProgram f;
  f.mesh = Mesh::parse("a=2");
  const ValueId x = f.batch("x", {DType::bf16, {2, 4}}), w = f.weight("w", {4, 5}), n = f.narrow(w);
  f.g.outputs = {f.product(x, n, "p")};
  f.update(w);
  f.start_plan();
  const Sharding rows = parse_sharding("[{a}, -]", f.mesh);
  for (const char* name : {"w", "grad", "momentum"}) f.plan.values[name] = rows;
  NodePlan& cast = f.plan.nodes.at(f.g.node(f.g.value(n).producer).name);
  cast.in[0] = cast.out[0] = f.plan.values[f.g.value(n).name] = rows;
  NodePlan& update = f.plan.nodes.at("update");
  for (size_t i : {0, 1, 2}) update.in[i] = rows;
  for (size_t i : {0, 1}) update.out[i] = rows;
  for (ValueId out : f.g.nodes().back().outputs) f.plan.values[f.g.value(out).name] = rows;
  const Program p = f.fused(true);
  ASSERT_EQ(kinds(p), "all_gather matmul sgd");
  EXPECT_EQ(p.steps[0].in[0], p.steps[2].out[2]);
  EXPECT_EQ(p.buffers[static_cast<size_t>(p.steps[0].in[0])].type,
            (TensorType{DType::bf16, {2, 5}}));
}

TEST(KeepCasts, LeavesWhatTheUpdateDoesNotWrite) {
  const auto steps = [](auto&& add) {
    FusedProgram f;
    const ValueId w = f.weight("w", {3, 5}), n = f.narrow(w);
    add(f, w, n);
    f.start_plan();
    return kinds(f.fused(true));
  };
  const auto product = [](FusedProgram& f, ValueId n) {
    return f.product(f.batch("x", {DType::bf16, {2, 3}}), n, "p");
  };
  EXPECT_EQ(
      steps([&](FusedProgram& f, ValueId w, ValueId n) {  // the old copy is read behind the update
        f.update(w, Phase::micro);
        f.g.outputs = {product(f, n)};
      }),
      "cast sgd matmul");
  EXPECT_EQ(steps([&](FusedProgram& f, ValueId w, ValueId n) {  // another op makes the new weight
              f.g.outputs = {product(f, n)};
              f.g.updates[w] = f.g.add("neg", {w}, {}, "turned");
            }),
            "cast matmul neg");
  EXPECT_EQ(steps([&](FusedProgram& f, ValueId w, ValueId n) {  // the host reads the copy
              f.g.outputs = {product(f, n), n};
              f.update(w);
            }),
            "cast matmul sgd");
}

}  // namespace
}  // namespace shardrun::test
