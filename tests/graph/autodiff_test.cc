// Differentiation of whole Graphs, and the update that the optimizer appends, against hand-written
// formulas.
#include "graph/autodiff.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "graph/op_def.h"
#include "graph/optimizer.h"
#include "tests/graph/graph_build.h"

namespace shardrun {
namespace {

using test::Build;
using test::feeds_for;

void expect_error(ErrorKind kind, std::initializer_list<const char*> parts,
                  const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind);
    for (const char* part : parts) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
          << "no '" << part << "' in: " << e.what();
    }
  }
}

ValueId sum_all(Build& b, ValueId x) {
  std::vector<int64_t> axes(b.g.type(x).shape.size());
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
  return b.sum(x, axes, false);
}

// ------------------------------------------------------------------ differentiate

TEST(Differentiate, WantsAFloatingScalar) {
  Build b;
  const ValueId x = b.in("x", {2}), n = b.ints("n", {});
  const std::vector<ValueId> wrt = {x};
  expect_error(ErrorKind::invalid_input, {"'x'", "f64[2]", "floating scalar"},
               [&] { differentiate(b.g, x, wrt); });
  expect_error(ErrorKind::invalid_input, {"'n'", "i64[]"}, [&] { differentiate(b.g, n, wrt); });
}

TEST(Differentiate, AddsUpOverUses) {
  // L = sum(x y + x), with y = x^2: dL/dx = 3 x^2 + 1, dL/dy alone is x.
  Build b;
  const ValueId x = b.in("x", {5}), y = b.mul(x, x);
  const ValueId loss = sum_all(b, b.add(b.mul(x, y), x));
  const std::vector<ValueId> wrt = {x, y, loss};
  const std::vector<ValueId> grads = differentiate(b.g, loss, wrt);
  check_graph(b.g);
  const NamedTensors feeds = feeds_for(b.g);
  const std::vector<Tensor> got = evaluate_graph(b.g, feeds, grads);
  for (int64_t i = 0; i < 5; ++i) {
    const double v = feeds.at("x").at(i);
    EXPECT_NEAR(got[0].at(i), 3 * v * v + 1, 1e-12);
    EXPECT_NEAR(got[1].at(i), v, 1e-12);
  }
  EXPECT_EQ(got[2].at(0), 1);
}

TEST(Differentiate, ThePaddingRowOfATableIsReadButNotTrained) {
  Build b;
  const ValueId table = b.in("table", {3, 2}), tokens = b.ints("tokens", {4});
  const ValueId y =
      b.g.add("gather", {table, tokens}, {{"axis", int64_t{0}}, {"padding", int64_t{1}}});
  const std::vector<ValueId> wrt = {table};
  const std::vector<ValueId> grads = differentiate(b.g, sum_all(b, y), wrt);
  check_graph(b.g);
  const Tensor rows = Tensor::from<double>(Shape{3, 2}, {1, 2, 3, 4, 5, 6}, DType::f64);
  const NamedTensors feeds = {{"table", rows}, {"tokens", Tensor::vector_i64({1, 0, 0, 1})}};
  const std::vector<Tensor> got = evaluate_graph(b.g, feeds, std::vector<ValueId>{y, grads[0]});
  EXPECT_EQ(got[0].at(0), 3);
  const double want[] = {2, 2, 0, 0, 0, 0};
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(got[1].at(i), want[i]);
}

/// Where an operator bends, the gradient is PyTorch's: nothing at a bound, half to each of two
/// equal operands, nothing of a norm or a deviation where all is zero.
TEST(Differentiate, AtEdgesAsPyTorch) {
  const double infinity = std::numeric_limits<double>::infinity();
  const struct {
    const char* name;
    std::function<ValueId(Build&, ValueId)> of;  // x [2, 3]
    std::vector<double> x, gradient;
  } cases[] = {
      {"clip",
       [](Build& b, ValueId x) {
         return b.op("clip", {x}, {{"min", 0.0}, {"max", 1.0}});
       },
       {-1, 0, 0.5, 1, 2, 0.25},
       {0, 0, 1, 0, 0, 1}},
      {"max",
       [](Build& b, ValueId x) {
         return b.op("max", {x, b.number(0)});
       },
       {-1, 0, 0.5, 1, 2, 0},
       {0, 0.5, 1, 1, 1, 0.5}},
      {"min",
       [](Build& b, ValueId x) {
         return b.op("min", {b.number(1), x});
       },
       {-1, 0, 0.5, 1, 2, 1},
       {1, 1, 1, 0.5, 0, 0.5}},
      {"norm",
       [](Build& b, ValueId x) { return b.op("sqrt", {b.sum(b.mul(x, x), {1})}); },
       {0, 0, 0, 2, 3, 6},
       {0, 0, 0, 2. / 7, 3. / 7, 6. / 7}},
      {"deviation",
       [](Build& b, ValueId x) {
         const ValueId apart = b.sub(x, b.mean(x, {1}));
         return b.op("sqrt", {b.div(b.mul(b.mean(b.mul(apart, apart), {1}), 3.0), 2.0)});
       },
       {5, 5, 5, -1, 0, 1},
       {0, 0, 0, -0.5, 0, 0.5}},
      {"3-norm",
       [](Build& b, ValueId x) { return b.pow(b.sum(b.pow(b.op("abs", {x}), 3.0), {1}), 1.0 / 3); },
       {0, 0, 0, 0, 2, 0},
       {0, 0, 0, 0, 1, 0}},
      // No root: a negative base has a gradient.
      {"cube of a negative sum",
       [](Build& b, ValueId x) { return b.pow(b.mul(b.sum(b.mul(x, x), {1}), -1.0), 3.0); },
       {0, 0, 0, 1, 0, 0},
       {0, 0, 0, -6, 0, 0}},
      {"x^0",
       [](Build& b, ValueId x) { return b.pow(x, 0.0); },
       {0, 1, 4, 1, 1, 1},
       {0, 0, 0, 0, 0, 0}},
      {"amax",
       [](Build& b, ValueId x) {
         return b.op("reduce_max", {x},
                     {{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{0}}});
       },
       {1, 1, 0, 2, 2, 2},
       {0.5, 0.5, 0, 1. / 3, 1. / 3, 1. / 3}},
      {"max of a dim",
       [](Build& b, ValueId x) {
         return b.op(
             "reduce_max", {x},
             {{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{0}}, {"first", int64_t{1}}});
       },
       {1, 1, 0, 2, 2, 2},
       {1, 0, 0, 1, 0, 0}},
      // PyTorch's, too: nothing says that the root is a norm.
      {"root",
       [](Build& b, ValueId x) { return b.op("sqrt", {x}); },
       {0, 1, 4, 1, 1, 1},
       {infinity, 0.5, 0.25, 0.5, 0.5, 0.5}},
  };
  for (const auto& [name, of, x, gradient] : cases) {
    Build b;
    const ValueId in = b.in("x", {2, 3});
    const std::vector<ValueId> wrt = {in};
    const std::vector<ValueId> grads = differentiate(b.g, sum_all(b, of(b, in)), wrt);
    const NamedTensors feeds = {{"x", Tensor::from<double>(Shape{2, 3}, x, DType::f64)}};
    const Tensor got = evaluate_graph(b.g, feeds, grads)[0];
    for (int64_t i = 0; i < 6; ++i) {
      const double want = gradient[static_cast<size_t>(i)];
      if (std::isinf(want)) {
        EXPECT_EQ(got.at(i), want) << name;
      } else {
        EXPECT_NEAR(got.at(i), want, 1e-12) << name << " " << i;
      }
    }
  }
}

TEST(Differentiate, GivesNothingWhereTheLossDoesNotDepend) {
  Build b;
  const ValueId x = b.in("x", {3}), unread = b.in("unread", {3}), scores = b.in("scores", {3, 3});
  const ValueId best =
      b.op("argmax", {scores},
           {{"axis", int64_t{1}}, {"keepdims", int64_t{0}}, {"select_last_index", int64_t{0}}});
  const ValueId loss = sum_all(b, b.op("gather", {x, best}, {{"axis", int64_t{0}}}));
  b.mul(x, unread);
  const size_t forward = b.g.nodes().size();
  const std::vector<ValueId> wrt = {x, unread, scores, best};
  const std::vector<ValueId> grads = differentiate(b.g, loss, wrt);
  EXPECT_NE(grads[0], kNoValue);
  EXPECT_EQ(grads[1], kNoValue);
  EXPECT_EQ(grads[2], kNoValue);
  EXPECT_EQ(grads[3], kNoValue);
  EXPECT_GT(b.g.nodes().size(), forward);
  // And a loss that depends on none of them costs no node at all.
  const ValueId apart = sum_all(b, b.in("z", {2}));
  const size_t before = b.g.nodes().size();
  EXPECT_EQ(differentiate(b.g, apart, std::vector{x})[0], kNoValue);
  EXPECT_EQ(b.g.nodes().size(), before);
}

TEST(Differentiate, NamesTheNodeThatHasNoGradient) {
  Build b;
  const ValueId x = b.in("x", {2, 3});
  const ValueId y = b.g.add("softmax_grad", {x, b.op("softmax", {x}, {{"axis", int64_t{1}}})},
                            {{"axis", int64_t{1}}}, "blk/second");
  const ValueId loss = sum_all(b, y);
  expect_error(ErrorKind::unsupported, {"softmax_grad", "blk/second", "no gradient"},
               [&] { differentiate(b.g, loss, std::vector{x}); });
}

TEST(Differentiate, AWholeBlockAgainstFiniteDifferences) {
  // Lookup, layer norm, attention, gelu, tied head, cross-entropy: every element of every
  // parameter.
  Build b;
  const ValueId tokens = b.ints("tokens", {2, 3}), table = b.param("table", {4, 4});
  ValueId x = b.op("gather", {table, tokens}, {{"axis", int64_t{0}}});
  x = b.g.add_node("layer_norm", {x, b.param("scale", {4}), b.param("shift", {4})},
                   {{"axis", int64_t{2}}, {"eps", 1e-3}})[0];
  auto heads = [&](const char* name) {
    return b.transpose(b.reshape(b.matmul(x, b.param(name, {4, 4}), "btc,cd->btd"), {2, 3, 2, 2}),
                       {0, 2, 1, 3});
  };
  const std::vector<ValueId> qkv = {heads("q"), heads("k"), heads("v")};
  ValueId y = b.g.add_node("attention", qkv,
                           {{"scale", 0.3},
                            {"causal", int64_t{1}},
                            {"q_offset", int64_t{0}},
                            {"has_mask", int64_t{0}},
                            {"dropout", 0.0}})[0];
  y = b.add(x, b.reshape(b.transpose(y, {0, 2, 1, 3}), {2, 3, 4}));
  y = b.op("gelu", {y}, {{"approximate", std::string("tanh")}});
  const ValueId losses = b.g.add_node("cross_entropy", {b.matmul(y, table, "btc,vc->btv"), tokens},
                                      {{"ignore_index", int64_t{-100}}})[0];
  const ValueId loss = sum_all(b, losses);
  const std::vector<ValueId> parameters = b.g.with_role(Role::parameter);
  const std::vector<ValueId> grads = differentiate(b.g, loss, parameters);
  check_graph(b.g);
  const NamedTensors feeds = feeds_for(b.g);
  Interpreter run(b.g);
  const std::vector<Tensor> got = run.step({feeds}, grads);
  constexpr double kStepSize = 1e-5;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const std::string& name = b.g.value(parameters[p]).name;
    auto* element = run.persistent(name).as<double>();
    for (int64_t i = 0; i < got[p].count(); ++i) {
      const double before = element[i];
      element[i] = before + kStepSize;
      const double up = run.step({feeds}, std::vector{loss})[0].at(0);
      element[i] = before - kStepSize;
      const double down = run.step({feeds}, std::vector{loss})[0].at(0);
      element[i] = before;
      EXPECT_NEAR(got[p].at(i), (up - down) / (2 * kStepSize), 1e-6 * (1 + std::abs(got[p].at(i))))
          << name << " " << i;
    }
  }
}

// ------------------------------------------------------------------ the update

/// L = sum((w - a)^2 / 2 + (b - c)^2 / 2) with w [2, 3] and b [3]: gradients w - a and b - c.
struct Quadratic {
  Build b;
  ValueId w = kNoValue, bias = kNoValue;

  explicit Quadratic(const OptimizerOptions& options, bool train_bias = true) {
    w = b.param("w", {2, 3});
    bias = b.param("bias", {3}, train_bias);
    auto half_square = [&](ValueId p, ValueId target) {
      const ValueId d = b.sub(p, target);
      return b.mul(sum_all(b, b.mul(d, d)), 0.5);
    };
    b.g.loss = b.add(half_square(w, b.in("a", {2, 3})), half_square(bias, b.in("c", {3})));
    attach_optimizer(b.g, options);
    check_graph(b.g);
  }
};

NamedTensors with_scalars(NamedTensors feeds, double lr, int64_t step) {
  feeds[kLearningRate] = Tensor::from<float>({}, {static_cast<float>(lr)}, DType::f32);
  feeds[kStep] = Tensor::scalar_i64(step);
  return feeds;
}

std::vector<double> numbers(const Tensor& tensor) {
  std::vector<double> out;
  for (int64_t i = 0; i < tensor.count(); ++i) out.push_back(tensor.at(i));
  return out;
}

/// Runs five steps against `update(param, gradient, element's state [2], step)`, PyTorch's formula
/// for one element.
using Update = std::function<double(double p, double g, double* state, int step, bool matrix)>;

void expect_follows(const OptimizerOptions& options, double lr, const Update& update) {
  Quadratic q(options);
  Interpreter run(q.b.g);
  const NamedTensors feeds = feeds_for(q.b.g);
  struct Side {
    const char *name, *target;
    std::vector<double> p, state;
  };
  std::vector<Side> sides = {
      {"w", "a", numbers(run.persistent("w")), std::vector<double>(12, 0)},
      {"bias", "c", numbers(run.persistent("bias")), std::vector<double>(6, 0)}};
  for (int step = 1; step <= 5; ++step) {
    double squares = 0, loss = 0;
    for (Side& side : sides) {
      for (size_t i = 0; i < side.p.size(); ++i) {
        squares += std::pow(side.p[i] - feeds.at(side.target).at(static_cast<int64_t>(i)), 2);
      }
    }
    loss = squares / 2;
    const double clip =
        options.clip_norm > 0 ? std::min(1.0, options.clip_norm / (std::sqrt(squares) + 1e-6)) : 1;
    const std::vector<ValueId> wanted = {q.b.g.metrics.at("loss"), q.b.g.metrics.at("grad_norm")};
    const std::vector<Tensor> got = run.step({with_scalars(feeds, lr, step)}, wanted);
    EXPECT_NEAR(got[0].at(0), loss, 1e-6 * loss);
    EXPECT_NEAR(got[1].at(0), std::sqrt(squares), 1e-6 * std::sqrt(squares));
    for (Side& side : sides) {
      for (size_t i = 0; i < side.p.size(); ++i) {
        const double g = clip * (side.p[i] - feeds.at(side.target).at(static_cast<int64_t>(i)));
        side.p[i] = update(side.p[i], g, &side.state[2 * i], step, side.p.size() == 6);
        EXPECT_NEAR(run.persistent(side.name).at(static_cast<int64_t>(i)), side.p[i], 1e-6)
            << side.name << " " << i << " step " << step;
      }
    }
  }
}

constexpr double kLr = 0.0625;  // exact in f32

Update adam(const OptimizerOptions& o, bool decoupled, bool decay_all = false) {
  return [=](double p, double g, double* state, int step, bool matrix) {
    const double decay = matrix || decay_all ? o.weight_decay : 0;
    if (decoupled) {
      p *= 1 - kLr * decay;
    } else {
      g += decay * p;
    }
    state[0] = o.beta1 * state[0] + (1 - o.beta1) * g;
    state[1] = o.beta2 * state[1] + (1 - o.beta2) * g * g;
    const double m = state[0] / (1 - std::pow(o.beta1, step)),
                 v = state[1] / (1 - std::pow(o.beta2, step));
    return p - kLr * m / (std::sqrt(v) + o.eps);
  };
}

TEST(Optimizer, AdamWDecaysMatricesOnly) {
  OptimizerOptions o;
  o.beta2 = 0.95;
  o.weight_decay = 0.2;
  expect_follows(o, kLr, adam(o, true));
  o.decay_all = true;
  expect_follows(o, kLr, adam(o, true, true));
}

TEST(Optimizer, AdamAddsDecayToTheGradient) {
  OptimizerOptions o;
  o.kind = OptimizerKind::adam;
  o.weight_decay = 0.2;
  expect_follows(o, kLr, adam(o, false));
}

TEST(Optimizer, SgdWithMomentum) {
  OptimizerOptions o;
  o.kind = OptimizerKind::sgd;
  o.momentum = 0.8;
  o.weight_decay = 0.1;
  const Update sgd = [&](double p, double g, double* state, int, bool matrix) {
    g += matrix ? o.weight_decay * p : 0;
    state[0] = o.momentum * state[0] + g;
    return p - kLr * state[0];
  };
  expect_follows(o, kLr, sgd);
}

TEST(Optimizer, ClipsByTheNormOfAllGradientsTogether) {
  OptimizerOptions o;
  o.kind = OptimizerKind::sgd;
  o.momentum = 0;
  const Update sgd = [](double p, double g, double*, int, bool) { return p - kLr * g; };
  o.clip_norm = 0.5;  // below the norm: all gradients shrink alike
  expect_follows(o, kLr, sgd);
  o.clip_norm = 1e3;  // above: nothing happens
  expect_follows(o, kLr, sgd);
}

TEST(Optimizer, NumbersOfAnotherOneAreRefused) {
  const auto refusal = [](OptimizerKind kind, const std::function<void(OptimizerOptions&)>& set) {
    OptimizerOptions o;
    o.kind = kind;
    set(o);
    try {
      const Quadratic q(o);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(OptimizerKind::adam, [](auto& o) { o.momentum = 0.5; }),
            "momentum is 0.5, which the optimizer sgd has, and adam has not");
  for (const auto member :
       {&OptimizerOptions::beta1, &OptimizerOptions::beta2, &OptimizerOptions::eps}) {
    EXPECT_NE(refusal(OptimizerKind::sgd, [&](auto& o) { o.*member = 0.5; }).find("0.5"),
              std::string::npos);
    EXPECT_EQ(refusal(OptimizerKind::adamw, [&](auto& o) { o.*member = 0.5; }), "");
  }
  EXPECT_EQ(refusal(OptimizerKind::adamw, [](auto& o) { o.decay_all = true; }),
            "decay-all is of weight decay, and that is 0");
}

TEST(Optimizer, FrozenParametersStay) {
  Quadratic q({}, /*train_bias=*/false);
  Interpreter run(q.b.g);
  const std::vector<double> before = numbers(run.persistent("bias")),
                            w = numbers(run.persistent("w"));
  run.step({with_scalars(feeds_for(q.b.g), kLr, 1)}, {});
  EXPECT_EQ(numbers(run.persistent("bias")), before);
  EXPECT_NE(numbers(run.persistent("w")), w);
  EXPECT_EQ(q.b.g.with_role(Role::state).size(), 2u);  // moments of w only
}

TEST(Optimizer, DecayGoesByTheRankInTheFile) {
  // A pass may look at a bias [6] as [2, 3]: it is a bias all the same.
  OptimizerOptions o;
  o.weight_decay = 0.5;
  Build b;
  const ValueId p = b.param("bias", {2, 3});
  b.g.file_shapes[p] = {6};
  b.g.loss = sum_all(b, b.mul(p, b.in("x", {2, 3})));
  attach_optimizer(b.g, o);
  for (const Node& node : b.g.nodes()) {
    if (node.op == "adamw") {
      EXPECT_EQ(node.attrs.f("weight_decay"), 0);
    }
  }
}

// ------------------------------------------------------------------ accumulation

Graph regression(int64_t batch, const OptimizerOptions& options) {
  Build b;
  const ValueId x = b.in("x", {batch, 3}), y = b.in("y", {batch, 2});
  const ValueId h =
      b.op("tanh", {b.add(b.matmul(x, b.param("w1", {3, 4}), "bi,ij->bj"), b.param("b1", {4}))});
  const ValueId d = b.sub(b.matmul(h, b.param("w2", {4, 2}), "bi,ij->bj"), y);
  b.g.loss = b.mul(sum_all(b, b.mul(d, d)), 1.0 / static_cast<double>(2 * batch));
  attach_optimizer(b.g, options);
  check_graph(b.g);
  return b.g;
}

Tensor rows(const Tensor& whole, int64_t begin, int64_t count) {
  const int64_t width = whole.shape()[1];
  Tensor out({whole.dtype(), {count, width}});
  std::memcpy(out.data(), whole.as<double>() + begin * width,
              static_cast<size_t>(count * width) * sizeof(double));
  return out;
}

TEST(Accumulation, MicroBatchesAreOneBatch) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    for (const int parts : {2, 3}) {
      SCOPED_TRACE(str(name_of(kOptimizers, kind), " ", parts));
      OptimizerOptions o;
      o.kind = kind;
      o.clip_norm = 0.7;
      o.weight_decay = 0.1;
      const Graph whole = regression(6, o);
      o.accumulate = parts;
      const Graph part = regression(6 / parts, o);
      Interpreter one(whole), several(part);
      for (int64_t step = 1; step <= 3; ++step) {
        const NamedTensors feeds =
            with_scalars(feeds_for(whole, static_cast<uint64_t>(step)), kLr, step);
        std::vector<NamedTensors> micro(static_cast<size_t>(parts), feeds);
        for (int64_t i = 0; i < parts; ++i) {
          NamedTensors& m = micro[static_cast<size_t>(i)];
          for (const char* name : {"x", "y"})
            m[name] = rows(feeds.at(name), i * 6 / parts, 6 / parts);
        }
        const std::vector<Tensor> a =
            one.step({feeds}, std::vector{whole.metrics.at("loss"), whole.metrics.at("grad_norm")});
        const std::vector<Tensor> c =
            several.step(micro, std::vector{part.metrics.at("loss"), part.metrics.at("grad_norm")});
        EXPECT_NEAR(a[0].at(0), c[0].at(0), 1e-6 * a[0].at(0));
        EXPECT_NEAR(a[1].at(0), c[1].at(0), 1e-6 * a[1].at(0));
        for (const char* name : {"w1", "b1", "w2"}) {
          for (int64_t i = 0; i < one.persistent(name).count(); ++i) {
            EXPECT_NEAR(one.persistent(name).at(i), several.persistent(name).at(i), 1e-6)
                << name << " step " << step;
          }
        }
      }
    }
  }
}

// ------------------------------------------------------------------ refusals

TEST(Optimizer, Refusals) {
  auto model = [](bool reached) {
    Build b;
    const ValueId w = b.param("h.0.w", {3}), x = b.in("x", {3});
    b.g.loss = sum_all(b, reached ? b.mul(x, w) : x);
    return b.g;
  };
  auto with = [](const std::function<void(OptimizerOptions&)>& change) {
    OptimizerOptions o;
    change(o);
    return o;
  };
  Graph unreached = model(false);
  expect_error(ErrorKind::invalid_input, {"'h.0.w'", "does not depend on it", "freeze"},
               [&] { attach_optimizer(unreached, {}); });
  Graph frozen = model(true);
  frozen.trainable.begin()->second = false;
  expect_error(ErrorKind::invalid_input, {"no parameter is trainable"},
               [&] { attach_optimizer(frozen, {}); });
  Graph fine = model(true);
  expect_error(ErrorKind::invalid_input, {"accumulate is 0"}, [&] {
    attach_optimizer(fine, with([](OptimizerOptions& o) { o.accumulate = 0; }));
  });
  fine.loss = kNoValue;
  expect_error(ErrorKind::invalid_input, {"no loss"}, [&] { attach_optimizer(fine, {}); });
  Build vector;
  vector.g.loss = vector.mul(vector.param("w", {3}), vector.in("x", {3}));
  expect_error(ErrorKind::invalid_input, {"f64[3]", "floating scalar"},
               [&] { attach_optimizer(vector.g, {}); });
}

}  // namespace
}  // namespace shardrun
