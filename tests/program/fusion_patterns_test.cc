// Fused steps: what becomes one step, what may not, and that nothing else changes.
#include <gtest/gtest.h>

#include "graph/op_def.h"
#include "models/wide_resnet.h"
#include "program/fusion/rewrites.h"
#include "program/keep_casts.h"
#include "program/memory.h"
#include "program/ops/post.h"
#include "program/partition.h"
#include "program/share_groups.h"
#include "tests/exec/random_plan.h"
#include "tests/planner/gpt_step.h"

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
  /// w - lr (…) w of a gradient that is fed.
  void update(ValueId w, Phase phase = Phase::update) {
    const ValueId grad = batch("grad", g.type(w));
    const ValueId buffer = g.add_persistent("momentum", g.type(w), Role::state, Source{});
    const ValueId lr = g.add_input("lr", {DType::f32, {}}, Role::scalar),
                  step = g.add_input("step", {DType::i64, {}}, Role::scalar);
    g.phase = phase;
    const auto next =
        g.add_node("sgd", {w, grad, buffer, lr, step, lr},
                   {{"momentum", 0.9}, {"weight_decay", 0.0}, {"nesterov", int64_t{0}}}, "update");
    g.phase = Phase::micro;
    g.updates[w] = next[0];
    g.updates[buffer] = next[1];
  }
  Program fused(bool keep = false) {
    Program program = Partition(g, plan, Cluster{}).program(0);
    fuse_patterns(program);
    if (keep) keep_casts(program);
    place_memory(program, nullptr);
    check_memory(program);
    return program;
  }
};

TEST(FusePatterns, AddsLookedUpRowsToTheOtherGradient) {
  for (const bool first : {false, true}) {
    Fixture f;
    const ValueId x = f.batch("x", {DType::f32, {10, 4}}), other = f.g.add("neg", {x}, {}, "head"),
                  table = f.table_grad();
    f.g.outputs = {
        f.g.add("add", first ? std::vector{table, other} : std::vector{other, table}, {}, "sum")};
    f.start_plan();
    const Program p = f.fused();
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

TEST(FusePatterns, LeavesATableThatOthersRead) {
  Fixture f;
  const ValueId x = f.batch("x", {DType::f32, {10, 4}}), table = f.table_grad();
  f.g.outputs = {f.g.add("add", {x, table}, {}, "sum"), f.g.add("neg", {table}, {}, "also")};
  f.start_plan();
  EXPECT_EQ(kinds(f.fused()), "gather_grad add neg");
  Fixture twice;
  const ValueId both = twice.table_grad();
  twice.g.outputs = {twice.g.add("add", {both, both}, {}, "sum")};
  twice.start_plan();
  EXPECT_EQ(kinds(twice.fused()), "gather_grad add");
  Fixture shown;
  const ValueId y = shown.batch("x", {DType::f32, {10, 4}}), seen = shown.table_grad();
  shown.g.outputs = {shown.g.add("add", {y, seen}, {}, "sum"), seen};
  shown.start_plan();
  EXPECT_EQ(kinds(shown.fused()), "gather_grad add");
}

/// Partial over the ranks, the table's gradient is summed before it can be added to what is whole.
TEST(FusePatterns, LeavesWhatACollectiveSeparates) {
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
  EXPECT_EQ(kinds(f.fused()), "gather_grad all_reduce add");
}

/// A softmax over segments and its gradient, in pieces.
struct SegmentFixture : Fixture {
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
  ASSERT_EQ(kinds(p), "segment_softmax neg segment_softmax_grad");
  for (const size_t s : {0, 2}) {
    std::vector<TensorType> in;
    for (BufferId b : p.steps[s].in) in.push_back(p.buffers[static_cast<size_t>(b)].type);
    EXPECT_EQ(in.size(), s == 0 ? 2u : 3u);
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
  Program p = Partition(f.g, f.plan, Cluster{}).program(0);
  fuse_patterns(p);
  share_groups(p);
  place_memory(p, nullptr);
  check_memory(p);
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
              "segment_max segment_exp_sum segment_softmax neg segment_softmax_grad");
  }
  SegmentFixture f;
  f.g.outputs = {f.dx, f.sums};
  f.start_plan();
  EXPECT_EQ(kinds(f.fused()),
            "segment_softmax neg segment_softmax_reduce_grad segment_softmax_grad");
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
  EXPECT_EQ(kinds(f.fused()),
            "segment_max all_reduce segment_exp_sum all_reduce segment_softmax all_gather");
}

TEST(FusePatterns, ProductsOfManyRowsReadTheWeightItself) {
  Fixture f;
  const ValueId x = f.batch("x", {DType::bf16, {kRows, 3}}), w = f.weight("w", {3, 5}),
                n = f.narrow(w);
  f.g.outputs = {f.product(x, n, "p"), f.product(x, n, "q")};
  f.start_plan();
  const Program p = f.fused();
  ASSERT_EQ(kinds(p), "matmul matmul");
  for (const Step& step : p.steps) {
    EXPECT_EQ(p.buffers[static_cast<size_t>(step.in[1])].name, "w");
    EXPECT_EQ(p.buffers[static_cast<size_t>(step.out[0])].type.dtype, DType::bf16);
  }
}

TEST(FusePatterns, KeepsTheCopyWhereItPays) {
  const auto steps = [](int64_t rows, bool weight, bool other_reader) {
    Fixture f;
    const ValueId x = f.batch("x", {DType::bf16, {rows, 3}});
    const ValueId w = weight ? f.weight("w", {3, 5}) : f.batch("w", {DType::f32, {3, 5}});
    const ValueId n = f.narrow(w);
    f.g.outputs = {f.product(x, n, "p")};
    if (other_reader) f.g.outputs.push_back(f.g.add("neg", {n}, {}, "also"));
    f.start_plan();
    return kinds(f.fused());
  };
  EXPECT_EQ(steps(kRows, true, false), "matmul");
  EXPECT_EQ(steps(kRows - 1, true, false), "cast matmul");  // read once, packed by no product
  EXPECT_EQ(steps(kRows, false, false), "cast matmul");     // no weight: it would live longer
  EXPECT_EQ(steps(kRows, true, true), "cast matmul neg");
  Fixture both;  // a product of two f32 operands would be one in f32
  const ValueId a = both.weight("a", {kRows, 2000}), b = both.weight("b", {2000, kRows});
  both.g.outputs = {both.product(both.narrow(a), both.narrow(b), "p")};
  both.start_plan();
  EXPECT_EQ(kinds(both.fused()), "cast matmul");
}

/// A backend that would round the weight in each product keeps the copy.
TEST(FusePatterns, AsksWhetherProductsRoundForNothing) {
  Fixture f;
  const ValueId x = f.batch("x", {DType::bf16, {kRows, 3}}), w = f.weight("w", {3, 5});
  f.g.outputs = {f.product(x, f.narrow(w), "p")};
  f.start_plan();
  Program program = Partition(f.g, f.plan, Cluster{}).program(0);
  int asked = 0;
  fuse_patterns(program, [&](const Node& node, const auto& in, const auto& out) {
    ++asked;
    EXPECT_EQ(node.op, "matmul");
    EXPECT_EQ(in[0].dtype, DType::bf16);
    EXPECT_EQ(in[1], (TensorType{DType::f32, {3, 5}}));
    EXPECT_EQ(out[0].dtype, DType::bf16);
    return false;
  });
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(kinds(program), "cast matmul");
}

/// A norm's gradient and the sum behind it; `late`: what is added is made behind the norm.
TEST(FusePatterns, NormsAddWhatPassesThemBy) {
  const auto steps = [](bool first, bool late, bool shown) {
    Fixture f;
    const ValueId x = f.batch("x", {DType::f32, {6, 4}}), rows = f.batch("rows", {DType::f32, {6}});
    ValueId other = kNoValue;
    if (!late) other = f.g.add("neg", {x}, {}, "other");
    const auto norm = f.g.add_node("layer_norm_grad", {x, x, f.weight("w", {4}), rows, rows},
                                   {{"axis", int64_t{1}}}, "norm");
    if (late) other = f.g.add("neg", {x}, {}, "other");
    f.g.outputs = {norm[1], norm[2]};
    if (shown) f.g.outputs.push_back(norm[0]);
    const ValueId sum = f.g.add(
        "add", first ? std::vector{norm[0], other} : std::vector{other, norm[0]}, {}, "sum");
    f.g.outputs.push_back(f.g.add("neg", {sum}, {}, "out"));
    f.start_plan();
    const Program p = f.fused();
    if (!late && !shown) {
      const Step& fused = p.steps[1];
      EXPECT_EQ(fused.in.size(), 6u);
      EXPECT_EQ(fused.in.back(), p.steps[0].out[0]);
      EXPECT_EQ(fused.out[0], p.steps[2].in[0]);
      EXPECT_EQ(fused.node.inputs, fused.in);
      EXPECT_EQ(fused.node.outputs, fused.out);
    }
    return kinds(p);
  };
  EXPECT_EQ(steps(true, false, false), "neg layer_norm_grad neg");
  EXPECT_EQ(steps(false, false, false), "neg layer_norm_grad neg");
  EXPECT_EQ(steps(true, true, false), "layer_norm_grad neg add neg");
  EXPECT_EQ(steps(true, false, true), "neg layer_norm_grad add neg");
}

struct Loss : Fixture {
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
struct AttentionInParts : Fixture {
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

/// Both casts, as where the second is computed again in the backward pass.
TEST(KeepCasts, TheUpdateWritesTheCopy) {
  Fixture f;
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
  Fixture f;
  f.g.outputs = {
      f.product(f.batch("x", {DType::bf16, {2, 3}}), f.narrow(f.weight("w", {3, 5})), "p")};
  f.start_plan();
  const Program p = f.fused(true);
  EXPECT_EQ(kinds(p), "matmul");
  EXPECT_EQ(p.setup.size(), 1u);
}

TEST(KeepCasts, CopiesShardsBeforeTheyAreGathered) {
  Fixture f;
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
    Fixture f;
    const ValueId w = f.weight("w", {3, 5}), n = f.narrow(w);
    add(f, w, n);
    f.start_plan();
    return kinds(f.fused(true));
  };
  const auto product = [](Fixture& f, ValueId n) {
    return f.product(f.batch("x", {DType::bf16, {2, 3}}), n, "p");
  };
  EXPECT_EQ(steps([&](Fixture& f, ValueId w, ValueId n) {  // the old copy is read behind the update
              f.update(w, Phase::micro);
              f.g.outputs = {product(f, n)};
            }),
            "cast sgd matmul");
  EXPECT_EQ(steps([&](Fixture& f, ValueId w, ValueId n) {  // another op makes the new weight
              f.g.outputs = {product(f, n)};
              f.g.updates[w] = f.g.add("neg", {w}, {}, "turned");
            }),
            "cast matmul neg");
  EXPECT_EQ(steps([&](Fixture& f, ValueId w, ValueId n) {  // the host reads the copy
              f.g.outputs = {product(f, n), n};
              f.update(w);
            }),
            "cast matmul sgd");
}

TEST(FusePatterns, ProductsTakeWhatFollowsThem) {
  Fixture f;
  const ValueId x = f.batch("x", {DType::f32, {6, 3}}), w = f.weight("w", {3, 5}),
                b = f.weight("b", {5}), r = f.batch("r", {DType::f32, {6, 5}});
  const ValueId biased = f.g.add("add", {f.product(x, w, "p"), b}, {}, "biased");
  const ValueId active = f.g.add("leaky_relu", {biased}, {{"alpha", 0.25}}, "active");
  const ValueId y = f.g.add("sub", {r, active}, {}, "y");
  f.g.outputs = {y};
  f.start_plan();
  const Program p = f.fused();
  ASSERT_EQ(kinds(p), "matmul_post");
  const Step& step = p.steps[0];
  EXPECT_EQ(step.node.name, "p");
  EXPECT_EQ(step.node.attrs.s("post"), "add leaky_relu sub");
  std::vector<std::string> names;
  for (BufferId id : step.in) names.push_back(p.buffers[static_cast<size_t>(id)].name);
  EXPECT_EQ(names, (std::vector<std::string>{"x", "w", "b", "r"}));
  EXPECT_EQ(p.buffers[static_cast<size_t>(step.out[0])].name, f.g.value(y).name);
  const std::vector<PostOp> posts = post_ops(step.node);
  ASSERT_EQ(posts.size(), 3u);
  EXPECT_EQ(posts[1].node.attrs.f("alpha"), 0.25);
  EXPECT_EQ(posts[2].at, 1u);
  EXPECT_EQ(posts[2].operands, std::vector<size_t>{3});
}

/// A convolution with bias and activation, and one that a residual follows; backward, two gradients
/// of one image.
TEST(FusePatterns, ConvolutionsTakeWhatFollowsThem) {
  const std::vector<int64_t> one = {1, 1};
  const Attrs attrs = {
      {"strides", one}, {"dilations", one}, {"pads_low", one}, {"channels_last", int64_t{1}}};
  Attrs forward = attrs, back = attrs;
  forward.set("pads_high", one);
  back.set("size", std::vector<int64_t>{6, 5});
  Fixture f;
  const ValueId x = f.batch("x", {DType::f32, {2, 6, 5, 4}}), w = f.weight("w", {4, 4, 3, 3}),
                v = f.weight("v", {4, 4, 3, 3}), b = f.weight("b", {4});
  const ValueId biased = f.g.add("add", {f.g.add("conv", {x, w}, forward, "p"), b}, {}, "biased");
  const ValueId active = f.g.add("relu", {biased}, {}, "active");
  const ValueId y = f.g.add("add", {x, f.g.add("conv", {active, v}, forward, "q")}, {}, "y");
  const ValueId first = f.g.add("conv_data_grad", {y, v}, back, "d");
  const ValueId second = f.g.add("conv_data_grad", {y, w}, back, "e");
  f.g.outputs = {f.g.add("add", {first, second}, {}, "sum")};
  f.start_plan();
  const Program p = f.fused();
  ASSERT_EQ(kinds(p), "conv_post conv_post conv_data_grad conv_data_grad_post");
  EXPECT_EQ(p.steps[0].node.attrs.s("post"), "add relu");
  EXPECT_EQ(p.steps[1].node.attrs.s("post"), "add");
  EXPECT_EQ(post_ops(p.steps[1].node)[0].at, 1u);
  EXPECT_EQ(p.steps[3].in.back(), p.steps[2].out[0]);
  EXPECT_EQ(p.steps[3].node.attrs.ints("size"), (std::vector<int64_t>{6, 5}));
}

/// GELU's argument is read again by its gradient: it is a second result.
TEST(FusePatterns, KeepsWhatOthersRead) {
  Fixture f;
  const ValueId x = f.batch("x", {DType::f32, {6, 3}}), w = f.weight("w", {3, 5}),
                b = f.weight("b", {5}), dy = f.batch("dy", {DType::f32, {6, 5}});
  const ValueId biased = f.g.add("add", {f.product(x, w, "p"), b}, {}, "biased");
  const ValueId y = f.g.add("gelu", {biased}, {}, "y");
  f.g.outputs = {f.g.add("neg", {y}, {}, "z"), f.g.add("gelu_grad", {biased, dy}, {}, "dx")};
  f.start_plan();
  const Program p = f.fused();
  EXPECT_EQ(kinds(p), "matmul_post gelu_grad");
  const Step& step = p.steps[0];
  EXPECT_EQ(step.node.attrs.s("post"), "add gelu neg");
  EXPECT_EQ(kept_before(step.node), std::optional<size_t>(1));
  ASSERT_EQ(step.out.size(), 2u);
  EXPECT_EQ(step.out[1], p.steps[1].in[0]);
  EXPECT_EQ(p.buffers[static_cast<size_t>(step.out[1])].name, f.g.value(biased).name);
  // Of a backend that keeps nothing, product and bias.
  Program plain = Partition(f.g, f.plan, Cluster{}).program(0);
  fuse_patterns(plain,
                [](const Node& node, const auto&, const auto&) { return !kept_before(node); });
  EXPECT_EQ(kinds(plain), "matmul_post gelu neg gelu_grad");
}

/// One of them is as much as a step keeps.
TEST(FusePatterns, KeepsOneResultBesides) {
  Fixture f;
  const ValueId x = f.batch("x", {DType::f32, {6, 3}}), w = f.weight("w", {3, 5});
  const ValueId p = f.product(x, w, "p"), r = f.g.add("relu", {p}, {}, "r");
  f.g.outputs = {p, r, f.g.add("tanh", {r}, {}, "t")};
  f.start_plan();
  EXPECT_EQ(kinds(f.fused()), "matmul_post tanh");
}

/// A bias's gradient beside its weight's; nothing else that is a sum of the same.
TEST(FusePatterns, SumsAnOperandWhereItIsMultiplied) {
  const auto steps = [](const std::vector<int64_t>& axes, int64_t keepdims, bool early) {
    Fixture f;
    const ValueId x = f.batch("x", {DType::f32, {6, 3}}), dy = f.batch("dy", {DType::f32, {6, 5}});
    const auto sum = [&] {
      return f.g.add("reduce_sum", {dy}, {{"axes", axes}, {"keepdims", keepdims}}, "db");
    };
    ValueId db = early ? sum() : kNoValue;
    const ValueId dw = f.g.add("matmul", {x, dy}, {{"equation", std::string("bm,bn->mn")}}, "dw");
    if (!early) db = sum();
    f.g.outputs = {dw, f.g.add("neg", {db}, {}, "z")};
    f.start_plan();
    const Program p = f.fused();
    for (const Step& step : p.steps) {
      if (const auto operand = summed_operand(step.node)) {
        EXPECT_EQ(*operand, 1u);
        EXPECT_EQ(step.out.size(), 2u);
      }
    }
    return kinds(p);
  };
  EXPECT_EQ(steps({0}, 0, false), "matmul_post neg");
  EXPECT_EQ(steps({0}, 0, true), "matmul_post neg");
  EXPECT_EQ(steps({1}, 0, false), "matmul reduce_sum neg");
  EXPECT_EQ(steps({0}, 1, false), "matmul reduce_sum neg");
  EXPECT_EQ(steps({0, 1}, 0, false), "matmul reduce_sum neg");
  Fixture late;  // its reader cannot wait for the product
  const ValueId dy = late.batch("dy", {DType::f32, {6, 5}});
  const ValueId db =
      late.g.add("reduce_sum", {dy}, {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}});
  const ValueId x = late.g.add("mul", {late.batch("x", {DType::f32, {6, 5}}), db}, {}, "scaled");
  late.g.outputs = {late.g.add("matmul", {x, dy}, {{"equation", std::string("bm,bn->mn")}}, "dw")};
  late.start_plan();
  EXPECT_EQ(kinds(late.fused()), "reduce_sum mul matmul");
}

TEST(FusePatterns, LeavesProductsWhereTheyAreWanted) {
  const auto steps = [](auto&& finish) {
    Fixture f;
    const ValueId x = f.batch("x", {DType::f32, {6, 3}}), w = f.weight("w", {3, 5});
    finish(f, f.product(x, w, "p"));
    f.start_plan();
    return kinds(f.fused());
  };
  EXPECT_EQ(steps([](Fixture& f, ValueId p) {
              f.g.outputs = {f.g.add("mul", {p, p}, {}, "y")};
            }),
            "matmul mul");
  EXPECT_EQ(steps([](Fixture& f, ValueId p) {  // the result is larger than the product
              const ValueId r = f.batch("r", {DType::f32, {2, 6, 5}});
              f.g.outputs = {f.g.add("add", {p, r}, {}, "y")};
            }),
            "matmul add");
}

/// What the product reads would have to live on to where the sum stands.
TEST(FusePatterns, KeepsNothingAliveForASumThatComesLate) {
  Fixture f;
  const ValueId x = f.batch("x", {DType::f32, {6, 3}}), w = f.weight("w", {3, 5}),
                r = f.batch("r", {DType::f32, {6, 5}});
  const ValueId early = f.product(f.g.add("neg", {x}, {}, "a"), w, "p");
  const ValueId late = f.g.add("exp", {r}, {}, "late");
  f.g.outputs = {f.g.add("add", {early, late}, {}, "y")};
  f.start_plan();
  EXPECT_EQ(kinds(f.fused()), "neg matmul exp add");
  Fixture lives;  // of what lives on anyway
  const ValueId a = lives.batch("x", {DType::f32, {6, 3}}), v = lives.weight("w", {3, 5}),
                q = lives.batch("r", {DType::f32, {6, 5}});
  const ValueId n = lives.g.add("neg", {a}, {}, "a"), p = lives.product(n, v, "p");
  const ValueId e = lives.g.add("exp", {q}, {}, "late");
  lives.g.outputs = {lives.g.add("add", {p, e}, {}, "y"), lives.g.add("abs", {n}, {}, "z")};
  lives.start_plan();
  EXPECT_EQ(kinds(lives.fused()), "neg exp matmul_post abs");
}

/// A bias is brought into shape behind the product, as importers write it: that is done before it.
TEST(FusePatterns, TakesABiasThatIsShapedLate) {
  const auto steps = [](Shape bias, Shape shaped) {
    Fixture f;
    const ValueId x = f.batch("x", {DType::f32, {16, 3}}), w = f.weight("w", {3, 5}),
                  b = f.weight("b", std::move(bias));
    const ValueId p = f.product(f.g.add("neg", {x}, {}, "a"), w, "p");
    const ValueId row = f.g.add("reshape", {b}, {{"shape", std::move(shaped)}}, "row");
    f.g.outputs = {f.g.add("add", {p, f.g.add("abs", {row}, {}, "late")}, {}, "y")};
    f.start_plan();
    const Program program = f.fused();
    return kinds(program);
  };
  EXPECT_EQ(steps({1, 5}, {5}), "neg reshape abs matmul_post");
  EXPECT_EQ(steps({80}, {16, 5}),
            "neg matmul reshape abs add");  // it would live beside the product
}

TEST(FusePatterns, LeavesPartialProductsToTheirSum) {
  Fixture f;
  f.mesh = Mesh::parse("a=2");
  const ValueId x = f.batch("x", {DType::f32, {6, 4}}), w = f.weight("w", {4, 5}),
                b = f.weight("b", {5}), p = f.product(x, w, "p");
  f.g.outputs = {f.g.add("add", {p, b}, {}, "y")};
  f.start_plan();
  NodePlan cut;
  cut.in = {parse_sharding("[-, {a}]", f.mesh), parse_sharding("[{a}, -]", f.mesh)};
  cut.out = {parse_sharding("[-, -] partial(sum: a)", f.mesh)};
  f.plan.nodes["p"] = cut;
  f.plan.values["x"] = cut.in[0];
  f.plan.values["w"] = cut.in[1];
  f.plan.values[f.g.value(p).name] = cut.out[0];
  EXPECT_EQ(kinds(f.fused()), "matmul all_reduce add");
}

TEST(FusePatterns, AsksWhetherTheBackendTakesIt) {
  Fixture f;
  const ValueId x = f.batch("x", {DType::f32, {6, 3}}), w = f.weight("w", {3, 5});
  f.g.outputs = {f.g.add("tanh", {f.g.add("relu", {f.product(x, w, "p")}, {}, "r")}, {}, "y")};
  f.start_plan();
  Program program = Partition(f.g, f.plan, Cluster{}).program(0);
  fuse_patterns(program, [](const Node& node, const auto&, const auto&) {
    return post_ops(node).back().node.op != "tanh";
  });
  EXPECT_EQ(kinds(program), "matmul_post tanh");
}

/// How many steps of each kind a model's training step has.
std::map<std::string, int> joined_kinds(const Graph& graph) {
  Program program = Partition(graph, testing::replicated_plan(graph, Mesh()), Cluster{}).program(0);
  fuse_patterns(program);
  std::map<std::string, int> out;
  for (const Step& s : program.steps) ++out[s.node.op];
  return out;
}

TEST(FusePatterns, JoinsTheModelsProducts) {
  GptOptions gpt;
  gpt.layers = 2, gpt.hidden = 16, gpt.heads = 2, gpt.vocab = 11, gpt.context = 8, gpt.batch = 2;
  const auto of_gpt = joined_kinds(testing::gpt_step(gpt));
  // Forward qkv, projection with residual, fc and the second with residual; backward fc's gradient
  // through GELU, of each layer.
  EXPECT_GE(of_gpt.at("matmul_post"), 2 * 5);
  EXPECT_EQ(of_gpt.count("gelu_grad"), 0u);
  gpt.dropout = 0.1;
  const auto dropped = joined_kinds(testing::gpt_step(gpt));
  EXPECT_GE(dropped.at("matmul_post"), 2 * 5);
  // Of the embedding and, backward, of each branch and the embedding.
  EXPECT_LE(dropped.at("dropout"), 2 + 2 * 2);

  WideResNetOptions images;
  images.family = WideResNetOptions::Family::cifar;
  images.layers = 10, images.width = 1, images.image = 8, images.classes = 4, images.batch = 2;
  const auto of_images = joined_kinds(testing::written_step(
      [&](const std::string& path) { write_wide_resnet(images, path); }, "cross-entropy"));
  EXPECT_EQ(of_images.at("matmul_post"), 2);  // the head and its bias, and their gradients
  // Each block's residual; backward, where the shortcut is a convolution, the sum of its gradient
  // and the branch's, but for the first: its input is the stem's, of as many channels.
  EXPECT_EQ(of_images.at("conv_post"), 3);
  EXPECT_EQ(of_images.at("conv_data_grad_post"), 2);
}

}  // namespace
}  // namespace shardrun
