// Offsets in the arena: nothing alive overlaps, dying operands are reused, and thousands of buffers
// are placed quickly.
#include "program/memory.h"

#include <gtest/gtest.h>

#include <random>

#include "program/collective_waits.h"
#include "tests/support/memory_check.h"

namespace shardrun {
namespace {

/// Builds a Program by hand: values of `floats` f32 elements.
struct Builder {
  Program program;

  BufferId buffer(int64_t floats, const std::string& name = "") {
    const auto id = static_cast<BufferId>(program.buffers.size());
    program.buffers.push_back(
        {name.empty() ? "b" + std::to_string(id) : name, {DType::f32, {floats}}, -1});
    return id;
  }
  BufferId bind(Role role, int64_t floats, const std::string& name) {
    const BufferId id = buffer(floats, name);
    Binding b;
    b.name = name;
    b.buffer = id;
    b.role = role;
    b.global = {DType::f32, {floats}};
    b.box = full_box({floats});
    b.sharding = Sharding::replicated(1);
    program.bindings.push_back(b);
    return id;
  }
  BufferId step(const std::string& op, std::vector<BufferId> in, int64_t floats) {
    const BufferId out = buffer(floats);
    Step s;
    s.node.op = op;
    s.node.name = op + std::to_string(program.steps.size());
    s.in = std::move(in);
    s.out = {out};
    program.steps.push_back(s);
    return out;
  }
  void output(BufferId id) {
    Binding b;
    b.name = "out" + std::to_string(id);
    b.buffer = id;
    program.outputs.push_back(b);
  }
  int64_t offset(BufferId id) const { return program.buffers[static_cast<size_t>(id)].offset; }
};

StepBytes no_workspace(const Program&, const Step&) { return {}; }

TEST(Memory, ReusesWhatIsDead) {
  Builder b;
  const BufferId w = b.bind(Role::parameter, 16, "w");
  BufferId x = b.bind(Role::batch, 16, "x");
  for (int i = 0; i < 5; ++i) x = b.step("matmul", {x, w}, 16);  // not in place: two at a time
  b.output(x);
  place_memory(b.program, no_workspace);
  check_memory(b.program);
  EXPECT_EQ(b.program.persistent_bytes, 64);
  EXPECT_EQ(b.program.arena_bytes, 64 + 64 + 2 * 64);  // the batch stays
}

TEST(Memory, RunsInPlaceWhereTheOperandDies) {
  Builder b;
  const BufferId x = b.bind(Role::batch, 16, "x");
  const BufferId y = b.step("relu", {x}, 16);
  const BufferId z = b.step("relu", {y}, 16);
  const BufferId u = b.step("add", {y, z}, 16);  // y is read after relu: z cannot take it
  b.output(u);
  place_memory(b.program, no_workspace);
  check_memory(b.program);
  EXPECT_NE(b.offset(y), b.offset(x));  // a batch does not die
  EXPECT_NE(b.offset(z), b.offset(y));
  EXPECT_TRUE(b.offset(u) == b.offset(y) || b.offset(u) == b.offset(z));
  EXPECT_EQ(b.program.arena_bytes, 192);
}

TEST(Memory, ReshapesLieInTheirOperands) {
  Builder b;
  const BufferId w = b.bind(Role::parameter, 16, "w"), x = b.bind(Role::batch, 16, "x");
  const BufferId flat = b.step("reshape", {x}, 16);  // a batch does not die
  const BufferId y = b.step("matmul", {flat, w}, 16);
  const BufferId rows = b.step("reshape", {y}, 16), turned = b.step("reshape", {rows}, 16);
  const BufferId z = b.step("relu", {y}, 16);         // what is reshaped is still read
  const BufferId u = b.step("add", {turned, z}, 16);  // the last of the three: u may lie on it
  const BufferId both = b.step("reshape", {u}, 16);
  const BufferId sum = b.step("add", {u, both}, 16);  // but not on what the step reads twice
  const BufferId shown = b.step("reshape", {w}, 16);  // the update will write w
  b.output(sum);
  b.output(shown);
  place_memory(b.program, no_workspace);
  check_memory(b.program);
  EXPECT_EQ(b.offset(flat), b.offset(x));
  EXPECT_EQ(b.offset(rows), b.offset(y));
  EXPECT_EQ(b.offset(turned), b.offset(y));
  EXPECT_NE(b.offset(z), b.offset(y));
  EXPECT_TRUE(b.offset(u) == b.offset(y) || b.offset(u) == b.offset(z));
  EXPECT_EQ(b.offset(both), b.offset(u));
  EXPECT_NE(b.offset(sum), b.offset(u));
  EXPECT_NE(b.offset(shown), b.offset(w));
  EXPECT_EQ(b.program.arena_bytes, 64 + 64 + 2 * 64);  // w, x, and two at a time
  // Per node what is alive: y and z behind the batch; the reshapes take nothing.
  Graph graph;
  const ValueId in = graph.add_input("x", {DType::f32, {16}}, Role::batch);
  graph.outputs = {graph.add("relu", {in}, {}, "relu4")};
  EXPECT_EQ(arena_use(b.program, graph).alive, (std::vector<int64_t>{64 + 64 + 2 * 64}));
  Program broken = b.program;
  broken.buffers[static_cast<size_t>(rows)].offset = b.offset(z);
  EXPECT_THROW(check_memory(broken), Error);
}

/// A step that writes either of them once more parts them.
TEST(Memory, AReshapeOfWhatIsWrittenAgainIsACopy) {
  for (const bool operand : {true, false}) {
    Builder b;
    const BufferId x = b.bind(Role::batch, 16, "x");
    const BufferId y = b.step("matmul", {x, x}, 16);
    const BufferId rows = b.step("reshape", {y}, 16);
    b.step("all_reduce", {operand ? y : rows}, 16);
    b.program.steps.back().kind = Step::Kind::collective;
    b.program.steps.back().collective = std::make_shared<const Collective>();
    b.program.steps.back().out = {operand ? y : rows};
    b.output(b.step("add", {y, rows}, 16));
    place_memory(b.program, no_workspace);
    EXPECT_NE(b.offset(rows), b.offset(y));
  }
}

TEST(Memory, KeepsScalarsOutputsAndPersistents) {
  Builder b;
  const BufferId lr = b.bind(Role::scalar, 1, "lr");
  const BufferId w = b.bind(Role::parameter, 3, "w");
  const BufferId x = b.bind(Role::batch, 3, "x");
  const BufferId y = b.step("relu", {w}, 3);  // w stays
  const BufferId z = b.step("mul", {y, x}, 3);
  b.output(y);
  b.output(z);
  b.step("relu", {lr}, 1);  // so does lr, for the next micro-batch
  place_memory(b.program, no_workspace);
  check_memory(b.program);
  EXPECT_NE(b.offset(y), b.offset(w));
  EXPECT_NE(b.offset(z), b.offset(y));
  EXPECT_NE(b.offset(z), b.offset(x));
  for (const Buffer& buffer : b.program.buffers) EXPECT_EQ(buffer.offset % kArenaAlignment, 0);
}

TEST(Memory, CountsWorkspaces) {
  Builder b;
  const BufferId x = b.bind(Role::batch, 16, "x");
  b.output(b.step("relu", {b.step("relu", {x}, 16)}, 16));
  place_memory(b.program, [](const Program&, const Step& step) {
    return step.node.name == "relu1" ? StepBytes{100} : StepBytes();
  });
  check_memory(b.program);
  EXPECT_EQ(b.program.steps[1].needs.workspace, 100);
  EXPECT_EQ(b.program.arena_bytes, 64 + 64 + 128);
}

/// What a kernel keeps is persistent, and lies behind all that another Program's persists in.
TEST(Memory, CountsWhatKernelsKeep) {
  const auto keeps = [](const Program&, const Step& step) {
    return step.node.op == "relu" ? StepBytes{0, 100} : StepBytes();
  };
  const auto build = [](Builder& b) {
    b.bind(Role::parameter, 16, "w");
    const BufferId x = b.bind(Role::batch, 16, "x");
    b.output(b.step("relu", {b.step("relu", {x}, 16)}, 16));
  };
  Builder train, eval;
  build(train);
  build(eval);
  place_memory(train.program, keeps);
  check_memory(train.program);
  EXPECT_EQ(train.program.persistent_bytes, 64 + 2 * 128);
  EXPECT_EQ(train.program.arena_bytes, 64 + 2 * 128 + 64 + 64);
  EXPECT_EQ(train.program.steps[0].kept_offset, 64);
  EXPECT_EQ(train.program.steps[1].kept_offset, 64 + 128);
  place_memory(eval.program, keeps, &train.program);
  check_memory(eval.program);
  EXPECT_EQ(eval.program.steps[0].kept_offset, train.program.persistent_bytes);
  Program broken = eval.program;
  broken.steps[1].kept_offset = broken.steps[0].kept_offset + 64;
  EXPECT_THROW(check_memory(broken), Error);
}

/// Per node of the Graph what is alive at it: a workspace, a copy made in front of it, and a result
/// that takes over its operand's memory counted once.
TEST(Memory, WhatTheArenaHoldsNodeByNode) {
  Builder b;
  b.bind(Role::parameter, 16, "w");
  const BufferId x = b.bind(Role::batch, 16, "x");
  const BufferId gathered = b.step("all_gather", {x}, 64);
  b.program.steps.back().kind = Step::Kind::collective;
  b.program.steps.back().collective = std::make_shared<const Collective>();
  const BufferId y = b.step("matmul", {gathered, gathered}, 32);
  b.output(b.step("relu", {y}, 32));
  place_memory(b.program, [](const Program&, const Step& step) {
    return step.node.name == "relu2" ? StepBytes{100} : StepBytes();
  });
  Graph graph;
  const ValueId in = graph.add_input("x", {DType::f32, {4, 4}}, Role::batch);
  const ValueId product =
      graph.add("matmul", {in, in}, {{"equation", std::string("mk,kn->mn")}}, "matmul1");
  graph.outputs = {graph.add("relu", {product}, {}, "relu2")};
  const ArenaUse use = arena_use(b.program, graph);
  EXPECT_EQ(use.bytes, b.program.arena_bytes);
  // The parameter's 64 bytes and the batch's are always there.
  EXPECT_EQ(use.alive, (std::vector<int64_t>{128 + 256 + 128, 128 + 128 + 128}));
}

TEST(Memory, EmptyBuffersTakeNothing) {
  Builder b;
  const BufferId x = b.bind(Role::batch, 0, "x");
  b.output(b.step("relu", {x}, 0));
  place_memory(b.program, no_workspace);
  check_memory(b.program);
  EXPECT_EQ(b.program.arena_bytes, 0);
}

TEST(Memory, CheckFindsOverlaps) {
  Builder b;
  const BufferId x = b.bind(Role::batch, 16, "x");
  const BufferId y = b.step("matmul", {x, x}, 16);
  const BufferId z = b.step("matmul", {x, y}, 16);
  b.output(z);
  place_memory(b.program, no_workspace);
  check_memory(b.program);
  Program broken = b.program;
  broken.buffers[static_cast<size_t>(y)].offset = broken.buffers[static_cast<size_t>(x)].offset;
  EXPECT_THROW(check_memory(broken), Error);
  broken = b.program;
  broken.buffers[static_cast<size_t>(z)].offset = broken.buffers[static_cast<size_t>(y)].offset;
  EXPECT_THROW(check_memory(broken), Error);
  broken = b.program;
  broken.arena_bytes -= 64;
  EXPECT_THROW(check_memory(broken), Error);
}

TEST(Memory, LaysPersistentsOutLikeAnotherProgram) {
  Builder train;
  train.bind(Role::state, 32, "m");
  const BufferId w = train.bind(Role::parameter, 16, "w");
  train.output(train.step("relu", {w}, 16));
  place_memory(train.program, no_workspace);
  Builder eval;
  const BufferId same = eval.bind(Role::parameter, 16, "w");
  eval.output(eval.step("relu", {same}, 16));
  place_memory(eval.program, no_workspace, &train.program);
  check_memory(eval.program);
  EXPECT_EQ(eval.offset(same), train.offset(w));
  EXPECT_EQ(eval.program.persistent_bytes, train.program.persistent_bytes);

  Builder other;
  other.bind(Role::parameter, 16, "unknown");
  EXPECT_THROW(place_memory(other.program, no_workspace, &train.program), Error);
}

/// Forward keeps, backward frees in reverse: the usual shape of a training step.
Program training_like(int layers, uint32_t seed) {
  std::mt19937 random(seed);
  Builder b;
  BufferId x = b.bind(Role::batch, 64, "x");
  std::vector<BufferId> kept;
  for (int i = 0; i < layers; ++i) {
    const int64_t size = 16 * (1 + static_cast<int64_t>(random() % 200));
    const BufferId side = b.step("matmul", {x, x}, 16 * (1 + static_cast<int64_t>(random() % 50)));
    x = b.step("matmul", {x, side}, size);
    kept.push_back(x);
  }
  for (int i = layers; i-- > 0;) {
    const BufferId side = b.step("matmul", {x, kept[static_cast<size_t>(i)]}, 32);
    x = b.step("matmul", {side, kept[static_cast<size_t>(i)]},
               16 * (1 + static_cast<int64_t>(random() % 200)));
  }
  b.output(x);
  return b.program;
}

/// A sum with a workspace during the product b, which nothing waits for before y is made.
Program sum_during_a_product(bool has_fuller_step, int64_t summed = 16) {
  Builder b;
  BufferId x = b.bind(Role::batch, 16, "x");
  if (has_fuller_step) x = b.step("matmul", {b.step("matmul", {x}, 200)}, 16);
  const BufferId da = b.step("matmul", {x}, summed);
  const BufferId a = b.step("", {da}, summed);
  Collective sum;
  sum.kind = Collective::Kind::all_reduce;
  b.program.steps.back().kind = Step::Kind::collective;
  b.program.steps.back().collective = std::make_shared<const Collective>(sum);
  const BufferId product = b.step("matmul", {b.step("matmul", {x}, 64)}, 16);
  b.output(b.step("add", {a, product}, 16));
  return b.program;
}

TEST(Memory, CollectivesThatOverlapKeepTheirWorkspace) {
  const NeedsOf needs = [](const Program&, const Step& step) {
    return StepBytes{step.kind == Step::Kind::collective ? 256 : 0};
  };
  for (const bool has_fuller_step : {true, false}) {
    Program together = sum_during_a_product(has_fuller_step), apart = together;
    place_memory(together, needs);
    place_memory(apart, needs, nullptr, Collectives::apart);
    check_memory(apart);
    EXPECT_EQ(apart.arena_bytes, together.arena_bytes);
    const auto is_reused = [](const Program& program) {
      const auto sum = std::find_if(program.steps.begin(), program.steps.end(),
                                    [](const Step& s) { return s.kind == Step::Kind::collective; });
      const Buffer& next = program.buffers[static_cast<size_t>(std::next(sum)->out[0])];
      return next.offset < sum->workspace_offset + 256 &&
             sum->workspace_offset < next.offset + byte_size(next.type);
    };
    EXPECT_TRUE(is_reused(together)) << has_fuller_step;
    EXPECT_EQ(is_reused(apart), !has_fuller_step);
    // Where no rank can run it, nothing is given to kernels later.
    for (const int64_t above : {0, 1}) {
      Program limited = sum_during_a_product(has_fuller_step);
      place_memory(limited, needs, nullptr, Collectives::apart, 0, {apart.arena_bytes - above});
      EXPECT_EQ(limited.arena_bytes, apart.arena_bytes);
      EXPECT_EQ(is_reused(limited), above > 0 || !has_fuller_step);
    }
  }
}

/// The product's steps need hardly more than what the large operand of the sum leaves.
TEST(Memory, CollectivesThatOverlapAreHeldLongerForATenth) {
  const NeedsOf needs = [](const Program&, const Step& step) {
    return StepBytes{step.kind == Step::Kind::collective ? 256 : 0};
  };
  Program plain = sum_during_a_product(false, 1024), longer = plain;
  place_memory(plain, needs, nullptr, Collectives::apart);
  place_memory(longer, needs, nullptr, Collectives::apart, kHoldFraction);
  check_memory(longer);
  const auto waits = [](const Program& program) {
    const auto range = [&](BufferId id) {
      const Buffer& buffer = program.buffers[static_cast<size_t>(id)];
      return std::pair(buffer.offset, buffer.offset + byte_size(buffer.type));
    };
    const auto sum = std::find_if(program.steps.begin(), program.steps.end(),
                                  [](const Step& s) { return s.kind == Step::Kind::collective; });
    bool out = false;
    for (auto step = std::next(sum); step != std::prev(program.steps.end()); ++step) {
      const auto [first, end] = range(step->out[0]);
      for (const auto& [used, last] :
           {range(sum->in[0]), range(sum->out[0]),
            std::pair(sum->workspace_offset, sum->workspace_offset + 256)})
        out = out || (first < last && used < end);
    }
    return out;
  };
  EXPECT_TRUE(waits(plain));
  EXPECT_FALSE(waits(longer));
  EXPECT_GT(longer.arena_bytes, plain.arena_bytes);
  EXPECT_LE(static_cast<double>(longer.arena_bytes),
            (1 + kHoldFraction) * static_cast<double>(plain.arena_bytes));
  Program together = sum_during_a_product(false, 1024);
  place_memory(together, needs, nullptr, Collectives::together, kHoldFraction);
  EXPECT_EQ(together.arena_bytes, plain.arena_bytes);  // nothing runs meanwhile
}

TEST(Memory, CollectivesEndWhereKernelsWaitForThem) {
  Program program = sum_during_a_product(false);
  std::vector<BufferId> holders = memory_holders(program);
  EXPECT_EQ(overlapped_ends(program, holders), (std::vector<int>{0, 3, 2, 3, 4}));
  program.steps.back().in = {0};  // nobody reads the sum: the end of the phase waits
  EXPECT_EQ(overlapped_ends(program, holders), (std::vector<int>{0, 4, 2, 3, 4}));
  program.steps[2].out = {1};  // writes what the sum reads
  EXPECT_EQ(overlapped_ends(program, holders), (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(Memory, PlacesThousandsOfBuffersClosely) {
  for (uint32_t seed : {1u, 2u}) {
    Program program = training_like(1250, seed);  // 5000 steps
    place_memory(program, [](const Program&, const Step&) { return StepBytes{4096}; });
    check_memory(program);
    int64_t kept = 0;  // alive in the middle, at least
    for (size_t i = 2; i < program.buffers.size() / 2; i += 2)
      kept += byte_size(program.buffers[i].type);
    EXPECT_LT(static_cast<double>(program.arena_bytes), 1.1 * static_cast<double>(kept)) << seed;
  }
}

TEST(Memory, IsDeterministic) {
  Program a = training_like(50, 3), b = training_like(50, 3);
  place_memory(a, no_workspace);
  place_memory(b, no_workspace);
  EXPECT_EQ(to_string(a), to_string(b));
}

}  // namespace
}  // namespace shardrun
