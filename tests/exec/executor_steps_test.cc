// Single steps of an Executor, on devices that tests make: what kernels keep, which step failed,
// when the host waits, what is recorded, and how long each step took.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "exec/executor.h"
#include "program/compile.h"
#include "tests/collectives/ranks.h"
#include "tests/exec/random_plan.h"
#include "tests/support/far_device.h"

namespace shardrun {
namespace {

/// 64 MiB of weights are on the device before others are made: seen when those cannot be.
TEST(ExecutorSteps, FillsADeviceSomeAtATime) {
  Graph g;
  Source first, missing;
  first.kind = Source::Kind::constant, first.a = 3;
  missing.kind = Source::Kind::file, missing.shape = {4};  // behind the file's end
  missing.file = std::make_shared<const InputFile>("/proc/self/exe");
  missing.offset = int64_t{1} << 40;
  const ValueId a = g.add_persistent("a", {DType::f32, {1 << 24}}, Role::parameter, first);
  const ValueId b = g.add_persistent("b", {DType::f32, {4}}, Role::parameter, missing);
  const Attrs all = {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}};
  g.outputs = {g.add("reduce_sum", {a}, all), g.add("reduce_sum", {b}, all)};
  test::run_ranks(1, [&](Communicator& host) {
    test::FarDevice device;
    const auto world = make_peer_communicator(host, std::make_shared<test::FarAccess>(device));
    const KernelList far = test::far_kernels(reference_kernels());
    const std::vector<const KernelList*> lists = {&far};
    const Program program =
        compile(g, test::replicated_plan(g, Mesh()), Cluster{}, 0, {.needs = StepNeeds(lists)});
    const auto arena = std::make_shared<Arena>(program.arena_bytes, *world);
    EXPECT_THROW(Executor(program, lists, *world, 0, arena, true, device), Error);
    for (const Binding& binding : program.bindings) {
      if (binding.name != "a") continue;
      float number = 0;
      const Buffer& buffer = program.buffers[static_cast<size_t>(binding.buffer)];
      device.copy_out(&number, arena->data() + buffer.offset, sizeof number);
      EXPECT_EQ(number, 3);
    }
  });
}

/// Two steps of one kernel, each with a table of its own addresses, that is made once; and made
/// anew where another Program that shares the arena has run.
TEST(ExecutorSteps, KernelsKeepWhatTheyReadInEveryRun) {
  const KernelList keeping = {{"softmax", "keeping", [](const KernelCall&) { return std::nullopt; },
                               [](const KernelCall&) {
                                 PreparedKernel kernel;
                                 kernel.run = [](const KernelArgs& args) {
                                   const auto* const table = static_cast<float* const*>(args.kept);
                                   for (int64_t i = 0; i < 4; ++i) table[1][i] = table[0][i] + 1;
                                 };
                                 kernel.impl = "keeping";
                                 return kernel;
                               }}};
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {4}}, Role::batch);
  const Attrs axis = {{"axis", int64_t{0}}};
  g.outputs = {g.add("softmax", {g.add("softmax", {x}, axis)}, axis)};
  test::run_ranks(1, [&](Communicator& host) {
    test::FarDevice device;
    const auto world = make_peer_communicator(host, std::make_shared<test::FarAccess>(device));
    int kept = 0;
    KernelList far = test::far_kernels(keeping);
    far[0].prepare = [&, prepare = far[0].prepare](const KernelCall& call) {
      PreparedKernel kernel = prepare(call);
      kernel.kept_bytes = 2 * sizeof(void*);
      kernel.keep = [&](const KernelArgs& args) {
        ++kept;
        const void* const table[] = {args.in[0].data, args.out[0].data};
        const auto* bytes = reinterpret_cast<const char*>(table);
        return std::vector<char>(bytes, bytes + sizeof table);
      };
      return kernel;
    };
    const std::vector<const KernelList*> lists = {&far};
    const Plan plan = test::replicated_plan(g, Mesh());
    const BackendTraits traits{.needs = StepNeeds(lists)};
    const Program first = compile(g, plan, Cluster{}, 0, traits),
                  second = compile(g, plan, Cluster{}, 0, traits, {.persistent_like = &first});
    const auto arena =
        std::make_shared<Arena>(std::max(first.arena_bytes, second.arena_bytes), *world);
    Executor one(first, lists, *world, 0, arena, true, device),
        other(second, lists, *world, 0, arena, false, device);
    const auto run = [](Executor& exec, float from) {
      exec.begin_step();
      Tensor numbers({DType::f32, {4}});
      for (int64_t i = 0; i < 4; ++i) numbers.as<float>()[i] = from + static_cast<float>(i);
      exec.write("x", numbers);
      exec.run_micro();
      return exec.read(exec.program().outputs[0]).at(3);
    };
    for (int step = 0; step < 3; ++step)
      EXPECT_EQ(run(one, static_cast<float>(step)), static_cast<float>(step) + 5);
    EXPECT_EQ(device.recordings, 1);
    EXPECT_EQ(kept, 2);
    EXPECT_EQ(run(other, 10), 15);
    EXPECT_EQ(run(one, 20), 25);
    other.weights_changed();
    EXPECT_EQ(run(other, 30), 35);
    EXPECT_EQ(kept, 6);
  });
}

TEST(ExecutorSteps, AFailingStepIsNamed) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {4}}, Role::batch);
  g.outputs = {g.add("relu", {x}, {}, "blk/act")};
  KernelList failing = {
      {"relu", "broken", [](const KernelCall&) { return std::nullopt; },
       [](const KernelCall&) {
         return PreparedKernel{
             [](const KernelArgs&) { fail(ErrorKind::device, "the kernel broke"); }, 0, "broken"};
       }}};
  const std::vector<const KernelList*> lists = {&failing, &reference_kernels()};
  const Program program =
      compile(g, test::replicated_plan(g, Mesh()), Cluster{}, 0, {.needs = StepNeeds(lists)});
  test::run_ranks(1, [&](Communicator& world) {
    Executor exec(program, lists, world, 0);
    EXPECT_EQ(exec.implementation(0), "broken");
    try {
      exec.run_micro();
      FAIL();
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "rank 0: node 'blk/act': the kernel broke");
      EXPECT_EQ(e.kind(), ErrorKind::device);
    }
    EXPECT_THROW(exec.write("x", Tensor({DType::f32, {5}})), Error);
    EXPECT_THROW(exec.write("y", Tensor({DType::f32, {4}})), Error);
  });
}

/// What a device behind the host finds wrong comes when the host waits for it, with the step that
/// it was found in; also where that is one of recorded work.
TEST(ExecutorSteps, AStepThatIsFoundToFailLaterIsNamed) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {4}}, Role::batch);
  g.outputs = {
      g.add("tanh", {g.add("softmax", {x}, {{"axis", int64_t{0}}}, "blk/act")}, {}, "blk/after")};
  bool fails = false;
  const KernelList failing = {
      {"softmax", "broken", [](const KernelCall&) { return std::nullopt; },
       [&](const KernelCall&) {
         return PreparedKernel{
             [&](const KernelArgs&) { SR_REQUIRE(!fails, invalid_input, "label 7 is outside"); }, 0,
             "broken"};
       }}};
  KernelList far = test::far_kernels(failing);
  for (KernelImpl& impl : test::far_kernels(reference_kernels())) far.push_back(std::move(impl));
  const std::vector<const KernelList*> lists = {&far};
  Program program = compile(g, test::replicated_plan(g, Mesh()), Cluster{}, 0,
                            {.needs = StepNeeds(lists)}, {.steps = Steps::all});
  for (const bool recorded : {false, true}) {
    fails = false;
    test::run_ranks(1, [&](Communicator& host) {
      test::FarDevice device(nullptr, !recorded);
      const auto world = make_peer_communicator(host, std::make_shared<test::FarAccess>(device));
      Executor exec(program, lists, *world, 0, nullptr, true, device);
      if (recorded) exec.run_micro();
      EXPECT_EQ(exec.read(exec.program().outputs[0]).count(), 4);
      fails = true;
      try {
        exec.run_micro();
        exec.read(exec.program().outputs[0]);
        FAIL();
      } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "rank 0: node 'blk/act': label 7 is outside");
      }
    });
    EXPECT_TRUE(fails);
  }
}

/// A kernel that waits for the device itself would wait where nobody sees that a peer never comes:
/// what is before it is done when it begins. So it is for every kernel's first run, when libraries
/// measure; later ones are asked for while the device is busy.
TEST(ExecutorSteps, WaitsForTheDeviceBeforeKernelsThatWait) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {4}}, Role::batch);
  const ValueId behind = g.add("sin", {g.add("cos", {x}, {}, "before")}, {}, "on_host");
  g.outputs = {g.add("cos", {behind}, {}, "behind")};
  test::FarDevice device(nullptr, true);
  std::vector<std::pair<std::string, bool>> begun;  // op, and whether the device was busy
  KernelList far;
  for (const char* op : {"cos", "sin"}) {
    far.push_back({op, "far", [](const KernelCall&) { return std::nullopt; },
                   [&, op](const KernelCall&) {
                     const auto run = [&, op](const KernelArgs&) {
                       begun.emplace_back(op, device.asked() > 0);
                       device.work([] {});
                     };
                     PreparedKernel kernel{run, 0, "far"};
                     kernel.recordable = op != std::string("sin");
                     return kernel;
                   }});
  }
  const std::vector<const KernelList*> lists = {&far};
  const Program program = compile(g, test::replicated_plan(g, Mesh()), Cluster{}, 0,
                                  {.needs = StepNeeds(lists)}, {.steps = Steps::all});
  test::run_ranks(1, [&](Communicator& host) {
    const auto world = make_peer_communicator(host, std::make_shared<test::FarAccess>(device));
    Executor exec(program, lists, *world, 0, nullptr, true, device);
    using Begun = std::vector<std::pair<std::string, bool>>;
    exec.run_micro();
    EXPECT_EQ(begun, (Begun{{"cos", false}, {"sin", false}, {"cos", false}}));
    device.synchronize();
    begun.clear();
    exec.run_micro();
    EXPECT_EQ(begun, (Begun{{"cos", false}, {"sin", false}, {"cos", true}}));
  });
}

/// A rank whose kernel runs on the host keeps the others from recording what they could.
TEST(ExecutorSteps, IsRecordedByAllRanksOrNone) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {4}}, Role::batch);
  g.outputs = {g.add("cos", {x}, {}, "y")};
  const Plan plan = test::replicated_plan(g, Mesh({{"data", 2}}));
  for (const bool one_cannot : {false, true}) {
    test::run_ranks(2, [&](Communicator& host) {
      test::FarDevice device;
      const auto world = make_peer_communicator(host, std::make_shared<test::FarAccess>(device));
      KernelList far = test::far_kernels(reference_kernels());
      for (KernelImpl& impl : far) {
        impl.prepare = [&, prepare = impl.prepare](const KernelCall& call) {
          PreparedKernel kernel = prepare(call);
          kernel.recordable = !one_cannot || world->rank() == 0;
          return kernel;
        };
      }
      const std::vector<const KernelList*> lists = {&far};
      const Program program =
          compile(g, plan, Cluster{}, world->rank(), {.needs = StepNeeds(lists)});
      Executor exec(program, lists, *world, 0, nullptr, true, device);
      for (int run = 0; run < 3; ++run) exec.run_micro();
      EXPECT_EQ(device.recordings, one_cannot ? 0 : 1) << "rank " << world->rank();
    });
  }
}

/// A device behind the host is asked for all steps at once while a timeline is recorded, and its
/// own clock says how long each took.
TEST(ExecutorSteps, ATimelineHasTheDevicesTimes) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {4}}, Role::batch);
  g.outputs = {g.add("tanh", {g.add("softmax", {x}, {{"axis", int64_t{0}}}, "slow")}, {}, "fast")};
  test::FarDevice device(nullptr, /*lazy=*/true);
  constexpr double kSeconds = 0.05;
  const KernelList slow = {{"softmax", "slow", [](const KernelCall&) { return std::nullopt; },
                            [&](const KernelCall&) {
                              return PreparedKernel{[&](const KernelArgs&) {
                                                      std::this_thread::sleep_for(
                                                          std::chrono::duration<double>(kSeconds));
                                                    },
                                                    0, "slow"};
                            }}};
  KernelList far = test::far_kernels(slow);
  for (KernelImpl& impl : test::far_kernels(reference_kernels())) far.push_back(std::move(impl));
  const std::vector<const KernelList*> lists = {&far};
  Program program = compile(g, test::replicated_plan(g, Mesh()), Cluster{}, 0,
                            {.needs = StepNeeds(lists)}, {.steps = Steps::all});
  test::run_ranks(1, [&](Communicator& host) {
    const auto world = make_peer_communicator(host, std::make_shared<test::FarAccess>(device));
    Executor exec(program, lists, *world, 0, nullptr, true, device);
    Timeline timeline(2, 10);
    exec.record(&timeline);
    for (int64_t number = 1; number <= 2; ++number) {
      timeline.begin_run(number);
      exec.run_micro();
      timeline.end_run();
    }
    ASSERT_EQ(timeline.runs().size(), 2u);
    for (const Timeline::Run& run : timeline.runs()) {
      ASSERT_EQ(run.events.size(), 2u);
      EXPECT_LE(run.begin, run.events[0].begin);
      EXPECT_GE(run.events[0].end - run.events[0].begin, kSeconds);
      EXPECT_EQ(run.events[1].begin, run.events[0].end);
      EXPECT_LE(run.events[1].end, run.end);
    }
  });
}

}  // namespace
}  // namespace shardrun
