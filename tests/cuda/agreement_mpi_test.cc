// Training where ranks are on several machines, each with a cache folder of its own, and measure
// different algorithms as the fastest: all compute with the same ones.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/files/cache_folder.h"
#include "kernels/cuda/autotune.h"
#include "ranks/agreement.h"
#include "ranks/backend.h"
#include "ranks/world.h"
#include "shardrun/shardrun.h"
#include "tests/collectives/mpi_main.h"

namespace shardrun {
namespace {

constexpr const char* kOp = "layer_norm";

/// What a rank does and sees.
struct Here {
  size_t fastest = 0;  // way, as it measures: another on each rank
  bool agrees = true;
  std::unique_ptr<cuda::Autotune> tuned;  // as if of its GPU's library
  int rehearsals = 0;
  std::vector<int64_t> ways;  // that kernels took since the last rehearsal
};
Here here;

/// Scaled by 1 + i / 1000 where way i was the fastest when a call of that shape first ran.
PreparedKernel prepare_measured(const KernelCall& call) {
  PreparedKernel kernel;
  for (const KernelList* list : cpu_backend().kernels) {
    const auto impl = std::find_if(list->begin(), list->end(), [&](const KernelImpl& k) {
      return k.op == kOp && !k.refuses(call);
    });
    if (impl == list->end()) continue;
    kernel = impl->prepare(call);
    break;
  }
  auto way = std::make_shared<std::optional<size_t>>();
  const std::string key = to_string(call.in[0]);
  kernel.run = [run = kernel.run, way, key](const KernelArgs& args) {
    if (!*way) {
      *way = cuda::fastest(*here.tuned, key, {"way 0", "way 1", "way 2", "way 3"}, true,
                           [](size_t i) { return i == here.fastest ? 1.0f : 2.0f; });
    }
    here.ways.push_back(static_cast<int64_t>(way->value()));
    run(args);
    for (int64_t i = 0; i < args.out[0].count(); ++i)
      args.out[0].as<float>()[i] *= 1.0f + 1e-3f * static_cast<float>(way->value());
  };
  kernel.run_rows = nullptr;
  return kernel;
}

/// As a GPU's rank.
class MeasuringRank final : public RankDevice {
 public:
  explicit MeasuringRank(Communicator& host) : host_(host), rank_(host) {}
  Device& device() override { return rank_.device(); }
  Communicator& comm() override { return rank_.comm(); }
  DeviceCapacity capacity() const override { return rank_.capacity(); }
  void agree(const std::function<void()>& rehearse) override {
    if (!here.agrees) return;
    const Choices choices = {
        cuda::place_of_choices(), [] { return here.tuned->tell(); },
        [](std::span<const std::string> of_ranks) { here.tuned->take(of_ranks); }};
    shardrun::agree(host_, choices, [&] {
      rehearse();
      ++here.rehearsals;
      here.ways.clear();
    });
  }

 private:
  Communicator& host_;
  HostRank rank_;
};

const Backend& measuring_backend() {
  static const KernelList measuring = {
      {kOp, "measuring", [](const KernelCall&) { return std::nullopt; }, prepare_measured}};
  static const std::vector<const KernelList*> lists = [] {
    std::vector<const KernelList*> all = {&measuring};
    all.insert(all.end(), cpu_backend().kernels.begin(), cpu_backend().kernels.end());
    return all;
  }();
  static const Backend backend = [] {
    Backend b = cpu_backend();
    b.name = "measuring";
    b.kernels = lists;
    b.open = [](Communicator& host) -> std::unique_ptr<RankDevice> {
      return std::make_unique<MeasuringRank>(host);
    };
    return b;
  }();
  return backend;
}

int machine_of(int rank, int machines) { return rank * machines / test::mpi_world().size(); }

/// The way of every rank in a training run on so many machines whose caches are empty; -1: of
/// several.
std::vector<int64_t> ways_of_training(int machines, bool agrees) {
  Communicator& ranks = test::mpi_world();
  int64_t job = ranks.rank() == 0 ? getpid() : 0;
  ranks.broadcast(&job, sizeof job, 0);
  here = Here();
  here.fastest = static_cast<size_t>(ranks.rank());
  here.agrees = agrees;
  const std::filesystem::path all = std::filesystem::temp_directory_path() /
                                    str("agreement_", job, "_", machines, agrees ? "_agreed" : "");
  setenv("SHARDRUN_CACHE", (all / str("machine", machine_of(ranks.rank(), machines))).c_str(), 1);
  here.tuned = std::make_unique<cuda::Autotune>(cache_folder(), "a GPU");
  const std::string path = (all / str("gpt", ranks.rank(), ".onnx")).string();
  std::filesystem::create_directories(all);
  GptModel gpt;
  gpt.layers = 1, gpt.hidden = 8, gpt.heads = 2, gpt.vocab = 11, gpt.context = 4;
  write_gpt(gpt, path);
  World world = World::threads(1);
  std::vector<int> everyone(static_cast<size_t>(ranks.size()));
  for (size_t r = 0; r < everyone.size(); ++r) everyone[r] = static_cast<int>(r);
  world.impl().mpi = ranks.split({everyone});
  use_backend(measuring_backend());
  ModelOptions options;
  options.batch = 4;
  const Model model = load_model(world, path, options);
  PlanRequest request;
  request.planner = "dp";
  const TrainingPlan plan = make_plan(world, model, request);
  TrainOptions training;
  training.steps = 2;
  train(world, model, plan, training);
  world.impl().mpi.reset();  // MPI goes on
  SR_REQUIRE(!here.ways.empty(), internal, "no kernel ran");
  const auto [least, most] = std::minmax_element(here.ways.begin(), here.ways.end());
  const int64_t mine = *least == *most ? *least : -1;
  std::vector<int64_t> out(everyone.size());
  ranks.all_gather(&mine, out.data(), std::vector<int64_t>(out.size(), 1), DType::i64);
  ranks.barrier();
  if (ranks.rank() == 0) std::filesystem::remove_all(all);
  return out;
}

/// Ranks of one machine share a file: who measured first decides. Machines do not.
TEST(Agreement, RanksOfSeveralMachinesComputeAlike) {
  const int ranks = test::mpi_world().size();
  for (int machines = 2; machines <= ranks; machines *= 2) {
    const std::vector<int64_t> apart = ways_of_training(machines, false);
    for (int r = 1; r < ranks; ++r) {
      const bool same = apart[static_cast<size_t>(r)] == apart[static_cast<size_t>(r) - 1];
      EXPECT_EQ(same, machine_of(r, machines) == machine_of(r - 1, machines)) << "rank " << r;
    }
    const std::vector<int64_t> together = ways_of_training(machines, true);
    EXPECT_EQ(here.rehearsals, 1);
    EXPECT_EQ(machine_of(static_cast<int>(together[0]), machines), 0);  // the lowest rank's
    EXPECT_EQ(together, std::vector<int64_t>(together.size(), together[0]));
  }
}

/// Nobody rehearses.
TEST(Agreement, RanksOfOneMachineComputeAlike) {
  const std::vector<int64_t> ways = ways_of_training(1, true);
  EXPECT_EQ(here.rehearsals, 0);
  EXPECT_GE(ways[0], 0);
  EXPECT_EQ(ways, std::vector<int64_t>(ways.size(), ways[0]));
}

}  // namespace
}  // namespace shardrun
