// Joined steps: what becomes one step, what may not, and that nothing else changes.
#include "planner/join_steps.h"

#include <gtest/gtest.h>

#include "graph/op_def.h"
#include "planner/partition.h"
#include "tests/exec/random_plan.h"

namespace shardrun {
namespace {

std::string kinds(const Program& p) {
  std::string out;
  for (const Step& s : p.steps) {
    out += (out.empty() ? "" : " ");
    out += s.kind == Step::Kind::kernel ? s.node.op : std::string(to_string(s.collective->kind));
  }
  return out;
}

constexpr int64_t kRows = kManyRows;

struct Fixture {
  Graph g;
  Mesh mesh;
  Plan plan;

  ValueId batch(const std::string& name, TensorType type) {
    return g.add_input(name, std::move(type), Role::batch);
  }
  ValueId weight(const std::string& name, Shape shape) {
    return g.add_persistent(name, {DType::f32, std::move(shape)}, Role::parameter, Source{});
  }
  ValueId table_grad() {
    const ValueId dy = batch("dy", {DType::f32, {6, 4}}), rows = batch("rows", {DType::i64, {6}});
    return g.add("gather_grad", {dy, rows}, {{"axis", int64_t{0}}, {"size", int64_t{10}}}, "table");
  }
  ValueId product(ValueId a, ValueId b, const std::string& name) {
    return g.add("matmul", {a, b}, {{"equation", std::string("mk,kn->mn")}}, name);
  }
  ValueId narrow(ValueId value) {
    return g.add("cast", {value}, {{"to", std::string("bf16")}}, g.value(value).name + "/bf16");
  }
  void start_plan() { plan = testing::replicated_plan(g, mesh); }
  Program joined() {
    Program program = Partition(g, plan, Cluster{}).program(0);
    join_steps(program);
    place_memory(program, nullptr);
    check_memory(program);
    return program;
  }
};

TEST(JoinSteps, AddsLookedUpRowsToTheOtherGradient) {
  for (const bool first : {false, true}) {
    Fixture f;
    const ValueId x = f.batch("x", {DType::f32, {10, 4}}), other = f.g.add("neg", {x}, {}, "head"),
                  table = f.table_grad();
    f.g.outputs = {
        f.g.add("add", first ? std::vector{table, other} : std::vector{other, table}, {}, "sum")};
    f.start_plan();
    const Program p = f.joined();
    ASSERT_EQ(kinds(p), "neg add_rows");
    const Step& step = p.steps[1];
    EXPECT_EQ(step.in[0], p.steps[0].out[0]);
    EXPECT_EQ(p.buffers[static_cast<size_t>(step.in[1])].name, "dy");
    EXPECT_EQ(step.node.inputs, step.in);
    EXPECT_EQ(step.node.name, "sum");
    EXPECT_EQ(infer_types(step.node, std::vector{TensorType{DType::f32, {10, 4}},
                                                 TensorType{DType::f32, {6, 4}},
                                                 TensorType{DType::i64, {6}}})[0],
              (TensorType{DType::f32, {10, 4}}));
    for (const Buffer& b : p.buffers) EXPECT_NE(b.name, f.g.value(table).name);
    EXPECT_EQ(p.outputs[0].buffer, step.out[0]);
  }
}

TEST(JoinSteps, LeavesATableThatOthersRead) {
  Fixture f;
  const ValueId x = f.batch("x", {DType::f32, {10, 4}}), table = f.table_grad();
  f.g.outputs = {f.g.add("add", {x, table}, {}, "sum"), f.g.add("neg", {table}, {}, "also")};
  f.start_plan();
  EXPECT_EQ(kinds(f.joined()), "gather_grad add neg");
  Fixture twice;
  const ValueId both = twice.table_grad();
  twice.g.outputs = {twice.g.add("add", {both, both}, {}, "sum")};
  twice.start_plan();
  EXPECT_EQ(kinds(twice.joined()), "gather_grad add");
  Fixture shown;
  const ValueId y = shown.batch("x", {DType::f32, {10, 4}}), seen = shown.table_grad();
  shown.g.outputs = {shown.g.add("add", {y, seen}, {}, "sum"), seen};
  shown.start_plan();
  EXPECT_EQ(kinds(shown.joined()), "gather_grad add");
}

/// Partial over the ranks, the table's gradient is summed before it can be added to what is whole.
TEST(JoinSteps, LeavesWhatACollectiveSeparates) {
  Fixture f;
  f.mesh = Mesh::parse("a=2");
  const ValueId x = f.batch("x", {DType::f32, {10, 4}}), table = f.table_grad();
  f.g.outputs = {f.g.add("add", {x, table}, {}, "sum")};
  f.start_plan();
  NodePlan cut;
  cut.in = {parse_sharding("[{a}, -]", f.mesh), parse_sharding("[{a}]", f.mesh)};
  cut.out = {parse_sharding("[-, -] partial(sum: a)", f.mesh)};
  f.plan.nodes["table"] = cut;
  f.plan.values["dy"] = cut.in[0];
  f.plan.values["rows"] = cut.in[1];
  f.plan.values[f.g.value(table).name] = cut.out[0];
  EXPECT_EQ(kinds(f.joined()), "gather_grad all_reduce add");
}

TEST(JoinSteps, ProductsOfManyRowsReadTheWeightItself) {
  Fixture f;
  const ValueId x = f.batch("x", {DType::bf16, {kRows, 3}}), w = f.weight("w", {3, 5}),
                n = f.narrow(w);
  f.g.outputs = {f.product(x, n, "p"), f.product(x, n, "q")};
  f.start_plan();
  const Program p = f.joined();
  ASSERT_EQ(kinds(p), "matmul matmul");
  for (const Step& step : p.steps) {
    EXPECT_EQ(p.buffers[static_cast<size_t>(step.in[1])].name, "w");
    EXPECT_EQ(p.buffers[static_cast<size_t>(step.out[0])].type.dtype, DType::bf16);
  }
}

TEST(JoinSteps, KeepsTheCopyWhereItPays) {
  const auto steps = [](int64_t rows, bool weight, bool other_reader) {
    Fixture f;
    const ValueId x = f.batch("x", {DType::bf16, {rows, 3}});
    const ValueId w = weight ? f.weight("w", {3, 5}) : f.batch("w", {DType::f32, {3, 5}});
    const ValueId n = f.narrow(w);
    f.g.outputs = {f.product(x, n, "p")};
    if (other_reader) f.g.outputs.push_back(f.g.add("neg", {n}, {}, "also"));
    f.start_plan();
    return kinds(f.joined());
  };
  EXPECT_EQ(steps(kRows, true, false), "matmul");
  EXPECT_EQ(steps(kRows - 1, true, false), "cast matmul");  // read once, packed by no product
  EXPECT_EQ(steps(kRows, false, false), "cast matmul");     // no weight: it would live longer
  EXPECT_EQ(steps(kRows, true, true), "cast matmul neg");
  Fixture both;  // a product of two f32 operands would be one in f32
  const ValueId a = both.weight("a", {kRows, 2000}), b = both.weight("b", {2000, kRows});
  both.g.outputs = {both.product(both.narrow(a), both.narrow(b), "p")};
  both.start_plan();
  EXPECT_EQ(kinds(both.joined()), "cast matmul");
}

/// x [4, 1] spread over [4, 6] where it is read.
TEST(JoinSteps, WhatBroadcastsTakesTheOperandOfAnExpand) {
  const auto steps = [](const char* op, bool with_itself, bool other_reader, bool shown) {
    Fixture f;
    const ValueId x = f.batch("x", {DType::f32, {4, 1}}), y = f.batch("y", {DType::f32, {4, 6}});
    const ValueId wide = f.g.add("expand", {x}, {{"shape", std::vector<int64_t>{4, 6}}}, "wide");
    f.g.outputs = {f.g.add(op, {wide, with_itself ? wide : y}, {}, "first"),
                   f.g.add("sub", {y, wide}, {}, "second")};
    if (other_reader) f.g.outputs.push_back(f.g.add("neg", {wide}, {}, "also"));
    if (shown) f.g.outputs.push_back(wide);
    f.start_plan();
    const Program p = f.joined();
    if (p.steps.size() == 2) {
      EXPECT_EQ(p.buffers[static_cast<size_t>(p.steps[0].in[0])].name, "x");
      EXPECT_EQ(p.buffers[static_cast<size_t>(p.steps[1].in[1])].name, "x");
      EXPECT_EQ(p.steps[1].node.inputs, p.steps[1].in);
    }
    return kinds(p);
  };
  EXPECT_EQ(steps("mul", false, false, false), "mul sub");
  EXPECT_EQ(steps("mul", true, false, false), "expand mul sub");  // x x is no [4, 6]
  EXPECT_EQ(steps("mul", false, true, false), "expand mul sub neg");
  EXPECT_EQ(steps("mul", false, false, true), "expand mul sub");
  // A row times a column needs neither spread.
  Fixture f;
  const ValueId column = f.batch("column", {DType::f32, {4, 1}}),
                row = f.batch("row", {DType::f32, {1, 6}});
  const ValueId wide = f.g.add("expand", {column}, {{"shape", std::vector<int64_t>{4, 6}}}, "wide");
  f.g.outputs = {f.g.add("mul", {wide, row}, {}, "product")};
  f.start_plan();
  EXPECT_EQ(kinds(f.joined()), "mul");
}

}  // namespace
}  // namespace shardrun
