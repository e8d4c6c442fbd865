// Attention, plain and over graphs: every spelling of it is recognised and computes the same;
// what only resembles one is left alone.
#include <limits>

#include "graph/passes/recognise/recognise.h"
#include "tests/graph/graph_build.h"

namespace shardrun {
namespace {

using test::Build;
using test::count_op;
using test::expect_same_outputs;
using test::find_op;
using test::tolerance;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct AttentionForm {
  enum class Scale { none, mul, div, query, key, both } scale = Scale::mul;
  enum class Mask {
    none,
    keep,
    drop,
    infinity,
    billion,
    lowest,
    trilu,
    trilu_less,
    repeated,
    sliced,
    scaled_after,
    offset
  } mask = Mask::none;
  enum class Padding { none, booleans, additive, finite } padding = Padding::none;
  int key_transposes = 1;  // 0: in the equation
  bool isnan = false, grouped = false, flat = false;
  double dropout = 0;
};

constexpr int64_t kBatch = 2, kHeads = 4, kLength = 5, kHead = 3;

std::vector<double> triangle(double below, double above, int64_t rows = kLength,
                             int64_t columns = kLength, int64_t offset = 0) {
  std::vector<double> out;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t s = 0; s < columns; ++s) out.push_back(s <= t + offset ? below : above);
  }
  return out;
}

/// [.., T, S] additive or boolean mask put on the scores.
ValueId masked(Build& b, ValueId scores, AttentionForm::Mask mask) {
  using Mask = AttentionForm::Mask;
  const Shape shape = {1, 1, kLength, kLength};
  auto ones = [&] {
    return b.op("expand", {b.array({1, 1}, {1})}, {{"shape", Shape{kLength, kLength}}});
  };
  auto trilu = [&](int64_t upper, int64_t k) {
    return b.op("trilu", {ones()}, {{"upper", upper}, {"k", k}});
  };
  switch (mask) {
    case Mask::none: return scores;
    case Mask::keep:
      return b.op("where",
                  {b.array(shape, triangle(1, 0), DType::boolean), scores, b.number(-kInf)});
    case Mask::drop:
      return b.op("where",
                  {b.array(shape, triangle(0, 1), DType::boolean), b.number(-kInf), scores});
    case Mask::infinity: return b.add(scores, b.array({kLength, kLength}, triangle(0, -kInf)));
    case Mask::billion: return b.add(b.array(shape, triangle(0, -1e9)), scores);
    case Mask::lowest:
      return b.op("where", {b.array(shape, triangle(0, 1), DType::boolean), b.number(-3.4028234e38),
                            scores});
    case Mask::trilu:
      return b.op("where", {b.op("equal", {trilu(0, 0), b.number(0)}), b.number(-kInf), scores});
    case Mask::trilu_less:  // upper triangle of -inf is what is added
      return b.add(scores,
                   b.op("where", {b.op("cast", {trilu(1, 1)}, {{"to", std::string("bool")}}),
                                  b.number(-kInf), b.number(0)}));
    case Mask::repeated: {
      std::vector<double> twice = triangle(1, 0);
      const std::vector<double> once = twice;
      twice.insert(twice.end(), once.begin(), once.end());
      return b.op("where", {b.array({kBatch, 1, kLength, kLength}, twice, DType::boolean), scores,
                            b.number(-kInf)});
    }
    case Mask::sliced: {  // a buffer of a longer context
      const ValueId buffer = b.array({1, 1, 8, 8}, triangle(1, 0, 8, 8));
      const ValueId part = b.op("slice", {buffer},
                                {{"starts", Shape{0, 0, 2, 2}},
                                 {"ends", Shape{1, 1, 7, 7}},
                                 {"steps", Shape{1, 1, 1, 1}}});
      return b.op("where", {b.op("equal", {part, b.number(0)}), b.number(-kInf), scores});
    }
    case Mask::scaled_after: return b.mul(b.add(scores, b.array(shape, triangle(0, -kInf))), 0.7);
    case Mask::offset:
      return b.op("where", {b.array(shape, triangle(1, 0, kLength, kLength, 2), DType::boolean),
                            scores, b.number(-kInf)});
  }
  return scores;
}

ValueId dropped(Build& b, ValueId weights, double p) {
  const ValueId step = b.g.add_input("random_step", {DType::i64, {}}, Role::scalar);
  const Shape shape = b.g.type(weights).shape;
  return b.op("dropout", {weights, step},
              {{"p", p},
               {"key", int64_t{9}},
               {"seed", int64_t{4}},
               {"global_shape", shape},
               {"start", std::vector<int64_t>(shape.size(), 0)}});
}

ValueId attention(Build& b, const AttentionForm& form) {
  using Scale = AttentionForm::Scale;
  using Padding = AttentionForm::Padding;
  const double scale = 1 / std::sqrt(static_cast<double>(kHead)), root = std::sqrt(scale);
  const Shape wide = {kBatch, kHeads, kLength, kHead};
  const Shape flat = {kBatch * kHeads, kLength, kHead};
  auto heads = [&](const char* name) {
    if (form.flat) return b.in(name, flat);
    // As models have it: [B, T, H, D] with heads brought to the front.
    return b.transpose(b.in(name, {kBatch, kLength, kHeads, kHead}), {0, 2, 1, 3});
  };
  ValueId q = heads("q"), k, v;
  if (form.grouped) {  // two key heads serve two query heads each
    auto repeated = [&](const char* name) {
      const ValueId one =
          b.reshape(b.in(name, {kBatch, 2, kLength, kHead}), {kBatch, 2, 1, kLength, kHead});
      return b.reshape(b.op("expand", {one}, {{"shape", Shape{kBatch, 2, 2, kLength, kHead}}}),
                       wide);
    };
    k = repeated("k");
    v = repeated("v");
  } else {
    k = heads("k");
    v = heads("v");
  }
  if (form.scale == Scale::query) q = b.mul(q, scale);
  if (form.scale == Scale::both) q = b.mul(q, root);
  if (form.scale == Scale::key) k = b.div(k, 1 / scale);
  const std::string batch = form.flat ? "g" : "bh";
  ValueId scores;
  if (form.key_transposes == 0) {
    if (form.scale == Scale::both) k = b.mul(k, root);
    scores = b.matmul(q, k, batch + "td," + batch + "sd->" + batch + "ts");
  } else {
    const std::vector<int64_t> swap =
        form.flat ? std::vector<int64_t>{0, 2, 1} : std::vector<int64_t>{0, 1, 3, 2};
    ValueId kt = b.transpose(k, swap);
    for (int i = 1; i < form.key_transposes; ++i) kt = b.transpose(b.transpose(kt, swap), swap);
    if (form.scale == Scale::both) kt = b.mul(kt, root);
    scores = b.matmul(q, kt, batch + "td," + batch + "ds->" + batch + "ts");
  }
  if (form.scale == Scale::mul) scores = b.mul(scores, scale);
  if (form.scale == Scale::div) scores = b.div(scores, std::sqrt(static_cast<double>(kHead)));
  scores = masked(b, scores, form.mask);
  const Shape padding = {kBatch, 1, 1, kLength};
  if (form.padding == Padding::booleans)
    scores = b.op("where", {b.bools("keep", padding), scores, b.number(-kInf)});
  if (form.padding == Padding::finite)
    scores = b.op("where", {b.bools("keep", padding), scores, b.number(-1e9)});
  if (form.padding == Padding::additive) scores = b.add(scores, b.in("padding", padding));
  const int64_t last = form.flat ? 2 : 3;
  ValueId weights = b.op("softmax", {scores}, {{"axis", last}});
  if (form.isnan) weights = b.op("where", {b.op("isnan", {weights}), b.number(0), weights});
  if (form.dropout > 0) weights = dropped(b, weights, form.dropout);
  const ValueId y = b.matmul(weights, v, batch + "ts," + batch + "sd->" + batch + "td");
  return form.flat ? y : b.reshape(b.transpose(y, {0, 2, 1, 3}), {kBatch, kLength, kHeads * kHead});
}

struct AttentionCase {
  const char* name;
  AttentionForm form;
  bool causal = false, mask = false;
};

using Scale = AttentionForm::Scale;
using Mask = AttentionForm::Mask;
using Padding = AttentionForm::Padding;

const std::vector<AttentionCase> kAttention = {
    {"scale by mul", {}},
    {"scale by div", {.scale = Scale::div}},
    {"scale on q", {.scale = Scale::query}},
    {"scale on k", {.scale = Scale::key}},
    {"scale on both", {.scale = Scale::both}},
    {"no scale", {.scale = Scale::none}},
    {"k in the equation", {.key_transposes = 0}},
    {"k transposed three times", {.key_transposes = 2}},
    {"where keeps", {.mask = Mask::keep}, true},
    {"where drops", {.mask = Mask::drop}, true},
    {"adds -inf", {.mask = Mask::infinity}, true},
    {"adds -1e9", {.mask = Mask::billion}, true},
    {"lowest", {.mask = Mask::lowest}, true},
    {"trilu == 0", {.mask = Mask::trilu}, true},
    {"upper trilu", {.mask = Mask::trilu_less}, true},
    {"one mask for each of the batch", {.mask = Mask::repeated}, true},
    {"a slice of a longer mask", {.mask = Mask::sliced}, true},
    {"mask inside, scale outside", {.mask = Mask::scaled_after}, true},
    {"a diagonal further up", {.mask = Mask::offset}, true},
    {"padding stays a mask", {.padding = Padding::booleans, .isnan = true}, false, true},
    {"additive padding stays a mask", {.padding = Padding::additive}, false, true},
    {"padding of -1e9", {.padding = Padding::finite}, false, true},
    {"causal and padding", {.mask = Mask::keep, .padding = Padding::additive}, true, true},
    {"causal by addition and padding",
     {.mask = Mask::infinity, .padding = Padding::finite, .isnan = true},
     true,
     true},
    {"isnan guard", {.mask = Mask::drop, .isnan = true}, true},
    {"grouped queries", {.mask = Mask::keep, .grouped = true}, true},
    {"dropout", {.mask = Mask::keep, .dropout = 0.3}, true},
    {"dropout behind a guard",
     {.scale = Scale::both, .mask = Mask::infinity, .isnan = true, .dropout = 0.3},
     true},
    {"no heads", {.mask = Mask::infinity, .flat = true}, true},
    {"no heads, dropout", {.flat = true, .dropout = 0.3}},
};

TEST(FuseAttention, Spellings) {
  for (const AttentionCase& c : kAttention) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      SCOPED_TRACE(str(c.name, " ", dtype));
      Build b(dtype);
      b.g.outputs = {attention(b, c.form)};
      Graph fused = b.g;
      EXPECT_EQ(recognise(fused).attention, 1);
      check_graph(fused);
      const Node* node = find_op(fused, "attention");
      ASSERT_NE(node, nullptr) << to_string(fused);
      EXPECT_EQ(count_op(fused, "softmax"), 0);
      EXPECT_EQ(node->attrs.i("causal"), int64_t{c.causal});
      EXPECT_EQ(node->attrs.i("has_mask"), int64_t{c.mask});
      EXPECT_EQ(node->attrs.i("q_offset"), c.form.mask == Mask::offset ? 2 : 0);
      double scale = c.form.scale == Scale::none ? 1 : 1 / std::sqrt(3.0);
      if (c.form.mask == Mask::scaled_after) scale *= 0.7;
      EXPECT_NEAR(node->attrs.f("scale"), scale, 1e-6);
      // Every query sees its first key: one that sees none has no answer that all spellings share.
      NamedTensors feeds = test::feeds_for(b.g);
      if (feeds.count("keep"))
        feeds.at("keep").as<bool>()[0] = feeds.at("keep").as<bool>()[kLength] = true;
      expect_same_outputs(b.g, fused, tolerance(dtype), feeds);
    }
  }
}

TEST(FuseAttention, PaddedRowsKeepTheirMeaning) {
  // All keys of the second example are masked: -1e9 looks at all of them alike, the guard makes it
  // 0.
  for (const Padding padding : {Padding::finite, Padding::booleans}) {
    Build b;
    b.g.outputs = {attention(b, {.padding = padding, .isnan = true})};
    Graph fused = b.g;
    ASSERT_EQ(recognise(fused).attention, 1);
    NamedTensors feeds = test::feeds_for(b.g);
    for (int64_t s = 0; s < kLength; ++s) feeds.at("keep").as<bool>()[kLength + s] = false;
    const Tensor x = evaluate_graph(b.g, feeds)[0], y = evaluate_graph(fused, feeds)[0];
    for (int64_t i = 0; i < x.count(); ++i) ASSERT_NEAR(x.at(i), y.at(i), 1e-6) << i;
  }
}

TEST(FuseAttention, NotAQuiteTriangularMaskStaysAMask) {
  Build b;
  std::vector<double> mask = triangle(0, -kInf);
  mask[static_cast<size_t>(3 * kLength + 1)] = -kInf;  // one key less for query 3
  AttentionForm form;
  const Shape shape = {kBatch, kHeads, kLength, kHead};
  const ValueId q = b.in("q", shape), k = b.in("k", shape), v = b.in("v", shape);
  const ValueId scores =
      b.add(b.matmul(q, k, "bhtd,bhsd->bhts"), b.array({kLength, kLength}, mask));
  b.g.outputs = {b.matmul(b.op("softmax", {scores}, {{"axis", int64_t{3}}}), v, "bhts,bhsd->bhtd")};
  Graph fused = b.g;
  ASSERT_EQ(recognise(fused).attention, 1);
  EXPECT_EQ(find_op(fused, "attention")->attrs.i("causal"), 0);
  EXPECT_EQ(find_op(fused, "attention")->attrs.i("has_mask"), 1);
  expect_same_outputs(b.g, fused, 1e-9);
}

TEST(FuseAttention, NearMisses) {
  const Shape shape = {kBatch, kHeads, kLength, kHead};
  struct Miss {
    const char* name;
    std::function<ValueId(Build&, ValueId q, ValueId k, ValueId v)> build;
  };
  auto softmax = [](Build& b, ValueId x, int64_t axis = 3) {
    return b.op("softmax", {x}, {{"axis", axis}});
  };
  const char *qk = "bhtd,bhsd->bhts", *pv = "bhts,bhsd->bhtd";
  const std::vector<Miss> misses = {
      {"softmax over the queries",
       [=](Build& b, ValueId q, ValueId k, ValueId v) {
         return b.matmul(softmax(b, b.matmul(q, k, qk), 2), v, pv);
       }},
      {"values by query",
       [=](Build& b, ValueId q, ValueId k, ValueId v) {
         return b.matmul(softmax(b, b.matmul(q, k, qk)), v, "bhts,bhtd->bhsd");
       }},
      {"a scale for each head",
       [=](Build& b, ValueId q, ValueId k, ValueId v) {
         return b.matmul(softmax(b, b.mul(b.matmul(q, k, qk), b.in("scales", {kHeads, 1, 1}))), v,
                         pv);
       }},
      {"a trained mask",
       [=](Build& b, ValueId q, ValueId k, ValueId v) {
         return b.matmul(softmax(b, b.add(b.matmul(q, k, qk),
                                          b.param("positions", {1, kHeads, kLength, kLength}))),
                         v, pv);
       }},
      {"a mask computed from what trains",
       [=](Build& b, ValueId q, ValueId k, ValueId v) {
         const ValueId table =
             b.mul(b.param("table", {kHeads, 1, 1}), b.in("distance", {1, kLength, kLength}));
         return b.matmul(softmax(b, b.add(b.matmul(q, k, qk), table)), v, pv);
       }},
      {"where with a number that hides nothing",
       [=](Build& b, ValueId q, ValueId k, ValueId v) {
         const ValueId keep = b.array({kLength, kLength}, triangle(1, 0), DType::boolean);
         return b.matmul(softmax(b, b.op("where", {keep, b.matmul(q, k, qk), b.number(-1)})), v,
                         pv);
       }},
      {"another guard",
       [=](Build& b, ValueId q, ValueId k, ValueId v) {
         const ValueId p = softmax(b, b.matmul(q, k, qk));
         return b.matmul(b.op("where", {b.op("isnan", {p}), b.number(1), p}), v, pv);
       }},
      {"softcap",
       [=](Build& b, ValueId q, ValueId k, ValueId v) {
         return b.matmul(softmax(b, b.op("tanh", {b.matmul(q, k, qk)})), v, pv);
       }},
      {"a negative scale outside of a mask",
       [=](Build& b, ValueId q, ValueId k, ValueId v) {
         const ValueId scores =
             b.add(b.matmul(q, k, qk), b.array({kLength, kLength}, triangle(0, 1e9)));
         return b.matmul(softmax(b, b.mul(scores, -1.0)), v, pv);
       }},
  };
  for (const Miss& miss : misses) {
    SCOPED_TRACE(miss.name);
    Build b;
    b.g.outputs = {miss.build(b, b.in("q", shape), b.in("k", shape), b.in("v", shape))};
    Graph fused = b.g;
    EXPECT_EQ(recognise(fused).attention, 0);
    check_graph(fused);
    expect_same_outputs(b.g, fused, 1e-9);
  }
}

/// As graphs have it: scores are leaky_relu(a + b') of a column and a row, keys are hidden from the
/// softmax by `low`, and their weights zeroed behind it.
struct GraphForm {
  bool heads = true;  // [batch, heads, T, S], else [batch, T, S]
  bool row_first = false, drops = false, zeroed = true, leaky = true;
  double low = -1e9, dropout = 0;
};

ValueId graph_attention(Build& b, const GraphForm& form) {
  const Shape batch = form.heads ? Shape{kBatch, kHeads} : Shape{kBatch};
  const auto shaped = [&](int64_t rows, int64_t columns) {
    Shape shape = batch;
    shape.insert(shape.end(), {rows, columns});
    return shape;
  };
  const ValueId column = b.in("column", shaped(kLength, 1)), row = b.in("row", shaped(1, kLength));
  const ValueId keep = b.bools("keep", {kLength, kLength});
  const auto masked = [&](ValueId x, double hidden) {
    const ValueId low = b.number(hidden);
    if (!form.drops) return b.op("where", {keep, x, low});
    return b.op("where", {b.op("logical_not", {keep}), low, x});
  };
  ValueId x = form.row_first ? b.add(row, column) : b.add(column, row);
  if (form.leaky) x = b.op("leaky_relu", {x}, {{"alpha", 0.2}});
  const auto last = static_cast<int64_t>(batch.size()) + 1;
  ValueId weights = b.op("softmax", {masked(x, form.low)}, {{"axis", last}});
  if (form.zeroed) weights = masked(weights, 0);
  if (form.dropout > 0) weights = dropped(b, weights, form.dropout);
  return b.matmul(weights, b.in("v", shaped(kLength, kHead)),
                  form.heads ? "bhts,bhsd->bhtd" : "bts,bsd->btd");
}

TEST(FuseAttention, GraphAttention) {
  const std::vector<std::pair<const char*, GraphForm>> forms = {
      {"with heads", {}},
      {"without heads", {.heads = false}},
      {"row + column", {.row_first = true}},
      {"where drops", {.drops = true}},
      {"-inf, nothing zeroed", {.zeroed = false, .low = -kInf}},
      {"a finite number, nothing zeroed", {.zeroed = false}},
      {"no activation", {.leaky = false}},
      {"dropout", {.dropout = 0.4}},
  };
  for (const auto& [name, form] : forms) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      SCOPED_TRACE(str(name, " ", dtype));
      Build b(dtype);
      b.g.outputs = {graph_attention(b, form)};
      Graph fused = b.g;
      EXPECT_EQ(recognise(fused).attention, 1);
      check_graph(fused);
      const Node* node = find_op(fused, "attention");
      ASSERT_NE(node, nullptr) << to_string(fused);
      EXPECT_EQ(count_op(fused, "softmax") + count_op(fused, "leaky_relu"), 0);
      EXPECT_EQ(node->attrs.f("slope", 1.0), form.leaky ? 0.2 : 1.0);
      const bool boolean = fused.type(node->inputs[3]).dtype == DType::boolean;
      EXPECT_EQ(boolean, form.zeroed || form.low == -kInf);
      NamedTensors feeds = test::feeds_for(b.g);
      for (int64_t t = 0; t < kLength; ++t) feeds.at("keep").as<bool>()[t * kLength + t] = true;
      // Zeroed weights are 0 for a query that sees no key too.
      if (form.zeroed) std::fill_n(feeds.at("keep").as<bool>() + kLength, kLength, false);
      expect_same_outputs(b.g, fused, tolerance(dtype), feeds);
    }
  }
}

TEST(FuseAttention, NearMissesOfGraphs) {
  const Shape wide = {kHeads, kLength, kLength}, column = {kHeads, kLength, 1},
              row = {kHeads, 1, kLength};
  const auto weighted = [](Build& b, ValueId weights) {
    return b.matmul(weights, b.in("v", {kHeads, kLength, kHead}), "bts,bsd->btd");
  };
  const auto softmax = [](Build& b, ValueId x) { return b.op("softmax", {x}, {{"axis", 2}}); };
  const auto leaky = [](Build& b, ValueId x) { return b.op("leaky_relu", {x}, {{"alpha", 0.2}}); };
  const std::vector<std::pair<const char*, std::function<ValueId(Build&)>>> misses = {
      {"zeroed where nothing is hidden",
       [&](Build& b) {
         const ValueId x = leaky(b, b.add(b.in("a", column), b.in("b", row)));
         const ValueId keep = b.bools("keep", {kLength, kLength});
         return weighted(b, b.op("where", {keep, softmax(b, x), b.number(0)}));
       }},
      {"zeroed by another mask",
       [&](Build& b) {
         const ValueId x = leaky(b, b.add(b.in("a", column), b.in("b", row)));
         const ValueId keep = b.bools("keep", wide), other = b.bools("other", wide);
         return weighted(
             b, b.op("where",
                     {other, softmax(b, b.op("where", {keep, x, b.number(-kInf)})), b.number(0)}));
       }},
      {"zeroed where the mask keeps",
       [&](Build& b) {
         const ValueId x = leaky(b, b.add(b.in("a", column), b.in("b", row)));
         const ValueId keep = b.bools("keep", wide);
         return weighted(b, b.op("where", {keep, b.number(0),
                                           softmax(b, b.op("where", {keep, x, b.number(-1e9)}))}));
       }},
      {"a mask inside of the activation",
       [&](Build& b) {
         const ValueId x = b.matmul(b.in("q", {kHeads, kLength, 2}),
                                    b.in("k", {kHeads, kLength, 2}), "btd,bsd->bts");
         const ValueId keep = b.bools("keep", wide);
         return weighted(b, softmax(b, leaky(b, b.op("where", {keep, x, b.number(-1e4)}))));
       }},
      {"one number for every head and key",
       [&](Build& b) {
         return weighted(
             b, softmax(b, leaky(b, b.add(b.in("a", column), b.in("b", {1, 1, kLength})))));
       }},
      {"activated twice",
       [&](Build& b) {
         return weighted(b,
                         softmax(b, leaky(b, leaky(b, b.add(b.in("a", column), b.in("b", row))))));
       }},
  };
  for (const auto& [name, build] : misses) {
    SCOPED_TRACE(name);
    Build b;
    b.g.outputs = {build(b)};
    Graph fused = b.g;
    EXPECT_EQ(recognise(fused).attention, 0);
    check_graph(fused);
    NamedTensors feeds = test::feeds_for(b.g);
    for (auto& [input, tensor] : feeds) {
      if (input == "keep") std::fill_n(tensor.as<bool>(), kLength, true);
    }
    expect_same_outputs(b.g, fused, 1e-9, feeds);
  }
}

TEST(FuseAttention, AFrozenMaskIsAMask) {
  Build b;
  const Shape shape = {kBatch, kHeads, kLength, kHead};
  const ValueId q = b.in("q", shape), k = b.in("k", shape), v = b.in("v", shape);
  const ValueId scores = b.add(b.matmul(q, k, "bhtd,bhsd->bhts"),
                               b.param("positions", {kHeads, kLength, kLength}, false));
  b.g.outputs = {b.matmul(b.op("softmax", {scores}, {{"axis", int64_t{3}}}), v, "bhts,bhsd->bhtd")};
  Graph fused = b.g;
  EXPECT_EQ(recognise(fused).attention, 1);
  expect_same_outputs(b.g, fused, 1e-9);
}

TEST(FuseAttention, WeightsThatAreAlsoWantedStay) {
  Build b;
  const Shape shape = {kBatch, kHeads, kLength, kHead};
  const ValueId q = b.in("q", shape), k = b.in("k", shape), v = b.in("v", shape);
  const ValueId p = b.op("softmax", {b.matmul(q, k, "bhtd,bhsd->bhts")}, {{"axis", int64_t{3}}});
  b.g.outputs = {b.matmul(p, v, "bhts,bhsd->bhtd"), p};
  Graph fused = b.g;
  EXPECT_EQ(recognise(fused).attention, 1);
  EXPECT_EQ(count_op(fused, "softmax"), 1);
  expect_same_outputs(b.g, fused, 1e-9);
}

}  // namespace
}  // namespace shardrun
