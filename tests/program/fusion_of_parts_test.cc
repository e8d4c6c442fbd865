// Softmaxes, losses and attention in parts: one step each where no cut divides them.
#include <gtest/gtest.h>

#include "graph/op_def.h"
#include "program/share_groups.h"
#include "tests/planner/gpt_step.h"
#include "tests/program/fused_program.h"

namespace shardrun::test {
namespace {

/// A softmax over segments and its gradient, in pieces.
struct SegmentFixture : FusedProgram {
  ValueId x = batch("x", {DType::f32, {6, 4}}), rows = batch("rows", {DType::i64, {6}});
  ValueId top = g.add("segment_max", {x, rows}, {{"size", int64_t{3}}}, "top");
  ValueId total = g.add("segment_exp_sum", {x, top, rows}, {}, "total");
  ValueId y = g.add("segment_softmax", {x, top, total, rows}, {}, "y");
  ValueId dy = g.add("neg", {y}, {}, "dy");
  ValueId sums =
      g.add("segment_softmax_reduce_grad", {dy, y, rows}, {{"size", int64_t{3}}}, "sums");
  ValueId dx = g.add("segment_softmax_grad", {dy, y, sums, rows}, {}, "dx");
};

TEST(FusePatterns, SoftmaxOverSegmentsIsOneStep) {
  SegmentFixture f;
  f.g.outputs = {f.dx};
  f.start_plan();
  const Program p = f.fused();
  ASSERT_EQ(kinds(p), "group_rows segment_softmax neg segment_softmax_grad");
  for (const size_t s : {1, 3}) {
    std::vector<TensorType> in;
    for (BufferId b : p.steps[s].in) in.push_back(p.buffers[static_cast<size_t>(b)].type);
    EXPECT_EQ(in.size(), s == 1 ? 3u : 4u);
    EXPECT_EQ(p.steps[s].node.attrs.i("size"), 3);
    EXPECT_EQ(infer_types(p.steps[s].node, in)[0], (TensorType{DType::f32, {6, 4}}));
  }
}

/// The edges of a graph are grouped once for forward and backward pass; what one step alone wants
/// it finds itself.
TEST(ShareGroups, OneStepForAllWhoWantThem) {
  SegmentFixture f;
  const ValueId table =
      f.g.add("gather_grad", {f.dx, f.rows}, {{"axis", int64_t{0}}, {"size", int64_t{3}}}, "t");
  const ValueId other =
      f.g.add("gather_grad", {f.dx, f.rows}, {{"axis", int64_t{0}}, {"size", int64_t{4}}}, "u");
  f.g.outputs = {table, other};
  f.start_plan();
  const Program p = f.fused();
  EXPECT_EQ(kinds(p),
            "group_rows segment_softmax neg segment_softmax_grad gather_grad gather_grad");
  const BufferId groups = p.steps[0].out[0];
  for (const size_t s : {1, 3, 4}) {
    EXPECT_EQ(p.steps[s].in.back(), groups);
    EXPECT_EQ(p.steps[s].node.attrs.i("rearranged"), 1);
  }
  EXPECT_EQ(p.steps[5].in.size(), 2u);
  EXPECT_EQ(p.buffers[static_cast<size_t>(groups)].type, (TensorType{DType::i32, {3 + 2 + 6}}));
}

TEST(FusePatterns, LeavesTablesOfSegmentsThatOthersRead) {
  for (const int shown : {0, 1}) {
    SegmentFixture f;
    f.g.outputs = {f.dx, shown == 0 ? f.top : f.total};
    f.start_plan();
    EXPECT_EQ(kinds(f.fused()),
              "group_rows segment_max segment_exp_sum segment_softmax neg segment_softmax_grad");
  }
  SegmentFixture f;
  f.g.outputs = {f.dx, f.sums};
  f.start_plan();
  EXPECT_EQ(kinds(f.fused()),
            "group_rows segment_softmax neg segment_softmax_reduce_grad segment_softmax_grad");
}

/// Edges over two ranks: segments' maxima and sums are reduced between the steps.
TEST(FusePatterns, LeavesSegmentsThatACutDivides) {
  SegmentFixture f;
  f.mesh = Mesh::parse("a=2");
  f.g.outputs = {f.y};
  remove_dead_nodes(f.g);
  f.start_plan();
  const Sharding edges = parse_sharding("[{a}, -]", f.mesh),
                 numbers = parse_sharding("[{a}]", f.mesh),
                 whole = parse_sharding("[-, -]", f.mesh);
  const auto cut = [&](const char* node, std::vector<Sharding> in, const char* out) {
    NodePlan plan;
    plan.in = std::move(in);
    plan.out = {parse_sharding(out, f.mesh)};
    f.plan.nodes[node] = plan;
  };
  cut("top", {edges, numbers}, "[-, -] partial(max: a)");
  cut("total", {edges, whole, numbers}, "[-, -] partial(sum: a)");
  cut("y", {edges, whole, whole, numbers}, "[{a}, -]");
  f.plan.values["x"] = edges;
  f.plan.values["rows"] = numbers;
  f.plan.values[f.g.value(f.top).name] = f.plan.nodes["top"].out[0];
  f.plan.values[f.g.value(f.total).name] = f.plan.nodes["total"].out[0];
  f.plan.values[f.g.value(f.y).name] = edges;
  EXPECT_EQ(
      kinds(f.fused()),
      "group_rows segment_max all_reduce segment_exp_sum all_reduce segment_softmax all_gather");
}

struct Loss : FusedProgram {
  ValueId logits, labels, losses, lse;
  Loss() {
    logits = g.add("neg", {batch("x", {DType::bf16, {6, 9}})}, {}, "logits");
    labels = batch("labels", {DType::i64, {6}});
    const auto made = g.add_node("cross_entropy", {logits, labels}, {}, "losses");
    losses = made[0];
    lse = made[1];
  }
  void gradient(ValueId dlosses) {
    g.outputs.push_back(g.add("cross_entropy_grad", {dlosses, logits, labels, lse}, {}, "dlogits"));
  }
};

TEST(FusePatterns, MakesTheLossesWhereTheirGradientIs) {
  Loss f;
  const ValueId twice = f.g.add("add", {f.losses, f.losses}, {}, "twice");
  f.gradient(f.g.add("neg", {f.batch("d", {DType::f32, {6}})}, {}, "dlosses"));
  f.g.outputs.push_back(twice);
  f.start_plan();
  const Program p = f.fused();
  ASSERT_EQ(kinds(p), "neg neg cross_entropy_and_grad add");
  const Step& both = p.steps[2];
  EXPECT_EQ(both.node.inputs, both.in);
  EXPECT_EQ(both.in, (std::vector{p.steps[1].out[0], p.steps[0].out[0], both.in[2]}));
  EXPECT_EQ(both.out, (std::vector{p.steps[3].in[0], p.outputs[0].buffer}));
  for (const Buffer& b : p.buffers) EXPECT_NE(b.name, f.g.value(f.lse).name);
  // The gradient takes the logits' memory.
  EXPECT_EQ(p.buffers[static_cast<size_t>(both.in[1])].offset,
            p.buffers[static_cast<size_t>(both.out[1])].offset);
}

/// A loss in parts, as split_losses leaves it.
struct LossInParts : Loss {
  LossInParts() {
    split_losses(g);
    g.outputs = {losses};
  }
  std::string fused_kinds() {
    start_plan();
    return kinds(fused());
  }
};

TEST(FusePatterns, ALossInPartsIsOneStep) {
  LossInParts f;
  f.start_plan();
  const Program p = f.fused();
  ASSERT_EQ(kinds(p), "neg cross_entropy");
  const Step& loss = p.steps[1];
  EXPECT_EQ(loss.node.inputs, loss.in);
  EXPECT_EQ(loss.in[0], p.steps[0].out[0]);
  EXPECT_EQ(loss.out[0], p.outputs[0].buffer);
  for (const Buffer& b : p.buffers) EXPECT_EQ(b.name.find("losses/"), std::string::npos) << b.name;
  // And with its gradient, in as much memory as the loss that was never in parts.
  LossInParts both;
  both.g.outputs.clear();
  Loss whole;
  for (Loss* loss : {static_cast<Loss*>(&both), &whole}) {
    loss->gradient(loss->batch("d", {DType::f32, {6}}));
    loss->start_plan();
  }
  EXPECT_EQ(kinds(both.fused()), "neg cross_entropy_and_grad");
  EXPECT_EQ(both.fused().arena_bytes, whole.fused().arena_bytes);
}

TEST(FusePatterns, LeavesPartsOfALossThatOthersRead) {
  for (const char* part : {"%losses/top", "%losses/sums"}) {
    LossInParts f;
    f.g.outputs.push_back(f.g.find(part));
    ASSERT_NE(f.g.outputs.back(), kNoValue) << part;
    EXPECT_EQ(f.fused_kinds(), "neg reduce_max cross_entropy_sums cross_entropy_join") << part;
  }
}

/// Classes over two ranks: maxima and sums are reduced between the steps, and logits stay cut.
TEST(FusePatterns, LeavesALossWhoseClassesACutDivides) {
  LossInParts f;
  f.mesh = Mesh::parse("a=2");
  f.start_plan();
  const Sharding classes = parse_sharding("[-, {a}]", f.mesh),
                 whole = parse_sharding("[-]", f.mesh), pair = parse_sharding("[-, -]", f.mesh);
  const auto cut = [&](const char* node, std::vector<Sharding> in, const Sharding& out) {
    NodePlan plan;
    plan.in = std::move(in);
    plan.out = {out};
    f.plan.nodes[node] = plan;
  };
  const Sharding most = parse_sharding("[-] partial(max: a)", f.mesh),
                 summands = parse_sharding("[-, -] partial(sum: a)", f.mesh);
  cut("logits", {classes}, classes);
  cut("losses/top", {classes}, most);
  cut("losses/sums", {classes, whole, whole}, summands);
  f.plan.values["x"] = f.plan.values[f.g.value(f.logits).name] = classes;
  f.plan.values["%losses/top"] = most;
  f.plan.values["%losses/sums"] = summands;
  const Program p = f.fused();
  EXPECT_EQ(kinds(p), "neg reduce_max all_reduce cross_entropy_sums all_reduce cross_entropy_join");
  EXPECT_EQ(p.steps[3].node.attrs.i("classes"), 9);
}

/// Attention in parts, as split_attention leaves it: of 8 keys, with a mask and dropout.
struct AttentionInParts : FusedProgram {
  AttentionInParts() {
    const ValueId q = batch("q", {DType::f32, {2, 2, 4, 6}}),
                  k = batch("k", {DType::f32, {2, 2, 8, 6}}),
                  v = batch("v", {DType::f32, {2, 2, 8, 3}}),
                  mask = batch("mask", {DType::boolean, {1, 1, 4, 8}}),
                  step = g.add_input("step", {DType::i64, {}}, Role::scalar);
    y = g.add_node("attention", {q, k, v, mask, step}, whole, "y")[0];
    split_attention(g);
    g.outputs = {y};
  }

  const Attrs whole = {{"scale", 0.5},
                       {"has_mask", int64_t{1}},
                       {"dropout", 0.3},
                       {"seed", int64_t{5}},
                       {"key", int64_t{77}},
                       {"global_shape", std::vector<int64_t>{2, 2, 4, 8}},
                       {"start", std::vector<int64_t>(4, 0)}};
  ValueId y = kNoValue;
};

TEST(FusePatterns, AttentionInPartsIsOneStep) {
  AttentionInParts f;
  f.start_plan();
  const Program p = f.fused();
  ASSERT_EQ(kinds(p), "attention");
  const Step& step = p.steps[0];
  std::vector<std::string> names;
  for (BufferId b : step.in) names.push_back(p.buffers[static_cast<size_t>(b)].name);
  EXPECT_EQ(names, (std::vector<std::string>{"q", "k", "v", "mask", "step"}));
  EXPECT_EQ(step.node.inputs, step.in);
  EXPECT_FALSE(step.node.attrs.has("keys"));
  for (const auto& [name, value] : f.whole.all()) EXPECT_EQ(step.node.attrs.all().at(name), value);
}

TEST(FusePatterns, LeavesPartsOfAttentionThatOthersRead) {
  for (const char* part : {"%y/top", "%y/sums:0", "%y/sums:1"}) {
    AttentionInParts f;
    f.g.outputs.push_back(f.g.find(part));
    ASSERT_NE(f.g.outputs.back(), kNoValue) << part;
    f.start_plan();
    EXPECT_EQ(kinds(f.fused()), "attention_top attention_sums attention_join") << part;
  }
}

/// Keys over two ranks: what these find is reduced between the steps.
TEST(FusePatterns, LeavesAttentionWhoseKeysACutDivides) {
  AttentionInParts f;
  f.mesh = Mesh::parse("a=2");
  f.start_plan();
  const auto lies = [&](const char* text) { return parse_sharding(text, f.mesh); };
  const Sharding whole = lies("[-, -, -, -]"), keys = lies("[-, -, {a}, -]"),
                 columns = lies("[-, -, -, {a}]"), each = lies("[-, -, -]"), none = lies("[]");
  const auto cut = [&](const char* node, std::vector<Sharding> in, std::vector<Sharding> out) {
    f.plan.nodes[node].in = std::move(in);
    f.plan.nodes[node].out = std::move(out);
  };
  const Sharding top = lies("[-, -, -] partial(max: a)"), sum = lies("[-, -, -] partial(sum: a)"),
                 o = lies("[-, -, -, -] partial(sum: a)");
  cut("y/top", {whole, keys, columns}, {top});
  cut("y/sums", {whole, keys, keys, each, columns, none}, {o, sum});
  for (const auto& [value, sharding] :
       std::vector<std::pair<const char*, Sharding>>{{"k", keys},
                                                     {"v", keys},
                                                     {"mask", columns},
                                                     {"%y/top", top},
                                                     {"%y/sums:0", o},
                                                     {"%y/sums:1", sum}})
    f.plan.values[value] = sharding;
  EXPECT_EQ(kinds(f.fused()),
            "attention_top all_reduce attention_sums all_reduce all_reduce attention_join");
}

TEST(FusePatterns, LeavesALossWhoseGradientIsMadeOfIt) {
  Loss f;
  f.gradient(f.g.add("neg", {f.losses}, {}, "dlosses"));
  f.start_plan();
  EXPECT_EQ(kinds(f.fused()), "neg cross_entropy neg cross_entropy_grad");
  Loss shown;
  shown.gradient(shown.batch("d", {DType::f32, {6}}));
  shown.g.outputs.push_back(shown.lse);
  shown.start_plan();
  EXPECT_EQ(kinds(shown.fused()), "neg cross_entropy cross_entropy_grad");
}

/// `held` is read behind the losses and written before their gradient: it has its old value there.
TEST(FusePatterns, LeavesALossThatWouldSeeALaterValue) {
  Loss f;
  const ValueId held = f.g.add_persistent("held", {DType::f32, {6}}, Role::state, Source{});
  const ValueId sum = f.g.add("add", {f.losses, held}, {}, "sum"),
                d = f.batch("d", {DType::f32, {6}});
  f.g.updates[held] = f.g.add("neg", {d}, {}, "next");
  f.gradient(d);
  f.g.outputs.push_back(sum);
  f.start_plan();
  EXPECT_EQ(kinds(f.fused()), "neg cross_entropy add neg cross_entropy_grad");
}

}  // namespace
}  // namespace shardrun::test
