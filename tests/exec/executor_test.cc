// A small model trained under random plans on local ranks equals the unsharded interpreter, repeats
// bit for bit, and allocates what was predicted.
#include "exec/executor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/philox.h"
#include "kernels/reference/interpreter.h"
#include "program/compile.h"
#include "tests/collectives/ranks.h"
#include "tests/exec/random_plan.h"
#include "tests/support/far_device.h"
#include "tests/support/kernel_traits.h"
#include "tests/support/memory_check.h"

namespace shardrun {
namespace {

using test::ModelOptions;

constexpr uint64_t kSeed = 17;
constexpr int kSteps = 3;

/// The micro-batch's global tensors: any numbers, the same for every mesh.
NamedTensors feeds_of(const ModelOptions& o, int step, int micro) {
  const RandomStream random{kSeed, 1, static_cast<uint64_t>(step * 100 + micro)};
  Tensor x({o.dtype(), {o.batch, o.in}}), labels({DType::i64, {o.batch}});
  for (int64_t i = 0; i < x.count(); ++i) {
    const double value = random.normal(static_cast<uint64_t>(i));
    convert(&value, DType::f64, x.as<char>() + i * size_of(x.dtype()), x.dtype(), 1);
  }
  for (int64_t i = 0; i < labels.count(); ++i) {
    labels.as<int64_t>()[i] =
        random.bits(static_cast<uint64_t>(1000 + i)) % static_cast<uint64_t>(o.classes);
  }
  return {{"x", x}, {"labels", labels}};
}

float rate(int step) { return 0.05f / static_cast<float>(step); }

/// What a run leaves behind: per step the metrics and logits, and the persistent values.
struct Outcome {
  std::vector<double> loss, norm;
  std::vector<Tensor> logits;
  std::map<std::string, Tensor> persistent;
};

Outcome run_unsharded(const Graph& g, const ModelOptions& o) {
  Interpreter interpreter(g, kSeed);
  Outcome out;
  const std::vector<ValueId> wanted = {g.metrics.at("loss"), g.metrics.at("grad_norm"),
                                       g.outputs[0]};
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<NamedTensors> micro;
    for (int i = 0; i < o.optimizer.accumulate; ++i) {
      NamedTensors feeds = feeds_of(o, step, i);
      feeds[kLearningRate] = Tensor::from<float>({}, {rate(step)}, DType::f32);
      feeds[kStep] = Tensor::scalar_i64(step);
      micro.push_back(feeds);
    }
    const std::vector<Tensor> got = interpreter.step(micro, wanted);
    out.loss.push_back(got[0].at(0));
    out.norm.push_back(got[1].at(0));
    out.logits.push_back(got[2]);
  }
  for (const Value& v : g.values()) {
    // Nobody reads what a step leaves of accumulated gradients.
    const bool zeroed = g.zeroed_each_step.count(g.find(v.name)) > 0;
    if ((v.role == Role::parameter || v.role == Role::state) && !zeroed)
      out.persistent[v.name] = interpreter.persistent(v.name);
  }
  return out;
}

Tensor cut(const Tensor& whole, const Box& box) {
  Tensor out({whole.dtype(), box_shape(box)});
  copy_box(whole.data(), full_box(whole.shape()), out.data(), box, box, size_of(whole.dtype()));
  return out;
}

struct Casts {
  bool keep = false;
  bool rewrite = false;  // a weight is written after the first step
};

/// far: on a device whose memory the host cannot touch; side: where collectives run while
/// kernels, as late as they may.
enum class On { host, far, side };
Outcome run_sharded(const Graph& g, const Plan& plan, const ModelOptions& o, Casts casts = {},
                    On on = On::host) {
  Outcome out;
  const auto ranks = static_cast<size_t>(plan.mesh.size());
  std::vector<std::vector<std::pair<Binding, Tensor>>> shards(ranks);
  std::vector<Outcome> metrics(ranks);
  test::run_ranks(static_cast<int>(ranks), [&](Communicator& host) {
    const KernelList beyond = test::far_kernels(reference_kernels());
    const bool far = on != On::host;
    test::FarDevice device(on == On::side ? std::make_unique<test::FarDevice>(nullptr, true)
                                          : nullptr);
    test::FarDevice at_once;
    std::unique_ptr<Communicator> peers =
        make_peer_communicator(host, std::make_shared<test::FarAccess>(at_once));
    if (on == On::side)
      peers = std::make_unique<test::LazyCommunicator>(std::move(peers), *device.side());
    Communicator& world = far ? *peers : host;
    const std::vector<const KernelList*> lists = {far ? &beyond : &reference_kernels()};
    Plan kept = plan;
    kept.keep_casts = casts.keep;
    Program program = compile(g, kept, Cluster{}, world.rank(), test::with_kernels({}, lists));
    check_memory(program);
    const int64_t predicted = program.arena_bytes;
    Executor exec(std::move(program), lists, world, kSeed, nullptr, true,
                  far ? static_cast<Device&>(device) : host_device());
    EXPECT_EQ(exec.allocated_bytes(), predicted);
    Outcome& mine = metrics[static_cast<size_t>(world.rank())];
    for (int step = 1; step <= kSteps; ++step) {
      exec.set_scalar(kLearningRate, static_cast<double>(rate(step)));
      exec.set_scalar(kStep, step);
      EXPECT_FALSE(exec.set_scalar("no such scalar", 1));
      exec.begin_step();
      for (int i = 0; i < o.optimizer.accumulate; ++i) {
        for (const auto& [name, whole] : feeds_of(o, step, i))
          exec.write(name, cut(whole, exec.find(name)->box));
        exec.run_micro();
      }
      exec.run_update();
      mine.loss.push_back(exec.metric("loss"));
      mine.norm.push_back(exec.metric("grad_norm"));
      mine.logits.push_back(exec.read(exec.program().outputs[0]));
      if (casts.rewrite && step == 1) {
        const Binding& w2 = *exec.find("w2");
        exec.write("w2", Tensor(exec.read(w2).type()));
      }
    }
    EXPECT_EQ(device.recordings, far && ranks == 1 ? 2 : 0);  // micro and update
    EXPECT_EQ(device.fused > 0, far);
    for (const Binding& b : exec.program().bindings) {
      if ((b.role == Role::parameter || b.role == Role::state) && !b.zeroed_each_step)
        shards[static_cast<size_t>(world.rank())].push_back({b, exec.read(b)});
    }
  });
  out.loss = metrics[0].loss;
  out.norm = metrics[0].norm;
  out.logits = metrics[0].logits;
  for (const Outcome& m : metrics) {
    EXPECT_EQ(m.loss, out.loss) << "ranks disagree";
    EXPECT_EQ(m.norm, out.norm) << "ranks disagree";
  }
  for (const auto& rank : shards) {
    for (const auto& [b, shard] : rank) {
      Tensor& whole = out.persistent.try_emplace(b.name, Tensor(b.global)).first->second;
      copy_box(shard.data(), b.box, whole.data(), full_box(b.global.shape), b.box,
               size_of(b.global.dtype));
    }
  }
  return out;
}

void expect_close(const Tensor& got, const Tensor& want, const std::string& what) {
  ASSERT_EQ(got.type(), want.type()) << what;
  for (int64_t i = 0; i < want.count(); ++i) {
    ASSERT_NEAR(got.at(i), want.at(i), 1e-6 * (1 + std::abs(want.at(i))))
        << what << " element " << i;
  }
}

void expect_close(const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.loss.size(), want.loss.size());
  for (size_t s = 0; s < want.loss.size(); ++s) {
    ASSERT_NEAR(got.loss[s], want.loss[s], 1e-6) << "loss of step " << s + 1;
    ASSERT_NEAR(got.norm[s], want.norm[s], 1e-5) << "grad_norm of step " << s + 1;
    expect_close(got.logits[s], want.logits[s], "logits");
  }
  for (const auto& [name, tensor] : want.persistent)
    expect_close(got.persistent.at(name), tensor, name);
}

void run_mesh(const char* text, const ModelOptions& o, uint32_t seeds) {
  const Graph g = test::small_model(o);
  const Mesh mesh = Mesh::parse(text);
  const Outcome want = run_unsharded(g, o);
  EXPECT_LT(want.loss.back(), 20.0);
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(str("mesh ", text, ", plan seed ", seed));
    const Plan plan = test::random_plan(g, mesh, seed);
    expect_close(run_sharded(g, plan, o), want);
    if (testing::Test::HasFailure()) {
      std::cout << to_string(Partition(g, plan, Cluster{}).program(0));
      return;
    }
  }
}

ModelOptions options(OptimizerKind kind, int accumulate, double clip) {
  ModelOptions o;
  o.optimizer.kind = kind;
  o.optimizer.accumulate = accumulate;
  o.optimizer.clip_norm = clip;
  o.optimizer.weight_decay = 0.1;
  return o;
}

TEST(Executor, OneRank) { run_mesh("1", options(OptimizerKind::adamw, 1, 0), 1); }
TEST(Executor, OneAxis) {
  run_mesh("2", options(OptimizerKind::sgd, 1, 0), 15);
  run_mesh("3", options(OptimizerKind::adamw, 1, 0.1), 15);
  run_mesh("4", options(OptimizerKind::sgd, 2, 0.1), 15);
}
TEST(Executor, TwoAxes) {
  run_mesh("2x2", options(OptimizerKind::adamw, 2, 0.1), 25);
  run_mesh("2x3", options(OptimizerKind::sgd, 1, 0.1), 8);
}
TEST(Executor, ThreeAxes) { run_mesh("2x2x2", options(OptimizerKind::adamw, 2, 0.5), 10); }

/// Nothing in the executor touches memory but through the device: the same numbers, bit for bit.
void run_far(On on) {
  for (const char* text : {"1", "2", "3x2"}) {
    for (uint32_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(str("mesh ", text, ", plan seed ", seed));
      const ModelOptions o = options(OptimizerKind::adamw, 2, 0.5);
      const Graph g = test::small_model(o);
      const Plan plan = test::random_plan(g, Mesh::parse(text), seed);
      const Outcome here = run_sharded(g, plan, o, {true, false}),
                    far = run_sharded(g, plan, o, {true, false}, on);
      EXPECT_EQ(here.loss, far.loss);
      EXPECT_EQ(here.norm, far.norm);
      for (const auto& [name, tensor] : here.persistent) {
        const Tensor& other = far.persistent.at(name);
        ASSERT_EQ(other.type(), tensor.type());
        EXPECT_EQ(
            std::memcmp(other.data(), tensor.data(), static_cast<size_t>(byte_size(tensor.type()))),
            0)
            << name;
      }
    }
  }
}

TEST(Executor, RunsWhereTheHostCannotReach) { run_far(On::far); }
TEST(Executor, OverlapsCollectivesWithKernels) { run_far(On::side); }

TEST(Executor, EmptyShards) {
  ModelOptions o = options(OptimizerKind::adamw, 1, 0);
  o.batch = 2;
  o.in = 3;
  o.hidden = 5;
  run_mesh("4", o, 10);
  run_mesh("2x3", o, 6);
}

void expect_same(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.loss, want.loss);
  EXPECT_EQ(got.norm, want.norm);
  for (const auto& [name, tensor] : want.persistent) {
    EXPECT_EQ(std::memcmp(tensor.data(), got.persistent.at(name).data(),
                          static_cast<size_t>(byte_size(tensor.type()))),
              0)
        << name;
  }
}

TEST(Executor, RepeatsBitForBit) {
  const ModelOptions o = options(OptimizerKind::adamw, 2, 0.1);
  const Graph g = test::small_model(o);
  const Plan plan = test::random_plan(g, Mesh::parse("2x2"), 5);
  expect_same(run_sharded(g, plan, o), run_sharded(g, plan, o));
}

/// Casts of weights and their updates work on what a rank holds, as under fsdp.
void follow_weights(const Graph& g, Plan& plan) {
  for (const Node& node : g.nodes()) {
    const bool update = node.op == "adamw" || node.op == "sgd";
    if (!update && (node.op != "cast" || g.value(node.inputs[0]).role != Role::parameter)) continue;
    const Sharding held = plan.values.at(g.value(node.inputs[0]).name);
    NodePlan& np = plan.nodes.at(node.name);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (g.type(node.inputs[i]).shape != g.type(node.inputs[0]).shape) continue;
      np.in[i] = held;
      if (g.value(node.inputs[i]).role == Role::state)
        plan.values[g.value(node.inputs[i]).name] = held;
    }
    for (size_t i = 0; i < node.outputs.size(); ++i)
      np.out[i] = plan.values[g.value(node.outputs[i]).name] = held;
  }
}

/// bf16 copies that the update keeps up are those that casts would make, from the first step on,
/// with accumulation, whatever is cut, and after a weight was written from outside.
TEST(Executor, KeepsCopiesOfWeights) {
  const auto compare = [&](const char* mesh, OptimizerKind kind, int accumulate, uint32_t seeds) {
    ModelOptions o = options(kind, accumulate, 0.1);
    o.bf16 = true;
    const Graph g = test::small_model(o);
    for (uint32_t seed = 0; seed < seeds; ++seed) {
      SCOPED_TRACE(str("mesh ", mesh, ", plan seed ", seed));
      Plan plan = test::random_plan(g, Mesh::parse(mesh), seed);
      follow_weights(g, plan);
      plan.keep_casts = true;
      const Program program = compile(g, plan, Cluster{}, 0, {}, {.stop_after = "keep_casts"});
      EXPECT_EQ(program.setup.size(), 3u);  // w1, b1, w2
      for (const bool rewrite : {false, true}) {
        expect_same(run_sharded(g, plan, o, {true, rewrite}),
                    run_sharded(g, plan, o, {false, rewrite}));
      }
    }
  };
  compare("1", OptimizerKind::adamw, 1, 1);
  compare("2", OptimizerKind::adamw, 2, 4);
  compare("2x2", OptimizerKind::sgd, 1, 4);
}

TEST(Arena, HasOneCommunicatorForEachPartition) {
  test::run_ranks(4, [](Communicator& world) {
    Arena arena(64, world);
    Communicator* const pair = arena.group({{0, 1}, {2, 3}});
    EXPECT_EQ(pair->size(), 2);
    EXPECT_EQ(arena.group({{0, 1}, {2, 3}}), pair);
    EXPECT_EQ(arena.group({{0, 2}, {1, 3}})->rank(), world.rank() / 2);
    EXPECT_EQ(arena.group({{3, 2, 1, 0}})->rank(), 3 - world.rank());
  });
}

/// An evaluation program reads the parameters that a training program left in the arena both share.
TEST(Executor, ProgramsShareAnArena) {
  const ModelOptions o = options(OptimizerKind::sgd, 1, 0);
  const Graph train = test::small_model(o);
  Graph eval = train;
  eval.updates.clear();
  eval.metrics = {{"loss", eval.loss}};
  eval.outputs.clear();
  remove_dead_nodes(eval);
  const Mesh mesh = Mesh::parse("2");
  const Plan train_plan = test::random_plan(train, mesh, 3);
  Plan eval_plan = test::replicated_plan(eval, mesh);
  for (const auto& [name, s] : train_plan.values) {
    if (eval.sources.count(eval.find(name))) eval_plan.values[name] = s;
  }
  test::run_ranks(2, [&](Communicator& world) {
    const std::vector<const KernelList*> lists = {&reference_kernels()};
    const BackendTraits traits = test::with_kernels({}, lists);
    const Program t = compile(train, train_plan, Cluster{}, world.rank(), traits),
                  e = compile(eval, eval_plan, Cluster{}, world.rank(), traits,
                              {.persistent_like = &t});
    check_memory(e);
    const auto arena = std::make_shared<Arena>(std::max(t.arena_bytes, e.arena_bytes), world);
    Executor training(t, lists, world, kSeed, arena),
        evaluation(e, lists, world, kSeed, arena, /*initialise=*/false);
    auto feed = [&](Executor& exec) {
      for (const auto& [name, whole] : feeds_of(o, 1, 0)) {
        if (const Binding* b = exec.find(name)) exec.write(name, cut(whole, b->box));
      }
    };
    std::vector<double> losses;
    for (int step = 1; step <= 3; ++step) {
      training.set_scalar(kLearningRate, 0.1);
      training.set_scalar(kStep, step);
      training.begin_step();
      feed(training);
      training.run_micro();
      training.run_update();
      const double before = training.metric("loss");
      feed(evaluation);
      evaluation.run_micro();
      if (!losses.empty()) {
        EXPECT_NEAR(before, losses.back(), 1e-9);  // the last evaluation saw these weights
      }
      losses.push_back(evaluation.metric("loss"));
      EXPECT_LT(losses.back(), before);
    }
    EXPECT_GT(training.comm_seconds(), 0.0);
  });
}

}  // namespace
}  // namespace shardrun
