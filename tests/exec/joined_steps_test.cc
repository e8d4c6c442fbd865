// Element-wise steps joined into one kernel: the same memory as one by one, wherever it matters.
#include "exec/joined_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "graph/op_def.h"
#include "tests/support/chain_on_host.h"

namespace shardrun {
namespace {

PreparedKernel join_on_host(const ElementChain& chain) {
  PreparedKernel prepared;
  prepared.run = [chain](const KernelArgs& args) { testing::run_chain(chain, args.in, args.out); };
  return prepared;
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

  const std::map<size_t, JoinedSteps>& join() {
    int64_t bytes = 64;
    for (const Buffer& b : program.buffers) bytes = std::max(bytes, b.offset + byte_size(b.type));
    memory.assign(static_cast<size_t>(bytes), 0);
    const KernelList* lists[] = {&reference_kernels()};
    in_.clear(), out_.clear(), kernels_.clear(), rows_.clear();
    for (const Step& step : program.steps) {
      std::vector<TensorType> in, out;
      in_.push_back(views(step.in, in));
      out_.push_back(views(step.out, out));
      kernels_.push_back(select_kernel(lists, {step.node, in, out}));
      if (testing::joins(step.node.op)) kernels_.back().join = join_on_host;
    }
    for (size_t s = 0; s < kernels_.size(); ++s) rows_.push_back({&kernels_[s], in_[s], out_[s]});
    joined = joined_steps(program, rows_);
    return joined;
  }

  void run_one_by_one() {
    for (size_t s = 0; s < kernels_.size(); ++s) kernels_[s].run({in_[s], out_[s], nullptr});
  }
  void run_joined() {
    for (size_t s = 0; s < kernels_.size(); ++s) {
      const auto it = joined.find(s);
      if (it == joined.end()) {
        kernels_[s].run({in_[s], out_[s], nullptr});
      } else {
        join_on_host(it->second.chain).run({it->second.in, it->second.out, nullptr});
        s += it->second.size - 1;
      }
    }
  }

  Program program;
  std::vector<char> memory;
  std::map<size_t, JoinedSteps> joined;

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
  std::vector<RowStep> rows_;
};

const DType f = DType::f32;

TEST(JoinedSteps, KeepBackWhatNobodyElseReads) {
  Steps s;
  const BufferId a = s.buffer(f, {4, 6}, 0), bias = s.buffer(f, {6}, 128);
  const BufferId sum = s.buffer(f, {4, 6}, 192), y = s.buffer(f, {4, 6}, 320);
  s.step("add", {a, bias}, sum);
  s.step("gelu", {sum}, y);
  s.bind(y);
  const auto& joined = s.join();
  ASSERT_EQ(joined.size(), 1u);
  const JoinedSteps& both = joined.at(0);
  EXPECT_EQ(both.size, 2u);
  ASSERT_EQ(both.in.size(), 2u);
  ASSERT_EQ(both.out.size(), 1u);
  EXPECT_EQ(both.out[0].data, s.memory.data() + 320);
  // A later reader, an output, and a place that lasts: each has the sum written.
  s.step("neg", {sum}, s.buffer(f, {4, 6}, 448));
  s.step("reduce_sum", {sum}, s.buffer(f, {}, 576),
         {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", int64_t{0}}});
  EXPECT_EQ(s.join().at(0).out.size(), 2u);
  s.program.steps.resize(2);
  s.bind(sum);
  EXPECT_EQ(s.join().at(0).out.size(), 2u);
  s.program.outputs.pop_back();
  EXPECT_EQ(s.join().at(0).out.size(), 1u);
  s.program.persistent_bytes = 256;
  EXPECT_EQ(s.join().at(0).out.size(), 2u);
}

TEST(JoinedSteps, EndWhereShapesOrPhasesDo) {
  Steps s;
  const BufferId a = s.buffer(f, {4, 6}, 0), b = s.buffer(f, {4, 6}, 128);
  const BufferId c = s.buffer(f, {4, 6}, 256), d = s.buffer(f, {2, 4, 6}, 384);
  s.step("neg", {a}, b);
  s.step("exp", {b}, c);
  s.step("add", {c, d}, s.buffer(f, {2, 4, 6}, 640));
  s.bind(c);
  s.bind(3);
  s.bind(4);
  ASSERT_EQ(s.join().size(), 1u);
  EXPECT_EQ(s.joined.at(0).size, 2u);
  s.program.steps[1].phase = s.program.steps[2].phase = Phase::update;
  EXPECT_TRUE(s.join().empty());
}

/// y over an operand: element on element is right, anything else would be read after it is written.
TEST(JoinedSteps, HeedWhatLiesOverOperands) {
  for (const int64_t place : {0, 64, 128, 384}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Steps s;
      const BufferId a = s.buffer(f, {4, 6}, 0), row = s.buffer(f, {6}, 384);
      const BufferId sum = s.buffer(f, {4, 6}, 192), y = s.buffer(dtype, {4, 6}, place);
      s.step("add", {a, row}, sum);
      s.step("cast", {sum}, y, {{"to", std::string(to_string(dtype))}});
      s.bind(y);
      const bool right = place == 128 || (place == 0 && dtype == f);
      EXPECT_EQ(s.join().size(), right ? 1u : 0u) << place << " " << dtype;
    }
  }
}

/// What a later step reads must not lie where an earlier one of the chain wrote.
TEST(JoinedSteps, DoNotReadWhatTheChainOverwrites) {
  Steps s;
  const BufferId a = s.buffer(f, {4, 6}, 0), b = s.buffer(f, {4, 6}, 128);
  const BufferId same = s.buffer(f, {4, 6}, 128), y = s.buffer(f, {4, 6}, 256);
  s.step("neg", {a}, b);
  s.step("add", {a, same}, y);
  s.bind(y);
  EXPECT_TRUE(s.join().empty());
}

/// Random programs, placed as tightly as a first fit and in-place results do.
TEST(JoinedSteps, LeaveTheSameMemory) {
  std::mt19937 rng(20261124);
  const auto pick = [&](size_t n) { return static_cast<size_t>(rng() % n); };
  size_t joined = 0, kept_back = 0, shortened = 0;
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
    s.join();
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
      way == 0 ? s.run_one_by_one() : s.run_joined();
      for (BufferId id : outputs) {
        const Buffer& b = s.program.buffers[static_cast<size_t>(id)];
        const char* begin = s.memory.data() + b.offset;
        results[way].emplace_back(begin, begin + byte_size(b.type));
      }
    }
    EXPECT_EQ(results[0], results[1]);
    for (const auto& [first, steps] : s.joined) {
      ++joined;
      kept_back += steps.size - steps.out.size();
      const size_t next = first + steps.size;
      shortened +=
          next < s.program.steps.size() &&
          s.program.buffers[static_cast<size_t>(s.program.steps[next].out[0])].type.shape ==
              steps.out[0].type.shape;
    }
  }
  // The draw holds what is to be tested.
  EXPECT_GT(joined, 200u);
  EXPECT_GT(kept_back, 100u);
  EXPECT_GT(shortened, 10u);
}

}  // namespace
}  // namespace shardrun
