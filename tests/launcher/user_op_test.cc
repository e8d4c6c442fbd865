// Ops of a user's own, through the public header: imported, found out, cut, planned and trained.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <string>

#include "shardrun/shardrun.h"
#include "tests/support/onnx_bytes.h"
#include "tests/support/user_ops.h"

namespace shardrun {
namespace {

using test::OnnxBytes;

class UserOps : public testing::Test {
 protected:
  UserOps() {
    static const bool once = [] {
      for (const UserOp& op : test::user_ops()) register_op(op);
      return true;
    }();
    EXPECT_TRUE(once);
    path_ = (std::filesystem::temp_directory_path() /
             ("user_op_test_" + std::to_string(::getpid()) + ".onnx"))
                .string();
  }
  ~UserOps() override { std::filesystem::remove(path_); }

  /// x [batch, 12] -> MatMul -> op -> MatMul -> y [batch, 4], or what the op leaves of the 16.
  void write_mlp(const std::string& op, const std::map<std::string, OnnxBytes::Attribute>& attrs,
                 int64_t left = 16) {
    OnnxBytes m;
    m.input("x", {0, 12});
    m.weight("w1", {12, 16}, 0.4);
    m.weight("w2", {left, 4}, 0.4);
    m.node("MatMul", {"x", "w1"}, {"h"});
    m.node(op, {"h"}, {"g"}, attrs);
    m.node("MatMul", {"g", "w2"}, {"y"});
    m.output("y", {0, 4});
    m.write(path_);
  }

  ModelOptions options(const std::string& dtype = "f32") const {
    ModelOptions out;
    out.batch = 8;
    out.dtype = dtype;
    out.loss = "mse";
    return out;
  }

  struct Run {
    std::vector<double> losses;
    std::string plan;
    bool exact = false;  // allocated as predicted
  };
  Run train_on(int ranks, const std::string& mesh, const std::string& planner,
               const ModelOptions& options) {
    World world = World::threads(ranks);
    const Model model = load_model(world, path_, options);
    PlanRequest request;
    request.mesh = mesh;
    request.planner = planner;
    const TrainingPlan plan = make_plan(world, model, request);
    TrainOptions train_options;
    train_options.steps = 6;
    train_options.lr = 1e-2;
    const TrainReport report = train(world, model, plan, train_options);
    return {report.losses, plan.json(), report.allocated_bytes == report.predicted_bytes};
  }

  /// Trains on one rank and on several, and compares the losses.
  void expect_equal_on_every_mesh(const ModelOptions& options, double tolerance) {
    const Run one = train_on(1, "auto", "auto", options);
    ASSERT_EQ(one.losses.size(), 6u);
    EXPECT_NE(one.losses.back(), one.losses.front());
    struct Case {
      int ranks;
      const char *mesh, *planner;
    };
    for (const Case& c : {Case{2, "2", "dp"}, Case{2, "2", "auto"}, Case{3, "3", "dp"},
                          Case{4, "2x2", "auto"}, Case{4, "4", "dp"}}) {
      const Run many = train_on(c.ranks, c.mesh, c.planner, options);
      EXPECT_TRUE(many.exact) << c.mesh;
      for (size_t s = 0; s < one.losses.size(); ++s) {
        EXPECT_NEAR(many.losses[s], one.losses[s], tolerance * std::abs(one.losses[s]))
            << "step " << s << " on mesh " << c.mesh << " by " << c.planner;
      }
    }
  }

  /// The sentence with which load_model refuses the file; "" if it does not.
  std::string refusal(const ModelOptions& options) {
    World world = World::threads(1);
    try {
      load_model(world, path_, options);
      return "";
    } catch (const Failure& e) {
      EXPECT_EQ(e.kind(), Failure::Kind::call);
      return e.what();
    }
  }

  std::string path_;
};

/// The node's Shardings in the plan's JSON, from its name to the end of its results.
std::string node_in(const std::string& json, const std::string& name) {
  const size_t at = json.find("\"" + name + "\": {\n");
  EXPECT_NE(at, std::string::npos) << name << " in\n" << json;
  return json.substr(at, json.find('}', json.find("\"out\"", at)) - at);
}

bool has(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::string joined(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& item : list) out += item + "\n";
  return out;
}

TEST_F(UserOps, AnElementWiseOpTrainsOnEveryMesh) {
  write_mlp("acme::Swish", {{"beta", 1.5}});
  expect_equal_on_every_mesh(options(), 1e-5);
  ModelOptions large = options();  // so that cutting pays
  large.batch = 4096;
  const Run dp = train_on(4, "4", "dp", large);
  EXPECT_NE(node_in(dp.plan, "g.node").find("[{a}, -]"), std::string::npos)
      << node_in(dp.plan, "g.node");
  EXPECT_NE(node_in(dp.plan, "acme::Swish/gradient").find("[{a}, -]"), std::string::npos)
      << node_in(dp.plan, "acme::Swish/gradient");
}

TEST_F(UserOps, ALayerWithWeightsTrainsOnEveryMesh) {
  OnnxBytes m;
  m.input("x", {0, 12});
  m.weight("w1", {12, 16}, 0.4);
  m.weight("b1", {16}, 0.1);
  m.weight("w2", {16, 4}, 0.4);
  m.weight("b2", {4}, 0.1);
  m.node("acme::Affine", {"x", "w1", "b1"}, {"h"});
  m.node("acme::Swish", {"h"}, {"g"});
  m.node("acme::Affine", {"g", "w2", "b2"}, {"y"});
  m.output("y", {0, 4});
  m.write(path_);
  expect_equal_on_every_mesh(options(), 1e-5);
}

TEST_F(UserOps, ATableThatIsLookedUpTrainsOnEveryMesh) {
  OnnxBytes m;
  m.input("tokens", {0, 6}, OnnxBytes::kInt64);
  m.weight("table", {30, 16}, 0.4);
  m.weight("w", {16, 4}, 0.4);
  m.node("acme::Lookup", {"table", "tokens"}, {"h"});
  m.node("MatMul", {"h", "w"}, {"y"});
  m.output("y", {0, 6, 4});
  m.write(path_);
  expect_equal_on_every_mesh(options(), 1e-5);
}

TEST_F(UserOps, ReducingClampingAndSwappingOpsTrainOnEveryMesh) {
  write_mlp("acme::RowMax", {}, 1);
  expect_equal_on_every_mesh(options(), 1e-5);
  write_mlp("acme::Halves", {});
  expect_equal_on_every_mesh(options(), 1e-5);
  write_mlp("acme::Clamp10", {});
  expect_equal_on_every_mesh(options(), 1e-5);
}

TEST_F(UserOps, TrainsInBf16) {
  for (const char* op : {"acme::Swish", "acme::Halves"}) {  // in float, and in double only
    write_mlp(op, {});
    const Run f32 = train_on(1, "auto", "auto", options());
    const Run one = train_on(1, "auto", "auto", options("bf16"));
    const Run two = train_on(2, "2", "dp", options("bf16"));
    EXPECT_TRUE(one.exact && two.exact) << op;
    EXPECT_NE(one.losses, f32.losses) << op << " did not run in bf16";
    for (size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(one.losses[s], f32.losses[s], 2e-2 * f32.losses[s]) << op;
      EXPECT_NEAR(two.losses[s], one.losses[s], 1e-2 * one.losses[s]) << op;
    }
  }
}

TEST_F(UserOps, VerifyAndExplainTakeThem) {
  write_mlp("acme::Swish", {{"beta", 1.5}});
  World world = World::threads(4);
  const Model model = load_model(world, path_, options());
  PlanRequest request;
  request.mesh = "2x2";
  const TrainingPlan plan = make_plan(world, model, request);
  const VerifyReport report = verify(world, model, plan, {});
  EXPECT_TRUE(report.verified) << report.mismatch;
  EXPECT_NE(explain_plan(model, plan).find("acme::Swish"), std::string::npos);
}

// ---- what is found of them

TEST_F(UserOps, RulesAreThoseOfTheMathematics) {
  const TensorInfo x{ElementType::f32, {8, 12}}, w{ElementType::f32, {12, 20}},
      b{ElementType::f32, {20}}, rows{ElementType::i64, {8, 12}};
  const OpReport swish = examine_op("acme::Swish", {x}, {{{"beta", 2.0}}});
  EXPECT_EQ(swish.rules, (std::vector<std::string>{"[S0] -> [S0]", "[S1] -> [S1]"}));
  EXPECT_TRUE(has(swish.gradient_rules, "[S0, S0, S0] -> [S0]")) << joined(swish.gradient_rules);
  EXPECT_TRUE(has(swish.gradient_rules, "[-, -, P(sum)] -> [P(sum)]"))
      << joined(swish.gradient_rules);
  EXPECT_LT(swish.gradient_error, 1e-6);

  const OpReport affine = examine_op("acme::Affine", {x, w, b});
  for (const char* rule : {"[S0, -, -] -> [S0]", "[-, S1, S0] -> [S1]"})
    EXPECT_TRUE(has(affine.rules, rule)) << rule << " in\n" << joined(affine.rules);
  // Cut along k, every piece would add the bias.
  EXPECT_FALSE(has(affine.rules, "[S1, S0, -] -> [P(sum)]")) << joined(affine.rules);
  EXPECT_TRUE(has(affine.gradient_rules, "[S0, -, -, S0, S0] -> [S0, P(sum), P(sum)]"))
      << joined(affine.gradient_rules);
  EXPECT_LT(affine.gradient_error, 1e-6);

  const OpReport row_max = examine_op("acme::RowMax", {x});
  EXPECT_TRUE(has(row_max.rules, "[S1] -> [P(max)]")) << joined(row_max.rules);
  // Of random numbers none would equal the largest, and a gradient of nothing but zeros fits any
  // rule. It is tried on results that belong to its operands.
  EXPECT_TRUE(has(row_max.gradient_rules, "[S0, S0, S0] -> [S0]"));
  for (const std::string& rule : row_max.gradient_rules) {
    EXPECT_EQ(rule.find("[P(sum), -, -]"), std::string::npos) << rule;
    EXPECT_EQ(rule.find("[-, P(sum), -]"), std::string::npos) << rule;
  }
  EXPECT_LT(row_max.gradient_error, 1e-6);

  const OpReport lookup = examine_op("acme::Lookup", {w, rows});
  EXPECT_TRUE(has(lookup.rules, "[-, S0] -> [S0]")) << joined(lookup.rules);
  EXPECT_TRUE(has(lookup.rules, "[S1, -] -> [S2]")) << joined(lookup.rules);
  EXPECT_LT(lookup.gradient_error, 1e-6);
}

/// On numbers below 10 it is linear, and a sum of summands would pass through it.
TEST_F(UserOps, AThresholdThatNoAttributeNamesIsSeen) {
  const OpReport report = examine_op("acme::Clamp10", {{ElementType::f32, {8, 12}}});
  EXPECT_TRUE(has(report.rules, "[S0] -> [S0]"));
  EXPECT_FALSE(has(report.rules, "[P(sum)] -> [P(sum)]")) << joined(report.rules);
}

/// The usual small sizes are odd and would leave nothing to try.
TEST_F(UserOps, AShapeRuleThatWantsAnEvenSizeIsCutElsewhere) {
  const OpReport report = examine_op("acme::Halves", {{ElementType::f32, {500, 3000}}});
  EXPECT_TRUE(has(report.rules, "[S0] -> [S0]")) << joined(report.rules);
  EXPECT_FALSE(has(report.rules, "[S1] -> [S1]")) << joined(report.rules);
}

// ---- gradients that are not there

TEST_F(UserOps, WithoutAGradientOnThePathASentenceSaysSo) {
  write_mlp("acme::Sign", {});
  const std::string sentence = refusal(options());
  for (const char* part : {"acme::Sign 'g.node'", "has no gradient", "on 'w1'", "UserOp::gradient"})
    EXPECT_NE(sentence.find(part), std::string::npos) << part << " in: " << sentence;
  ModelOptions frozen = options();
  frozen.freeze = {"w1"};  // then nothing trained lies before it
  EXPECT_EQ(refusal(frozen), "");
  expect_equal_on_every_mesh(frozen, 1e-5);
}

TEST_F(UserOps, WithoutAGradientOffThePathAllIsWell) {
  OnnxBytes m;
  m.input("x", {0, 12});
  m.weight("w1", {12, 4}, 0.4);
  m.node("acme::Sign", {"x"}, {"s"});
  m.node("MatMul", {"s", "w1"}, {"y"});
  m.output("y", {0, 4});
  m.write(path_);
  expect_equal_on_every_mesh(options(), 1e-5);
}

// ---- what is refused

std::string refused(const UserOp& op) {
  try {
    register_op(op);
    return "";
  } catch (const Failure& e) {
    EXPECT_EQ(e.kind(), Failure::Kind::call);
    return e.what();
  }
}

UserOp good(const std::string& name) {
  UserOp op;
  op.name = name;
  op.shape = [](const Attributes&, const auto& in) { return std::vector{in.at(0)}; };
  op.kernel = [](const auto& call) {
    std::copy(call.in(0).begin(), call.in(0).end(), call.out(0).begin());
  };
  return op;
}

TEST_F(UserOps, WhatIsIncompleteOrTakenIsNamed) {
  const auto expect = [](const UserOp& op, const std::vector<std::string>& parts) {
    const std::string sentence = refused(op);
    for (const std::string& part : parts)
      EXPECT_NE(sentence.find(part), std::string::npos) << part << " in: " << sentence;
  };
  expect(good(""), {"field 'name'", "domain::op_type"});
  expect(good("Plain"), {"'Plain'", "field 'name'"});
  expect(good("a::b::c"), {"'a::b::c'"});
  expect(good("acme::with space"), {"field 'name'"});
  expect(good("ai.onnx::MatMul"), {"'ai.onnx::MatMul'", "shardrun has"});
  expect(good("acme::Swish"), {"'acme::Swish'", "registered already"});
  UserOp op = good("acme::Incomplete");
  op.shape = nullptr;
  expect(op, {"'acme::Incomplete'", "field 'shape'"});
  op = good("acme::Incomplete");
  op.kernel = OpKernel();
  expect(op, {"field 'kernel'"});
  op = good("acme::Incomplete");
  op.gradient = op.kernel;
  op.gradient_op = "acme::Swish";
  expect(op, {"'gradient'", "'gradient_op'"});
  EXPECT_EQ(refused(good("acme::Incomplete")), "");  // nothing of it stayed behind
}

TEST_F(UserOps, AnUnknownOpIsNamedAndWorksOnceRegistered) {
  write_mlp("acme::Late", {});
  const std::string sentence = refusal(options());
  for (const char* part : {"acme::Late", "g.node", "register_op"})
    EXPECT_NE(sentence.find(part), std::string::npos) << part << " in: " << sentence;
  UserOp late = good("acme::Late");
  late.gradient = [](const auto& call) {
    std::copy(call.in(2).begin(), call.in(2).end(), call.out(0).begin());
  };
  EXPECT_EQ(refused(late), "");
  EXPECT_EQ(refusal(options()), "");
}

/// Each kernel does one thing that no kernel may.
TEST_F(UserOps, KernelsThatAreNoFunctionsAreRefused) {
  static std::atomic<int> calls{0};
  struct Case {
    const char* name;
    OpKernel kernel;
    const char* part;
  };
  const std::vector<Case> cases = {
      {"bad::Random",
       [](const auto& c) {
         std::fill(c.out(0).begin(), c.out(0).end(), static_cast<float>(++calls));
       },
       "different results on the same operands"},
      {"bad::Adding",
       [](const auto& c) {
         for (size_t i = 0; i < c.in(0).size(); ++i) c.out(0)[i] += c.in(0)[i];
       },
       "different results on the same operands"},
      {"bad::Lazy",
       [](const auto& c) { std::copy(c.in(0).begin(), c.in(0).end() - 1, c.out(0).begin()); },
       "does not write element"},
      {"bad::Long",
       [](const auto& c) {
         std::copy(c.in(0).begin(), c.in(0).end(), c.out(0).data() + 1);
         c.out(0)[0] = 1;
       },
       "writes outside result 0"},
      {"bad::Greedy",
       [](const auto& c) {
         using T = typename std::decay_t<decltype(c)>::Element;
         const_cast<T&>(c.in(0)[0]) = 5;
         std::copy(c.in(0).begin(), c.in(0).end(), c.out(0).begin());
       },
       "changes operand 0"},
  };
  for (const Case& c : cases) {
    UserOp op = good(c.name);
    op.kernel = c.kernel;
    op.gradient = [](const auto& call) {
      std::copy(call.in(2).begin(), call.in(2).end(), call.out(0).begin());
    };
    ASSERT_EQ(refused(op), "");
    write_mlp(c.name, {});
    const std::string sentence = refusal(options());
    for (const char* part : {c.name, "g.node", c.part})
      EXPECT_NE(sentence.find(part), std::string::npos) << part << " in: " << sentence;
    EXPECT_THROW(examine_op(c.name, {{ElementType::f32, {4, 4}}}), Failure) << c.name;
  }
}

TEST_F(UserOps, AShapeRuleThatLiesIsRefused) {
  UserOp op = good("bad::Shape");
  op.shape = [](const Attributes&, const auto& in) {
    auto out = std::vector{in.at(0)};
    out[0].shape[0] = -1;
    return out;
  };
  ASSERT_EQ(refused(op), "");
  write_mlp("bad::Shape", {});
  EXPECT_NE(refusal(options()).find("dims are 0 or more"), std::string::npos) << refusal(options());
  op = good("bad::Nothing");
  op.shape = [](const Attributes&, const auto&) { return std::vector<TensorInfo>(); };
  ASSERT_EQ(refused(op), "");
  write_mlp("bad::Nothing", {});
  EXPECT_NE(refusal(options()).find("gives no result"), std::string::npos) << refusal(options());
  // The kernel copies 16 numbers a row into a result of 8.
  op = good("bad::Small");
  op.shape = [](const Attributes&, const auto& in) {
    auto out = std::vector{in.at(0)};
    out[0].shape.back() = out[0].shape.back() / 2;
    return out;
  };
  op.gradient = op.kernel;
  ASSERT_EQ(refused(op), "");
  write_mlp("bad::Small", {}, 8);
  EXPECT_NE(refusal(options()).find("writes outside result 0"), std::string::npos)
      << refusal(options());
}

/// What a shape rule says is behind the node's name; what a kernel says while training too.
TEST_F(UserOps, WhatUsersCodeThrowsIsReportedWithTheNode) {
  write_mlp("acme::Halves", {});
  {
    OnnxBytes m;
    m.input("x", {0, 5});
    m.weight("w", {5, 4}, 0.4);
    m.node("acme::Halves", {"x"}, {"g"});
    m.node("MatMul", {"g", "w"}, {"y"});
    m.output("y", {0, 4});
    m.write(path_);
  }
  const std::string shape = refusal(options());
  for (const char* part : {"g.node", "acme::Halves", "wants an even last dim"})
    EXPECT_NE(shape.find(part), std::string::npos) << part << " in: " << shape;

  static std::atomic<bool> armed{false};
  UserOp op = good("bad::Fuse");
  op.kernel = [](const auto& call) {
    if (armed) throw std::runtime_error("the fuse has blown");
    std::copy(call.in(0).begin(), call.in(0).end(), call.out(0).begin());
  };
  op.gradient = [](const auto& call) {
    std::copy(call.in(2).begin(), call.in(2).end(), call.out(0).begin());
  };
  ASSERT_EQ(refused(op), "");
  write_mlp("bad::Fuse", {});
  World world = World::threads(2);
  const Model model = load_model(world, path_, options());
  const TrainingPlan plan = make_plan(world, model, {});
  TrainOptions train_options;
  train_options.on_step = [](const StepReport& report) { armed = report.step == 2; };
  try {
    train(world, model, plan, train_options);
    FAIL() << "training went on";
  } catch (const Failure& e) {
    EXPECT_EQ(e.kind(), Failure::Kind::run);
    for (const char* part : {"g.node", "bad::Fuse", "the fuse has blown"})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << part << " in: " << e.what();
  }
}

TEST_F(UserOps, AttributesAreChecked) {
  UserOp op = good("acme::Needs");
  op.shape = [](const Attributes& attributes, const auto& in) {
    attributes.integers("sizes");
    return std::vector{in.at(0)};
  };
  ASSERT_EQ(refused(op), "");
  write_mlp("acme::Needs", {});
  EXPECT_NE(refusal(options()).find("attribute 'sizes' is missing"), std::string::npos);
  write_mlp("acme::Needs", {{"sizes", int64_t{3}}});
  EXPECT_NE(refusal(options()).find("attribute 'sizes' is not a list of whole numbers"),
            std::string::npos);
  write_mlp("acme::Needs", {{"sizes", std::vector<int64_t>{1, 2}}});
  EXPECT_NE(refusal(options()).find("has no gradient"), std::string::npos);
}

TEST_F(UserOps, AGradientOpThatIsNotThereIsNamed) {
  UserOp op = good("acme::Half");
  op.gradient_op = "acme::OtherHalf";
  ASSERT_EQ(refused(op), "");
  write_mlp("acme::Half", {});
  EXPECT_NE(refusal(options()).find("'acme::OtherHalf' is not registered"), std::string::npos)
      << refusal(options());
}

}  // namespace
}  // namespace shardrun
