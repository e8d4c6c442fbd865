// Fused steps: what becomes one step, what may not, and that nothing else changes.
#include <gtest/gtest.h>

#include "graph/op_def.h"
#include "models/wide_resnet.h"
#include "program/fusion/rewrites.h"
#include "program/ops/post.h"
#include "tests/planner/gpt_step.h"
#include "tests/program/fused_program.h"

namespace shardrun::test {
namespace {

constexpr int64_t kRows = kManyRows;

TEST(FusePatterns, AddsLookedUpRowsToTheOtherGradient) {
  for (const bool first : {false, true}) {
    FusedProgram f;
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
  FusedProgram f;
  const ValueId x = f.batch("x", {DType::f32, {10, 4}}), table = f.table_grad();
  f.g.outputs = {f.g.add("add", {x, table}, {}, "sum"), f.g.add("neg", {table}, {}, "also")};
  f.start_plan();
  EXPECT_EQ(kinds(f.fused()), "gather_grad add neg");
  FusedProgram twice;
  const ValueId both = twice.table_grad();
  twice.g.outputs = {twice.g.add("add", {both, both}, {}, "sum")};
  twice.start_plan();
  EXPECT_EQ(kinds(twice.fused()), "gather_grad add");
  FusedProgram shown;
  const ValueId y = shown.batch("x", {DType::f32, {10, 4}}), seen = shown.table_grad();
  shown.g.outputs = {shown.g.add("add", {y, seen}, {}, "sum"), seen};
  shown.start_plan();
  EXPECT_EQ(kinds(shown.fused()), "gather_grad add");
}

/// Partial over the ranks, the table's gradient is summed before it can be added to what is whole.
TEST(FusePatterns, LeavesWhatACollectiveSeparates) {
  FusedProgram f;
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

TEST(FusePatterns, ProductsOfManyRowsReadTheWeightItself) {
  FusedProgram f;
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
    FusedProgram f;
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
  FusedProgram both;  // a product of two f32 operands would be one in f32
  const ValueId a = both.weight("a", {kRows, 2000}), b = both.weight("b", {2000, kRows});
  both.g.outputs = {both.product(both.narrow(a), both.narrow(b), "p")};
  both.start_plan();
  EXPECT_EQ(kinds(both.fused()), "cast matmul");
}

/// A backend that would round the weight in each product keeps the copy.
TEST(FusePatterns, AsksWhetherProductsRoundForNothing) {
  FusedProgram f;
  const ValueId x = f.batch("x", {DType::bf16, {kRows, 3}}), w = f.weight("w", {3, 5});
  f.g.outputs = {f.product(x, f.narrow(w), "p")};
  f.start_plan();
  int asked = 0;
  const Program program = f.after_patterns([&](const Node& node, const auto& in, const auto& out) {
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
    FusedProgram f;
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

TEST(FusePatterns, ProductsTakeWhatFollowsThem) {
  FusedProgram f;
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
  FusedProgram f;
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
  FusedProgram f;
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
  const Program plain = f.after_patterns(
      [](const Node& node, const auto&, const auto&) { return !kept_before(node); });
  EXPECT_EQ(kinds(plain), "matmul_post gelu neg gelu_grad");
}

/// One of them is as much as a step keeps.
TEST(FusePatterns, KeepsOneMoreResult) {
  FusedProgram f;
  const ValueId x = f.batch("x", {DType::f32, {6, 3}}), w = f.weight("w", {3, 5});
  const ValueId p = f.product(x, w, "p"), r = f.g.add("relu", {p}, {}, "r");
  f.g.outputs = {p, r, f.g.add("tanh", {r}, {}, "t")};
  f.start_plan();
  EXPECT_EQ(kinds(f.fused()), "matmul_post tanh");
}

/// A bias's gradient along with its weight's; nothing else that is a sum of the same.
TEST(FusePatterns, SumsAnOperandWhereItIsMultiplied) {
  const auto steps = [](const std::vector<int64_t>& axes, int64_t keepdims, bool early) {
    FusedProgram f;
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
  FusedProgram late;  // its reader cannot wait for the product
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
    FusedProgram f;
    const ValueId x = f.batch("x", {DType::f32, {6, 3}}), w = f.weight("w", {3, 5});
    finish(f, f.product(x, w, "p"));
    f.start_plan();
    return kinds(f.fused());
  };
  EXPECT_EQ(steps([](FusedProgram& f, ValueId p) {
              f.g.outputs = {f.g.add("mul", {p, p}, {}, "y")};
            }),
            "matmul mul");
  EXPECT_EQ(steps([](FusedProgram& f, ValueId p) {  // the result is larger than the product
              const ValueId r = f.batch("r", {DType::f32, {2, 6, 5}});
              f.g.outputs = {f.g.add("add", {p, r}, {}, "y")};
            }),
            "matmul add");
}

/// What the product reads would have to live on to where the sum stands.
TEST(FusePatterns, KeepsNothingAliveForASumThatComesLate) {
  FusedProgram f;
  const ValueId x = f.batch("x", {DType::f32, {6, 3}}), w = f.weight("w", {3, 5}),
                r = f.batch("r", {DType::f32, {6, 5}});
  const ValueId early = f.product(f.g.add("neg", {x}, {}, "a"), w, "p");
  const ValueId late = f.g.add("exp", {r}, {}, "late");
  f.g.outputs = {f.g.add("add", {early, late}, {}, "y")};
  f.start_plan();
  EXPECT_EQ(kinds(f.fused()), "neg matmul exp add");
  FusedProgram lives;  // of what lives on anyway
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
    FusedProgram f;
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
            "neg matmul reshape abs add");  // it would be alive with the product
}

TEST(FusePatterns, LeavesPartialProductsToTheirSum) {
  FusedProgram f;
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
  FusedProgram f;
  const ValueId x = f.batch("x", {DType::f32, {6, 3}}), w = f.weight("w", {3, 5});
  f.g.outputs = {f.g.add("tanh", {f.g.add("relu", {f.product(x, w, "p")}, {}, "r")}, {}, "y")};
  f.start_plan();
  const Program program = f.after_patterns([](const Node& node, const auto&, const auto&) {
    return post_ops(node).back().node.op != "tanh";
  });
  EXPECT_EQ(kinds(program), "matmul_post tanh");
}

/// How many steps of each kind a model's training step has.
std::map<std::string, int> joined_kinds(const Graph& graph) {
  const Program program = compile(graph, test::replicated_plan(graph, Mesh()), Cluster{}, 0, {},
                                  {.stop_after = "fuse_patterns"});
  std::map<std::string, int> out;
  for (const Step& s : program.steps) ++out[s.node.op];
  return out;
}

TEST(FusePatterns, JoinsTheModelsProducts) {
  GptOptions gpt;
  gpt.layers = 2, gpt.hidden = 16, gpt.heads = 2, gpt.vocab = 11, gpt.context = 8, gpt.batch = 2;
  const auto of_gpt = joined_kinds(test::gpt_step(gpt));
  // Forward qkv, projection with residual, fc and the second with residual; backward fc's gradient
  // through GELU, of each layer.
  EXPECT_GE(of_gpt.at("matmul_post"), 2 * 5);
  EXPECT_EQ(of_gpt.count("gelu_grad"), 0u);
  gpt.dropout = 0.1;
  const auto dropped = joined_kinds(test::gpt_step(gpt));
  EXPECT_GE(dropped.at("matmul_post"), 2 * 5);
  // Of the embedding and, backward, of each branch and the embedding.
  EXPECT_LE(dropped.at("dropout"), 2 + 2 * 2);

  WideResNetOptions images;
  images.family = WideResNetOptions::Family::cifar;
  images.layers = 10, images.width = 1, images.image = 8, images.classes = 4, images.batch = 2;
  const auto of_images = joined_kinds(test::written_step(
      [&](const std::string& path) { write_wide_resnet(images, path); }, LossKind::cross_entropy));
  EXPECT_EQ(of_images.at("matmul_post"), 2);  // the head and its bias, and their gradients
  // Each block's residual; backward, where the shortcut is a convolution, the sum of its gradient
  // and the branch's, but for the first: its input is the stem's, of as many channels.
  EXPECT_EQ(of_images.at("conv_post"), 3);
  EXPECT_EQ(of_images.at("conv_data_grad_post"), 2);
}

}  // namespace
}  // namespace shardrun::test
