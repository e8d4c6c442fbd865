// Runs that go on from checkpoints, through the public header: on the same mesh bit for bit as if
// they had not stopped, on any other from the same state.
#include "checkpoint/resume.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "exec/checkpoint/folder.h"
#include "exec/checkpoint/reader.h"
#include "shardrun/shardrun.h"
#include "tests/exec/data/data_support.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

/// Uneven by three, five and seven ranks, fused projections among its weights, dropout.
void gpt(const std::string& path) {
  GptModel model;
  model.layers = 2, model.hidden = 24, model.heads = 3, model.vocab = 256, model.context = 10;
  model.dropout = 0.2;
  write_gpt(model, path);
}
/// Running statistics, images.
void wide_resnet(const std::string& path) {
  WideResNetModel model;
  model.family = "cifar";
  model.layers = 10, model.width = 1, model.image = 8, model.classes = 5, model.dropout = 0.1;
  write_wide_resnet(model, path);
}

class Resume : public testing::Test {
 protected:
  Resume() {
    fs::remove_all(root_);
    fs::create_directories(root_);
    gpt(gpt_);
    wide_resnet(images_);
    std::mt19937 random(1);
    std::string text, labels;
    for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + random() % (1 + i % 26));
    std::ofstream(at("text.txt")) << text;
    std::vector<float> pixels(90 * 3 * 8 * 8);
    for (float& pixel : pixels) pixel = static_cast<float>(random() % 256) / 256;
    std::vector<int64_t> classes(90);
    for (int64_t& one : classes) one = random() % 5;
    std::ofstream(at("images.npy")) << test::npy("<f4", "(90, 3, 8, 8)", test::bytes_of(pixels));
    std::ofstream(at("labels.npy")) << test::npy("<i8", "(90,)", test::bytes_of(classes));
  }
  ~Resume() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  std::string at(const std::string& name) const { return root_ + "/" + name; }

  struct Run {
    std::string model;
    int ranks = 1;
    std::string mesh = "auto", planner = "auto";
    int64_t memory = 0;
    bool evaluation = true;
    ModelOptions options = {};
    TrainOptions train = {};
  };
  Run gpt_run() const {
    Run run{gpt_};
    run.options.batch = 6;
    run.options.accumulate = 2;
    run.options.clip = 1;
    run.options.weight_decay = 0.1;
    run.train.steps = 12;
    run.train.lr = 1e-2;
    run.train.schedule = "cosine";
    run.train.warmup = 1;
    run.train.data = "text:" + at("text.txt");
    return run;
  }
  Run image_run() const {
    Run run{images_};
    run.options.batch = 6;
    run.options.loss = "cross-entropy";
    run.options.optimizer = "sgd";
    run.train.steps = 12;
    run.train.lr = 0.05;
    run.train.schedule = "linear";
    run.train.data = "npy:" + at("images.npy") + "," + at("labels.npy");
    run.train.augment = "crop=1,flip";
    return run;
  }

  struct Done {
    TrainReport report;
    std::vector<std::string> notes;
    std::vector<CheckpointReport> checkpoints;
    std::vector<double> norms, rates;
    bool asynchronous = false;
  };
  static Done go(const Run& run) {
    Done out;
    World world = World::threads(run.ranks);
    const Model model = load_model(world, run.model, run.options);
    PlanRequest request;
    request.mesh = run.mesh;
    request.planner = run.planner;
    request.arena_bytes = run.memory;
    request.checkpoints = !run.train.checkpoint.empty();
    request.solve_seconds = 0.2;
    request.with_evaluation = run.evaluation;
    const TrainingPlan plan = make_plan(world, model, request);
    out.asynchronous = plan.summary().find("written while training goes on") != std::string::npos;
    TrainOptions options = run.train;
    options.on_note = [&](const std::string& note) { out.notes.push_back(note); };
    options.on_checkpoint = [&](const CheckpointReport& c) { out.checkpoints.push_back(c); };
    options.on_step = [&](const StepReport& s) {
      out.norms.push_back(s.grad_norm);
      out.rates.push_back(s.lr);
    };
    out.report = train(world, model, plan, options);
    EXPECT_EQ(out.report.allocated_bytes, out.report.predicted_bytes);
    return out;
  }
  static std::string refusal(const Run& run) {
    try {
      go(run);
    } catch (const Failure& e) {
      EXPECT_EQ(e.kind(), Failure::Kind::call);
      return e.what();
    }
    return "(done)";
  }

  /// Of all tensors, by name.
  static std::map<std::string, std::vector<char>> state(const std::string& path) {
    const Checkpoint checkpoint = Checkpoint::open(path);
    checkpoint.verify();
    std::map<std::string, std::vector<char>> out;
    for (const Manifest::Tensor& tensor : checkpoint.manifest().tensors) {
      std::vector<char>& bytes = out[tensor.value.name];
      bytes.resize(static_cast<size_t>(byte_size(tensor.value.type)));
      checkpoint.read(tensor.value.name, full_box(tensor.value.type.shape), bytes.data());
    }
    return out;
  }

  /// The lines of a metrics file without what depends on the clock.
  static std::vector<nlohmann::json> metrics(const std::string& path) {
    std::vector<nlohmann::json> out;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      out.push_back(nlohmann::json::parse(line));
      for (const char* timed :
           {"step_ms", "comm_ms", "tokens_per_s", "samples_per_s", "peak_bytes"})
        out.back().erase(timed);
    }
    return out;
  }

  const std::string root_ =
      (fs::temp_directory_path() / ("resume_test_" + std::to_string(::getpid()))).string();
  const std::string gpt_ = at("gpt.onnx"), images_ = at("images.onnx");
};

std::vector<double> behind(const std::vector<double>& all, size_t first) {
  return {all.begin() + static_cast<std::ptrdiff_t>(first), all.end()};
}

TEST_F(Resume, OnTheSameMeshBitForBit) {
  std::vector<std::pair<const char*, Run>> runs = {{"gpt", gpt_run()},
                                                   {"gpt bf16", gpt_run()},
                                                   {"gpt cut", gpt_run()},
                                                   {"images", image_run()},
                                                   {"images cut", image_run()}};
  runs[1].second.options.dtype = "bf16";
  runs[2].second.ranks = 3, runs[2].second.planner = "fsdp";
  runs[4].second.ranks = 2, runs[4].second.planner = "zero1";
  for (auto& [name, run] : runs) {
    SCOPED_TRACE(name);
    run.train.eval_every = 2;
    run.train.eval_batches = 2;
    run.train.patience = 40;
    run.train.metrics = at("whole.jsonl");
    run.train.checkpoint = at(std::string(name) + "/whole");
    const Done whole = go(run);
    EXPECT_EQ(whole.report.evals.size(), 6u);
    run.train.metrics = at("parts.jsonl");
    run.train.checkpoint = at(std::string(name) + "/parts");
    run.train.checkpoint_every = 5;
    run.train.keep = 2;
    run.train.resume = "";
    // It stops at 10, and was at 12 once: what is behind step 10 happens again.
    go(run);
    fs::remove_all(run.train.checkpoint + "/step-00000012");
    const Done second = go(run);
    EXPECT_EQ(second.report.first_step, 11);
    EXPECT_EQ(second.report.losses, behind(whole.report.losses, 10));
    EXPECT_EQ(second.norms, behind(whole.norms, 10));
    EXPECT_EQ(second.rates, behind(whole.rates, 10));
    EXPECT_EQ(metrics(at("parts.jsonl")), metrics(at("whole.jsonl")));
    EXPECT_EQ(state(run.train.checkpoint + "/step-00000012"),
              state(at(std::string(name) + "/whole/step-00000012")));
    EXPECT_EQ(checkpoints_in(run.train.checkpoint).size(), 2u);
  }
}

/// Saved under one, read and saved again under another.
TEST_F(Resume, OnAnyOtherPlanFromTheSameState) {
  struct Layout {
    int ranks;
    const char *mesh, *planner;
  };
  const Layout layouts[] = {{1, "auto", "auto"},  {2, "2", "dp"},       {2, "2", "fsdp"},
                            {3, "3", "zero1"},    {3, "3", "fsdp"},     {4, "2x2", "fsdp+megatron"},
                            {4, "4", "megatron"}, {5, "5", "zero2"},    {6, "2x3", "fsdp"},
                            {7, "7", "fsdp"},     {8, "2x2x2", "auto"}, {8, "8", "fsdp"}};
  int pairs = 0;
  for (size_t i = 0; i < std::size(layouts); ++i) {
    const bool images = i % 4 == 3;
    const Layout& from = layouts[i];
    Run run = images ? image_run() : gpt_run();
    run.evaluation = false;
    run.train.steps = 2;
    run.train.checkpoint = at("from");
    run.ranks = from.ranks, run.mesh = from.mesh, run.planner = from.planner;
    go(run);
    const auto saved = state(at("from/step-00000002"));
    run.train.resume = at("from");
    for (const size_t other : {i + 5, i + 7}) {
      const Layout& to = layouts[other % std::size(layouts)];
      SCOPED_TRACE(str(images ? "images: " : "gpt: ", from.ranks, " ranks ", from.mesh, " ",
                       from.planner, " to ", to.ranks, " ranks ", to.mesh, " ", to.planner));
      run.ranks = to.ranks, run.mesh = to.mesh, run.planner = to.planner;
      run.options.dtype = i % 3 == 0 ? "bf16" : "f32";
      run.train.checkpoint = at("to");
      EXPECT_TRUE(go(run).report.losses.empty());
      EXPECT_EQ(state(at("to/step-00000002")), saved);
      fs::remove_all(at("to"));
      ++pairs;
    }
    // And it can go on.
    run.train.steps = 3;
    run.train.checkpoint.clear();
    EXPECT_EQ(go(run).report.losses.size(), 1u);
    fs::remove_all(at("from"));
  }
  EXPECT_GE(pairs, 20);
}

/// A run with early stopping and a test part ends with the same best step and test.
TEST_F(Resume, EarlyStoppingAndTheTestGoOn) {
  constexpr int64_t kNodes = 40;
  GatModel gat;
  gat.nodes = kNodes, gat.features = 12, gat.classes = 3, gat.hidden = 4, gat.heads = 2;
  gat.dense = true, gat.dropout = gat.attention_dropout = 0.4;
  write_gat(gat, at("gat.onnx"));
  std::mt19937 random(3);
  std::vector<float> features(kNodes * 12);
  std::string adjacency;
  std::vector<int64_t> labels(kNodes);
  for (float& x : features) x = static_cast<float>(random() % 100) / 100;
  for (int64_t i = 0; i < kNodes; ++i) {
    labels[static_cast<size_t>(i)] = i % 3;
    for (int64_t j = 0; j < kNodes; ++j)
      adjacency += static_cast<char>(i == j || random() % 4 == 0);
  }
  const auto mask = [&](int64_t begin, int64_t end) {
    std::string bytes(kNodes, '\0');
    for (int64_t i = begin; i < end; ++i) bytes[static_cast<size_t>(i)] = 1;
    return test::npy("|b1", "(40,)", bytes);
  };
  std::ofstream(at("graph.npz"), std::ios::binary)
      << test::npz({{"features", test::npy("<f4", "(40, 12)", test::bytes_of(features))},
                    {"adjacency", test::npy("|b1", "(40, 40)", adjacency)},
                    {"labels", test::npy("<i8", "(40,)", test::bytes_of(labels))},
                    {"train_mask", mask(0, 20)},
                    {"val_mask", mask(20, 30)},
                    {"test_mask", mask(30, 40)}});
  Run run{at("gat.onnx")};
  run.options.loss = "cross-entropy";
  run.options.data = run.train.data = "npz:" + at("graph.npz");
  run.train.steps = 200;
  run.train.lr = 0.05;
  run.train.eval_every = 1;
  run.train.patience = 6;
  run.train.metrics = at("whole.jsonl");
  const Done whole = go(run);
  const auto steps = static_cast<int64_t>(whole.report.losses.size());
  ASSERT_LT(steps, 200) << "patience did not end";
  ASSERT_TRUE(whole.report.evals.back().test_loss);
  run.train.metrics = at("parts.jsonl");
  run.train.checkpoint = at("gat");
  run.train.checkpoint_every = 1;
  go(run);
  for (const int64_t step : {steps - 1, steps / 2, int64_t{1}}) {
    SCOPED_TRACE(str("from step ", step, " of ", steps));
    run.train.resume = str(at("gat"), "/step-", std::string(8 - str(step).size(), '0'), step);
    const Done rest = go(run);
    EXPECT_EQ(rest.report.losses, behind(whole.report.losses, static_cast<size_t>(step)));
    EXPECT_EQ(metrics(at("parts.jsonl")), metrics(at("whole.jsonl")));
  }
  // One that ended by itself has nothing left to do.
  run.train.resume = at("gat");
  EXPECT_TRUE(go(run).report.losses.empty());
}

TEST_F(Resume, CopiesFirstWhereMemoryAllows) {
  Run run = gpt_run();
  run.train.checkpoint = at("with");
  const Done with = go(run);
  EXPECT_TRUE(with.asynchronous);
  run.train.checkpoint.clear();
  const Done without = go(run);
  EXPECT_GT(with.report.predicted_bytes[0], without.report.predicted_bytes[0]);
  run.memory = without.report.predicted_bytes[0];
  run.train.checkpoint = at("waiting");
  const Done waiting = go(run);
  EXPECT_FALSE(waiting.asynchronous);
  EXPECT_EQ(waiting.report.predicted_bytes, without.report.predicted_bytes);
  EXPECT_EQ(waiting.report.losses, with.report.losses);
  EXPECT_EQ(state(at("waiting/step-00000012")), state(at("with/step-00000012")));
  run.memory = with.report.predicted_bytes[0];
  run.train.checkpoint = at("just");
  EXPECT_TRUE(go(run).asynchronous);
}

/// What depends on options follows the new ones, and the run says which they are.
TEST_F(Resume, OtherOptionsAreReported) {
  Run run = gpt_run();
  run.train.steps = 4;
  run.train.checkpoint = at("c");
  go(run);
  run.train.resume = "";
  run.train.steps = 8;
  run.train.lr = 0.5;
  run.options.batch = 4;
  const Done done = go(run);
  ASSERT_EQ(done.notes.size(), 1u);
  EXPECT_EQ(done.notes[0],
            at("c/step-00000004: goes on at step 5 of 8; otherwise than it was begun: batch 4 (was "
               "6), lr 0.5 (was 0.01), steps 8 (was 4)"));
  EXPECT_EQ(done.report.losses.size(), 4u);
  EXPECT_GT(done.rates.back(), 0.01);
}

TEST_F(Resume, CallsThatAreRefused) {
  Run run = gpt_run();
  run.train.steps = 2;
  run.train.checkpoint = at("c");
  run.train.metrics = at("m.jsonl");
  const auto with = [&](const std::function<void(Run&)>& change) {
    Run other = run;
    change(other);
    return refusal(other);
  };
  EXPECT_EQ(with([&](Run& r) { r.train.resume = at("none"); }),
            "--resume " + at("none") + ": no such folder");
  EXPECT_EQ(with([&](Run& r) { r.train.resume = root_; }),
            "--resume " + root_ + ": holds no checkpoint");
  EXPECT_EQ(with([](Run& r) {
              r.train.resume = "";
              r.train.checkpoint = "";
            }),
            "--resume: names no folder, and without --checkpoint there is none that it could mean");
  EXPECT_EQ(with([](Run& r) { r.train.checkpoint_every = -1; }),
            "checkpoint-every is -1, wanted 0 or more");
  EXPECT_EQ(with([](Run& r) { r.train.keep = -1; }), "keep is -1, wanted 0 or more");
  EXPECT_EQ(with([](Run& r) { r.train.eval_batches = -1; }),
            "eval-batches is -1, wanted 0 or more");
  EXPECT_EQ(with([](Run& r) {
              r.train.checkpoint = "";
              r.train.checkpoint_every = 5;
            }),
            "checkpoint-every and keep are of checkpoints: name a folder for them, --checkpoint");
  EXPECT_EQ(with([](Run& r) { r.train.checkpoint = "/proc/none"; }),
            "--checkpoint: /proc/none: cannot be written: No such file or directory");
  EXPECT_EQ(with([&](Run& r) { r.train.checkpoint = gpt_; }),
            "--checkpoint: " + gpt_ + " is what the model is read from; name another file");
  // The first that goes through; --resume begins anew where there is none yet.
  EXPECT_EQ(with([](Run& r) { r.train.resume = ""; }), "(done)");
  EXPECT_EQ(refusal(run), "--checkpoint " + at("c") +
                              ": holds checkpoints already, the newest of step 2; go on from it "
                              "with --resume, or name another folder");
  run.train.resume = "";
  EXPECT_EQ(with([&](Run& r) { r.model = images_, r.options = image_run().options; }),
            at("c/step-00000002") +
                ": was trained by --optimizer adamw, this call has sgd, of "
                "whose state it has nothing");
  const std::string other = with([&](Run& r) {
    r.model = images_, r.options = image_run().options;
    r.options.optimizer = "adamw";
  });
  EXPECT_NE(other.find("which the model has; it is of another model, or of other options"),
            std::string::npos)
      << other;
  EXPECT_EQ(with([&](Run& r) { r.options.freeze = {"h.0.*"}; }).substr(0, 200).find("adam_m/h.0") !=
                std::string::npos,
            true);
  std::ofstream(at("m.jsonl")) << "another run's\n";
  EXPECT_NE(refusal(run).find("name that one, or one that is not there"), std::string::npos);
}

TEST_F(Resume, ADamagedOneIsNamedWithTheOneBefore) {
  Run run = gpt_run();
  run.ranks = 2;
  run.train.steps = 6;
  run.train.checkpoint = at("c");
  run.train.checkpoint_every = 2;
  go(run);
  const std::string shard = "/shard-00002-model-00001-of-00001.safetensors";
  const auto flip = [&](const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-5, std::ios::end);
    const int byte = file.peek();
    file.seekp(-5, std::ios::end);
    file.put(static_cast<char>(byte ^ 1));
  };
  flip(at("c/step-00000006") + shard);
  run.train.resume = "";
  run.train.steps = 8;
  run.train.checkpoint_every = 0;
  std::string said = refusal(run);
  EXPECT_NE(said.find(at("c/step-00000006") + shard + ": the checksum of '"), std::string::npos)
      << said;
  EXPECT_NE(said.find("the newest whole one before it is " + at("c/step-00000004") +
                      ": go on from that with --resume " + at("c/step-00000004")),
            std::string::npos)
      << said;
  fs::remove(at("c/step-00000004/manifest.json"));
  said = refusal(run);
  EXPECT_NE(said.find("the newest whole one before it is " + at("c/step-00000002")),
            std::string::npos)
      << said;
  said = with_older("unread", at("c/step-00000001"), kGoOn);  // removed while it was read
  EXPECT_NE(said.find("removed meanwhile"), std::string::npos) << said;
  EXPECT_NE(said.find("the newest whole one is " + at("c/step-00000002")), std::string::npos)
      << said;
  // As it says.
  run.train.resume = at("c/step-00000002");
  const Done done = go(run);
  EXPECT_EQ(done.report.first_step, 3);
  EXPECT_EQ(done.report.losses.size(), 6u);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(at("c")))
    left.push_back(entry.path().filename().string());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, (std::vector<std::string>{".lock", "plan-2-ranks.json", "step-00000002",
                                            "step-00000004.set-aside", "step-00000006.set-aside",
                                            "step-00000008"}));
}

}  // namespace
}  // namespace shardrun
