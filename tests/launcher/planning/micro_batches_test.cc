// Steps of several micro-batches: what they are predicted to take, what ranks send, and their
// losses, through the public header and the Programs behind it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>

#include "explain/planned_steps.h"
#include "graph/node_exchanges.h"
#include "plan/plan.h"
#include "ranks/backend.h"
#include "shardrun/bench.h"
#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

constexpr int kCounts[] = {1, 2, 4, 8};  // of micro-batches

void write_small_gpt(const std::string& path) {
  GptModel model;
  model.layers = 2;
  model.hidden = 64;
  model.heads = 4;
  model.vocab = 96;
  model.context = 32;
  model.dropout = 0.1;
  write_gpt(model, path);
}

void write_small_wide_resnet(const std::string& path) {
  WideResNetModel model;
  model.family = "cifar";
  model.layers = 10;
  model.width = 1;
  model.image = 8;
  model.classes = 5;
  write_wide_resnet(model, path);
}

void write_small_gat(const std::string& path) {
  GatModel model;
  model.dense = true;
  model.layers = 2;
  model.nodes = 48;
  model.features = 32;
  model.heads = 4;
  write_gat(model, path);
}

struct Kind {
  const char* name;
  void (*write)(const std::string& path);
  int batch;  // 0: what the file has
  const char* loss;
};
constexpr Kind kGpt{"gpt", write_small_gpt, 8, ""};
constexpr Kind kKinds[] = {kGpt,
                           {"wide-resnet", write_small_wide_resnet, 8, "cross-entropy"},
                           {"gat", write_small_gat, 0, "cross-entropy"}};

/// A model on disk, for as long as this lives.
class File {
 public:
  explicit File(void (*write)(const std::string&))
      : path_((std::filesystem::temp_directory_path() /
               ("micro_batches_test_" + std::to_string(::getpid()) + ".onnx"))
                  .string()) {
    write(path_);
  }
  ~File() { std::filesystem::remove(path_); }

  Model load(World& world, const Kind& kind, int micro_batches,
             const std::function<void(ModelOptions&)>& change = {}) const {
    ModelOptions options;
    if (kind.batch > 0) options.batch = kind.batch;
    options.loss = kind.loss;
    options.accumulate = micro_batches;
    options.seed = 3;
    if (change) change(options);
    return load_model(world, path_, options);
  }

 private:
  std::string path_;
};

PlanRequest request(const std::string& mesh, const std::string& planner) {
  PlanRequest out;
  out.mesh = mesh;
  out.planner = planner;
  out.cluster = "a100-80";
  out.ranks = mesh_ranks(mesh);
  return out;
}

/// What the steps of a rank's Program are predicted to take, as often as each runs.
double step_seconds(const Model& model, const TrainingPlan& plan, Step::Kind kind) {
  const TrainingPlan::Impl& impl = plan.impl();
  const Graph& graph = step_of(model.impl(), impl);
  const Program program = compile(graph, impl.train, impl.cluster, 0, backend_traits());
  const PlannedSteps planned(graph, impl.train, impl.cluster, program);
  double sum = 0;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    if (step.kind == kind) sum += static_cast<double>(program.runs(step)) * planned.of(s).seconds;
  }
  return sum;
}

void expect_times_of_steps(const File& file, const Kind& kind, const std::string& mesh,
                           const std::string& planner, int count) {
  SCOPED_TRACE(str(kind.name, ", ", planner, " on ", mesh, ", ", count, " micro-batches"));
  World world = World::threads(1);
  const Model model = file.load(world, kind, count, [&](ModelOptions& o) {
    o.clip = count == 4 ? 0.5 : 0;
    o.dtype = count == 2 ? "bf16" : "f32";
  });
  const TrainingPlan plan = make_plan(world, model, request(mesh, planner));
  const Plan& train = plan.impl().train;
  EXPECT_NEAR(train.comm_seconds, step_seconds(model, plan, Step::Kind::collective),
              1e-9 * train.comm_seconds);
  EXPECT_NEAR(train.compute_seconds, step_seconds(model, plan, Step::Kind::kernel),
              1e-9 * train.compute_seconds);
}

TEST(MicroBatches, APlansTimesAreThoseOfTheStepsThatRun) {
  const std::pair<const char*, const char*> ways[] = {
      {"2", "auto"},        {"3", "auto"},           {"2x2", "auto"}, {"2", "dp"},
      {"2", "zero1"},       {"2", "zero2"},          {"2", "fsdp"},   {"2", "megatron"},
      {"2", "megatron-sp"}, {"2x2", "fsdp+megatron"}};
  size_t turn = 0;
  for (const Kind& kind : kKinds) {
    const File file(kind.write);
    for (const auto& [mesh, planner] : ways) {
      if (planner == std::string("auto") && kind.write == kGpt.write) {
        for (const int count : kCounts) expect_times_of_steps(file, kind, mesh, planner, count);
      } else {
        expect_times_of_steps(file, kind, mesh, planner, kCounts[1 + turn++ % 3]);
      }
    }
  }
}

/// Two layers of GPT-2.
void write_large_gpt(const std::string& path, int64_t context) {
  GptModel model;
  model.preset = "gpt2-124m";
  model.layers = 2;
  model.context = context;
  model.weights = false;
  write_gpt(model, path);
}
/// Activations are most of its memory.
void write_long_gpt(const std::string& path) { write_large_gpt(path, 1024); }
/// Weights, gradients and the optimizer's state are.
void write_short_gpt(const std::string& path) { write_large_gpt(path, 64); }

/// Twice the micro-batches are nearly twice the time: all but the update, and what is reduced for
/// it.
TEST(MicroBatches, AStepTakesThemAll) {
  const File file(write_long_gpt);
  World world = World::threads(1);
  double before = 0;
  for (const int count : {2, 4, 8}) {
    const Model model = file.load(world, kGpt, count);
    const double now = make_plan(world, model, request("8", "auto")).predicted_seconds();
    if (before > 0) {
      EXPECT_GT(now, 1.5 * before) << count;
      EXPECT_LT(now, 2 * before) << count;
    }
    before = now;
  }
}

int64_t sent(const File& file, int count, const std::string& planner,
             const std::function<void(ModelOptions&)>& change = {}) {
  World world = World::threads(2);
  const Model model = file.load(world, kGpt, count, change);
  PlanRequest how;
  how.planner = planner;
  const PlanFigures figures = plan_figures(world, model, make_plan(world, model, how));
  return std::accumulate(figures.sent_bytes.begin(), figures.sent_bytes.end(), int64_t{0});
}

/// As PyTorch's DistributedDataParallel with no_sync: once a step, whatever the number of
/// micro-batches. All that is sent in each of them is the number of labels that its mean is over.
TEST(MicroBatches, GradientsAreReducedOnceAStep) {
  const File file(write_small_gpt);
  for (const char* dtype : {"f32", "bf16"}) {
    const auto with = [&](ModelOptions& o) {
      o.dtype = dtype;
      o.clip = 1;
    };
    for (const char* planner : {"dp", "zero1"}) {
      constexpr int64_t kLabels = 2 * 4;  // an f32 from each of two ranks
      const int64_t once = sent(file, 1, planner, with);
      EXPECT_GT(once, 100000);
      for (const int count : {2, 4, 8}) {
        const int64_t labels = (count - 1) * kLabels,
                      more = sent(file, count, planner, with) - once;
        EXPECT_GE(more, labels) << planner << " " << dtype << " " << count;
        EXPECT_LE(more, labels + kLabels) << "the loss may be sent by itself, too";
      }
    }
    // ZeRO-2 holds no whole gradients, so it scatters them as they come.
    const int64_t twice = sent(file, 2, "zero2", with), four = sent(file, 4, "zero2", with);
    EXPECT_GT(four, 3 * twice / 2) << dtype;
    EXPECT_LE(sent(file, 8, "auto", with), sent(file, 8, "dp", with)) << dtype;
  }
}

/// Accumulated gradients in summands take no more memory than whole ones: they are reduced where
/// they lie.
TEST(MicroBatches, SummandsAreReducedWhereTheyLie) {
  const File file(write_small_gpt);
  World world = World::threads(2);
  const Model model = file.load(world, kGpt, 4);
  PlanRequest how = request("2", "dp");
  how.ranks = 0;
  how.cluster = "";
  const TrainingPlan plan = make_plan(world, model, how);
  const Program program = compile_for_rank(model.impl(), plan.impl(), 0).train;
  int reduced = 0;
  for (const Step& step : program.steps) {
    if (step.kind != Step::Kind::collective || step.phase != Phase::update) continue;
    EXPECT_EQ(step.collective->kind, Collective::Kind::all_reduce) << step.node.name;
    const auto offset = [&](BufferId b) { return program.buffers[static_cast<size_t>(b)].offset; };
    EXPECT_EQ(offset(step.in[0]), offset(step.out[0])) << step.node.name;
    EXPECT_LT(offset(step.out[0]), program.persistent_bytes) << step.node.name;
    ++reduced;
  }
  EXPECT_GT(reduced, 10);
}

/// Where whole gradients do not fit they are scattered as they accumulate, and that costs more.
TEST(MicroBatches, ScarceMemoryScattersAsItAccumulates) {
  const File file(write_short_gpt);
  World world = World::threads(1);
  const Model model = file.load(world, kGpt, 4);
  PlanRequest how = request("4", "auto");
  const auto held = [&](const TrainingPlan& plan) {
    int partial = 0;
    for (const auto& [name, sharding] : plan.impl().train.values)
      partial += name.rfind("accumulated/", 0) == 0 && !sharding.partial.empty();
    return partial;
  };
  const TrainingPlan plenty = make_plan(world, model, how);
  EXPECT_GT(held(plenty), 10);
  how.arena_bytes = plenty.predicted_bytes()[0] * 85 / 100;
  how.recompute = "never";
  const TrainingPlan tight = make_plan(world, model, how);
  EXPECT_LT(held(tight), held(plenty));
  EXPECT_GT(tight.predicted_seconds(), plenty.predicted_seconds());
  EXPECT_LE(tight.predicted_bytes()[0], how.arena_bytes);
}

std::vector<double> losses(const File& file, const Kind& kind, int ranks, int count,
                           const std::string& mesh, const std::string& planner,
                           const std::function<void(ModelOptions&)>& change) {
  World world = World::threads(ranks);
  const Model model = file.load(world, kind, count, change);
  PlanRequest how;
  how.mesh = mesh;
  how.planner = planner;
  const TrainingPlan plan = make_plan(world, model, how);
  TrainOptions options;
  options.steps = 6;
  options.lr = 1e-3;
  const TrainReport report = train(world, model, plan, options);
  EXPECT_EQ(report.allocated_bytes, report.predicted_bytes);
  return report.losses;
}

/// With dropout; by every planner, number of micro-batches and way to compute, though not by all
/// at once.
TEST(MicroBatches, LossesAreOneRanks) {
  const std::pair<const char*, const char*> ways[] = {
      {"2", "auto"},  {"2x2", "auto"}, {"3", "auto"},     {"2", "dp"},           {"3", "zero1"},
      {"2", "zero2"}, {"2", "fsdp"},   {"2", "megatron"}, {"2x2", "dp+megatron"}};
  struct With {
    const char* name;
    std::function<void(ModelOptions&)> change;
    double tolerance;
  };
  const With withs[] = {{"f32", {}, 2e-6},
                        {"clip", [](ModelOptions& o) { o.clip = 0.1; }, 2e-6},
                        {"bf16", [](ModelOptions& o) { o.dtype = "bf16"; }, 2e-3}};
  const File file(write_small_gpt);
  size_t turn = 0;
  for (const With& with : withs) {
    for (const int count : kCounts) {
      const std::vector<double> alone = losses(file, kGpt, 1, count, "1", "auto", with.change);
      ASSERT_EQ(alone.size(), 6u);
      EXPECT_LT(alone.back(), alone.front());
      for (size_t k = 0; k < std::size(ways); ++k) {
        if (k >= 1 && (k + turn) % 4 != 0) continue;
        const auto& [mesh, planner] = ways[k];
        SCOPED_TRACE(str(with.name, ", ", planner, " on ", mesh, ", ", count, " micro-batches"));
        const std::vector<double> cut =
            losses(file, kGpt, mesh_ranks(mesh), count, mesh, planner, with.change);
        ASSERT_EQ(cut.size(), alone.size());
        for (size_t s = 0; s < cut.size(); ++s)
          EXPECT_NEAR(cut[s], alone[s], with.tolerance * alone[s]) << "step " << s;
      }
      ++turn;
    }
  }
}

/// Every value of the step, and what persists, on ranks that hold summands.
TEST(MicroBatches, VerifyAgrees) {
  for (const Kind& kind : kKinds) {
    const File file(kind.write);
    for (const auto& [mesh, planner] : {std::pair("2", "dp"), std::pair("2x2", "auto")}) {
      World world = World::threads(mesh_ranks(mesh));
      const Model model = file.load(world, kind, 3, [](ModelOptions& o) { o.clip = 0.5; });
      PlanRequest how;
      how.mesh = mesh;
      how.planner = planner;
      const TrainingPlan plan = make_plan(world, model, how);
      const VerifyReport report = verify(world, model, plan, {});
      EXPECT_TRUE(report.verified)
          << kind.name << " " << mesh << " " << planner << ": " << report.mismatch;
    }
  }
}

}  // namespace
}  // namespace shardrun
