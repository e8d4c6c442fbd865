// Trainer: a program's own batches and loop, on ranks that are threads.
#include "shardrun/trainer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>

namespace shardrun::test {
namespace {

namespace fs = std::filesystem;

/// Images [8, 3, 8, 8] of 5 classes: running statistics, uneven over three ranks.
void write_images(const std::string& path) {
  WideResNetModel model;
  model.family = "cifar";
  model.layers = 10, model.width = 1, model.image = 8, model.classes = 5;
  write_wide_resnet(model, path);
}

struct ImageBatch {
  std::vector<float> images;
  std::vector<int64_t> labels;
  int64_t samples;

  ImageBatch(int64_t count, unsigned seed) : samples(count) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < samples * 3 * 8 * 8; ++i)
      images.push_back(static_cast<float>(random() % 1000) / 500 - 1);
    for (int64_t i = 0; i < samples; ++i) labels.push_back(static_cast<int64_t>(random() % 5));
  }
  ArrayView x() const { return {images, {samples, 3, 8, 8}}; }
  ArrayView y() const { return {labels, {samples}}; }
};

ModelOptions image_options(int micro_batches = 1) {
  ModelOptions options;
  options.batch = 8;
  options.loss = "cross-entropy";
  options.optimizer = "sgd";
  options.accumulate = micro_batches;
  options.keep_outputs = true;
  return options;
}

/// The names of the model's inputs: images, and labels of the loss.
struct Names {
  std::string x, y;
  explicit Names(const Trainer& trainer) {
    for (const auto& [name, info] : trainer.inputs()) (info.shape.size() == 4 ? x : y) = name;
  }
};

class TrainerTest : public testing::Test {
 protected:
  TrainerTest() {
    fs::remove_all(root_);
    fs::create_directories(root_);
    write_images(model_);
  }
  ~TrainerTest() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  /// What a Trainer needs, for as long as it lives.
  struct Job {
    World world;
    Model model;
    TrainingPlan plan;
    Trainer trainer;
    Names names;

    Job(const std::string& path, const ModelOptions& options, const std::string& mesh,
        const std::string& planner)
        : world(World::threads(mesh_ranks(mesh))),
          model(load_model(world, path, options)),
          plan(make_plan(world, model, request(mesh, planner))),
          trainer(world, model, plan),
          names(trainer) {}
    static PlanRequest request(const std::string& mesh, const std::string& planner) {
      PlanRequest out;
      out.mesh = mesh;
      out.planner = planner;
      return out;
    }

    Trainer::Batch batch(const ImageBatch& of) const {
      return {{names.x, of.x()}, {names.y, of.y()}};
    }
    double step(const ImageBatch& of) { return trainer.step(batch(of), 0.05).loss; }
    std::map<std::string, std::vector<std::byte>> state() {
      std::map<std::string, std::vector<std::byte>> out;
      for (const auto& [name, info] : trainer.parameters()) {
        const Array array = trainer.parameter(name);
        EXPECT_EQ(array.info, info) << name;
        out[name] = array.bytes;
      }
      return out;
    }
  };
  Job job(const std::string& mesh, const std::string& planner = "auto",
          int micro_batches = 1) const {
    return Job(model_, image_options(micro_batches), mesh, planner);
  }

  std::string root_ =
      (fs::temp_directory_path() / ("trainer_test_" + std::to_string(::getpid()))).string();
  std::string model_ = root_ + "/images.onnx";
};

/// The cross entropy of the logits that forward() gives, by hand.
double cross_entropy(const Array& logits, const std::vector<int64_t>& labels) {
  const std::span<const float> values = logits.floats();
  const auto classes = static_cast<size_t>(logits.info.shape.back());
  double sum = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    double exps = 0;
    for (size_t c = 0; c < classes; ++c) exps += std::exp(values[i * classes + c]);
    sum += std::log(exps) - values[i * classes + static_cast<size_t>(labels[i])];
  }
  return sum / static_cast<double>(labels.size());
}

TEST_F(TrainerTest, LossesAreOneRanks) {
  for (const int count : {1, 3}) {
    std::vector<double> alone;
    Job one = job("1", "auto", count);
    for (unsigned s = 0; s < 5; ++s) alone.push_back(one.step(ImageBatch(8 * count, s)));
    EXPECT_EQ(one.trainer.steps(), 5);
    for (const auto& [mesh, planner] :
         {std::pair("3", "dp"), std::pair("2x2", "auto"), std::pair("2", "fsdp")}) {
      SCOPED_TRACE(std::string(mesh) + " " + planner + " " + std::to_string(count));
      Job cut = job(mesh, planner, count);
      EXPECT_EQ(cut.trainer.micro_batches(), count);
      for (unsigned s = 0; s < 5; ++s)
        EXPECT_NEAR(cut.step(ImageBatch(8 * count, s)), alone[s], 2e-5 * alone[s]);
    }
  }
}

/// forward's logits have the loss that evaluate says, and are one rank's; targets may be left out.
TEST_F(TrainerTest, ForwardAndEvaluateAgree) {
  std::vector<float> alone;
  for (const char* mesh : {"1", "2x2"}) {
    Job at = job(mesh);
    at.step(ImageBatch(8, 1));
    const ImageBatch batch(8, 2);
    const double loss = at.trainer.evaluate(at.batch(batch)).val_loss;
    const std::map<std::string, Array> outputs = at.trainer.forward({{at.names.x, batch.x()}});
    ASSERT_EQ(outputs.size(), 1u);
    const Array& logits = outputs.begin()->second;
    EXPECT_EQ(logits.info.shape, (std::vector<int64_t>{8, 5}));
    EXPECT_NEAR(cross_entropy(logits, batch.labels), loss, 1e-5);
    if (alone.empty()) alone.assign(logits.floats().begin(), logits.floats().end());
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(logits.floats()[i], alone[i], 1e-4);
    // Neither changes anything.
    EXPECT_EQ(at.trainer.evaluate(at.batch(batch)).val_loss, loss);
  }
}

TEST_F(TrainerTest, GoesOnFromWhatItSaved) {
  Job first = job("2", "fsdp");
  for (unsigned s = 0; s < 3; ++s) first.step(ImageBatch(8, s));
  const std::string path = first.trainer.save(root_ + "/run");
  EXPECT_EQ(fs::path(path).filename(), "step-00000003");
  const auto state = first.state();
  const double next = first.step(ImageBatch(8, 3));

  Job same = job("2", "fsdp");
  same.step(ImageBatch(8, 9));  // forgotten
  same.trainer.resume(path);
  EXPECT_EQ(same.trainer.steps(), 3);
  EXPECT_EQ(same.state(), state);
  EXPECT_EQ(same.step(ImageBatch(8, 3)), next);

  Job other = job("3", "dp");
  other.trainer.resume(root_ + "/run");  // the folder's newest
  EXPECT_EQ(other.state(), state);
  EXPECT_NEAR(other.step(ImageBatch(8, 3)), next, 2e-5 * next);
}

/// What a Trainer has saved, train() goes on from, and the reverse.
TEST_F(TrainerTest, SharesCheckpointsWithTrain) {
  Job at = job("2");
  at.step(ImageBatch(8, 0));
  TrainOptions options;
  options.steps = 4;
  options.validation = 0;
  options.resume = at.trainer.save(root_ + "/run");
  options.checkpoint = root_ + "/run";
  World world = World::threads(1);
  const Model model = load_model(world, model_, image_options());
  PlanRequest request;
  request.checkpoints = true;
  const TrainingPlan plan = make_plan(world, model, request);
  const TrainReport report = train(world, model, plan, options);
  EXPECT_EQ(report.first_step, 2);
  at.trainer.resume(report.checkpoint);
  EXPECT_EQ(at.trainer.steps(), 4);
}

TEST_F(TrainerTest, ParametersAreReadAndSet) {
  Job at = job("2x2");
  const ImageBatch batch(8, 4);
  const double before = at.trainer.evaluate(at.batch(batch)).val_loss;
  const auto state = at.state();
  for (const auto& [name, info] : at.trainer.parameters()) {
    int64_t own = 0;
    for (const RegionOfArray& part : at.trainer.own_parameter(name)) {
      EXPECT_EQ(part.region.shape, part.values.info.shape);
      own += static_cast<int64_t>(part.values.bytes.size());
    }
    EXPECT_LE(own, static_cast<int64_t>(state.at(name).size())) << name;
    const std::vector<std::byte> zeros(state.at(name).size());
    at.trainer.set_parameter(name, {info, zeros.data()});
    EXPECT_EQ(at.trainer.parameter(name).bytes, zeros) << name;
  }
  EXPECT_NE(at.trainer.evaluate(at.batch(batch)).val_loss, before);
  for (const auto& [name, info] : at.trainer.parameters())
    at.trainer.set_parameter(name, {info, state.at(name).data()});
  EXPECT_EQ(at.trainer.evaluate(at.batch(batch)).val_loss, before);
}

TEST_F(TrainerTest, WrongArgumentsChangeNothing) {
  Job at = job("2"), untouched = job("2");
  const ImageBatch batch(8, 5);
  const auto refused = [&](const auto& call, const std::string& sentence) {
    try {
      call();
      ADD_FAILURE() << "was taken; wanted: " << sentence;
    } catch (const Failure& e) {
      EXPECT_EQ(e.kind(), Failure::Kind::call) << e.what();
      EXPECT_NE(std::string(e.what()).find(sentence), std::string::npos) << e.what();
    }
  };
  const auto step = [&](Trainer::Batch changed, double lr = 0.05) {
    return [&at, changed = std::move(changed), lr] { at.trainer.step(changed, lr); };
  };
  const auto& [x, y] = at.names;
  refused(step({{x, batch.x()}}), "the model's input '" + y + "'");
  refused(step({{x, batch.x()}, {y, batch.y()}, {"z", batch.y()}}), "has no input 'z'; it has '");
  refused(step({{x, batch.x()}, {y, ImageBatch(7, 1).y()}}), "is [7], wanted [8]");
  refused(step({{x, batch.x()}, {y, {std::span(batch.images).first(8), {8}}}}), "is of f32");
  ImageBatch wrong = batch;
  wrong.labels[3] = 5;
  refused(step({{x, wrong.x()}, {y, wrong.y()}}), "'" + y + "' [3] is 5, wanted 0 to 4");
  wrong = batch;
  wrong.images[70] = std::numeric_limits<float>::quiet_NaN();
  refused(step({{x, wrong.x()}, {y, wrong.y()}}), "'" + x + "' [0, 1, 0, 6] is not a number");
  refused(step(at.batch(batch), -1), "learning rate is -1");
  refused(step(at.batch(batch), NAN), "learning rate is nan");
  refused(step(at.batch(batch), 1e39), "learning rate is 1e+39, wanted 0 to 3.40282e+38");
  refused([&] { at.trainer.parameter("w"); }, "parameter 'w'");
  refused([&] { at.trainer.region("w"); }, "has no input 'w'");
  refused([&] { at.trainer.resume(root_ + "/none"); }, "no such folder");
  refused([&] { at.trainer.save(""); }, "names no folder");
  refused([&] { ArrayView(batch.labels, {9}); }, "has 9 elements, got 8");
  const auto& [name, info] = *at.trainer.parameters().begin();
  refused([&] { at.trainer.set_parameter(name, batch.y()); }, "parameter '" + name + "' is ");
  Array broken = at.trainer.parameter(name);
  ASSERT_EQ(broken.info.type, ElementType::f32);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(broken.bytes.data(), &nan, sizeof nan);
  refused([&] { at.trainer.set_parameter(name, broken.view()); }, "is not a number");
  at.trainer.save(root_ + "/run");
  refused([&] { at.trainer.save(root_ + "/run"); }, "is there already");
  EXPECT_EQ(at.trainer.steps(), 0);
  EXPECT_EQ(at.step(batch), untouched.step(batch));
}

TEST_F(TrainerTest, OutputsInBf16AreGivenAsF32) {
  ModelOptions options = image_options();
  const ImageBatch batch(8, 1);
  Job exact(model_, options, "2", "auto");
  options.dtype = "bf16";
  Job at(model_, options, "2", "auto");
  const Array wanted = exact.trainer.forward(exact.batch(batch)).begin()->second;
  const Array logits = at.trainer.forward(at.batch(batch)).begin()->second;
  ASSERT_EQ(logits.info, wanted.info);
  for (size_t i = 0; i < wanted.floats().size(); ++i)
    EXPECT_NEAR(logits.floats()[i], wanted.floats()[i], 0.05) << i;
}

TEST_F(TrainerTest, ForwardWantsTheOutputs) {
  ModelOptions options = image_options();
  options.keep_outputs = false;
  Job at(model_, options, "2", "auto");
  const ImageBatch batch(8, 1);
  EXPECT_THROW(at.trainer.forward(at.batch(batch)), Failure);
  EXPECT_GT(at.trainer.evaluate(at.batch(batch)).val_loss, 0);
}

/// A step that is not finite changes no parameter, and says what was not.
TEST_F(TrainerTest, AStepThatIsNotFinite) {
  ModelOptions options = image_options();
  options.clip = 1;
  Job at(model_, options, "2", "auto");
  ImageBatch batch(8, 1);
  batch.images[70] = std::numeric_limits<float>::infinity();
  try {
    at.step(batch);
    ADD_FAILURE() << "the loss is finite";
  } catch (const Failure& e) {
    EXPECT_EQ(e.kind(), Failure::Kind::run);
    EXPECT_NE(std::string(e.what()).find("step 1: the loss is"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace shardrun::test
