// Updates and sums of squares as one step: what is fused, what is not, and that a step of training
// leaves the same.
#include <gtest/gtest.h>

#include <cstring>

#include "exec/executor.h"
#include "graph/op_def.h"
#include "program/compile.h"
#include "program/fusion/updates.h"
#include "tests/exec/random_plan.h"
#include "tests/planner/gpt_step.h"
#include "tests/support/memory_check.h"

namespace shardrun {
namespace {

int count(const Program& p, const std::string& op) {
  return static_cast<int>(std::count_if(p.steps.begin(), p.steps.end(),
                                        [&](const Step& s) { return s.node.op == op; }));
}

Program of(const Graph& g, bool together, const RunsAlike& takes = nullptr) {
  Plan plan = test::replicated_plan(g, Mesh());
  plan.keep_casts = true;
  const auto never = [](const KernelCall&, const KernelCall&) { return false; };
  const Program p =
      compile(g, plan, Cluster{}, 0, {.runs_alike = together ? takes : RunsAlike(never)});
  check_memory(p);
  for (const Step& s : p.steps) {  // the fused steps' types follow by the ops' shape rules
    std::vector<TensorType> in, out;
    for (BufferId b : s.in) in.push_back(p.buffers[static_cast<size_t>(b)].type);
    for (BufferId b : s.out) out.push_back(p.buffers[static_cast<size_t>(b)].type);
    EXPECT_EQ(infer_types(s.node, in), out) << s.node.name;
    EXPECT_EQ(s.node.inputs, s.in);
    EXPECT_EQ(s.node.outputs, s.out);
  }
  return p;
}

Graph gpt(const OptimizerOptions& optimizer, bool bf16) {
  GptOptions o;
  o.layers = 1, o.hidden = 8, o.heads = 2, o.vocab = 11, o.context = 4, o.batch = 2;
  return test::gpt_step(o, optimizer, bf16);
}

TEST(FuseUpdates, AllOfAModelAreOne) {
  for (const bool bf16 : {false, true}) {
    for (const double clip : {0.0, 1.0}) {
      OptimizerOptions o;
      o.clip_norm = clip;
      o.weight_decay = 0.1;
      const Graph g = gpt(o, bf16);
      const Program apart = of(g, false), p = of(g, true);
      const int parameters = count(apart, "adamw");
      EXPECT_EQ(parameters, 16);
      ASSERT_EQ(count(p, "adamw"), 1);
      EXPECT_EQ(count(p, "reduce_sum_squares"), 1);
      EXPECT_EQ(p.steps.size() + 3 * static_cast<size_t>(parameters - 1), apart.steps.size());
      // Nothing lives longer; where scalars fit best may differ by one.
      EXPECT_LE(p.arena_bytes, apart.arena_bytes + kArenaAlignment);
      const auto update = std::find_if(p.steps.begin(), p.steps.end(),
                                       [](const Step& s) { return s.node.op == "adamw"; });
      EXPECT_EQ(update->node.attrs.has("copies"), bf16);
      EXPECT_EQ(update->in.size(), static_cast<size_t>(4 * parameters + 3));
    }
  }
}

TEST(FuseUpdates, AsksWhetherTheBackendTakesThem) {
  const Graph g = gpt({}, false);
  std::vector<size_t> many, alone;
  const Program p = of(g, true, [&](const KernelCall& a, const KernelCall& b) {
    many.push_back(a.in.size());
    alone.push_back(b.in.size());
    EXPECT_EQ(a.node.op, b.node.op);
    return false;
  });
  EXPECT_EQ(many, (std::vector<size_t>{16, 4 * 16 + 3}));
  EXPECT_EQ(alone, (std::vector<size_t>{1, 7}));
  EXPECT_EQ(count(p, "adamw"), 16);
  EXPECT_EQ(count(p, "reduce_sum_squares"), 16);
}

/// Three weights, whose updates a test may change.
struct Updates {
  Graph g;
  std::vector<ValueId> weights, grads, buffers, squares;
  ValueId lr, step;

  Updates() {
    lr = g.add_input("lr", {DType::f32, {}}, Role::scalar);
    step = g.add_input("step", {DType::i64, {}}, Role::scalar);
    for (int i = 0; i < 3; ++i) {
      const std::string number = std::to_string(i);
      const TensorType type{DType::f32, {2, 3 + i}};
      weights.push_back(g.add_persistent("w" + number, type, Role::parameter, Source{}));
      buffers.push_back(g.add_persistent("m" + number, type, Role::state, Source{}));
      grads.push_back(g.add_input("g" + number, type, Role::batch));
    }
  }
  void update(size_t i, double momentum = 0.9, double decay = 0, ValueId rate = kNoValue) {
    const auto next = g.add_node(
        "sgd", {weights[i], grads[i], buffers[i], rate == kNoValue ? lr : rate, step, lr},
        {{"momentum", momentum}, {"weight_decay", decay}, {"nesterov", int64_t{0}}},
        "update" + std::to_string(i));
    g.updates[weights[i]] = next[0];
    g.updates[buffers[i]] = next[1];
  }
  ValueId square(size_t i) {
    return g.add("reduce_sum_squares", {grads[i]}, {}, "squares" + std::to_string(i));
  }
  std::string kinds() {
    std::string out;
    for (const Step& s : of(g, true).steps)
      out += (out.empty() ? "" : " ") + s.node.op + std::to_string(s.in.size());
    return out;
  }
};

TEST(FuseUpdates, JoinsWhatDiffersInDecayAlone) {
  Updates same;
  for (size_t i = 0; i < 3; ++i) same.update(i, 0.9, static_cast<double>(i));
  EXPECT_EQ(same.kinds(), "sgd12");
  Updates momentum;
  for (size_t i = 0; i < 3; ++i) momentum.update(i, i < 2 ? 0.9 : 0.8);
  EXPECT_EQ(momentum.kinds(), "sgd9 sgd6");
  Updates rate;
  const ValueId other = rate.g.add_input("other", {DType::f32, {}}, Role::scalar);
  for (size_t i = 0; i < 3; ++i) rate.update(i, 0.9, 0, i < 1 ? other : kNoValue);
  EXPECT_EQ(rate.kinds(), "sgd6 sgd9");
}

TEST(FuseUpdates, LeavesWhatAnotherStepSeparates) {
  Updates u;
  u.update(0);
  u.g.outputs = {u.g.add("neg", {u.grads[0]}, {}, "between")};
  u.update(1);
  u.update(2);
  EXPECT_EQ(u.kinds(), "sgd6 neg1 sgd9");
}

/// Squares stand by their gradients: the sum is made by the last, if the first are still there.
TEST(FuseUpdates, SumsSquaresThatStandApart) {
  const auto steps = [](bool lives) {
    Updates u;
    const ValueId x = u.g.add("neg", {u.grads[0]}, {}, "x"),
                  first = u.g.add("reduce_sum_squares", {x}, {}, "squares"),
                  y = u.g.add("neg", {u.grads[1]}, {}, "y"),
                  all = u.g.add("add", {first, u.g.add("reduce_sum_squares", {y}, {}, "more")}, {},
                                "all");
    u.g.outputs = {all};
    if (lives) u.g.outputs.push_back(u.g.add("abs", {x}, {}, "later"));
    return u.kinds();
  };
  EXPECT_EQ(steps(true), "neg1 neg1 reduce_sum_squares2 abs1");
  EXPECT_EQ(steps(false), "neg1 reduce_sum_squares1 neg1 reduce_sum_squares1 add2");
}

/// Numbers among the squares, as sums over ranks are, are added to the fused sum; what they make
/// among themselves has another name than what the Graph has there.
TEST(FuseUpdates, SumsSquaresAroundOtherNumbers) {
  const auto steps = [](const std::vector<int>& terms) {  // -1: another number
    Updates u;
    ValueId sum = kNoValue;
    for (size_t i = 0; i < terms.size(); ++i) {
      const std::string number = std::to_string(i);
      const ValueId term = terms[i] < 0 ? u.g.add("exp", {u.lr}, {}, "other" + number)
                                        : u.square(static_cast<size_t>(terms[i]));
      sum = i == 0 ? term : u.g.add("add", {sum, term}, {}, "sum" + number);
    }
    u.g.outputs = {u.g.add("sqrt", {sum}, {}, "norm")};
    const Program p = of(u.g, true);
    const std::string last = "%sum" + std::to_string(terms.size() - 1);
    for (const Step& s : p.steps) {
      const std::string& made = p.buffers[static_cast<size_t>(s.out[0])].name;
      EXPECT_EQ(made == last, s.out[0] == p.steps.back().in[0]);
      if (s.node.op == "add" || s.in.size() > 1) {
        EXPECT_TRUE(made == last || made.ends_with(" and others")) << made;
      }
    }
    return u.kinds();
  };
  EXPECT_EQ(steps({0, 1, 2}), "reduce_sum_squares3 sqrt1");
  EXPECT_EQ(steps({-1, 0, 1, 2}), "exp1 reduce_sum_squares3 add2 sqrt1");
  EXPECT_EQ(steps({0, 1, 2, -1}), "reduce_sum_squares3 exp1 add2 sqrt1");
  EXPECT_EQ(steps({-1, 0, -1, 1, 2}), "exp1 exp1 add2 reduce_sum_squares3 add2 sqrt1");
}

/// Nor is the last add one of other numbers on both sides.
TEST(FuseUpdates, LeavesASumThatEndsWithOtherNumbers) {
  Updates u;
  const auto other = [&](const char* name) { return u.g.add("exp", {u.lr}, {}, name); };
  ValueId sum = u.g.add("add", {other("a"), u.square(0)}, {}, "sum0");
  sum = u.g.add("add", {sum, u.square(1)}, {}, "sum1");
  u.g.outputs = {u.g.add("add", {sum, other("b")}, {}, "sum2")};
  EXPECT_EQ(u.kinds(), "exp1 reduce_sum_squares1 add2 reduce_sum_squares1 add2 exp1 add2");
}

TEST(FuseUpdates, LeavesASumThatOthersRead) {
  Updates u;
  const ValueId first = u.square(0), both = u.g.add("add", {first, u.square(1)}, {}, "both"),
                all = u.g.add("add", {both, u.square(2)}, {}, "all");
  u.g.outputs = {all, both};
  EXPECT_EQ(u.kinds(), "reduce_sum_squares2 reduce_sum_squares1 add2");
}

/// Three steps with the reference's kernels: parameters and moments bit for bit, the norm nearly,
/// as its terms are added in f64.
TEST(FuseUpdates, LeavesWhatTheSingleOnesWould) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    for (const bool bf16 : {false, true}) {
      test::ModelOptions o;
      o.optimizer.kind = kind;
      o.optimizer.weight_decay = 0.1;
      o.bf16 = bf16;
      const Graph g = test::small_model(o);
      const KernelList* lists[] = {&reference_kernels()};
      const auto train = [&](bool together) {
        auto world = make_local_communicators(1);
        Executor executor(of(g, together), lists, *world[0], 7);
        EXPECT_EQ(count(executor.program(), std::string(name_of(kOptimizers, kind))),
                  together ? 1 : 3);
        Tensor x(executor.view(*executor.find("x")).type), labels({DType::i64, {o.batch}});
        for (int64_t step = 1; step <= 3; ++step) {
          executor.set_scalar(kLearningRate, 0.1);
          executor.set_scalar(kStep, step);
          for (int64_t i = 0; i < x.count(); ++i) {
            const double value = static_cast<double>((i * step * 7) % 11 - 5) / 4;
            convert(&value, DType::f64, x.as<char>() + i * size_of(x.dtype()), x.dtype(), 1);
          }
          for (int64_t i = 0; i < labels.count(); ++i)
            labels.as<int64_t>()[i] = (i + step) % o.classes;
          executor.begin_step();
          executor.write("x", x);
          executor.write("labels", labels);
          executor.run_micro();
          executor.run_update();
        }
        std::vector<Tensor> held;
        for (const Binding& b : executor.program().bindings) {
          if (b.role == Role::parameter || b.role == Role::state) held.push_back(executor.read(b));
        }
        return std::pair(std::move(held), executor.metric("grad_norm"));
      };
      const auto [apart, norm] = train(false);
      const auto [together, joined_norm] = train(true);
      EXPECT_GT(norm, 0);
      EXPECT_NEAR(joined_norm, norm, 1e-6 * norm);
      ASSERT_EQ(together.size(), apart.size());
      for (size_t i = 0; i < apart.size(); ++i)
        EXPECT_EQ(std::memcmp(together[i].data(), apart[i].data(),
                              static_cast<size_t>(byte_size(apart[i].type()))),
                  0);
    }
  }
}

}  // namespace
}  // namespace shardrun
