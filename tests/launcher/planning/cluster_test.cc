// --cluster: what is planned for, through the command.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

class ClusterOption : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at_ = std::make_unique<Workspace>();
    ASSERT_EQ(at_->shardrun("model gpt --layers 1 --hidden 32 --heads 2 --vocab 64 --context 16 "
                            "--no-weights -o gpt.onnx")
                  .status,
              0);
  }
  static void TearDownTestSuite() { at_.reset(); }

  static void refused(const std::string& call, const std::string& wanted) {
    const Outcome run = at_->shardrun(call);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_NE(message(run).find(wanted), std::string::npos) << describe(run);
  }

  static std::unique_ptr<Workspace> at_;
};
std::unique_ptr<Workspace> ClusterOption::at_;

TEST_F(ClusterOption, IsPlannedForWithItsMemory) {
  const Outcome run =
      at_->shardrun("plan gpt.onnx --ranks 16 --cluster a100-80:2 --mesh 2x8 -o plan.json");
  ASSERT_EQ(run.status, 0) << describe(run);
  EXPECT_NE(run.out.find("cluster a100-80:2 (2 nodes of 8 x NVIDIA A100"), std::string::npos)
      << describe(run);
  EXPECT_NE(run.out.find("memory limit of a rank 76293.95 MiB"), std::string::npos)
      << describe(run);
  const nlohmann::json plan = nlohmann::json::parse(at_->read("plan.json"));
  EXPECT_EQ(plan["cluster"]["nodes"], 2);
  // The plan is for that cluster wherever it is looked at.
  const Outcome again = at_->shardrun("plan gpt.onnx --ranks 16 --plan plan.json -o again.json");
  EXPECT_EQ(again.status, 0) << describe(again);
  EXPECT_EQ(at_->read("again.json"), at_->read("plan.json"));
  refused("plan gpt.onnx --ranks 16 --plan plan.json --cluster h100:2",
          "--cluster h100:2 and --plan plan.json: the plan has its own cluster, a100-80:2");
}

/// PartIR's question: what would the step be on a machine with twice as much of something?
TEST_F(ClusterOption, FactorsPlanForAnotherMachine) {
  const auto plan = [](const std::string& cluster) {
    const Outcome run = at_->shardrun(
        "plan gpt.onnx --ranks 16 --mesh 2x8 --planner megatron "
        "--cluster " +
        cluster + " -o plan.json");
    EXPECT_EQ(run.status, 0) << describe(run);
    return nlohmann::json::parse(at_->read("plan.json"));
  };
  const nlohmann::json one = plan("a100-80:2"), two = plan("a100-80:2,memory=2x,within=2x");
  EXPECT_EQ(two["cluster"]["name"], "a100-80:2,memory=2x,within=2x");
  EXPECT_EQ(two["request"]["memory_bytes"].get<int64_t>(),
            2 * one["request"]["memory_bytes"].get<int64_t>());
  EXPECT_LT(two["train"]["seconds"], one["train"]["seconds"]);
  at_->write("one.json", one.dump());
  const Outcome both = at_->shardrun("explain one.json --diff plan.json");
  EXPECT_EQ(both.status, 0) << describe(both);
  EXPECT_NE(both.out.find("other is -"), std::string::npos) << describe(both);
  refused("plan gpt.onnx --ranks 2 --cluster h100,speed=2x",
          "field 'speed' is not known; known are memory, flops, memory_bandwidth, within, between");
  refused("plan gpt.onnx --ranks 2 --cluster host,memory=2x",
          "this machine's figures cannot be multiplied");
}

/// The cluster in the file may have a built-in one's name.
TEST_F(ClusterOption, AFileOfTooFewDevicesIsNamedWithItsField) {
  at_->write("three.json", R"({"name": "h100", "devices": 3, "flops": {"f32": {"peak": 1e12}},
    "memory_bandwidth": {"peak": 1e11}, "within": {"bandwidth": 1e10, "latency": 1e-6}})");
  for (const char* cluster : {"three.json", "./three.json,within=2x"}) {
    refused(std::string("plan gpt.onnx --ranks 7 --cluster ") + cluster,
            "three.json: fields 'nodes' and 'devices' are 1 and 3, wanted 7 devices for as many "
            "ranks; let 'nodes' be 3");
  }
}

TEST_F(ClusterOption, WithoutRanksTheMeshSaysHowMany) {
  const Outcome run = at_->shardrun("plan gpt.onnx --cluster h100 --mesh 2x4 -o eight.json");
  ASSERT_EQ(run.status, 0) << describe(run);
  EXPECT_NE(run.out.find("plan: mesh a=2,b=4"), std::string::npos) << describe(run);
  const Outcome again = at_->shardrun("plan gpt.onnx --plan eight.json");
  EXPECT_EQ(again.status, 0) << describe(again);
  refused("plan gpt.onnx --ranks 4 --cluster h100 --mesh 2x4", "has 8 ranks, the job has 4");
}

TEST_F(ClusterOption, WrongOnesAreRefused) {
  refused("plan gpt.onnx --ranks 2 --cluster h300", "cluster 'h300' is not known; known are host");
  refused("plan gpt.onnx --ranks 9 --cluster h100",
          "cluster 'h100' has 8 devices (1 node of 8), wanted 9");
  refused("plan gpt.onnx --ranks 2 --cluster ./none.json", "./none.json: cannot open");
  at_->write("bad.json", R"({"name": "x", "devices": 2, "speed": 9})");
  refused("plan gpt.onnx --ranks 2 --cluster bad.json", "bad.json: field 'flops' is missing");
}

/// The machine's own calibration is read where there is one.
TEST_F(ClusterOption, TheHostIsWhatItsCalibrationSays) {
  at_->write("slow.json",
             R"({"name": "host", "about": "a slow one", "devices": 2, "oversubscribes": true,
                 "flops": {"f32": {"peak": 1e6}}, "memory_bandwidth": {"peak": 1e6},
                 "within": {"bandwidth": 1e6, "latency": 0}})");
  const std::string plan = "plan gpt.onnx";
  const Outcome constants = at_->shardrun(threads(2), plan);
  const Outcome slow = at_->sh("SHARDRUN_CALIBRATION=slow.json " +
                               Workspace::line(threads(2), plan + " --cluster host"));
  ASSERT_EQ(slow.status, 0) << describe(slow);
  EXPECT_NE(slow.out.find("cluster host (a slow one)"), std::string::npos) << describe(slow);
  const auto step = [](const Outcome& run) {
    const std::string before = "predicted step ";
    const size_t at = run.out.find(before);
    return at == std::string::npos ? -1 : std::stod(run.out.substr(at + before.size()));
  };
  EXPECT_GT(step(constants), 0) << describe(constants);
  EXPECT_GT(step(slow), 100 * step(constants)) << describe(slow);
  at_->write("cut.json", "{\"name\": ");
  const Outcome cut = at_->sh("SHARDRUN_CALIBRATION=cut.json " + Workspace::line(threads(2), plan));
  EXPECT_EQ(cut.status, 2) << describe(cut);
  EXPECT_NE(
      message(cut).find(
          "cut.json: is not JSON, wanted a cluster file; it ends too early, at line 1, column "
          "10; 'shardrun calibrate' writes"),
      std::string::npos)
      << describe(cut);
}

/// The part for GPUs is looked for next to the library.
TEST_F(ClusterOption, WithoutThePartForGpusADeviceIsRefused) {
  const std::string away = at_->path() + "/away", part = away + "/libshardrun_cuda.so";
  const Outcome copied =
      at_->sh("mkdir away && cp $(dirname " SHARDRUN_COMMAND ")/libshardrun.so.* away");
  ASSERT_EQ(copied.status, 0) << describe(copied);
  const std::string call =
      "LD_LIBRARY_PATH=" + away + " " SHARDRUN_COMMAND " plan gpt.onnx --ranks 2 --device ";
  const auto refused_with = [&](const std::string& wanted) {
    const Outcome run = at_->sh(call + "cuda");
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_NE(message(run).find(wanted), std::string::npos) << describe(run);
    EXPECT_EQ(at_->sh(call + "cpu").status, 0);
  };
  refused_with("device cuda: the part for GPUs is not built (there is no " + part + "); 'make'");
  at_->write("away/libshardrun_cuda.so", "?");
  refused_with("device cuda: the part for GPUs cannot be loaded: " + part);
}

/// Builds differ: with the part for GPUs a plan for them needs no GPU, and a run says what is
/// missing; without it --device says so.
TEST_F(ClusterOption, ADeviceIsChosenByName) {
  refused("plan gpt.onnx --ranks 2 --device tpu", "device 'tpu': wanted cpu or cuda");
  refused("calibrate --device tpu -o x.json", "device 'tpu': wanted cpu or cuda");
  const std::string uncached = "SHARDRUN_CALIBRATION=none CUDA_VISIBLE_DEVICES= ";
  const Outcome plan =
      at_->sh(uncached + Workspace::line(threads(2), "plan gpt.onnx --device cuda"));
  if (plan.status == 2) {
    EXPECT_NE(message(plan).find("device cuda: the part for GPUs is not built (there is no "),
              std::string::npos)
        << describe(plan);
    return;
  }
  ASSERT_EQ(plan.status, 0) << describe(plan);
  EXPECT_NE(plan.out.find("cluster h100 (assumed, for this machine has no GPU; --cluster names"),
            std::string::npos)
      << describe(plan);
  // Of updates that became one step each gradient's own is named.
  for (const std::string planner : {"dp", "fsdp"}) {
    const std::string call = "plan gpt.onnx --device cuda --planner " + planner;
    const Outcome of = at_->sh(uncached + Workspace::line(threads(2), call));
    ASSERT_EQ(of.status, 0) << describe(of);
    EXPECT_NE(of.out.find("wanted by"), std::string::npos) << describe(of);
  }
  for (const char* call :
       {"train gpt.onnx --device cuda --steps 1", "verify gpt.onnx --device cuda",
        "calibrate --device cuda -o x.json", "bench ops --device cuda"}) {
    const Outcome run = at_->sh(uncached + SHARDRUN_COMMAND + " " + call);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_NE(message(run).find("device cuda: "), std::string::npos) << describe(run);
    EXPECT_NE(message(run).find("run with --device cpu"), std::string::npos) << describe(run);
  }
  // What was measured of cores says nothing of GPUs.
  at_->write("host.json",
             R"({"name": "host", "devices": 2, "flops": {"f32": {"peak": 1e9}},
                 "memory_bandwidth": {"peak": 1e9}, "within": {"bandwidth": 1e9, "latency": 0}})");
  refused("plan gpt.onnx --ranks 2 --device cuda --cluster ./host.json",
          "./host.json: was measured with --device cpu and this is --device cuda");
  const Outcome set = at_->sh("SHARDRUN_CALIBRATION=host.json " +
                              Workspace::line(threads(2), "plan gpt.onnx --device cuda"));
  EXPECT_EQ(set.status, 2) << describe(set);
}

/// On a terminal one line says what is measured; --quiet says nothing.
TEST_F(ClusterOption, CalibrateShowsWhatItIsAt) {
  const std::string call = "calibrate -o shown.json --threads 1 --seconds ";
  const Outcome quiet = at_->shardrun(call + "1e-9 --quiet");
  EXPECT_EQ(quiet.status, 0) << describe(quiet);
  EXPECT_EQ(quiet.out, "") << describe(quiet);
  const Outcome terminal =
      at_->sh("TERM=xterm script -qec '" + Workspace::line({1, true}, call + "1.5") +
              "' /dev/null < /dev/null");
  ASSERT_EQ(terminal.status, 0) << describe(terminal);
  EXPECT_NE(terminal.out.find("\r\033[Kcalibrating, 1 s: "), std::string::npos) << terminal.out;
  EXPECT_NE(terminal.out.find("\r\033[Kmeasured "), std::string::npos) << terminal.out;
}

/// With little time little is measured, but what is written is a cluster to plan for. Under mpirun
/// it gets what MPI takes.
TEST_F(ClusterOption, CalibrateMeasuresThisMachine) {
  const auto measured = [&] { return nlohmann::json::parse(at_->read("host.json"))["measured"]; };
  // On a machine that stands still for so long it gets more time.
  const auto calibrate = [&](bool by_mpi, const std::string& flags, auto&& is_enough) {
    for (const char* seconds : {"0.5", "4", "32"}) {
      const std::string call = "calibrate -o host.json" + flags + " --seconds " + seconds;
      const Outcome run = by_mpi ? at_->shardrun(mpi(2), call) : at_->shardrun(call);
      ASSERT_EQ(run.status, 0) << describe(run);
      EXPECT_NE(run.out.find("host.json"), std::string::npos) << describe(run);
      EXPECT_NE(run.out.find(" s: collectives between 2 ranks\n"), std::string::npos) << run.out;
      EXPECT_EQ(run.out.find(" s: kernels of ") != std::string::npos, !by_mpi) << run.out;
      if (is_enough()) return;
    }
    ADD_FAILURE() << measured().dump();
  };
  const auto knows_kernels = [&](auto&& wanted) {
    const nlohmann::json all = measured()["kernels"];
    for (const nlohmann::json& kernels : all) {
      if (!kernels["grids"].empty() && wanted(kernels["threads"])) return true;
    }
    return false;
  };
  calibrate(false, "", [&] { return knows_kernels([](int) { return true; }); });
  const size_t threads = measured()["collectives"].size();
  calibrate(true, "", [&] { return measured()["collectives"].size() > threads; });
  EXPECT_EQ(measured()["collectives"].back()["backend"], "mpi");
  const Outcome plan = at_->shardrun("plan gpt.onnx --ranks 2 --cluster host.json");
  EXPECT_EQ(plan.status, 0) << describe(plan);
  EXPECT_NE(plan.out.find("measured on"), std::string::npos) << describe(plan);
  // Ranks of one thread in addition to the others; a plan for one thread is predicted with them.
  calibrate(false, " --threads 1",
            [&] { return knows_kernels([](int threads) { return threads == 1; }); });
  nlohmann::json cluster = nlohmann::json::parse(at_->read("host.json"));
  bool more = false;
  for (nlohmann::json& kernels : cluster["measured"]["kernels"]) {
    more = more || kernels["threads"] > 1;
    if (kernels["threads"] > 1) continue;
    for (nlohmann::json& grid : kernels["grids"]) {
      for (nlohmann::json& seconds : grid["seconds"]) seconds = 1000;
    }
  }
  at_->write("one.json", cluster.dump());
  const auto predicted = [&](const std::string& flags) {
    const Outcome run = at_->shardrun("plan gpt.onnx --ranks 1 --cluster one.json " + flags);
    const std::string before = "predicted step ";
    const size_t at = run.out.find(before);
    EXPECT_NE(at, std::string::npos) << describe(run);
    return at == std::string::npos ? -1 : std::stod(run.out.substr(at + before.size()));
  };
  EXPECT_GT(predicted("--threads 1"), 1000e3);
  if (more) {
    EXPECT_LT(predicted("--threads 64"), 1000e3);  // for another machine: nothing runs here
  }
  refused("calibrate --threads 4096 -o x.json", "--threads 4096: 1 rank has ");
  refused("calibrate -o /proc/none/host.json", "/proc/none/host.json: cannot be written");
  refused("calibrate --seconds 0 -o x.json", "--seconds is 0");
}

}  // namespace
}  // namespace shardrun::test
