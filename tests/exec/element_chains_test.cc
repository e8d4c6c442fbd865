// Chains of element-wise steps as one kernel: the same memory as one by one, wherever it matters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "exec/fused_kernel.h"
#include "graph/op_def.h"
#include "kernels/element_chain.h"
#include "program/fusion/chains.h"
#include "program/memory.h"
#include "tests/support/chain_on_host.h"
#include "tests/support/memory_check.h"

namespace shardrun {
namespace {

PreparedKernel fuse_on_host(const ElementChain& chain) {
  PreparedKernel prepared;
  prepared.run = [chain](const KernelArgs& args) { test::run_chain(chain, args.in, args.out); };
  return prepared;
}

StepFusion fusion(const Program&, const Step& step) {
  StepFusion can;
  if (test::fuses(step.node.op)) can.elements = reinterpret_cast<const void*>(&fuse_on_host);
  return can;
}

/// A program of element-wise steps over memory of its own.
class Steps {
 public:
  BufferId buffer(DType dtype, Shape shape, int64_t offset) {
    program.buffers.push_back({"b", {dtype, std::move(shape)}, offset});
    return static_cast<BufferId>(program.buffers.size() - 1);
  }

  void step(const std::string& op, std::vector<BufferId> in, BufferId out, Attrs attrs = {}) {
    Step step;
    step.node.op = op;
    step.node.name = op;
    step.node.attrs = std::move(attrs);
    step.in = std::move(in);
    step.out = {out};
    program.steps.push_back(std::move(step));
  }

  void bind(BufferId buffer) {
    Binding b;
    b.buffer = buffer;
    program.outputs.push_back(b);
  }

  /// The chains that the placed memory allows.
  const std::vector<FusedSteps>& fuse() {
    int64_t bytes = 64;
    for (const Buffer& b : program.buffers) bytes = std::max(bytes, b.offset + byte_size(b.type));
    program.arena_bytes = bytes;
    program.fused.clear();
    fuse_elements(program, fusion);
    return program.fused;
  }

  /// For running: kernels, and memory that is 0.
  void bind_memory() {
    memory.assign(static_cast<size_t>(program.arena_bytes), 0);
    const KernelList* lists[] = {&reference_kernels()};
    in_.clear(), out_.clear(), kernels_.clear();
    for (const Step& step : program.steps) {
      std::vector<TensorType> in, out;
      in_.push_back(views(step.in, in));
      out_.push_back(views(step.out, out));
      kernels_.push_back(select_kernel(lists, {step.node, in, out}));
      if (test::fuses(step.node.op)) kernels_.back().fuse = fuse_on_host;
    }
  }

  void run_one_by_one() {
    for (size_t s = 0; s < kernels_.size(); ++s) kernels_[s].run({in_[s], out_[s], nullptr});
  }
  void run_fused() {
    auto chain = program.fused.begin();
    for (size_t s = 0; s < kernels_.size(); ++s) {
      if (chain == program.fused.end() || chain->first != s) {
        kernels_[s].run({in_[s], out_[s], nullptr});
        continue;
      }
      std::vector<BoundStep> steps;
      for (size_t k = s; k < chain->end(); ++k) steps.push_back({&kernels_[k], in_[k], out_[k]});
      const FusedKernel one = fused_kernel(program, *chain, steps);
      one.kernel.run({one.in, one.out, nullptr});
      s = chain++->end() - 1;
    }
  }

  Program program;
  std::vector<char> memory;

 private:
  std::vector<TensorView> views(const std::vector<BufferId>& ids, std::vector<TensorType>& types) {
    std::vector<TensorView> views;
    for (BufferId id : ids) {
      const Buffer& b = program.buffers[static_cast<size_t>(id)];
      types.push_back(b.type);
      views.push_back({memory.data() + b.offset, b.type});
    }
    return views;
  }

  std::vector<std::vector<TensorView>> in_, out_;
  std::vector<PreparedKernel> kernels_;
};

const DType f = DType::f32;

TEST(ElementChains, DoNotWriteWhatNobodyElseReads) {
  Steps s;
  const BufferId a = s.buffer(f, {4, 6}, 0), bias = s.buffer(f, {6}, 128);
  const BufferId sum = s.buffer(f, {4, 6}, 192), y = s.buffer(f, {4, 6}, 320);
  s.step("add", {a, bias}, sum);
  s.step("gelu", {sum}, y);
  s.bind(y);
  ASSERT_EQ(s.fuse(), (std::vector<FusedSteps>{{FusedSteps::Kind::elements, 0, 2, {sum}}}));
  s.bind_memory();
  s.run_fused();
  // A later reader, an output, and a place that lasts: each has the sum written.
  const BufferId further = s.buffer(f, {4, 6}, 448);
  s.step("neg", {sum}, further);
  s.step("reduce_sum", {sum}, s.buffer(f, {}, 576),
         {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", int64_t{0}}});
  EXPECT_EQ(s.fuse().at(0).size, 3u);
  EXPECT_EQ(s.program.fused[0].unwritten, std::vector{further});
  s.program.steps.resize(2);
  s.bind(sum);
  EXPECT_TRUE(s.fuse().at(0).unwritten.empty());
  s.program.outputs.pop_back();
  EXPECT_EQ(s.fuse().at(0).unwritten, std::vector{sum});
  s.program.persistent_bytes = 256;
  EXPECT_TRUE(s.fuse().at(0).unwritten.empty());
}

TEST(ElementChains, EndWhereShapesOrPhasesDo) {
  Steps s;
  const BufferId a = s.buffer(f, {4, 6}, 0), b = s.buffer(f, {4, 6}, 128);
  const BufferId c = s.buffer(f, {4, 6}, 256), d = s.buffer(f, {2, 4, 6}, 384);
  s.step("neg", {a}, b);
  s.step("exp", {b}, c);
  s.step("add", {c, d}, s.buffer(f, {2, 4, 6}, 640));
  s.bind(c);
  s.bind(3);
  s.bind(4);
  ASSERT_EQ(s.fuse().size(), 1u);
  EXPECT_EQ(s.program.fused[0].size, 2u);
  s.program.steps[1].phase = s.program.steps[2].phase = Phase::update;
  EXPECT_TRUE(s.fuse().empty());
}

/// y over an operand: element on element is right, anything else would be read after it is written.
TEST(ElementChains, HeedWhatLiesOverOperands) {
  for (const int64_t place : {0, 64, 128, 384}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Steps s;
      const BufferId a = s.buffer(f, {4, 6}, 0), row = s.buffer(f, {6}, 384);
      const BufferId sum = s.buffer(f, {4, 6}, 192), y = s.buffer(dtype, {4, 6}, place);
      s.step("add", {a, row}, sum);
      s.step("cast", {sum}, y, {{"to", std::string(to_string(dtype))}});
      s.bind(y);
      const bool right = place == 128 || (place == 0 && dtype == f);
      EXPECT_EQ(s.fuse().size(), right ? 1u : 0u) << place << " " << dtype;
    }
  }
}

/// What a later step reads must not lie where an earlier one of the chain wrote.
TEST(ElementChains, DoNotReadWhatTheChainOverwrites) {
  Steps s;
  const BufferId a = s.buffer(f, {4, 6}, 0), b = s.buffer(f, {4, 6}, 128);
  const BufferId same = s.buffer(f, {4, 6}, 128), y = s.buffer(f, {4, 6}, 256);
  s.step("neg", {a}, b);
  s.step("add", {a, same}, y);
  s.bind(y);
  EXPECT_TRUE(s.fuse().empty());
}

/// Before memory is placed a chain is all that the steps allow; placement keeps it whole where that
/// takes no more bytes, and what it does not allow is cut.
TEST(ElementChains, AreKnownToThePlacement) {
  Steps s;
  std::vector<BufferId> x = {s.buffer(f, {4, 6}, -1)};
  Binding batch;
  batch.name = "x", batch.buffer = x[0], batch.role = Role::batch;
  s.program.bindings.push_back(batch);
  for (int i = 0; i < 4; ++i) {
    x.push_back(s.buffer(f, {4, 6}, -1));
    s.step("add", {x.back() - 1, x[0]}, x.back());
  }
  s.bind(x.back());
  fuse_elements(s.program, fusion);
  ASSERT_EQ(s.program.fused.size(), 1u);
  EXPECT_EQ(s.program.fused[0].size, 4u);
  place_memory(s.program, nullptr);
  check_memory(s.program);
  ASSERT_EQ(s.program.fused.size(), 1u);
  EXPECT_EQ(s.program.fused[0].size, 4u);
  // Over the operand that every step reads, but begun elsewhere.
  Program broken = s.program;
  broken.buffers[static_cast<size_t>(x[2])].offset = broken.buffers[0].offset + 32;
  cut_chains(broken);
  EXPECT_NE(broken.fused, s.program.fused);
}

/// Random programs, placed as tightly as a first fit and in-place results do.
TEST(ElementChains, LeaveTheSameMemory) {
  std::mt19937 rng(20261124);
  const auto pick = [&](size_t n) { return static_cast<size_t>(rng() % n); };
  size_t fused = 0, unwritten = 0, shortened = 0;
  for (int trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(trial);
    Steps s;
    const std::vector<Shape> shapes = {{4, 6}, {4, 6}, {4, 6}, {6}, {4, 1}, {}};
    for (int i = 0; i < 4; ++i) s.buffer(f, shapes[pick(shapes.size())], 0);
    for (int n = 0; n < 14; ++n) {
      const auto any = [&] {  // recent ones more often
        const size_t count = s.program.buffers.size();
        return static_cast<BufferId>(pick(2) == 0 ? count - 1 - pick(std::min<size_t>(count, 3))
                                                  : pick(count));
      };
      const BufferId a = any(), b = any();
      const TensorType ta = s.program.buffers[static_cast<size_t>(a)].type,
                       tb = s.program.buffers[static_cast<size_t>(b)].type;
      Step step;
      const size_t kind = pick(4);
      step.node.op = kind == 0 ? "cast" : ta.dtype == tb.dtype && kind != 1 ? "add" : "neg";
      if (kind == 0) step.node.attrs = {{"to", std::string(ta.dtype == f ? "bf16" : "f32")}};
      step.in = step.node.op == "add" ? std::vector{a, b} : std::vector{a};
      std::vector<TensorType> types = {ta};
      if (step.in.size() == 2) types.push_back(tb);
      const TensorType out = infer_types(step.node, types)[0];
      step.out = {s.buffer(out.dtype, out.shape, 0)};
      step.node.name = "n";
      s.program.steps.push_back(step);
    }
    const size_t count = s.program.buffers.size();
    std::vector<size_t> dies(count, 0), made(count, 0);
    for (size_t n = 0; n < s.program.steps.size(); ++n) {
      for (BufferId id : s.program.steps[n].in) dies[static_cast<size_t>(id)] = n;
      made[static_cast<size_t>(s.program.steps[n].out[0])] = n;
    }
    std::set<BufferId> outputs = {static_cast<BufferId>(count - 1)};
    if (pick(2) == 0) outputs.insert(static_cast<BufferId>(pick(count)));
    for (BufferId id : outputs) {
      s.bind(id);
      dies[static_cast<size_t>(id)] = s.program.steps.size();
    }
    // Placed in order; two overlap only if the earlier one is dead, or dies where the later one is
    // made element on element.
    for (size_t b = 0; b < count; ++b) {
      Buffer& mine = s.program.buffers[b];
      for (mine.offset = 0;; mine.offset += 64) {
        const bool fits = std::none_of(
            s.program.buffers.begin(), s.program.buffers.begin() + static_cast<int64_t>(b),
            [&](const Buffer& other) {
              const auto o = static_cast<size_t>(&other - s.program.buffers.data());
              const bool apart = other.offset + byte_size(other.type) <= mine.offset ||
                                 mine.offset + byte_size(mine.type) <= other.offset;
              const bool is_step = b >= 4;
              const bool dead = is_step && dies[o] < made[b] && (o < 4 || made[o] < made[b]);
              const bool in_place = is_step && dies[o] == made[b] && other.type == mine.type &&
                                    other.offset == mine.offset;
              return !apart && !dead && !in_place;
            });
        if (fits) break;
      }
    }
    s.fuse();
    s.bind_memory();
    const auto fill = [&] {
      for (size_t i = 0; i < s.memory.size(); ++i) s.memory[i] = 0;
      for (size_t b = 0; b < 4; ++b) {
        const Buffer& buffer = s.program.buffers[b];
        for (int64_t i = 0; i < element_count(buffer.type.shape); ++i) {
          const float x = static_cast<float>((static_cast<int64_t>(b) * 31 + i * 7) % 19 - 9) / 8;
          std::memcpy(s.memory.data() + buffer.offset + i * 4, &x, 4);
        }
      }
    };
    std::vector<std::vector<char>> results[2];
    for (int way = 0; way < 2; ++way) {
      fill();
      way == 0 ? s.run_one_by_one() : s.run_fused();
      for (BufferId id : outputs) {
        const Buffer& b = s.program.buffers[static_cast<size_t>(id)];
        const char* begin = s.memory.data() + b.offset;
        results[way].emplace_back(begin, begin + byte_size(b.type));
      }
    }
    EXPECT_EQ(results[0], results[1]);
    for (const FusedSteps& chain : s.program.fused) {
      ++fused;
      unwritten += chain.unwritten.size();
      const auto shape = [&](size_t step) -> const Shape& {
        return type_of(s.program, s.program.steps[step].out[0]).shape;
      };
      shortened += chain.end() < s.program.steps.size() && shape(chain.end()) == shape(chain.first);
    }
  }
  // The draw holds what is to be tested.
  EXPECT_GT(fused, 200u);
  EXPECT_GT(unwritten, 100u);
  EXPECT_GT(shortened, 10u);
}

}  // namespace
}  // namespace shardrun
