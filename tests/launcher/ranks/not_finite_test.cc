// Runs whose numbers stop being finite: the step ends the run, and the first value is named.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "models/onnx_writer.h"
#include "onnx-ml.pb.h"
#include "shardrun/shardrun.h"
#include "tests/support/npy.h"

namespace shardrun {
namespace {

template <class T>
void write_npy(const std::string& path, const std::vector<int64_t>& shape,
               const std::vector<T>& values) {
  std::ofstream(path, std::ios::binary) << test::npy(shape, values);
}

class NotFiniteRuns : public testing::Test {
 protected:
  NotFiniteRuns() { std::filesystem::create_directories(folder_); }
  ~NotFiniteRuns() override { std::filesystem::remove_all(folder_); }

  /// Trains on so many ranks, and wants it to end with a sentence that has all of `wanted`.
  void expect_ends(const std::string& mesh, const ModelOptions& model, const TrainOptions& train,
                   const std::vector<std::string>& wanted) {
    SCOPED_TRACE("mesh " + mesh);
    World world = World::threads(mesh_ranks(mesh));
    PlanRequest request;
    request.mesh = mesh;
    request.planner = "dp";
    TrainOptions options = train;
    int64_t last = 0;
    options.on_step = [&](const StepReport& s) { last = s.step; };
    try {
      const Model loaded = load_model(world, path_, model);
      shardrun::train(world, loaded, make_plan(world, loaded, request), options);
      ADD_FAILURE() << "the run went on to its end";
    } catch (const Failure& e) {
      EXPECT_TRUE(e.everywhere()) << e.what();
      for (const std::string& text : wanted)
        EXPECT_NE(std::string(e.what()).find(text), std::string::npos)
            << "wanted '" << text << "'\n"
            << e.what();
    }
    last_ = last;
  }

  /// y = exp(x w), [batch, 4] to [batch, 4]; trained on --loss mse.
  void write_exponential() {
    OnnxWriter w("exponential", {});
    w.input("x", 1, {"batch", "4"});
    w.output(w.node("Exp", {w.node("MatMul", {"x", w.filled("w", {4, 4}, 0.5)}, {}, "product")}, {},
                    "power"),
             1, {"batch", "4"});
    w.write(path_);
  }
  /// Logits of 5 classes.
  void write_classifier() {
    OnnxWriter w("classifier", {});
    w.input("x", 1, {"batch", "4"});
    w.output(w.node("MatMul", {"x", w.normal("w", {4, 5}, 0.5)}, {}, "logits"), 1, {"batch", "5"});
    w.write(path_);
  }
  ModelOptions loss(const std::string& name) const {
    ModelOptions options;
    options.batch = 8;
    options.loss = name;
    return options;
  }
  std::string data(const std::vector<float>& x, const std::vector<float>& y) const {
    write_npy<float>(folder_ + "/x.npy", {static_cast<int64_t>(x.size()) / 4, 4}, x);
    write_npy<float>(folder_ + "/y.npy", {static_cast<int64_t>(y.size()) / 4, 4}, y);
    return "npy:" + folder_ + "/x.npy," + folder_ + "/y.npy";
  }

  std::string folder_ = std::filesystem::temp_directory_path() /
                        ("shardrun_not_finite_" + std::to_string(::getpid()));
  std::string path_ = folder_ + "/model.onnx";
  int64_t last_ = 0;  // the last step that was reported
};

/// Named are the operation, its pass, the number of elements and the first one's place in the whole
/// value, on whichever rank it lies.
TEST_F(NotFiniteRuns, NameTheFirstValueOfTheForwardPass) {
  write_exponential();
  std::vector<float> x(8 * 4, 0.1f), y(8 * 4, 1.0f);
  x[5 * 4 + 1] = 400;  // exp(0.5 * 400) is beyond f32
  TrainOptions train;
  train.data = data(x, y);
  train.validation = 0;
  train.steps = 3;
  for (const std::string mesh : {"a=1", "a=2", "a=4"}) {
    expect_ends(mesh, loss("mse"), train,
                {"step 1: the loss is inf", "the first value that is not finite is 'power'",
                 "(exp in the forward pass)", "an infinity in 4 of ", "nothing was updated",
                 "look at the weights and the data"});
    EXPECT_EQ(last_, 0);
  }
}

TEST_F(NotFiniteRuns, NameTheInput) {
  write_exponential();
  std::vector<float> x(8 * 4, 0.1f), y(8 * 4, 1.0f);
  x[5 * 4 + 1] = NAN;
  TrainOptions train;
  train.data = data(x, y);
  train.validation = 0;
  for (const std::string mesh : {"a=1", "a=2"})
    expect_ends(mesh, loss("mse"), train,
                {"step 1: the loss is nan", "is input 'x': NaN in 1 of ",
                 "/x.npy, row 5); nothing was updated: look at the data"});
  std::swap(x[5 * 4 + 1], x[0]);
  x[0] = 0.1f, x[5 * 4 + 1] = 0.1f;
  y[3] = INFINITY;
  train.data = data(x, y);
  expect_ends("a=2", loss("mse"), train,
              {"is input 'target': an infinity in 1 of ", "/y.npy, row 0)"});
}

/// As where a mask picks nothing to take the mean of.
TEST_F(NotFiniteRuns, SayThatNothingWasDividedByNothing) {
  OnnxWriter w("quotient", {});
  w.input("x", 1, {"batch", "4"});
  const std::string ratio = w.node("Div", {"x", "x"}, {}, "ratio");
  w.output(w.node("MatMul", {ratio, w.normal("w", {4, 4}, 0.5)}, {}, "y"), 1, {"batch", "4"});
  w.write(path_);
  std::vector<float> x(8 * 4, 0.1f), y(8 * 4, 1.0f);
  x[5 * 4 + 1] = 0;
  TrainOptions train;
  train.data = data(x, y);
  train.validation = 0;
  expect_ends(
      "a=2", loss("mse"), train,
      {"(div in the forward pass): NaN in 1 of ", "; 0 / 0 is one, as in a mean of nothing"});
}

/// Steps that are left out update nothing, and those behind them go on; one too many ends the run.
TEST_F(NotFiniteRuns, StepsAreLeftOut) {
  write_exponential();
  std::vector<float> x(64 * 4, 0.1f), y(64 * 4, 1.0f);  // of 8 steps in an epoch
  x[5 * 4 + 1] = NAN;
  TrainOptions train;
  train.data = data(x, y);
  train.validation = 0;
  train.steps = 24;
  train.on_nan = "skip 2";
  for (const std::string mesh : {"a=1", "a=2"})
    expect_ends(mesh, loss("mse"), train, {"is input 'x': NaN in 1 of ", "look at the data"});
  EXPECT_GT(last_, 16) << "in the third epoch";
  train.on_nan = "skip 3";
  World world = World::threads(2);
  const Model model = load_model(world, path_, loss("mse"));
  std::vector<StepReport> steps;
  train.on_step = [&](const StepReport& step) { steps.push_back(step); };
  const TrainReport report = shardrun::train(world, model, make_plan(world, model, {}), train);
  EXPECT_EQ(report.skipped, 3);
  int skipped = 0;
  for (const StepReport& step : steps) {
    EXPECT_EQ(std::isnan(step.loss), !step.skipped.empty()) << step.step;
    if (step.skipped.empty()) continue;
    ++skipped;
    EXPECT_NE(step.skipped.find("the step is left out (" + std::to_string(skipped) + " of 3)"),
              std::string::npos)
        << step.skipped;
    EXPECT_NE(step.skipped.find("is input 'x': NaN"), std::string::npos) << step.skipped;
  }
  EXPECT_EQ(skipped, 3);
  EXPECT_LT(steps.back().loss, steps.front().loss);
}

TEST_F(NotFiniteRuns, WhatToDoIsChecked) {
  write_exponential();
  World world = World::threads(1);
  const Model model = load_model(world, path_, loss("mse"));
  for (const char* text : {"", "go", "skip", "skip ", "skip 0", "skip -1", "skip 3x", "skip 1e3"}) {
    TrainOptions train;
    train.on_nan = text;
    try {
      check_training(world, model, train);
      ADD_FAILURE() << text;
    } catch (const Failure& e) {
      EXPECT_NE(std::string(e.what()).find(std::string("--on-nan is '") + text + "', wanted stop"),
                std::string::npos)
          << e.what();
    }
  }
}

/// In the second micro-batch of four, and after some steps.
TEST_F(NotFiniteRuns, OfAccumulatedGradients) {
  write_exponential();
  TrainOptions train;
  std::vector<float> x(64 * 4, 0.1f), y(64 * 4, 1.0f);
  x[50 * 4] = 400;
  train.data = data(x, y);
  train.validation = 0;
  train.steps = 2;
  ModelOptions model = loss("mse");
  model.accumulate = 4;
  for (const double clip : {0.0, 1.0}) {
    model.clip = clip;
    for (const std::string mesh : {"a=1", "a=2"})
      expect_ends(mesh, model, train,
                  {"the loss is inf", "'power' (exp in the forward pass)", "nothing was updated"});
  }
}

/// When the step is made again, state that forward() changes has been changed once: what it took in
/// is named, not the state, which the first micro-batch reads already.
TEST_F(NotFiniteRuns, NameWhatStateTookIn) {
  OnnxWriter w("average", {});
  w.input("x", 1, {"batch", "4"});
  const std::string product = w.node("MatMul", {"x", w.filled("w", {4, 4}, 0.5)}, {}, "product");
  const std::string sample =
      w.node("ReduceMean", {product, w.ints({0})}, {{"keepdims", int64_t{0}}}, "sample");
  const std::string kept = w.node("Mul", {w.buffer("average", {4}, 0), w.scalar(0.9)}, {}, "kept");
  const std::string next = w.node("Add", {kept, sample}, {}, "next");
  w.output(w.node("Sub", {product, next}, {}, "y"), 1, {"batch", "4"});
  w.write(path_);
  ::onnx::ModelProto file;
  std::ifstream in(path_, std::ios::binary);
  ASSERT_TRUE(file.ParseFromIstream(&in));
  auto* entry = file.mutable_graph()->add_metadata_props();
  entry->set_key("pkg.torch.export.ExportedProgram.graph_signature");
  entry->set_value(
      "# inputs\np_w: PARAMETER target='w'\nb_average: BUFFER target='average' persistent=True\n"
      "x: USER_INPUT\n\n# outputs\nnext: BUFFER_MUTATION target='average'\ny: USER_OUTPUT\n");
  std::ofstream(path_, std::ios::binary) << file.SerializeAsString();
  std::vector<float> x(32 * 4, 0.1f), y(32 * 4, 1.0f);
  TrainOptions train;
  train.validation = 0;
  train.steps = 4;
  ModelOptions model = loss("mse");
  model.accumulate = 4;
  for (const std::string mesh : {"a=1", "a=2"}) {
    x[16 * 4] = NAN;
    train.data = data(x, y);
    expect_ends(mesh, model, train, {"is input 'x': NaN in 1 of ", " row 16)", "look at the data"});
  }
}

/// The loss is finite: sqrt(0) has no gradient.
TEST_F(NotFiniteRuns, NameTheFirstValueOfTheBackwardPass) {
  OnnxWriter w("roots", {});
  w.input("x", 1, {"batch", "4"});
  const std::string product = w.node("MatMul", {"x", w.filled("w", {4, 4}, 0.5)}, {}, "product");
  const std::string root =
      w.node("Sqrt", {w.node("Mul", {product, product}, {}, "square")}, {}, "root");
  w.output(w.node("MatMul", {root, w.filled("v", {4, 4}, 0.5)}, {}, "y"), 1, {"batch", "4"});
  w.write(path_);
  std::vector<float> x(8 * 4, 0.1f), y(8 * 4, 1.0f);
  for (int i = 0; i < 4; ++i) x[4 * 3 + i] = 0;
  TrainOptions train;
  train.data = data(x, y);
  train.validation = 0;
  ModelOptions model = loss("mse");
  for (const std::string mesh : {"a=1", "a=2"}) {
    for (const double clip : {0.0, 1.0}) {
      for (const int64_t accumulate : {1, 2}) {
        model.clip = clip;
        model.accumulate = accumulate;
        expect_ends(mesh, model, train,
                    {"step 1: the loss is ", "the gradients' norm nan", "in the backward pass",
                     "nothing was updated"});
      }
    }
  }
}

/// What training does not see.
TEST_F(NotFiniteRuns, OfAValidation) {
  write_exponential();
  std::vector<float> x(40 * 4, 0.1f), y(40 * 4, 1.0f);
  x[38 * 4] = 400;
  TrainOptions train;
  train.data = data(x, y);
  train.validation = 0.4;
  train.steps = 4;
  train.eval_every = 2;
  for (const std::string mesh : {"a=1", "a=2"}) {
    expect_ends(
        mesh, loss("mse"), train,
        {"step 2: validation: the loss of batch 2 of 2 is inf", "(exp in the forward pass)"});
    EXPECT_EQ(last_, 2);
  }
}

TEST_F(NotFiniteRuns, LabelsThatAreAllIgnored) {
  write_classifier();
  write_npy<float>(folder_ + "/x.npy", {40, 4}, std::vector<float>(160, 0.1f));
  std::vector<int64_t> labels(40, -100);
  TrainOptions train;
  train.data = "npy:" + folder_ + "/x.npy," + folder_ + "/labels.npy";
  train.steps = 3;
  write_npy<int64_t>(folder_ + "/labels.npy", {40}, labels);
  for (const std::string mesh : {"a=1", "a=2"})
    expect_ends(mesh, loss("cross-entropy"), train,
                {"step 1: the loss is nan", "none of the labels counts"});
  // Of the validation alone: the last tenth.
  for (int i = 0; i < 36; ++i) labels[static_cast<size_t>(i)] = i % 5;
  write_npy<int64_t>(folder_ + "/labels.npy", {40}, labels);
  for (const std::string mesh : {"a=1", "a=2"})
    expect_ends(mesh, loss("cross-entropy"), train, {"validation", "none of the labels counts"});
}

/// A batch of the validation without labels does not spoil it.
TEST_F(NotFiniteRuns, BatchesWithoutLabelsCountForNothing) {
  write_classifier();
  write_npy<float>(folder_ + "/x.npy", {40, 4}, std::vector<float>(160, 0.1f));
  std::vector<int64_t> labels(40);
  for (size_t i = 0; i < 40; ++i) labels[i] = i >= 32 ? -100 : static_cast<int64_t>(i % 5);
  write_npy<int64_t>(folder_ + "/labels.npy", {40}, labels);
  TrainOptions train;
  train.data = "npy:" + folder_ + "/x.npy," + folder_ + "/labels.npy";
  train.validation = 0.5;  // 20 samples: 12 with labels, then 8 without
  train.steps = 2;
  World world = World::threads(2);
  const Model model = load_model(world, path_, loss("cross-entropy"));
  const TrainReport report = shardrun::train(world, model, make_plan(world, model, {}), train);
  ASSERT_EQ(report.evals.size(), 1u);
  EXPECT_GT(report.evals[0].val_loss, 0.5);
  EXPECT_TRUE(std::isfinite(report.evals[0].val_loss));
}

TEST_F(NotFiniteRuns, InputsOfNothing) {
  OnnxWriter w("nothing", {});
  w.input("x", 1, {"batch", "0"});
  w.output(w.node("MatMul", {"x", w.filled("w", {0, 4}, 0.5)}, {}, "y"), 1, {"batch", "4"});
  w.write(path_);
  World world = World::threads(1);
  try {
    load_model(world, path_, loss("mse"));
    ADD_FAILURE() << "was loaded";
  } catch (const Failure& e) {
    EXPECT_EQ(e.kind(), Failure::Kind::call);
    EXPECT_NE(std::string(e.what()).find("input 'x' is f32[8, 0]: a dim of 0"), std::string::npos)
        << e.what();
  }
}

/// It is noted once, and goes on.
TEST_F(NotFiniteRuns, DivergenceIsNoted) {
  OnnxWriter w("linear", {});
  w.input("x", 1, {"batch", "4"});
  w.output(w.node("MatMul", {"x", w.filled("w", {4, 4}, 0.5)}, {}, "product"), 1, {"batch", "4"});
  w.write(path_);
  TrainOptions train;
  train.data = data(std::vector<float>(64 * 4, 0.1f), std::vector<float>(64 * 4, 3.0f));
  train.validation = 0;
  train.steps = 8;
  train.lr = 150;  // three times what makes the differences nought in a step
  std::vector<std::string> notes;
  train.on_note = [&](const std::string& note) { notes.push_back(note); };
  World world = World::threads(2);
  ModelOptions options = loss("mse");
  options.optimizer = "sgd";
  options.momentum = 0;
  options.clip = 0;
  const Model model = load_model(world, path_, options);
  PlanRequest request;
  request.planner = "dp";
  const TrainReport report = shardrun::train(world, model, make_plan(world, model, request), train);
  EXPECT_EQ(report.losses.size(), 8u);
  ASSERT_GT(report.losses.back(), 10 * report.losses.front()) << "it does not diverge";
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("the run diverges"), std::string::npos) << notes[0];
}

}  // namespace
}  // namespace shardrun
