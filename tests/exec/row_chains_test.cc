// Chains of row-wise steps: which steps may take turns, and the same results as one by one.
#include <gtest/gtest.h>

#include "collectives/communicator.h"
#include "exec/executor.h"
#include "exec/fused_kernel.h"
#include "kernels/cpu/cpu.h"
#include "program/fusion/chains.h"
#include "tests/exec/random_plan.h"
#include "tests/planner/gpt_step.h"
#include "tests/support/kernel_traits.h"
#include "tests/support/memory_check.h"

namespace shardrun {
namespace {

const std::vector<const KernelList*> kLists = {&cpu_kernels(), &reference_kernels()};

/// A program of steps over one piece of memory, at byte offsets that a test chooses.
class Steps {
 public:
  explicit Steps(int64_t bytes) : memory_(static_cast<size_t>(bytes) / 4 + 16) {
    for (size_t i = 0; i < memory_.size(); ++i)
      memory_[i] = static_cast<float>(static_cast<int64_t>(i * 37 % 101) - 50) / 8;
    program.arena_bytes = static_cast<int64_t>(memory_.size()) * 4;
  }

  struct Operand {
    int64_t offset;
    Shape shape;
    DType dtype = DType::f32;
  };

  void add(const std::string& op, const std::vector<Operand>& in, const Operand& out,
           Attrs attrs = {}, const std::vector<Operand>& further = {}) {
    Step step;
    step.node.op = op;
    step.node.attrs = std::move(attrs);
    for (const Operand& o : in) step.in.push_back(buffer(o));
    step.out = {buffer(out)};
    for (const Operand& o : further) step.out.push_back(buffer(o));
    Made& made = *made_.emplace_back(std::make_unique<Made>());
    for (BufferId b : step.in) made.in.push_back(view(b));
    for (BufferId b : step.out) made.out.push_back(view(b));
    made.kernel = select_kernel(
        kLists, KernelCall{step.node, types_of(program, step.in), types_of(program, step.out)});
    program.steps.push_back(std::move(step));
  }

  /// Steps of the chain that begins with the first, as far as the memory allows it; 1: none.
  size_t length() {
    const StepNeeds needs(kLists);
    program.fused.clear();
    fuse_rows(program, [&](const Program& p, const Step& step) { return needs.fusion(p, step); });
    return program.fused.empty() || program.fused[0].first != 0 ? 1 : program.fused[0].size;
  }

  std::vector<float>& memory() { return memory_; }

  void run_one_by_one() const {
    for (const auto& made : made_) made->kernel.run(KernelArgs{made->in, made->out, nullptr});
  }
  void run_as_chain() {
    ASSERT_EQ(length(), made_.size());
    std::vector<BoundStep> steps;
    for (const auto& made : made_) steps.push_back({&made->kernel, made->in, made->out});
    fused_kernel(program, program.fused[0], steps).kernel.run({});
  }

  Program program;

 private:
  struct Made {
    std::vector<TensorView> in, out;
    PreparedKernel kernel;
  };

  BufferId buffer(const Operand& o) {
    program.buffers.push_back({"b", {o.dtype, o.shape}, o.offset});
    return static_cast<BufferId>(program.buffers.size() - 1);
  }
  TensorView view(BufferId b) {
    const Buffer& buffer = program.buffers[static_cast<size_t>(b)];
    return {reinterpret_cast<char*>(memory_.data()) + buffer.offset, buffer.type};
  }

  std::vector<float> memory_;
  std::vector<std::unique_ptr<Made>> made_;
};

/// What attention over a matrix does: scores of rows and columns, a mask, softmax, dropout; in
/// place where an operand dies.
Steps attention(const Shape& shape) {
  const int64_t size = element_count(shape) * 4, heads = shape[0], n = shape[1];
  Steps s(3 * size + (2 * heads * n + n * n) * 4 + 64);
  const int64_t a = 0, b = size, c = 2 * size, row = 3 * size, column = row + heads * n * 4,
                mask = column + heads * n * 4, step = (mask + n * n + 7) / 8 * 8;
  s.add("add", {{row, {heads, n, 1}}, {column, {heads, 1, n}}}, {a, shape});
  s.add("leaky_relu", {{a, shape}}, {b, shape}, {{"alpha", 0.2}});
  s.add("where", {{mask, {n, n}, DType::boolean}, {b, shape}, {row, {}}}, {b, shape});
  s.add("softmax", {{b, shape}}, {b, shape}, {{"axis", int64_t{2}}});
  s.add("dropout", {{b, shape}, {step, {}, DType::i64}}, {c, shape},
        {{"p", 0.5},
         {"key", int64_t{1}},
         {"seed", int64_t{2}},
         {"global_shape", shape},
         {"start", Shape(3, 0)}});
  return s;
}

TEST(RowChains, GivesWhatItsStepsGive) {
  for (const Shape& shape : {Shape{3, 300, 300}, Shape{2, 600, 600}, Shape{1, 1030, 1030}}) {
    Steps one_by_one = attention(shape), chained = attention(shape);
    ASSERT_EQ(chained.length(), 5u);
    one_by_one.run_one_by_one();
    chained.run_as_chain();
    int differ = 0;
    for (size_t i = 0; i < one_by_one.memory().size(); ++i)
      differ += std::memcmp(&one_by_one.memory()[i], &chained.memory()[i], 4) != 0;
    EXPECT_EQ(differ, 0) << to_string(shape);
  }
}

/// bias, residual, and their layer norm, whose result lies where the bias's did.
Steps residual_norm(const Shape& shape, bool reader) {
  const int64_t size = element_count(shape) * 4, rows = shape[0], cols = shape[1];
  const int64_t scale = 4 * size, mean = scale + cols * 4, inv_std = mean + rows * 4;
  Steps s(inv_std + rows * 4);
  s.add("add", {{0, shape}, {scale, {cols}}}, {size, shape});
  s.add("add", {{size, shape}, {2 * size, shape}}, {3 * size, shape});
  s.add("layer_norm", {{3 * size, shape}, {scale, {cols}}}, {size, shape},
        {{"axis", int64_t{1}}, {"eps", 1e-5}}, {{mean, {rows}}, {inv_std, {rows}}});
  if (reader) s.add("mul", {{size, shape}, {mean, {rows, 1}}}, {0, shape});
  return s;
}

TEST(RowChains, TakesLayerNormWithItsResidual) {
  const Shape shape = {300, 768};
  Steps one_by_one = residual_norm(shape, false), chained = residual_norm(shape, false);
  ASSERT_EQ(chained.length(), 3u);
  one_by_one.run_one_by_one();
  chained.run_as_chain();
  EXPECT_EQ(
      std::memcmp(one_by_one.memory().data(), chained.memory().data(), chained.memory().size() * 4),
      0);
  // Any row of the product may want all means.
  EXPECT_EQ(residual_norm(shape, true).length(), 3u);
}

/// A projection to one number a row, as graph attention makes two of: product, cast and sum, twice
/// over the same rows and in the same memory.
Steps projections(const Shape& shape, bool reader) {
  const int64_t count = element_count(shape), rows = count / shape.back(), size = count * 4;
  const int64_t weights = 3 * size, sums = weights + 2 * shape.back() * 4;
  const Shape kept(shape.begin(), shape.end() - 1), row = {shape.back()};
  Steps s(sums + 2 * rows * 4);
  const DType bf16 = DType::bf16;
  for (const int64_t i : {0, 1}) {
    s.add("mul", {{0, shape, bf16}, {weights + i * shape.back() * 4, row, bf16}},
          {size, shape, bf16});
    s.add("cast", {{size, shape, bf16}}, {2 * size, shape}, {{"to", std::string("f32")}});
    s.add("reduce_sum", {{2 * size, shape}}, {sums + i * rows * 4, kept},
          {{"axes", Shape{static_cast<int64_t>(kept.size())}}, {"keepdims", int64_t{0}}});
  }
  if (reader) s.add("add", {{2 * size, shape}, {sums, {rows, 1}}}, {2 * size, shape});
  return s;
}

TEST(RowChains, FeedsSumsOfRows) {
  for (const Shape& shape : {Shape{700, 1, 500}, Shape{1000, 2048}, Shape{37, 30011}}) {
    Steps one_by_one = projections(shape, false), chained = projections(shape, false);
    ASSERT_EQ(chained.length(), 6u);
    one_by_one.run_one_by_one();
    chained.run_as_chain();
    EXPECT_EQ(std::memcmp(one_by_one.memory().data(), chained.memory().data(),
                          chained.memory().size() * 4),
              0)
        << to_string(shape);
  }
  // Any row of the sum may want all of the sums.
  EXPECT_EQ(projections({1024, 32}, true).length(), 6u);
}

TEST(RowChains, EndsWhereASumGoesAcrossRows) {
  const Shape shape = {2, 1024, 32};
  const int64_t size = 2 * 1024 * 32 * 4;
  const auto length = [&](const Shape& axes, const Shape& out) {
    Steps s(3 * size);
    s.add("relu", {{0, shape}}, {size, shape});
    s.add("reduce_sum", {{size, shape}}, {2 * size, out},
          {{"axes", axes}, {"keepdims", int64_t{0}}});
    return s.length();
  };
  EXPECT_EQ(length({2}, {2, 1024}), 2u);
  EXPECT_EQ(length({1}, {2, 32}), 1u);
  EXPECT_EQ(length({1, 2}, {2}), 1u);
  EXPECT_EQ(length({0, 2}, {1024}), 1u);
  EXPECT_EQ(length({0, 1, 2}, {}), 1u);
}

TEST(RowChains, EndsWhereMemoryIsUsedAnew) {
  const Shape shape = {1024, 32}, half = {1024, 16}, row = {32};
  const int64_t size = 1024 * 32 * 4;
  const auto length = [&](auto fill) {
    Steps s(4 * size);
    s.add("relu", {{0, shape}}, {size, shape});
    fill(s);
    return s.length();
  };
  // Over the operand that died: its rows are the same rows.
  EXPECT_EQ(length([&](Steps& s) { s.add("neg", {{size, shape}}, {0, shape}); }), 2u);
  // It begins in the middle of what other rows still read.
  EXPECT_EQ(length([&](Steps& s) { s.add("neg", {{size, shape}}, {64, shape}); }), 1u);
  // As many rows, but shorter ones: row 1 lies where row 0 did.
  EXPECT_EQ(length([&](Steps& s) { s.add("neg", {{2 * size, half}}, {0, half}); }), 1u);
  // The first row of what the first step makes is wanted for every row.
  EXPECT_EQ(length([&](Steps& s) {
              s.add("add", {{2 * size, shape}, {size, row}}, {3 * size, shape});
            }),
            1u);
  // Other rows; a kernel that mixes rows; nothing at all.
  EXPECT_EQ(length([&](Steps& s) {
              s.add("neg", {{2 * size, {32, 1024}}}, {3 * size, {32, 1024}});
            }),
            1u);
  EXPECT_EQ(
      length([&](Steps& s) {
        s.add("transpose", {{2 * size, shape}}, {3 * size, {32, 1024}}, {{"perm", Shape{1, 0}}});
      }),
      1u);
  EXPECT_EQ(length([](Steps&) {}), 1u);
}

TEST(RowChains, PaysWhereRowsFitAndAllDoNot) {
  const auto pays = [](const Shape& shape) {
    const int64_t size = element_count(shape) * 4;
    Steps s(3 * size);
    s.add("relu", {{0, shape}}, {size, shape});
    s.add("neg", {{size, shape}}, {2 * size, shape});
    return s.length() == 2;
  };
  EXPECT_TRUE(pays({1024, 1024}));
  EXPECT_FALSE(pays({64, 64}));         // in cache anyway
  EXPECT_FALSE(pays({4, 1024 * 1024}))  // a row does not fit
      << "rows of 12 MiB";
}

/// What the executor runs stands in the Program, for whoever prints it.
TEST(RowChains, StandInTheProgram) {
  GptOptions o;
  o.layers = 1, o.hidden = 64, o.heads = 2, o.vocab = 64, o.context = 64, o.batch = 16;
  const Graph graph = test::gpt_step(o, {}, true);
  const Plan plan = test::replicated_plan(graph, Mesh());
  const BackendTraits traits = test::with_kernels({}, kLists);
  const Program program = compile(graph, plan, Cluster{}, 0, traits);
  ASSERT_FALSE(program.fused.empty());
  check_memory(program);
  const std::string text = to_string(program);
  size_t end = 0, at = 0;
  for (const FusedSteps& chain : program.fused) {
    EXPECT_EQ(chain.kind, FusedSteps::Kind::rows);
    EXPECT_GE(chain.first, end);
    EXPECT_GE(chain.size, 2u);
    EXPECT_GE(chain.rows_at_once, 1);
    end = chain.end();
    at = text.find(str("fused ", chain.size, " steps by rows, ", chain.rows_at_once, " at a time"),
                   at + 1);
    EXPECT_NE(at, std::string::npos);
  }
  EXPECT_LE(end, program.steps.size());
  // A replay wants every result of its own.
  EXPECT_TRUE(
      compile(graph, plan, Cluster{}, 0, traits, {.steps = shardrun::Steps::all}).fused.empty());
  // Kernels that have no rows cannot run them.
  const auto world = make_local_communicators(1);
  const std::vector<const KernelList*> reference = {&reference_kernels()};
  EXPECT_THROW(Executor(program, reference, *world[0], 1), Error);
}

}  // namespace
}  // namespace shardrun
