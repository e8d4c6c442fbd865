// Fusion: every spelling is recognised and computes the same; what only resembles one is left
// alone.
#include "graph/passes/recognise/recognise.h"

#include <functional>
#include <limits>
#include <numbers>

#include "graph/autodiff.h"
#include "tests/graph/graph_build.h"

namespace shardrun {
namespace {

using test::Build;
using test::count_op;
using test::expect_same_outputs;
using test::find_op;
using test::tolerance;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Spelling {
  const char* name;
  std::function<ValueId(Build&, ValueId x)> build;
};

/// Builds f(x [2, 3, 4]) in f64 and f32, fuses, and checks that the result computes the same and
/// that `op` is there `times` times.
void expect_fused(const Spelling& spelling, const std::string& op, int times,
                  const std::vector<std::string>& gone) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    Build b(dtype);
    b.g.outputs = {spelling.build(b, b.in("x", {2, 3, 4}))};
    Graph fused = b.g;
    recognise(fused);
    check_graph(fused);
    EXPECT_EQ(count_op(fused, op), times) << spelling.name << "\n" << to_string(fused);
    for (const std::string& other : gone)
      EXPECT_EQ(count_op(fused, other), 0) << other << " is left of " << spelling.name;
    expect_same_outputs(b.g, fused, tolerance(dtype));
  }
}

const double kRoot2 = std::numbers::sqrt2, kTanh = std::sqrt(2 / std::numbers::pi);
constexpr double kCubic = 0.044715;

// ------------------------------------------------------------------ GELU

const std::vector<Spelling> kErfGelu = {
    {"x*0.5*(1+erf(x/sqrt2))",
     [](Build& b, ValueId x) {
       return b.mul(b.mul(x, 0.5), b.add(1.0, b.op("erf", {b.div(x, kRoot2)})));
     }},
    {"0.5*(x*(erf(x*0.7071)+1))",
     [](Build& b, ValueId x) {
       return b.mul(0.5, b.mul(x, b.add(b.op("erf", {b.mul(x, 0.70710678)}), 1.0)));
     }},
    {"x*(1+erf(x/sqrt2))/2",
     [](Build& b, ValueId x) {
       return b.div(b.mul(x, b.add(1.0, b.op("erf", {b.div(x, 1.4142135)}))), 2.0);
     }},
    {"x*(0.5*erf(x/sqrt2)+0.5)",
     [](Build& b, ValueId x) {
       return b.mul(x, b.add(b.mul(0.5, b.op("erf", {b.div(x, kRoot2)})), 0.5));
     }},
    {"(1+erf(0.7071*x))*(0.5*x)",
     [](Build& b, ValueId x) {
       return b.mul(b.add(1.0, b.op("erf", {b.mul(std::sqrt(0.5), x)})), b.mul(0.5, x));
     }},
    {"of a sum",
     [](Build& b, ValueId x) {
       const ValueId y = b.add(x, b.param("bias", {4}));
       return b.mul(b.mul(y, 0.5), b.add(1.0, b.op("erf", {b.div(y, kRoot2)})));
     }},
    {"of a product",
     [](Build& b, ValueId x) {
       const ValueId y = b.mul(b.mul(x, b.param("gate", {4})), 3.0);
       return b.mul(b.mul(y, 0.5), b.add(1.0, b.op("erf", {b.div(y, kRoot2)})));
     }},
};

const std::vector<Spelling> kTanhGelu = {
    {"pow 3",
     [](Build& b, ValueId x) {
       return b.mul(
           b.mul(0.5, x),
           b.add(1.0, b.op("tanh", {b.mul(kTanh, b.add(x, b.mul(kCubic, b.pow(x, 3.0))))})));
     }},
    {"x*x*x",
     [](Build& b, ValueId x) {
       return b.mul(
           0.5, b.mul(x, b.add(b.op("tanh", {b.mul(b.add(x, b.mul(b.mul(b.mul(x, x), x), kCubic)),
                                                   0.7978845608)}),
                               1.0)));
     }},
    {"x*k*(1+c*x*x)",
     [](Build& b, ValueId x) {
       const ValueId inner = b.mul(b.mul(x, kTanh), b.add(1.0, b.mul(b.mul(kCubic, x), x)));
       return b.mul(b.mul(0.5, x), b.add(1.0, b.op("tanh", {inner})));
     }},
    {"k*x + k*c*x^3",
     [](Build& b, ValueId x) {
       const ValueId inner = b.add(b.mul(kTanh, x), b.mul(kTanh * kCubic, b.mul(b.pow(x, 2.0), x)));
       return b.mul(b.add(1.0, b.op("tanh", {inner})), b.mul(0.5, x));
     }},
    {"of a sum",
     [](Build& b, ValueId x) {
       const ValueId y = b.add(x, b.param("bias", {4}));
       return b.mul(
           b.mul(0.5, y),
           b.add(1.0, b.op("tanh", {b.mul(kTanh, b.add(y, b.mul(kCubic, b.pow(y, 3.0))))})));
     }},
};

TEST(FuseGelu, Spellings) {
  for (const Spelling& s : kErfGelu) {
    SCOPED_TRACE(s.name);
    expect_fused(s, "gelu", 1, {"erf"});
  }
  for (const Spelling& s : kTanhGelu) {
    SCOPED_TRACE(s.name);
    expect_fused(s, "gelu", 1, {"tanh", "pow"});
  }
}

TEST(FuseGelu, SaysWhich) {
  Build b;
  const ValueId x = b.in("x", {4});
  b.g.outputs = {kErfGelu[0].build(b, x), kTanhGelu[0].build(b, x)};
  EXPECT_EQ(recognise(b.g).gelu, 2);
  EXPECT_EQ(b.g.node(b.g.value(b.g.outputs[0]).producer).attrs.s("approximate"), "none");
  EXPECT_EQ(b.g.node(b.g.value(b.g.outputs[1]).producer).attrs.s("approximate"), "tanh");
}

TEST(FuseGelu, NearMisses) {
  auto tanh_with = [](double k, double c, double exponent) {
    return [=](Build& b, ValueId x) {
      return b.mul(b.mul(0.5, x),
                   b.add(1.0, b.op("tanh", {b.mul(k, b.add(x, b.mul(c, b.pow(x, exponent))))})));
    };
  };
  const std::vector<Spelling> misses = {
      {"cubic constant 0.044", tanh_with(kTanh, 0.044, 3)},
      {"cubic constant 0.0447", tanh_with(kTanh, 0.0447, 3)},
      {"outer constant 0.8", tanh_with(0.8, kCubic, 3)},
      {"a square for the cube", tanh_with(kTanh, kCubic, 2)},
      {"erf(x / 1.4)",
       [](Build& b, ValueId x) {
         return b.mul(b.mul(x, 0.5), b.add(1.0, b.op("erf", {b.div(x, 1.4)})));
       }},
      {"0.6 for a half",
       [](Build& b, ValueId x) {
         return b.mul(b.mul(x, 0.6), b.add(1.0, b.op("erf", {b.div(x, kRoot2)})));
       }},
      {"0.9 + erf",
       [](Build& b, ValueId x) {
         return b.mul(b.mul(x, 0.5), b.add(0.9, b.op("erf", {b.div(x, kRoot2)})));
       }},
      {"1 - erf",
       [](Build& b, ValueId x) {
         return b.mul(b.mul(x, 0.5), b.sub(b.number(1), b.op("erf", {b.div(x, kRoot2)})));
       }},
      {"sqrt(x*x) is |x|",
       [](Build& b, ValueId x) {
         return b.mul(b.mul(b.op("sqrt", {b.mul(x, x)}), 0.5),
                      b.add(1.0, b.op("erf", {b.div(x, kRoot2)})));
       }},
      {"sqrt 2 / x",
       [](Build& b, ValueId x) {
         return b.mul(b.mul(x, 0.5), b.add(1.0, b.op("erf", {b.div(b.number(kRoot2), x)})));
       }},
      {"another x inside",
       [](Build& b, ValueId x) {
         return b.mul(b.mul(x, 0.5),
                      b.add(1.0, b.op("erf", {b.div(b.in("z", {2, 3, 4}), kRoot2)})));
       }},
      {"half of x inside",
       [](Build& b, ValueId x) {
         const ValueId y = b.mul(x, 2.0);
         return b.mul(b.mul(y, 0.5), b.add(1.0, b.op("erf", {b.div(y, 2 * kRoot2)})));
       }},
  };
  for (const Spelling& s : misses) {
    SCOPED_TRACE(s.name);
    expect_fused(s, "gelu", 0, {});
  }
}

// ------------------------------------------------------------------ layer norm

struct LayerNormForm {
  std::vector<int64_t> axes = {2};
  bool square_by_pow = true;
  int divide = 0;      // 0: / sqrt, 1: * reciprocal(sqrt), 2: * pow -0.5
  bool twice = false;  // x - mean is computed once more for the variance
  bool with_scale = true, with_bias = true, bias_first = false, scale_first = false;
  Shape scale = {4};
};

ValueId layer_norm(Build& b, ValueId x, const LayerNormForm& form) {
  const ValueId centred = b.sub(x, b.mean(x, form.axes));
  const ValueId again = form.twice ? b.sub(x, b.mean(x, form.axes)) : centred;
  const ValueId square = form.square_by_pow ? b.pow(again, 2.0) : b.mul(again, again);
  const ValueId variance = b.add(b.mean(square, form.axes), 1e-5);
  ValueId y = kNoValue;
  if (form.divide == 0) y = b.div(centred, b.op("sqrt", {variance}));
  if (form.divide == 1) y = b.mul(centred, b.op("reciprocal", {b.op("sqrt", {variance})}));
  if (form.divide == 2) y = b.mul(b.pow(variance, -0.5), centred);
  if (form.with_scale) {
    const ValueId scale = b.param("scale", form.scale);
    y = form.scale_first ? b.mul(scale, y) : b.mul(y, scale);
  }
  if (form.with_bias) {
    const ValueId bias = b.param("bias", form.scale);
    y = form.bias_first ? b.add(bias, y) : b.add(y, bias);
  }
  return y;
}

TEST(FuseLayerNorm, Spellings) {
  std::vector<std::pair<const char*, LayerNormForm>> forms = {
      {"opset 13's pieces", {}},
      {"square by mul", {.square_by_pow = false}},
      {"times reciprocal", {.divide = 1}},
      {"times pow -0.5", {.divide = 2}},
      {"two subtractions", {.twice = true}},
      {"no bias", {.with_bias = false}},
      {"neither scale nor bias", {.with_scale = false, .with_bias = false}},
      {"bias without scale", {.with_scale = false}},
      {"operands the other way", {.bias_first = true, .scale_first = true}},
      {"scale with leading ones", {.scale = {1, 1, 4}}},
      {"over two dims", {.axes = {1, 2}, .scale = {3, 4}}},
      {"over all dims", {.axes = {0, 1, 2}, .scale = {2, 3, 4}}},
  };
  for (const auto& [name, form] : forms) {
    SCOPED_TRACE(name);
    const LayerNormForm f = form;
    expect_fused({name, [f](Build& b, ValueId x) { return layer_norm(b, x, f); }}, "layer_norm", 1,
                 {"reduce_sum", "sqrt", "pow", "reciprocal", "sub"});
  }
}

TEST(FuseLayerNorm, CountsOnceAndKeepsEps) {
  Build b;
  const ValueId first = layer_norm(b, b.in("x", {2, 3, 4}), {});
  b.g.outputs = {layer_norm(b, first, {})};
  EXPECT_EQ(recognise(b.g).layer_norm, 2);
  const Node* norm = find_op(b.g, "layer_norm");
  ASSERT_NE(norm, nullptr);
  EXPECT_DOUBLE_EQ(norm->attrs.f("eps"), 1e-5);
  EXPECT_EQ(norm->attrs.i("axis"), 2);
  EXPECT_EQ(norm->inputs.size(), 3u);
}

TEST(FuseLayerNorm, NearMisses) {
  const std::vector<int64_t> last = {2};
  auto norm = [last](Build& b, ValueId x, ValueId centred, ValueId variance, ValueId eps) {
    (void)x;
    return b.mul(b.div(centred, b.op("sqrt", {b.add(variance, eps)})), b.param("scale", {4}));
  };
  const std::vector<Spelling> misses = {
      {"eps is an input",
       [=](Build& b, ValueId x) {
         const ValueId c = b.sub(x, b.mean(x, last));
         return norm(b, x, c, b.mean(b.pow(c, 2.0), last), b.op("abs", {b.in("eps", {})}));
       }},
      {"n - 1",
       [=](Build& b, ValueId x) {
         const ValueId c = b.sub(x, b.mean(x, last));
         return norm(b, x, c, b.mean(b.pow(c, 2.0), last, true, 1), b.number(1e-5));
       }},
      {"twice the variance",
       [=](Build& b, ValueId x) {
         const ValueId c = b.sub(x, b.mean(x, last));
         return norm(b, x, c, b.mean(b.mul(b.pow(c, 2.0), 2.0), last), b.number(1e-5));
       }},
      {"mean of the absolute value",
       [=](Build& b, ValueId x) {
         const ValueId c = b.sub(x, b.mean(x, last));
         return norm(b, x, c, b.mean(b.op("abs", {c}), last), b.number(1e-5));
       }},
      {"variance over other dims",
       [=](Build& b, ValueId x) {
         const ValueId c = b.sub(x, b.mean(x, last));
         return norm(b, x, c, b.mean(b.pow(c, 2.0), {1}), b.number(1e-5));
       }},
      {"the dim in the middle",
       [](Build& b, ValueId x) {
         const ValueId c = b.sub(x, b.mean(x, {1}));
         return b.mul(b.div(c, b.op("sqrt", {b.add(b.mean(b.pow(c, 2.0), {1}), 1e-5)})),
                      b.param("scale", {3, 1}));
       }},
      {"not centred",
       [=](Build& b, ValueId x) {
         return norm(b, x, x, b.mean(b.pow(x, 2.0), last), b.number(1e-5));
       }},
      {"the root of eps apart",
       [=](Build& b, ValueId x) {
         const ValueId c = b.sub(x, b.mean(x, last));
         return b.mul(b.div(c, b.add(b.op("sqrt", {b.mean(b.pow(c, 2.0), last)}), 1e-5)),
                      b.param("scale", {4}));
       }},
  };
  for (const Spelling& s : misses) {
    SCOPED_TRACE(s.name);
    expect_fused(s, "layer_norm", 0, {});
  }
  // A scale for each token is no layer norm's, but what it scales is one.
  expect_fused({"a scale for each token",
                [=](Build& b, ValueId x) {
                  const ValueId c = b.sub(x, b.mean(x, last));
                  return b.mul(b.div(c, b.op("sqrt", {b.add(b.mean(b.pow(c, 2.0), last), 1e-5)})),
                               b.param("scale", {3, 1}));
                }},
               "layer_norm", 1, {"sqrt"});
  // A mean without kept dims, that only by chance has a shape that fits.
  Build b;
  const ValueId x = b.in("x", {4, 4});
  const ValueId c = b.sub(x, b.mean(x, {1}, false));
  const ValueId variance = b.mean(b.pow(c, 2.0), {1}, false);
  b.g.outputs = {b.mul(b.div(c, b.op("sqrt", {b.add(variance, 1e-5)})), b.param("scale", {4}))};
  EXPECT_EQ(recognise(b.g).layer_norm, 0);
}

// ---- segment_softmax: x [12, 4] over the segments [4] that `rows` names

struct Edges {
  ValueId rows = kNoValue, others = kNoValue;
  explicit Edges(Build& b) : rows(b.ints("rows", {12})), others(b.ints("others", {12})) {}
};

ValueId gathered(Build& b, ValueId table, ValueId rows) {
  return b.op("gather", {table, rows}, {{"axis", int64_t{0}}});
}
ValueId summed(Build& b, ValueId w, ValueId rows) {
  return b.op("gather_grad", {w, rows}, {{"axis", int64_t{0}}, {"size", int64_t{4}}});
}
ValueId highest(Build& b, ValueId x, ValueId rows) {
  const ValueId indices =
      b.op("expand", {b.reshape(rows, {12, 1})}, {{"shape", std::vector<int64_t>{12, 4}}});
  const ValueId low = b.array({4, 4}, std::vector<double>(16, -1e30));
  return b.op("scatter_elements", {low, indices, x},
              {{"axis", int64_t{0}}, {"reduction", std::string("max")}});
}

TEST(FuseSegmentSoftmax, Spellings) {
  const auto quotient = [](Build& b, ValueId w, ValueId total, ValueId rows) {
    return b.div(w, gathered(b, total, rows));
  };
  const std::vector<std::pair<const char*, std::function<ValueId(Build&, ValueId)>>> spellings = {
      {"as models/gat.cc writes it",
       [&](Build& b, ValueId x) {
         const ValueId rows = Edges(b).rows;
         const ValueId w = b.op("exp", {b.sub(x, gathered(b, highest(b, x, rows), rows))});
         return quotient(b, w, summed(b, w, rows), rows);
       }},
      {"with a guard",
       [&](Build& b, ValueId x) {
         const ValueId rows = Edges(b).rows;
         const ValueId w = b.op("exp", {b.sub(x, gathered(b, highest(b, x, rows), rows))});
         return quotient(b, w, b.add(summed(b, w, rows), 1e-16), rows);
       }},
      {"with another shift",
       [&](Build& b, ValueId x) {
         const ValueId rows = Edges(b).rows;
         const ValueId w = b.op("exp", {b.sub(x, gathered(b, b.in("shift", {4, 4}), rows))});
         return quotient(b, w, summed(b, w, rows), rows);
       }},
  };
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const auto& [name, build] : spellings) {
      SCOPED_TRACE(name);
      Build b(dtype);
      b.g.outputs = {build(b, b.in("x", {12, 4}))};
      Graph fused = b.g;
      EXPECT_EQ(recognise(fused).segment_softmax, 1);
      check_graph(fused);
      EXPECT_EQ(count_op(fused, "segment_softmax"), 1);
      EXPECT_EQ(fused.nodes().size(), 3u) << to_string(fused);
      expect_same_outputs(b.g, fused, tolerance(dtype));
    }
  }
}

TEST(FuseSegmentSoftmax, NearMisses) {
  const std::vector<std::pair<const char*, std::function<ValueId(Build&, ValueId)>>> misses = {
      {"the shift of other rows",
       [](Build& b, ValueId x) {
         const Edges e(b);
         const ValueId w = b.op("exp", {b.sub(x, gathered(b, b.in("shift", {4, 4}), e.others))});
         return b.div(w, gathered(b, summed(b, w, e.rows), e.rows));
       }},
      {"a shift for each edge",
       [](Build& b, ValueId x) {
         const Edges e(b);
         const ValueId w = b.op("exp", {b.sub(x, b.in("shift", {12, 4}))});
         return b.div(w, gathered(b, summed(b, w, e.rows), e.rows));
       }},
      {"sums of other rows",
       [](Build& b, ValueId x) {
         const Edges e(b);
         const ValueId w = b.op("exp", {b.sub(x, gathered(b, b.in("shift", {4, 4}), e.rows))});
         return b.div(w, gathered(b, summed(b, w, e.others), e.rows));
       }},
      {"sums of something else",
       [](Build& b, ValueId x) {
         const Edges e(b);
         const ValueId w = b.op("exp", {b.sub(x, gathered(b, b.in("shift", {4, 4}), e.rows))});
         return b.div(w, gathered(b, summed(b, b.mul(w, 2.0), e.rows), e.rows));
       }},
      {"a term that counts",
       [](Build& b, ValueId x) {
         const Edges e(b);
         const ValueId w = b.op("exp", {b.sub(x, gathered(b, b.in("shift", {4, 4}), e.rows))});
         return b.div(w, gathered(b, b.add(summed(b, w, e.rows), 1e-3), e.rows));
       }},
  };
  for (const auto& [name, build] : misses) {
    SCOPED_TRACE(name);
    Build b;
    b.g.outputs = {build(b, b.in("x", {12, 4}))};
    EXPECT_EQ(recognise(b.g).segment_softmax, 0);
  }
}

/// Through top and total the gradient goes at once.
TEST(FuseSegmentSoftmax, GradientIsTwoNodes) {
  Build b;
  const ValueId x = b.in("x", {12, 4}), rows = Edges(b).rows;
  const ValueId w = b.op("exp", {b.sub(x, gathered(b, highest(b, x, rows), rows))});
  const ValueId y = b.div(w, gathered(b, summed(b, w, rows), rows));
  const ValueId loss = b.sum(b.mul(y, b.mul(y, x)), {0, 1}, false);
  Graph composed = b.g, fused = b.g;
  const std::vector<ValueId> wrt = {x};
  composed.outputs = fused.outputs = {loss};
  EXPECT_EQ(recognise(fused).segment_softmax, 1);
  composed.outputs = differentiate(composed, loss, wrt);
  fused.outputs = differentiate(fused, fused.outputs[0], wrt);
  remove_dead_nodes(fused);
  EXPECT_EQ(count_op(fused, "segment_softmax_reduce_grad"), 1);
  EXPECT_EQ(count_op(fused, "segment_softmax_grad"), 1);
  EXPECT_EQ(count_op(fused, "gather") + count_op(fused, "where"), 0) << to_string(fused);
  expect_same_outputs(composed, fused, tolerance(DType::f64));
}

// ------------------------------------------------------------------ powers

// ---- products with matrices that `rows` [12] picks of 4

TEST(MultiplyPickedWeights, Spellings) {
  const std::vector<std::pair<const char*, std::function<ValueId(Build&)>>> spellings = {
      {"bmm(x[n, 1, j], w[rows])",
       [](Build& b) {
         const ValueId w = gathered(b, b.param("w", {4, 5, 6}), Edges(b).rows);
         return b.matmul(b.in("x", {12, 1, 5}), w, "nmj,njk->nmk");
       }},
      {"bmm(w[rows], x[n, j, 1]), as transformers does",
       [](Build& b) {
         const ValueId w = gathered(b, b.param("w", {4, 6, 5}), Edges(b).rows);
         return b.matmul(w, b.in("x", {12, 5, 1}), "nij,njk->nik");
       }},
      {"rows of two dims, in another order than those of x",
       [](Build& b) {
         const ValueId w = gathered(b, b.param("w", {4, 5, 6}), b.ints("rows", {3, 4}));
         return b.matmul(b.in("x", {4, 5, 3}), w, "tjs,stjk->stk");
       }},
  };
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const auto& [name, build] : spellings) {
      SCOPED_TRACE(name);
      Build b(dtype);
      b.g.outputs = {build(b)};
      Graph fused = b.g;
      EXPECT_EQ(recognise(fused).picked_weights, 1);
      check_graph(fused);
      EXPECT_EQ(count_op(fused, "gather"), 0) << to_string(fused);
      EXPECT_EQ(count_op(fused, "matmul"), 1);
      expect_same_outputs(b.g, fused, tolerance(dtype));
      // Their gradients, too, in which no copy is scattered.
      const auto gradients = [](Graph& g) {
        const std::vector<int64_t> axes = {0, 1, 2};
        const ValueId y = g.outputs[0];
        const ValueId loss =
            g.add("reduce_sum", {g.add("mul", {y, y})}, {{"axes", axes}, {"keepdims", int64_t{0}}});
        g.outputs = differentiate(g, loss, g.with_role(Role::parameter));
      };
      gradients(b.g), gradients(fused);
      EXPECT_EQ(count_op(fused, "gather_grad"), 0);
      expect_same_outputs(b.g, fused, 10 * tolerance(dtype));
    }
  }
}

TEST(MultiplyPickedWeights, NearMisses) {
  const std::vector<std::pair<const char*, std::function<ValueId(Build&)>>> misses = {
      {"fewer rows than matrices, as of one token",
       [](Build& b) {
         const ValueId w = gathered(b, b.param("w", {4, 5, 6}), b.ints("few", {3}));
         return b.matmul(b.in("x", {3, 1, 5}), w, "nmj,njk->nmk");
       }},
      {"more matrices than columns",
       [](Build& b) {
         const ValueId w = gathered(b, b.param("w", {4, 5, 3}), Edges(b).rows);
         return b.matmul(b.in("x", {12, 1, 5}), w, "nmj,njk->nmk");
       }},
      {"rows that are summed",
       [](Build& b) {
         const ValueId w = gathered(b, b.param("w", {4, 5, 6}), Edges(b).rows);
         return b.matmul(b.in("x", {12, 5}), w, "nj,njk->jk");
       }},
      {"copies that something else reads",
       [](Build& b) {
         const ValueId w = gathered(b, b.param("w", {4, 5, 6}), Edges(b).rows);
         const ValueId y = b.matmul(b.in("x", {12, 1, 5}), w, "nmj,njk->nmk");
         return b.add(y, b.sum(w, {1}));
       }},
  };
  for (const auto& [name, build] : misses) {
    SCOPED_TRACE(name);
    Build b;
    b.g.outputs = {build(b)};
    Graph fused = b.g;
    EXPECT_EQ(recognise(fused).picked_weights, 0);
    expect_same_outputs(b.g, fused, tolerance(DType::f64));
  }
}

TEST(FoldPowers, SquaresAndReciprocals) {
  expect_fused({"x^2",
                [](Build& b, ValueId x) {
                  return b.op("pow", {x, b.number(2)});
                }},
               "mul", 1, {"pow"});
  expect_fused({"x^-1",
                [](Build& b, ValueId x) {
                  return b.op("pow", {b.add(b.op("abs", {x}), 1.0), b.number(-1)});
                }},
               "reciprocal", 1, {"pow"});
  expect_fused({"x^2.5",
                [](Build& b, ValueId x) {
                  return b.op("pow", {b.add(b.op("abs", {x}), 1.0), b.number(2.5)});
                }},
               "pow", 1, {});
  // The result is larger than the base.
  expect_fused({"1^[2, 2, 2, 2]",
                [](Build& b, ValueId x) {
                  const ValueId twos = b.op("add", {b.op("mul", {x, b.number(0)}), b.number(2)});
                  return b.op("pow", {b.number(3), twos});
                }},
               "pow", 1, {});
}

}  // namespace
}  // namespace shardrun
