// The public header as a program uses it: what is wrong is thrown as a sentence, and Worlds do not
// disturb each other.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <locale>
#include <thread>

#include "shardrun/shardrun.h"
#include "tests/graph/onnx/build.h"

namespace shardrun {
namespace {

class Api : public testing::Test {
 protected:
  Api() {
    std::filesystem::create_directories(folder_);
    GptModel gpt;
    gpt.layers = 2;
    gpt.hidden = 16;
    gpt.heads = 2;
    gpt.vocab = 40;
    gpt.context = 8;
    write_gpt(gpt, two_);
    gpt.layers = 1;
    write_gpt(gpt, one_);
  }
  ~Api() override { std::filesystem::remove_all(folder_); }

  static Model load(World& world, const std::string& path) {
    ModelOptions options;
    options.batch = 4;
    return load_model(world, path, options);
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void refused(const std::function<void()>& f, const std::string& wanted) {
    try {
      f();
      ADD_FAILURE() << "nothing was thrown, wanted: " << wanted;
    } catch (const Failure& e) {
      EXPECT_EQ(e.kind(), Failure::Kind::call) << e.what();
      EXPECT_NE(std::string(e.what()).find(wanted), std::string::npos)
          << e.what() << "\nwanted: " << wanted;
    }
  }

  std::string folder_ =
      std::filesystem::temp_directory_path() / ("shardrun_api_" + std::to_string(::getpid()));
  std::string one_ = folder_ + "/one.onnx", two_ = folder_ + "/two.onnx";
};

TEST_F(Api, NumbersOutOfRange) {
  World world = World::threads(1);
  refused([&] { world.use_threads(0); }, "--threads is 0");
  refused([&] { world.use_threads(-3); }, "--threads is -3");
  refused([&] { world.assume_threads(-3); }, "--threads is -3");
  refused([&] { world.use_timeout(-1); }, "--timeout is -1");
  refused([&] { world.use_timeout(std::nan("")); }, "--timeout is nan");
  const Model model = load(world, one_);
  const auto plan = [&](const std::function<void(PlanRequest&)>& set) {
    PlanRequest request;
    set(request);
    make_plan(world, model, request);
  };
  refused([&] { plan([](PlanRequest& r) { r.memory_bytes = -1; }); }, "--memory is -1");
  refused([&] { plan([](PlanRequest& r) { r.ranks = -2; }); }, "--ranks is -2");
  refused([&] { plan([](PlanRequest& r) { r.solve_seconds = -1; }); }, "--plan-seconds is -1");
  refused([&] { plan([](PlanRequest& r) { r.solve_seconds = std::nan(""); }); },
          "--plan-seconds is nan");
}

TEST_F(Api, PlansOfAnotherModelOrOtherRanks) {
  World world = World::threads(2);
  const Model two = load(world, two_), one = load(world, one_);
  const TrainingPlan plan = make_plan(world, two, {});
  const std::string wanted = "the plan is for another model, " + two_;
  refused([&] { train(world, one, plan, {}); }, wanted);
  refused([&] { verify(world, one, plan, {}); }, wanted);
  refused([&] { plan_details(one, plan); }, wanted);
  refused([&] { explain_plan(one, plan); }, wanted);
  refused([&] { explain_why(one, plan, "wte.weight", {}); }, wanted);
  PlanRequest request;
  request.ranks = 4;
  const TrainingPlan four = make_plan(world, two, request);
  refused([&] { train(world, two, four, {}); }, "the plan is for 4 ranks, there are 2");
  refused([&] { verify(world, two, four, {}); }, "the plan is for 4 ranks, there are 2");
}

TEST_F(Api, OutputsOverTheModel) {
  World world = World::threads(1);
  const Model model = load(world, one_);
  const TrainingPlan plan = make_plan(world, model, {});
  const auto size = std::filesystem::file_size(one_);
  TrainOptions options;
  options.metrics = one_;
  refused([&] { train(world, model, plan, options); }, "is what the model is read from");
  EXPECT_EQ(std::filesystem::file_size(one_), size);
}

/// Where numbers have points between thousands and commas before decimals.
struct Commas : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST_F(Api, FilesDoNotDependOnTheProgramsLocale) {
  const std::locale before = std::locale::global(std::locale(std::locale(), new Commas));
  World world = World::threads(2);
  const Model model = load(world, one_);
  const TrainingPlan plan = make_plan(world, model, {});
  PlanRequest request;
  request.plan_file = folder_ + "/plan.json";
  write_output(request.plan_file, plan.json());
  EXPECT_EQ(make_plan(world, model, request).predicted_seconds(), plan.predicted_seconds());
  std::locale::global(before);
  EXPECT_EQ(make_plan(world, model, request).predicted_seconds(), plan.predicted_seconds());
}

/// Ranks that share cores have fewer threads, and kernels less workspace, than one alone.
TEST_F(Api, WorldsAtOnceAndOneAfterTheOther) {
  const auto losses = [&](int ranks) {
    World world = World::threads(ranks);
    const Model model = load(world, two_);
    TrainOptions options;
    options.steps = 5;
    return train(world, model, make_plan(world, model, {}), options).losses;
  };
  const std::vector<double> pair = losses(2), alone = losses(1);
  EXPECT_EQ(losses(2), pair);
  std::vector<std::vector<double>> all(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i)
    threads.emplace_back([&, i] { all[i] = losses(1 + static_cast<int>(i % 2)); });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], i % 2 == 0 ? alone : pair) << i;
}

/// Also by one of several ranks, and with a validation due.
TEST_F(Api, StopsWhenItIsAsked) {
  EXPECT_FALSE(request_stop(15));  // nothing runs
  World world = World::threads(2);
  const Model model = load(world, one_);
  const TrainingPlan plan = make_plan(world, model, {});
  TrainOptions options;
  options.steps = 9;
  options.eval_every = 2;
  const auto stopped_at_4 = [&](int signal) {
    options.on_step = [&](const StepReport& s) {
      if (s.step != 4) return;
      EXPECT_TRUE(request_stop(signal));
      EXPECT_FALSE(request_stop(signal)) << "asked twice";
    };
    const TrainReport report = train(world, model, plan, options);
    EXPECT_EQ(report.losses.size(), 4u);
    EXPECT_EQ(report.allocated_bytes, report.predicted_bytes);
    ASSERT_TRUE(report.stopped.has_value());
    EXPECT_EQ(report.stopped->step, 4);
    EXPECT_EQ(report.stopped->signal, signal);
    ASSERT_FALSE(report.evals.empty());
    EXPECT_EQ(report.evals.back().step, 2);
  };
  stopped_at_4(15);
  stopped_at_4(2);
  stopped_at_4(0);
  EXPECT_TRUE(request_stop(15)) << "one to all ranks comes late to some";
  options.on_step = nullptr;
  const TrainReport report = train(world, model, plan, options);
  EXPECT_EQ(report.losses.size(), 9u) << "a request outlived its run";
  EXPECT_FALSE(report.stopped.has_value());
}

/// During a validation that would go on for long.
TEST_F(Api, StopsWithinAValidation) {
  World world = World::threads(2);
  const Model model = load(world, one_);
  const TrainingPlan plan = make_plan(world, model, {});
  std::ofstream(folder_ + "/tokens.bin", std::ios::binary) << std::string(2000000, '\0');
  TrainOptions options;
  options.data = "tokens:" + folder_ + "/tokens.bin:uint16";
  options.steps = 1;
  options.validation = 0.9;
  options.eval_batches = 1000000000;
  std::thread asks;
  options.on_step = [&](const StepReport&) {
    asks = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_TRUE(request_stop(15));
    });
  };
  const TrainReport report = train(world, model, plan, options);
  asks.join();
  ASSERT_TRUE(report.stopped.has_value());
  EXPECT_TRUE(report.evals.empty());
}

/// What a caller's own function throws comes out as its sentence, and the World goes on.
/// A Failure, too, is of the rank that calls back, whatever another World said: others would wait
/// for it.
TEST_F(Api, CallbacksThatThrow) {
  World world = World::threads(2);
  const Model model = load(world, one_);
  const TrainingPlan plan = make_plan(world, model, {});
  TrainOptions options;
  options.steps = 2;
  const auto expect_failure = [&](const std::exception_ptr& thrown, Failure::Kind kind) {
    options.on_step = [&](const StepReport&) { std::rethrow_exception(thrown); };
    try {
      train(world, model, plan, options);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Failure& e) {
      EXPECT_EQ(e.kind(), kind);
      EXPECT_FALSE(e.everywhere());
      EXPECT_NE(std::string(e.what()).find("enough"), std::string::npos) << e.what();
    }
  };
  using enum Failure::Kind;
  expect_failure(std::make_exception_ptr(std::runtime_error("enough")), run);
  for (const Failure::Kind kind : {call, memory, run})
    expect_failure(std::make_exception_ptr(Failure(kind, "enough", true)), kind);
  expect_failure(std::make_exception_ptr(Failure(peer, "enough")), run);
  options.on_step = nullptr;
  EXPECT_EQ(train(world, model, plan, options).losses.size(), 2u);
}

/// Said without --verbose: whose layers will not learn, and why.
TEST_F(Api, LayersThatNoGradientReachesAreNoted) {
  test::ModelBuilder b;
  b.input("x", {3, 2});
  for (const char* name : {"enc.weight", "dec.weight"}) b.floats(name, {2, 2}, {1, 2, 3, 4});
  b.node("MatMul", {"x", "enc.weight"}, {"h"});
  b.node("Round", {"h"}, {"codes"});
  b.node("MatMul", {"codes", "dec.weight"}, {"y"});
  b.output("y");
  test::write_bytes(folder_ + "/rounded.onnx", b.model.SerializeAsString());
  World world = World::threads(1);
  ModelOptions options;
  options.loss = "mse";
  auto noted = [&](const std::string& text) {
    const Model model = load_model(world, folder_ + "/rounded.onnx", options);
    return std::any_of(model.notes().begin(), model.notes().end(), [&](const std::string& note) {
      return note.find(text) != std::string::npos;
    });
  };
  EXPECT_TRUE(
      noted("no gradient of the loss reaches 'enc': 1 parameter does not learn; none passes "
            "Round 'Round_1' (what a custom function does backward is not in the file"));
  options.freeze = {"enc"};
  EXPECT_FALSE(noted("no gradient of the loss reaches"));
}

/// What is asked of a model when another has its path is answered by the file that was opened.
TEST_F(Api, AModelsFileIsOpenedOnce) {
  World world = World::threads(2);
  ModelOptions options;
  options.batch = 4;
  TrainOptions training;
  training.steps = 2, training.checkpoint = folder_ + "/run";
  const auto trained = [&](const OnnxModel& onnx) {
    PlanRequest request;
    request.checkpoints = true;
    const ModelAndPlan made = load_and_plan(world, onnx, options, request);
    annotate_model(made.model, made.plan, folder_ + "/annotated.onnx", "");
    return train(world, made.model, made.plan, training).losses;
  };
  const std::vector<double> wanted = trained(one_);
  const std::string annotated = read(folder_ + "/annotated.onnx");
  const std::string path = folder_ + "/opened.onnx", other = folder_ + "/other.onnx";
  for (const char* step : {"forward", "token", ""}) {
    std::filesystem::copy_file(one_, path);
    const OnnxModel onnx(path);
    EXPECT_TRUE(read_recipe(onnx).empty());
    options.step = step;
    const std::string graph = load_model(world, path, options).graph_text();
    std::filesystem::copy_file(two_, other);
    std::filesystem::rename(other, path);
    EXPECT_EQ(model_files(onnx), std::vector{path});
    EXPECT_EQ(load_model(world, onnx, options).graph_text(), graph) << step;
    EXPECT_NE(load_model(world, path, options).graph_text(), graph) << step;
    std::filesystem::remove(path);
    EXPECT_EQ(load_model(world, onnx, options).graph_text(), graph) << step;
    if (*step != '\0') continue;
    std::filesystem::remove_all(training.checkpoint);
    EXPECT_EQ(trained(onnx), wanted);
    EXPECT_EQ(read(folder_ + "/annotated.onnx"), annotated);
  }
}

/// External data as well, from when the model was loaded.
TEST_F(Api, ExternalDataAreOpenedOnce) {
  test::ModelBuilder b;
  b.input("x", {3, 2});
  b.floats("w", {2, 2}, {});
  ::onnx::TensorProto& weight = *b.graph().mutable_initializer(0);
  weight.clear_raw_data();
  weight.clear_float_data();
  weight.set_data_location(::onnx::TensorProto::EXTERNAL);
  auto* location = weight.add_external_data();
  location->set_key("location");
  location->set_value("w.bin");
  b.node("MatMul", {"x", "w"}, {"y"});
  b.output("y");
  const std::string path = folder_ + "/outside.onnx";
  test::write_bytes(path, b.model.SerializeAsString());
  const std::vector<float> numbers = {1, 2, 3, 4};
  const auto* bytes = reinterpret_cast<const char*>(numbers.data());
  test::write_bytes(folder_ + "/w.bin", {bytes, numbers.size() * sizeof(float)});
  World world = World::threads(1);
  ModelOptions options;
  options.loss = "mse";
  TrainOptions training;
  training.steps = 2;
  const auto trained = [&](const std::function<void()>& before_reading) {
    const Model model = load_model(world, path, options);
    before_reading();
    return train(world, model, make_plan(world, model, {}), training).losses;
  };
  const std::vector<double> wanted = trained([] {});
  EXPECT_EQ(trained([&] {
              std::filesystem::remove(path);
              std::filesystem::remove(folder_ + "/w.bin");
            }),
            wanted);
}

}  // namespace
}  // namespace shardrun
