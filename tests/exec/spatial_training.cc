// The network, random plans for it, and the comparison.
#include "tests/exec/spatial_training.h"

#include <gtest/gtest.h>

#include <mutex>
#include <random>

#include "base/philox.h"
#include "exec/executor.h"
#include "graph/optimizer.h"
#include "kernels/reference/interpreter.h"
#include "planner/rules/trial.h"
#include "planner/space/strategy.h"
#include "program/compile.h"
#include "tests/support/memory_check.h"

namespace shardrun::test {
namespace {

using Ints = std::vector<int64_t>;

constexpr uint64_t kSeed = 5;
constexpr int kSteps = 2;
constexpr int64_t kBatch = 2, kHeight = 11, kWidth = 9;

Attrs window_attrs(int64_t stride, int64_t low, int64_t high) {
  return {{"strides", Ints{stride, stride}},
          {"dilations", Ints{1, 1}},
          {"pads_low", Ints{low, low}},
          {"pads_high", Ints{high, high}}};
}

/// Two convolutions, one of them strided, with a pool between; two branches of different height
/// joined along it; a sum over everything.
Graph network() {
  Graph g;
  const auto weights = [&](const std::string& name, Shape shape) {
    Source source;
    source.kind = Source::Kind::normal;
    source.b = 0.3;
    source.stream = name;
    const ValueId id =
        g.add_persistent(name, {DType::f64, std::move(shape)}, Role::parameter, source);
    g.trainable[id] = true;
    return id;
  };
  const ValueId x = g.add_input("x", {DType::f64, {kBatch, 3, kHeight, kWidth}}, Role::batch);
  const ValueId first = g.add(
      "relu", {g.add("conv", {x, weights("w1", {4, 3, 3, 3})}, window_attrs(1, 1, 1), "conv1")}, {},
      "relu1");
  Attrs pool = window_attrs(2, 1, 0);
  pool.set("kernel", Ints{3, 3});
  const ValueId pooled = g.add_node("max_pool", {first}, pool, "pool")[0];
  const ValueId strided =
      g.add("conv", {first, weights("w2", {4, 4, 2, 3})}, window_attrs(2, 0, 1), "conv2");
  // [.., 5, 4] and [.., 6, 5]: the second cropped to the same width.
  const Shape a = g.type(pooled).shape, b = g.type(strided).shape;
  const int64_t width = std::min(a[3], b[3]);
  const auto crop = [&](ValueId v, const Shape& shape, const char* name) {
    return g.add("slice", {v},
                 {{"starts", Ints{0, 0, 0, 0}},
                  {"ends", Ints{shape[0], shape[1], shape[2], width}},
                  {"steps", Ints{1, 1, 1, 1}}},
                 name);
  };
  const ValueId joined = g.add("concat", {crop(pooled, a, "crop1"), crop(strided, b, "crop2")},
                               {{"axis", int64_t{2}}}, "join");
  const ValueId wide =
      g.add("conv", {joined, weights("w3", {2, 4, 5, 5})}, window_attrs(1, 2, 2), "conv3");
  const ValueId squares = g.add("mul", {wide, wide}, {}, "square");
  const ValueId total = g.add("reduce_sum", {squares},
                              {{"axes", Ints{0, 1, 2, 3}}, {"keepdims", int64_t{0}}}, "total");
  const ValueId share = g.add(
      "fill", {}, {{"shape", Ints{}}, {"dtype", std::string("f64")}, {"value", 1e-3}}, "share");
  g.loss = g.add("mul", {total, share}, {}, "loss");
  g.outputs = {wide};
  attach_optimizer(g, {.kind = OptimizerKind::sgd});
  remove_dead_nodes(g);
  return g;
}

NamedTensors feeds_of(int step) {
  const RandomStream random{kSeed, 1, static_cast<uint64_t>(step)};
  Tensor x({DType::f64, {kBatch, 3, kHeight, kWidth}});
  for (int64_t i = 0; i < x.count(); ++i)
    x.as<double>()[i] = random.normal(static_cast<uint64_t>(i));
  return {{"x", x}};
}

/// Does it take operands as partial maxima or minima? A rank without a part then holds an infinity,
/// which an update with a decay of 0 makes a NaN.
bool takes_extrema(const Strategy& s) {
  for (const Sharding& in : s.in) {
    for (const auto& p : in.partial) {
      if (p.op != ReduceOp::sum) return true;
    }
  }
  return false;
}

/// A random strategy for every node, mostly one with exchanges where there is any.
Plan random_plan(const Graph& g, const Mesh& mesh, uint32_t seed) {
  static RuleCache rules;  // local ranks are threads
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::mt19937 random(seed);
  const Cluster cluster;
  Plan plan;
  plan.mesh = mesh;
  plan.model_hash = structural_hash(g);
  for (const Value& v : g.values()) {
    if (v.role != Role::computed) plan.values[v.name] = Sharding::replicated(v.type.shape.size());
  }
  for (const Node& node : g.nodes()) {
    const std::vector<TensorType> in = g.types(node.inputs), out = g.types(node.outputs);
    std::vector<Strategy> all =
        enumerate_strategies(node, in, out, rules.rule(node, in), mesh, cluster);
    std::erase_if(all, takes_extrema);
    std::vector<const Strategy*> choices;
    for (const Strategy& s : all) {
      if (!s.halos.empty() || !s.blocks.empty()) choices.push_back(&s);
    }
    if (choices.empty() || random() % 4 == 0) {
      choices.clear();
      for (const Strategy& s : all) choices.push_back(&s);
    }
    const NodePlan np = choices[random() % choices.size()]->node_plan();
    for (size_t r = 0; r < np.out.size(); ++r)
      plan.values[g.value(node.outputs[r]).name] = np.out[r];
    plan.nodes[node.name] = np;
  }
  return plan;
}

std::vector<Mesh> meshes_of(int ranks) {
  std::vector<Mesh> out{Mesh({{"a", ranks}})};
  if (ranks == 4) out.push_back(Mesh::parse("2x2"));
  if (ranks == 6) out.push_back(Mesh::parse("2x3"));
  return out;
}

struct Wanted {
  std::vector<double> losses;
  std::map<std::string, Tensor> parameters;
};

Wanted unsharded(const Graph& g) {
  Wanted out;
  Interpreter interpreter(g, kSeed);
  const std::vector<ValueId> wanted = {g.loss};
  for (int step = 1; step <= kSteps; ++step) {
    NamedTensors feeds = feeds_of(step);
    feeds[kLearningRate] = Tensor::from<float>({}, {0.01f}, DType::f32);
    feeds[kStep] = Tensor::scalar_i64(step);
    out.losses.push_back(interpreter.step({feeds}, wanted)[0].at(0));
  }
  for (ValueId id : g.with_role(Role::parameter))
    out.parameters[g.value(id).name] = interpreter.persistent(g.value(id).name);
  return out;
}

}  // namespace

int64_t check_spatial_training(Communicator& world, int plans) {
  const Graph g = network();
  const Wanted want = unsharded(g);
  int64_t exchanges = 0;
  for (const Mesh& mesh : meshes_of(world.size())) {
    for (int p = 0; p < plans; ++p) {
      // As a plan file has it: what is saved is what runs.
      const Plan plan =
          plan_from_json(to_json(random_plan(g, mesh, static_cast<uint32_t>(100 + p))), "plan");
      check_plan(plan, g);
      const std::vector<const KernelList*> lists = {&reference_kernels()};
      const Program program = compile(g, plan, Cluster{}, world.rank(), {.needs = StepNeeds(lists)},
                                      {.steps = Steps::all});
      check_memory(program);
      for (const Step& step : program.steps) {
        exchanges +=
            step.kind == Step::Kind::collective && step.collective->traits().is_exchange() ? 1 : 0;
      }
      const int64_t predicted = program.arena_bytes;
      Executor executor(std::move(program), lists, world, kSeed);
      EXPECT_EQ(executor.allocated_bytes(), predicted);
      const std::string where = str("mesh ", mesh.to_string(), ", plan ", 100 + p);
      for (int step = 1; step <= kSteps; ++step) {
        executor.set_scalar(kLearningRate, 0.01f);
        executor.set_scalar(kStep, step);
        executor.begin_step();
        for (const auto& [name, whole] : feeds_of(step))
          executor.write(name, cut_tensor(whole, executor.find(name)->box));
        executor.run_micro();
        executor.run_update();
        const double loss = want.losses[static_cast<size_t>(step - 1)];
        EXPECT_NEAR(executor.metric("loss"), loss, 1e-9 * std::abs(loss)) << where;
      }
      for (const Binding& b : executor.program().bindings) {
        if (b.role != Role::parameter) continue;
        EXPECT_TRUE(
            same_values(executor.read(b), cut_tensor(want.parameters.at(b.name), b.box), 1e-9))
            << where << ": " << b.name;
      }
      if (testing::Test::HasFailure()) return exchanges;
    }
  }
  return exchanges;
}

}  // namespace shardrun::test
