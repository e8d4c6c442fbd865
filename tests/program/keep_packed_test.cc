// Weights laid out once, and again where they are written.
#include "program/keep_packed.h"

#include <gtest/gtest.h>

#include "graph/op_def.h"
#include "program/compile.h"
#include "program/ops/post.h"
#include "program/step_uses.h"
#include "tests/exec/random_plan.h"
#include "tests/support/memory_check.h"

namespace shardrun {
namespace {

using Ints = std::vector<int64_t>;

Plan plan_of(const Graph& graph) {
  Plan plan = test::replicated_plan(graph, Mesh());
  plan.keep_packed = true;
  return plan;
}

/// Two convolutions of one weight, the gradient of an image, and perhaps the weight's update.
struct Fixture {
  Graph g;
  ValueId w = kNoValue;

  Fixture(Phase update, bool train) {
    const Attrs window = {
        {"strides", Ints{1, 1}}, {"dilations", Ints{1, 1}}, {"pads_low", Ints{1, 1}}};
    Attrs forward = window, back = window;
    forward.set("pads_high", Ints{1, 1});
    back.set("size", Ints{5, 6});
    w = g.add_persistent("w", {DType::f32, {4, 4, 3, 3}}, Role::parameter, Source{});
    const ValueId x = g.add_input("x", {DType::f32, {2, 4, 5, 6}}, Role::batch);
    const ValueId y = g.add("conv", {g.add("conv", {x, w}, forward, "a"), w}, forward, "b");
    g.outputs = {g.add("conv_data_grad", {y, w}, back, "d")};
    if (!train) return;
    const ValueId grad = g.add_input("grad", g.type(w), Role::batch),
                  buffer = g.add_persistent("momentum", g.type(w), Role::state, Source{}),
                  lr = g.add_input("lr", {DType::f32, {}}, Role::scalar),
                  step = g.add_input("step", {DType::i64, {}}, Role::scalar);
    g.phase = update;
    g.micro_batches = update == Phase::update ? 2 : 1;
    const auto next =
        g.add_node("sgd", {w, grad, buffer, lr, step, lr},
                   {{"momentum", 0.9}, {"weight_decay", 0.0}, {"nesterov", int64_t{0}}}, "update");
    g.updates[w] = next[0];
    g.updates[buffer] = next[1];
  }

  /// Forward the kernel wants blocks of channels in pairs, backward none.
  Program packed(const Program* training = nullptr, bool update_packs = true) const {
    const auto layout = [](const KernelCall& call) -> std::optional<WeightLayout> {
      if (call.node.op != "conv") return std::nullopt;
      return WeightLayout::parse("AcdB8a2b");
    };
    const auto alike = [&](const KernelCall&, const KernelCall&) { return update_packs; };
    return compile(g, plan_of(g), Cluster{}, 0, {.runs_alike = alike, .packed_weights = layout},
                   {.persistent_like = training});
  }
};

std::string kinds(const std::vector<Step>& steps) {
  std::string out;
  for (const Step& s : steps) out += (out.empty() ? "" : " ") + s.node.op;
  return out;
}

std::vector<TensorType> types_made(const Program& p, const Node& node) {
  return infer_types(node, types_of(p, node.inputs));
}

TEST(KeepPacked, OnceForAllThatReadWeightsThatNobodyWrites) {
  const Program p = Fixture(Phase::update, false).packed();
  check_memory(p);
  EXPECT_EQ(kinds(p.setup), "pack_weights");
  EXPECT_EQ(kinds(p.steps), "conv conv conv_data_grad");
  const BufferId packed = p.setup[0].out[0];
  for (size_t s : {0, 1}) {
    EXPECT_EQ(p.steps[s].in.size(), 3u);
    EXPECT_EQ(p.steps[s].in.back(), packed);
    EXPECT_EQ(p.steps[s].node.inputs, p.steps[s].in);
    EXPECT_EQ(p.steps[s].node.attrs.i("rearranged"), 1);
    EXPECT_EQ(types_made(p, p.steps[s].node), types_of(p, p.steps[s].out));
    // With a bias behind it; the weights come behind that.
    Node post = p.steps[s].node, bias;
    bias.op = "add";
    bias.inputs.resize(2);
    const BufferId x = post.inputs[0];
    add_post_op(post, bias, 0);
    post.inputs = {x, post.inputs[1], x, packed};
    EXPECT_EQ(types_made(p, post), types_of(p, p.steps[s].out));
    post.inputs.pop_back();
    EXPECT_THROW(types_made(p, post), Error);
  }
  EXPECT_EQ(p.steps[2].in.size(), 2u);
  // 4 channels out become 8: 8 x 4 x 9 numbers, behind w's 4 x 4 x 9.
  const Buffer& buffer = p.buffers[static_cast<size_t>(packed)];
  EXPECT_EQ(buffer.type, (TensorType{DType::f32, {288}}));
  EXPECT_EQ(buffer.offset, 576);
  EXPECT_EQ(p.persistent_bytes, 576 + 1152);
}

TEST(KeepPacked, ByTheUpdateThatWritesTheWeights) {
  for (const Phase phase : {Phase::micro, Phase::update}) {
    const Program p = Fixture(phase, true).packed();
    check_memory(p);
    EXPECT_EQ(kinds(p.setup), "pack_weights");
    ASSERT_EQ(kinds(p.steps), "conv conv conv_data_grad sgd_packed");
    EXPECT_EQ(p.steps[0].in.back(), p.setup[0].out[0]);
    const Step& update = p.steps[3];
    EXPECT_EQ(update.out.back(), p.setup[0].out[0]);
    EXPECT_EQ(update.node.attrs.s("layouts"), "AcdB8a2b");
    EXPECT_EQ(types_made(p, update.node), types_of(p, update.out));
  }
}

TEST(KeepPacked, BehindAnUpdateThatWouldLoseItsKernel) {
  for (const Phase phase : {Phase::micro, Phase::update}) {
    const Program p = Fixture(phase, true).packed(nullptr, false);
    check_memory(p);
    EXPECT_EQ(kinds(p.setup), "pack_weights");
    ASSERT_EQ(kinds(p.steps), "conv conv conv_data_grad sgd pack_weights");
    EXPECT_EQ(p.steps[4].phase, phase);
    EXPECT_EQ(p.steps[4].in, p.setup[0].in);
    EXPECT_EQ(p.steps[4].out, p.setup[0].out);
  }
}

/// A product and its weights' update, perhaps behind several micro-batches.
TEST(KeepPacked, OfProductsOverMicroBatches) {
  for (const Phase phase : {Phase::micro, Phase::update}) {
    Graph g;
    const ValueId w = g.add_persistent("w", {DType::f32, {96, 64}}, Role::parameter, Source{}),
                  x = g.add_input("x", {DType::f32, {80, 96}}, Role::batch),
                  grad = g.add_input("grad", g.type(w), Role::batch),
                  buffer = g.add_persistent("momentum", g.type(w), Role::state, Source{}),
                  lr = g.add_input("lr", {DType::f32, {}}, Role::scalar),
                  step = g.add_input("step", {DType::i64, {}}, Role::scalar);
    g.outputs = {g.add("matmul", {x, w}, {{"equation", std::string("mk,kn->mn")}}, "y")};
    g.phase = phase;
    g.micro_batches = phase == Phase::update ? 2 : 1;
    const auto next =
        g.add_node("sgd", {w, grad, buffer, lr, step, lr},
                   {{"momentum", 0.9}, {"weight_decay", 0.0}, {"nesterov", int64_t{0}}}, "update");
    g.updates[w] = next[0];
    g.updates[buffer] = next[1];
    const auto layout = [](const KernelCall&) { return WeightLayout::parse("BA16a64b2a"); };
    const Program p = compile(g, plan_of(g), Cluster{}, 0, {.packed_weights = layout});
    check_memory(p);
    EXPECT_EQ(kinds(p.steps), phase == Phase::update ? "matmul sgd_packed" : "matmul sgd");
    EXPECT_EQ(kinds(p.setup), phase == Phase::update ? "pack_weights" : "");
    EXPECT_EQ(p.steps[0].node.attrs.has("rearranged"), phase == Phase::update);
    EXPECT_EQ(types_made(p, p.steps[0].node), types_of(p, p.steps[0].out));
  }
}

/// Validation lays them out in memory that training uses otherwise.
TEST(KeepPacked, BehindWhatAnotherProgramKeeps) {
  const Program train = Fixture(Phase::micro, true).packed();
  const Program p = Fixture(Phase::update, false).packed(&train);
  check_memory(p);
  EXPECT_EQ(p.buffers[static_cast<size_t>(p.setup[0].out[0])].offset, train.persistent_bytes);
  EXPECT_EQ(p.persistent_bytes, train.persistent_bytes + 1152);
}

}  // namespace
}  // namespace shardrun
