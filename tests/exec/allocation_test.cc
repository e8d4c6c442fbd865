// A step allocates nothing: of each kind of model, in both types, on one rank, and on two.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <thread>

#include "exec/executor.h"
#include "graph/onnx/import.h"
#include "graph/optimizer.h"
#include "graph/passes/channels_last.h"
#include "graph/passes/recognise/recognise.h"
#include "graph/passes/training.h"
#include "kernels/cpu/cpu.h"
#include "kernels/fused_call.h"
#include "models/gat.h"
#include "models/gpt.h"
#include "models/wide_resnet.h"
#include "planner/planner.h"
#include "program/compile.h"
#include "tests/exec/data/data_support.h"
#include "tests/exec/random_plan.h"
#include "tests/support/allocations.h"
#include "tests/support/kernel_traits.h"

namespace shardrun {
namespace {

using test::bytes_of;
using test::DataTest;
using test::field;
using test::npy;

struct Case {
  const char* name;
  void (*write)(const std::string& path);
  std::optional<LossKind> loss;
  const char* dtype;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name << " " << c.dtype; }

void gpt(const std::string& path) {
  GptOptions o;
  o.layers = 2, o.hidden = 64, o.heads = 4, o.vocab = 130, o.context = 32, o.batch = 4;
  o.dropout = 0.1;
  o.weights = false;
  write_gpt(o, path);
}
void bottlenecks(const std::string& path) {
  WideResNetOptions o;
  o.layers = 50, o.width = 8, o.image = 32, o.classes = 10, o.batch = 2;
  o.weights = false;
  write_wide_resnet(o, path);
}
void cifar(const std::string& path) {
  WideResNetOptions o;
  o.family = WideResNetOptions::Family::cifar;
  o.layers = 10, o.width = 2, o.image = 16, o.classes = 10, o.batch = 4, o.dropout = 0.1;
  o.weights = false;
  write_wide_resnet(o, path);
}
void dense_gat(const std::string& path) {
  GatOptions o;
  o.dense = true, o.nodes = 96, o.dropout = o.attention_dropout = 0.2;
  o.weights = false;
  write_gat(o, path);
}
void sparse_gat(const std::string& path) {
  GatOptions o;
  o.nodes = 96, o.edges = 300, o.dropout = o.attention_dropout = 0.2;
  o.weights = false;
  write_gat(o, path);
}

Graph training_graph(const Case& c) {
  const std::string path =
      (std::filesystem::temp_directory_path() / str("allocation_test_", ::getpid(), ".onnx"))
          .string();
  c.write(path);
  ImportOptions import;
  import.evaluate = run_reference;
  Graph graph = OnnxFile(path).import(import);
  std::filesystem::remove(path);
  recognise(graph);
  put_channels_last(graph);
  attach_loss(graph, c.loss);
  freeze_unreached(graph);
  graph.metrics = {{"loss", graph.loss}};
  graph.outputs.clear();
  remove_dead_nodes(graph);
  if (std::string(c.dtype) == "bf16") graph = in_bf16(graph);
  OptimizerOptions optimizer;
  optimizer.clip_norm = 1;
  optimizer.accumulate = 2;
  attach_optimizer(graph, optimizer);
  fold_casts(graph);
  mask_before_dropout(graph);
  merge_equal_nodes(graph);
  return graph;
}

/// Steps on the ranks of `world`, of which this is one; how often the last one allocated.
int64_t allocations_of_a_step(const Graph& graph, const Plan& plan, Communicator& world) {
  const std::vector<const KernelList*> lists = {&cpu_kernels(), &reference_kernels()};
  BackendTraits traits = test::with_kernels(traits_of(lists, true), lists);
  traits.takes = [&](const Node& node, const auto& in, const auto& out) {
    return select_kernel(lists, {node, in, out}).impl != "reference";  // which allocates
  };
  traits.packed_weights = packed_weights;
  Plan keeping = plan;
  keeping.keep_casts = keeping.keep_packed = true;
  Program program = compile(graph, keeping, host_cluster(), world.rank(), traits);
  Executor executor(std::move(program), lists, world, 1);
  std::vector<TensorView> batch;
  for (const Binding& b : executor.program().bindings) {
    if (b.role == Role::batch) batch.push_back(executor.view(b));
  }
  int64_t before = 0, after = 0;
  double loss = 0;
  for (int step = 1; step <= 4; ++step) {
    world.barrier();
    before = test::allocations();
    world.barrier();
    executor.set_scalar(kLearningRate, 1e-3);
    executor.set_scalar(kStep, step);
    executor.set_scalar(kRandomStep, step);
    executor.begin_step();
    for (int micro = 0; micro < 2; ++micro) {
      for (const TensorView& view : batch)
        std::memset(view.data, 0, static_cast<size_t>(byte_size(view.type)));
      executor.run_micro();
    }
    executor.run_update();
    loss = executor.metric("loss");
    world.barrier();
    after = test::allocations();
    world.barrier();
  }
  EXPECT_GT(loss, 0);
  return after - before;
}

class Allocation : public testing::TestWithParam<Case> {};

TEST_P(Allocation, NoneInAStep) {
  const Graph graph = training_graph(GetParam());
  const auto world = make_local_communicators(1);
  EXPECT_EQ(allocations_of_a_step(graph, test::replicated_plan(graph, Mesh()), *world[0]), 0);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* dtype : {"f32", "bf16"}) {
    all.push_back({"gpt", gpt, {}, dtype});
    all.push_back({"bottlenecks", bottlenecks, LossKind::cross_entropy, dtype});
    all.push_back({"cifar", cifar, LossKind::cross_entropy, dtype});
    all.push_back({"dense_gat", dense_gat, LossKind::cross_entropy, dtype});
    all.push_back({"sparse_gat", sparse_gat, LossKind::cross_entropy, dtype});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Allocation, testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(info.param.name) + "_" + info.param.dtype;
});

TEST(Allocation, NoneInAStepOfTwoRanks) {
  const Graph graph = training_graph({"gpt", gpt, {}, "f32"});
  for (const char* planner : {"fsdp", "megatron"}) {
    SCOPED_TRACE(planner);
    PlanOptions options;
    options.planner = parse_planner(planner);
    RuleCache rules;
    const Plan plan = plan_shardings(graph, Mesh::parse("ranks=2"), host_cluster(), options, rules);
    const auto world = make_local_communicators(2);
    std::thread other([&] { allocations_of_a_step(graph, plan, *world[1]); });
    EXPECT_EQ(allocations_of_a_step(graph, plan, *world[0]), 0);
    other.join();
  }
}

/// Batches are read within the step.
TEST_F(DataTest, ReadWithoutAllocation) {
  const auto of = [](const DataSource& data, const std::vector<BatchField>& fields) {
    const auto read_all = [&](int64_t batch) {
      for (const BatchField& f : fields) {
        const Box box = full_box(f.type.shape);
        std::array<char, 1 << 14> out;
        ASSERT_LE(byte_size(f.type), std::ssize(out));
        const int64_t before = test::allocations();
        data.read(batch, Split::training, f, box, out.data());
        EXPECT_EQ(test::allocations() - before, 0) << f.name << ", " << data.describe();
      }
    };
    read_all(0);
    read_all(1);
  };
  const std::vector<BatchField> tokens = {
      field("a name that is longer than a string's own buffer", DType::i64, {3, 17}, 256),
      field("targets", DType::i64, {3, 17}, 256, BatchField::Role::target)};
  of(*open_data("", tokens, {}), tokens);
  const std::string text = write("text", std::string(1000, 'x'));
  of(*open_data("text:" + text, tokens, {}), tokens);

  std::vector<float> values(20 * 2 * 6 * 5, 1.0F);
  const std::string images = write("x.npy", npy("<f4", "(20, 2, 6, 5)", bytes_of(values))),
                    rows = write("r.npy", npy("<f4", "(20, 60)", bytes_of(values))),
                    labels =
                        write("y.npy", npy("<i8", "(20,)", bytes_of(std::vector<int64_t>(20, 3))));
  const BatchField label = field("y", DType::i64, {4}, 10, BatchField::Role::target);
  const std::vector<BatchField> pictures = {field("x", DType::f32, {4, 2, 6, 5}), label},
                                matrix = {field("x", DType::f32, {4, 60}), label};
  const std::string spec = "npy:" + images + "," + labels;
  of(*open_data("", {pictures[0]}, {}), {pictures[0]});
  of(*open_data(spec, pictures, {}), pictures);
  DataOptions options;
  options.augment = "crop=1,flip";
  of(*open_data(spec, pictures, options), pictures);
  options.augment = "", options.normalise = "rows";
  of(*open_data("npy:" + rows + "," + labels, matrix, options), matrix);
}

TEST(Allocation, IsCounted) {
  const int64_t before = test::allocations();
  const Tensor tensor(TensorType{DType::f32, {3}});
  EXPECT_EQ(tensor.count(), 3);
  EXPECT_GT(test::allocations(), before);
}

}  // namespace
}  // namespace shardrun
