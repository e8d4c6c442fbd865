// Losses, what is frozen, dropout and bf16: what makes a training step of a forward Graph.
#include "graph/passes/training.h"

#include <gtest/gtest.h>

#include "graph/autodiff.h"
#include "graph/optimizer.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/recognise/recognise.h"
#include "tests/graph/graph_build.h"

namespace shardrun {
namespace {

using test::Build;
using test::count_op;
using test::expect_same_outputs;
using test::find_op;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
    return e.what();
  }
  return "nothing was thrown";
}

void expect_mentions(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

Graph logits_model(bool tokens = true, Shape shape = {2, 3, 5}) {
  Build b(DType::f32);
  if (tokens) b.ints("tokens", Shape(shape.begin(), shape.end() - 1));
  b.g.name = "m.onnx";
  b.g.outputs = {b.mul(b.in("x", shape), b.param("w", {shape.back()}))};
  return b.g;
}

TEST(AttachLoss, CrossEntropyByHand) {
  Graph g = logits_model();
  EXPECT_NE(attach_loss(g, LossKind::cross_entropy).find("cross-entropy"), std::string::npos);
  check_graph(g);
  NamedTensors feeds = test::feeds_for(g);
  feeds[kTarget] = Tensor::from<int64_t>({2, 3}, {1, -100, 4, 0, -100, 2}, DType::i64);
  const std::vector<Tensor> got = evaluate_graph(g, feeds, std::vector{g.outputs[0], g.loss});
  double total = 0;
  for (int64_t row = 0; row < 6; ++row) {
    const int64_t target = feeds[kTarget].int_at(row);
    if (target == -100) continue;
    double sum = 0;
    for (int64_t c = 0; c < 5; ++c) sum += std::exp(got[0].at(row * 5 + c));
    total += std::log(sum) - got[0].at(row * 5 + target);
  }
  EXPECT_NEAR(got[1].at(0), total / 4, 1e-5);
  // With every target ignored there is nothing to average, as in PyTorch.
  for (int64_t i = 0; i < 6; ++i) feeds[kTarget].as<int64_t>()[i] = -100;
  EXPECT_TRUE(std::isnan(evaluate_graph(g, feeds, std::vector{g.loss})[0].at(0)));
}

/// Keras's and scikit-learn's models end in probabilities: -log of the target's is the loss.
TEST(AttachLoss, CrossEntropyOfASoftmaxIsThatOfItsLogits) {
  Graph g = logits_model();
  g.outputs = {g.add("softmax", {g.outputs[0]}, {{"axis", int64_t{2}}}, "p")};
  expect_mentions(attach_loss(g, LossKind::cross_entropy), {"the logits of the softmax"});
  check_graph(g);
  NamedTensors feeds = test::feeds_for(g);
  feeds[kTarget] = Tensor::from<int64_t>({2, 3}, {1, 0, 4, 0, 3, 2}, DType::i64);
  const std::vector<Tensor> got = evaluate_graph(g, feeds, std::vector{g.outputs[0], g.loss});
  double total = 0;
  for (int64_t row = 0; row < 6; ++row)
    total -= std::log(got[0].at(row * 5 + feeds[kTarget].int_at(row)));
  EXPECT_NEAR(got[1].at(0), total / 6, 1e-5);
  // Over another dim it makes no classes' probabilities.
  Graph other = logits_model();
  other.outputs = {other.add("softmax", {other.outputs[0]}, {{"axis", int64_t{1}}}, "p")};
  EXPECT_EQ(attach_loss(other, LossKind::cross_entropy).find("softmax"), std::string::npos);
}

TEST(AttachLoss, CrossEntropySaysWhereItTakesTheClassesOfImages) {
  Graph images = logits_model(false, {2, 4, 8, 8}), tokens = logits_model(),
        samples = logits_model(false, {2, 8});
  expect_mentions(attach_loss(images, LossKind::cross_entropy),
                  {"over the last dim of f32[2, 4, 8, 8]", "have forward() return the loss"});
  Graph named = logits_model();
  expect_mentions(attach_loss(named, LossKind::cross_entropy, "logits"), {"of 'logits' against"});
  for (Graph* other : {&tokens, &samples})
    EXPECT_EQ(attach_loss(*other, LossKind::cross_entropy).find("last dim"), std::string::npos);
}

TEST(AttachLoss, MeanSquaredErrorByHand) {
  Graph g = logits_model(false);
  attach_loss(g, LossKind::mse);
  check_graph(g);
  const NamedTensors feeds = test::feeds_for(g);
  const std::vector<Tensor> got = evaluate_graph(g, feeds, std::vector{g.outputs[0], g.loss});
  double total = 0;
  for (int64_t i = 0; i < 30; ++i) total += std::pow(got[0].at(i) - feeds.at(kTarget).at(i), 2);
  EXPECT_NEAR(got[1].at(0), total / 30, 1e-5);
}

TEST(AttachLoss, AssumesALanguageModelByItsTokens) {
  Graph g = logits_model();
  expect_mentions(attach_loss(g, {}), {"cross-entropy", "assumed"});
  EXPECT_EQ(g.type(g.find(kTarget)), (TensorType{DType::i64, {2, 3}}));
}

TEST(AttachLoss, TakesTheModelsOwn) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}}) {
    Build b(DType::f32);
    b.g.outputs = {b.reshape(b.sum(b.mul(b.in("x", {3}), b.param("w", {3})), {0}, false), shape)};
    EXPECT_EQ(attach_loss(b.g, {}), "");
    check_graph(b.g);
    EXPECT_TRUE(b.g.type(b.g.loss).shape.empty());
    EXPECT_EQ(b.g.find(kTarget), kNoValue);
  }
}

TEST(AttachLoss, Refusals) {
  Graph g = logits_model(false);
  expect_mentions(message_of([&] { attach_loss(g, {}); }),
                  {"f32[2, 3, 5]", "--loss cross-entropy", "mse"});
  EXPECT_EQ(message_of([&] { attach_loss(g, {}); }).find("m.onnx"), std::string::npos)
      << "who loads the model names the file";
  Build scalar(DType::f32);
  scalar.g.outputs = {scalar.sum(scalar.in("x", {3}), {0}, false)};
  expect_mentions(message_of([&] { attach_loss(scalar.g, LossKind::mse); }),
                  {"is a scalar", "leave --loss mse out"});
  Build vector(DType::f32);
  vector.g.outputs = {vector.in("x", {3})};
  expect_mentions(message_of([&] { attach_loss(vector.g, LossKind::cross_entropy); }),
                  {"f32[3]", "[..., classes]"});
  Build one(DType::f32);
  one.g.outputs = {one.in("x", {3, 1})};
  expect_mentions(message_of([&] { attach_loss(one.g, LossKind::cross_entropy); }),
                  {"f32[3, 1]", "one class", "--loss mse"});
  Build ints;
  ints.g.outputs = {ints.ints("x", {3, 4})};
  expect_mentions(message_of([&] { attach_loss(ints.g, LossKind::mse); }),
                  {"i64[3, 4]", "floating"});
  expect_mentions(message_of([&] { attach_loss(ints.g, LossKind::cross_entropy); }),
                  {"i64[3, 4]", "floating logits"});
  Graph empty;
  expect_mentions(message_of([&] { attach_loss(empty, {}); }), {"no output"});
}

TEST(FreezeUnreached, NamesWhatNothingTrains) {
  Build b(DType::f32);
  const ValueId w = b.param("w", {3}), through_index = b.param("ranked", {2, 3});
  b.param("unused", {3});
  const ValueId best =
      b.op("argmax", {through_index},
           {{"axis", int64_t{1}}, {"keepdims", int64_t{0}}, {"select_last_index", int64_t{0}}});
  const ValueId row = b.op("gather", {b.in("x", {4, 3}), best}, {{"axis", int64_t{0}}});
  b.g.loss = b.sum(b.mul(row, w), {0, 1}, false);
  b.g.outputs = {b.g.loss};
  EXPECT_EQ(freeze_unreached(b.g), (std::vector<std::string>{"ranked", "unused"}));
  EXPECT_TRUE(b.g.trainable.at(w));
  EXPECT_FALSE(b.g.trainable.at(b.g.find("unused")));
  EXPECT_TRUE(freeze_unreached(b.g).empty());
  OptimizerOptions options;
  attach_optimizer(b.g, options);  // and so it does not stumble over them
}

// ------------------------------------------------------------------ dropout and bf16

/// Embedding, layer norm, attention, gelu, head, all with dropout; tied when asked.
Graph small_gpt(double dropout) {
  Build b(DType::f32);
  const ValueId tokens = b.ints("tokens", {2, 4}), table = b.param("table", {5, 6});
  const ValueId step =
      dropout > 0 ? b.g.add_input(kRandomStep, {DType::i64, {}}, Role::scalar) : kNoValue;
  int64_t key = 0;
  auto drop = [&](ValueId x) {
    if (dropout == 0) return x;
    const Shape shape = b.g.type(x).shape;
    return b.op("dropout", {x, step},
                {{"p", dropout},
                 {"key", ++key},
                 {"seed", int64_t{2}},
                 {"global_shape", shape},
                 {"start", std::vector<int64_t>(shape.size(), 0)}});
  };
  ValueId x = drop(b.op("gather", {table, tokens}, {{"axis", int64_t{0}}}));
  x = b.g.add_node("layer_norm", {x, b.param("scale", {6}), b.param("shift", {6})},
                   {{"axis", int64_t{2}}, {"eps", 1e-5}})[0];
  auto heads = [&](const char* name) {
    const ValueId w =
        b.mul(b.param(name, {6, 6}), 0.3);  // scores so large that they saturate say little
    return b.transpose(b.reshape(b.matmul(x, w, "btc,cd->btd"), {2, 4, 2, 3}), {0, 2, 1, 3});
  };
  const ValueId scores = b.mul(b.matmul(heads("q"), heads("k"), "bhtd,bhsd->bhts"), 0.5);
  const ValueId y = b.matmul(drop(b.op("softmax", {scores}, {{"axis", int64_t{3}}})), heads("v"),
                             "bhts,bhsd->bhtd");
  x = b.add(b.reshape(b.transpose(y, {0, 2, 1, 3}), {2, 4, 6}), b.param("bias", {6}));
  x = b.op("gelu", {x}, {{"approximate", std::string("none")}});
  b.g.outputs = {b.matmul(drop(x), table, "btc,vc->btv")};
  return b.g;
}

TEST(WithoutDropout, IsTheModelWithoutIt) {
  Graph trained = small_gpt(0.4);
  EXPECT_EQ(recognise(trained).attention, 1);
  const Graph plain = evaluation_form(trained);
  check_graph(plain);
  EXPECT_EQ(count_op(plain, "dropout"), 0);
  EXPECT_EQ(find_op(plain, "attention")->attrs.f("dropout"), 0);
  expect_same_outputs(plain, small_gpt(0), 1e-5);
}

TEST(InBf16, KeepsWeightsLossAndReductionsInF32) {
  Graph g = small_gpt(0.2);
  recognise(g);
  attach_loss(g, {});
  g.outputs.clear();
  Graph half = in_bf16(g);
  attach_optimizer(half, {});
  fold_casts(half);
  merge_equal_nodes(half);
  check_graph(half);
  EXPECT_EQ(half.type(half.loss), (TensorType{DType::f32, {}}));
  for (ValueId id : half.with_role(Role::parameter)) EXPECT_EQ(half.type(id).dtype, DType::f32);
  for (ValueId id : half.with_role(Role::state)) EXPECT_EQ(half.type(id).dtype, DType::f32);
  int products = 0, in_f32 = 0;
  for (const Node& node : half.nodes()) {
    if (node.op == "matmul" || node.op == "attention" || node.op == "attention_grad" ||
        node.op == "gelu") {
      EXPECT_EQ(half.type(node.inputs[0]).dtype, DType::bf16) << node.name;
    }
    if (node.op == "reduce_sum") {
      EXPECT_EQ(half.type(node.outputs[0]).dtype, DType::f32) << node.name;
    }
    if (node.op == "adamw") {
      EXPECT_EQ(half.type(node.inputs[1]).dtype, DType::f32) << node.name;
    }
    if (node.op != "matmul") continue;
    ++products;
    in_f32 += half.type(node.outputs[0]).dtype == DType::f32;
  }
  // Query, key, value and head: each a product, and two more for its gradients, of which the
  // weight's is f32.
  EXPECT_EQ(products, 12);
  EXPECT_EQ(in_f32, 4);
}

TEST(InBf16, IsCloseToF32) {
  Graph g = small_gpt(0);
  recognise(g);
  attach_loss(g, {});
  const NamedTensors feeds = test::feeds_for(g);
  auto loss_and_gradient = [&](Graph graph) {
    std::vector<ValueId> wanted = differentiate(graph, graph.loss, std::vector{graph.find("q")});
    wanted.push_back(graph.loss);
    check_graph(graph);
    return evaluate_graph(graph, feeds, wanted);
  };
  const std::vector<Tensor> exact = loss_and_gradient(g), rough = loss_and_gradient(in_bf16(g));
  EXPECT_NEAR(rough[1].at(0), exact[1].at(0), 0.02 * exact[1].at(0));
  EXPECT_NE(rough[1].at(0), exact[1].at(0));
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < exact[0].count(); ++i) {
    difference += std::pow(exact[0].at(i) - rough[0].at(i), 2);
    norm += std::pow(exact[0].at(i), 2);
  }
  EXPECT_LE(std::sqrt(difference / norm), 0.05);
}

TEST(InBf16, ALossOfSquaresIsF32) {
  // Targets of 1000 + noise: in bf16, whose steps are 4 there, the noise would be gone.
  Build b(DType::f32);
  b.g.outputs = {
      b.add(b.matmul(b.in("x", {2, 3}), b.param("w", {3, 4}), "ij,jk->ik"), b.param("bias", {4}))};
  attach_loss(b.g, LossKind::mse);
  const Graph half = in_bf16(b.g);
  check_graph(half);
  const Node* difference = find_op(half, "sub");
  ASSERT_NE(difference, nullptr);
  for (ValueId id : difference->inputs) EXPECT_EQ(half.type(id).dtype, DType::f32);
  EXPECT_EQ(half.type(half.find(kTarget)).dtype, DType::f32);
  EXPECT_EQ(half.type(find_op(half, "matmul")->outputs[0]).dtype, DType::bf16);
}

TEST(FoldCasts, OnlyTheSoleUserOfAProduct) {
  Build b(DType::bf16);
  const ValueId x = b.in("x", {2, 3}), y = b.in("y", {3, 4});
  const Attrs to_f32 = {{"to", std::string("f32")}};
  const ValueId a = b.matmul(x, y, "ij,jk->ik"), c = b.matmul(x, y, "ij,jk->ki");
  b.g.outputs = {b.op("cast", {a}, to_f32), b.op("cast", {c}, to_f32), b.op("neg", {c})};
  fold_casts(b.g);
  check_graph(b.g);
  EXPECT_EQ(count_op(b.g, "cast"), 1);
  EXPECT_EQ(b.g.type(b.g.outputs[0]).dtype, DType::f32);
  EXPECT_EQ(b.g.node(b.g.value(b.g.outputs[0]).producer).op, "matmul");
}

TEST(Rebuild, KeepsEverythingThatAGraphHas) {
  Graph g = small_gpt(0.1);
  attach_loss(g, {});
  OptimizerOptions options;
  options.accumulate = 2;
  attach_optimizer(g, options);
  const Graph copy = rebuild(g, [](Rebuild& r, const Node& node) { r.copy(node); });
  check_graph(copy);
  EXPECT_EQ(to_string(copy), to_string(g));
  EXPECT_EQ(copy.updates.size(), g.updates.size());
  EXPECT_EQ(copy.zeroed_each_step.size(), g.zeroed_each_step.size());
  EXPECT_EQ(copy.micro_batches, 2);
  EXPECT_EQ(copy.metrics.size(), 2u);
  EXPECT_EQ(copy.trainable.size(), g.trainable.size());
}

}  // namespace
}  // namespace shardrun
