// Calls of every op at any size: the ops' own samples made larger, and a few written out.
#include <algorithm>
#include <cmath>

#include "graph/op_def.h"
#include "graph/ops/optimizer.h"
#include "measure/calibrate.h"
#include "planner/cost/kernel_cost.h"
#include "program/ops/group_rows.h"

namespace shardrun {
namespace {

using Ints = std::vector<int64_t>;
constexpr double kKi = 1024, kMi = 1024 * 1024;
const std::vector<double> kSizes = {4 * kKi, 32 * kKi, 256 * kKi, 2 * kMi, 16 * kMi};
const std::vector<double> kFewSizes = {8 * kKi, 256 * kKi, 4 * kMi};

int64_t whole(double size) { return std::max<int64_t>(1, std::llround(size)); }

CalibrationCall call(std::string op, Attrs attrs, std::vector<TensorType> in) {
  Node node;
  node.op = op;
  node.name = std::move(op);
  node.attrs = std::move(attrs);
  return {std::move(node), std::move(in)};
}

double size_of_call(const CalibrationCall& c, bool by_flops) {
  const KernelWork work = work_of(c.node, c.in, infer_types(c.node, c.in));
  return by_flops ? work.flops : work.bytes;
}

/// The call whose size comes nearest to what is wanted; `at` grows with its argument.
template <class At>
CalibrationCall grown(double wanted, bool by_flops, At at) {
  double low = 1, high = 1;
  while (high < 1e8 && size_of_call(at(high), by_flops) < wanted) high *= 4;
  for (int i = 0; i < 40; ++i) {
    const double middle = std::sqrt(low * high);
    (size_of_call(at(middle), by_flops) < wanted ? low : high) = middle;
  }
  return at(low);
}

/// Every dim of a sample longer than 1 becomes as many times longer; f32 becomes `dtype`. Where the
/// attributes carry sizes this infers nonsense or throws, and such ops are written out below.
CalibrationCall stretched(const OpDef& def, DType dtype, double times) {
  std::vector<TensorType> in = def.samples[0].in;
  for (TensorType& type : in) {
    if (type.dtype == DType::f32) type.dtype = dtype;
    for (int64_t& dim : type.shape) {
      if (dim > 1) dim = whole(static_cast<double>(dim) * times);
    }
  }
  CalibrationCall out = call(def.name, def.samples[0].attrs, std::move(in));
  if (is_update(def.name)) {  // of parameters and moments, where they lie
    out.from_memory = true;
    out.places.assign(infer_types(out.node, out.in).size(), -1);
    for (const auto& [result, operand] : def.in_place)
      out.places[static_cast<size_t>(result)] = operand;
  }
  return out;
}

bool stretches(const OpDef& def) {
  if (def.samples.empty() || def.samples[0].in.empty() || def.localise != nullptr ||
      def.shrink != nullptr)
    return false;
  try {
    const CalibrationCall small = stretched(def, DType::f32, 1),
                          large = stretched(def, DType::f32, 4);
    return size_of_call(large, false) > 3 * size_of_call(small, false);
  } catch (const Error&) {
    return false;
  }
}

/// [rows, columns] of `elements`, a row 512 long where there are enough.
Shape matrix(double elements) {
  const double columns = std::min(512.0, std::max(1.0, std::sqrt(elements)));
  return {whole(elements / columns), whole(columns)};
}

CalibrationOp by_bytes(const std::string& op, const std::string& variant,
                       std::function<CalibrationCall(DType, double)> at) {
  return {op, variant, false,
          [at](DType dtype, double bytes) {
            return grown(bytes, false, [&](double elements) { return at(dtype, elements); });
          },
          kSizes};
}

CalibrationOp by_flops(const std::string& op, const std::string& variant,
                       std::function<CalibrationCall(DType, double)> at,
                       std::vector<double> sizes) {
  return {op, variant, true,
          [at](DType dtype, double flops) {
            return grown(flops, true, [&](double more) { return at(dtype, more); });
          },
          std::move(sizes)};
}

std::vector<CalibrationOp> movement_calls() {
  std::vector<CalibrationOp> out;
  out.push_back(by_bytes("transpose", "rows", [](DType t, double n) {
    return call("transpose", {{"perm", Ints{0, 2, 1, 3}}}, {{t, {whole(n / 16384), 64, 4, 64}}});
  }));
  out.push_back(by_bytes("transpose", "short rows", [](DType t, double n) {
    return call("transpose", {{"perm", Ints{0, 2, 1, 3}}}, {{t, {whole(n / 8192), 64, 4, 32}}});
  }));
  out.push_back(by_bytes("transpose", "elements", [](DType t, double n) {
    return call("transpose", {{"perm", Ints{1, 0}}}, {{t, matrix(n)}});
  }));
  out.push_back(by_bytes("split", "", [](DType t, double n) {
    const Shape s = matrix(n / 3);
    return call("split", {{"axis", int64_t{0}}, {"sizes", Ints{1, 1, 1}}}, {{t, {3, s[0], s[1]}}});
  }));
  out.push_back(by_bytes("concat", "", [](DType t, double n) {
    const Shape s = matrix(n / 3);
    const TensorType part{t, {1, s[0], s[1]}};
    return call("concat", {{"axis", int64_t{0}}}, {part, part, part});
  }));
  out.push_back(by_bytes("slice", "", [](DType t, double n) {
    const Shape s = matrix(n);
    return call("slice",
                {{"starts", Ints{0, 0}}, {"ends", Ints{s[0], s[1]}}, {"steps", Ints{1, 1}}},
                {{t, {s[0], 2 * s[1]}}});
  }));
  out.push_back(by_bytes("pad", "", [](DType t, double n) {
    return call("pad",
                {{"before", Ints{0, 1}},
                 {"after", Ints{0, 2}},
                 {"mode", std::string("constant")},
                 {"value", 0.0}},
                {{t, matrix(n)}});
  }));
  out.push_back(by_bytes("expand", "", [](DType t, double n) {
    const Shape s = matrix(n);
    return call("expand", {{"shape", s}}, {{t, {1, s[1]}}});
  }));
  out.push_back(by_bytes("tile", "", [](DType t, double n) {
    const Shape s = matrix(n / 2);
    return call("tile", {{"repeats", Ints{2, 1}}}, {{t, s}});
  }));
  out.push_back(by_bytes("dropout", "", [](DType t, double n) {
    const Shape s = matrix(n);
    return call("dropout",
                {{"global_shape", s},
                 {"start", Ints{0, 0}},
                 {"p", 0.1},
                 {"key", int64_t{11}},
                 {"seed", int64_t{3}}},
                {{t, s}, {DType::i64, {}}});
  }));
  for (const char* op : {"reduce_sum", "reduce_max", "reduce_min"}) {
    const std::pair<const char*, Ints> variants[] = {
        {"rows", {0}}, {"columns", {1}}, {"all", {0, 1}}};
    for (const auto& [variant, axes] : variants) {
      out.push_back(by_bytes(op, variant, [op, axes = axes](DType t, double n) {
        return call(op, {{"axes", axes}, {"keepdims", int64_t{0}}}, {{t, matrix(n)}});
      }));
    }
  }
  for (const DType to : {DType::f32, DType::bf16}) {
    out.push_back(by_bytes("cast", std::string(to_string(to)), [to](DType t, double n) {
      return call("cast", {{"to", std::string(to_string(to))}}, {{t, matrix(n)}});
    }));
  }
  return out;
}

/// A convolution of 28 x 28 images with as many channels in and out, and its gradients. Of 3 x 3,
/// channels come in sixteens.
std::vector<CalibrationOp> convolutions(const std::string& variant, int64_t kernel,
                                        const std::vector<double>& sizes) {
  const Ints one = {1, 1}, pads = {kernel / 2, kernel / 2}, large = {28, 28};
  const Attrs shared = {
      {"strides", one}, {"dilations", one}, {"pads_low", pads}, {"channels_last", int64_t{1}}};
  const auto channels = [=](double c) { return kernel == 3 ? whole(c / 16) * 16 : whole(c); };
  const auto image = [=](DType t, double c) { return TensorType{t, {4, 28, 28, channels(c)}}; };
  const auto weights = [=](DType t, double c) {
    return TensorType{t, {channels(c), channels(c), kernel, kernel}};
  };
  Attrs forward = shared, data = shared, weight = shared;
  forward.set("pads_high", pads);
  data.set("size", large);
  weight.set("kernel", Ints{kernel, kernel});
  const auto with_weights = [=](const std::string& op, const Attrs& attrs) {
    return by_flops(
        op, variant,
        [=](DType t, double c) {
          return call(op, attrs, {image(t, c), weights(t, c)});
        },
        sizes);
  };
  return {with_weights("conv", forward), with_weights("conv_data_grad", data),
          by_flops(
              "conv_weight_grad", variant,
              [=](DType t, double c) {
                return call("conv_weight_grad", weight, {image(t, c), image(t, c)});
              },
              sizes)};
}

/// Convolutions, and pools of 2 x 2; channels last.
std::vector<CalibrationOp> window_calls() {
  const Ints two = {2, 2}, one = {1, 1}, none = {0, 0}, large = {28, 28};
  const std::pair<const std::string, Attr> last{"channels_last", int64_t{1}};
  const auto image = [](DType t, double channels, int64_t side) {
    return TensorType{t, {4, side, side, whole(channels)}};
  };
  std::vector<CalibrationOp> out = convolutions("", 1, {1e6, 1e7, 1e8, 1e9});
  for (CalibrationOp& op : convolutions("3 x 3", 3, {1.5e7, 6e7, 2.5e8, 1e9, 4e9}))
    out.push_back(std::move(op));
  for (const char* op : {"max_pool", "sum_pool"}) {
    const Attrs attrs = {
        {"strides", two}, {"dilations", one}, {"pads_low", none}, {"kernel", two}, last};
    Attrs forward = attrs, backward = attrs;
    forward.set("pads_high", none);
    backward.set("size", large);
    out.push_back(
        by_bytes(op, "", [=](DType t, double c) { return call(op, forward, {image(t, c, 28)}); }));
    out.push_back(by_bytes(std::string(op) + "_grad", "", [=](DType t, double c) {
      std::vector<TensorType> in = {image(t, c, 14)};
      if (std::string(op) == "max_pool") in.push_back({DType::u8, in[0].shape});
      return call(std::string(op) + "_grad", backward, std::move(in));
    }));
  }
  return out;
}

/// Ops that take rows by their numbers.
std::vector<CalibrationOp> row_calls() {
  std::vector<CalibrationOp> out;
  const Attrs first = {{"axis", int64_t{0}}}, sum = {{"reduction", std::string("add")}};
  const auto numbers = [](int64_t count) { return TensorType{DType::i64, {count}}; };
  out.push_back(by_bytes("gather", "", [=](DType t, double n) {
    const Shape s = matrix(n);
    return call("gather", first, {{t, {4 * s[0], s[1]}}, numbers(s[0])});
  }));
  out.push_back(by_bytes("gather_grad", "", [=](DType t, double n) {
    const Shape s = matrix(n);
    return call("gather_grad", {{"axis", int64_t{0}}, {"size", 4 * s[0]}}, {{t, s}, numbers(s[0])});
  }));
  out.push_back(by_bytes("add_rows", "", [=](DType t, double n) {
    const Shape s = matrix(n);
    CalibrationCall c = call("add_rows", first, {{t, {4 * s[0], s[1]}}, {t, s}, numbers(s[0])});
    c.places = {0};
    return c;
  }));
  out.push_back(by_bytes("gather_elements", "", [=](DType t, double n) {
    const Shape s = matrix(n);
    return call("gather_elements", first, {{t, s}, {DType::i64, s}});
  }));
  out.push_back(by_bytes("scatter_elements", "", [=](DType t, double n) {
    const Shape s = matrix(n);
    Attrs attrs = sum;
    attrs.set("axis", int64_t{0});
    return call("scatter_elements", attrs, {{t, s}, {DType::i64, s}, {t, s}});
  }));
  out.push_back(by_bytes("gather_nd", "", [=](DType t, double n) {
    const Shape s = matrix(n);
    return call("gather_nd", {{"batch_dims", int64_t{0}}},
                {{t, {4 * s[0], s[1]}}, {DType::i64, {s[0], 1}}});
  }));
  out.push_back(by_bytes("scatter_nd", "", [=](DType t, double n) {
    const Shape s = matrix(n);
    return call("scatter_nd", sum, {{t, {4 * s[0], s[1]}}, {DType::i64, {s[0], 1}}, {t, s}});
  }));
  out.push_back(by_bytes("group_rows", "", [=](DType, double n) {
    return call("group_rows", {{"size", whole(n / 4)}}, {numbers(whole(n))});
  }));
  // As a graph's edges: eight numbers each, four of a target, which several calls group by.
  const std::pair<const char*, const char*> segments[] = {{"segment_max", "x"},
                                                          {"segment_exp_sum", "xt"},
                                                          {"segment_softmax", "x"},
                                                          {"segment_softmax_reduce_grad", "xx"},
                                                          {"segment_softmax_grad", "xx"}};
  for (const auto& [op, operands] : segments) {
    out.push_back(by_bytes(op, "", [=, op = op, kinds = std::string(operands)](DType t, double n) {
      const int64_t edges = whole(n / 8), targets = whole(n / 32);
      Attrs attrs = {{"rearranged", int64_t{1}}};
      std::vector<TensorType> in;
      for (const char kind : kinds)
        in.push_back(kind == 'x' ? TensorType{t, {edges, 8}}
                                 : TensorType{DType::f32, {targets, 8}});
      if (kinds.back() == 'x') attrs.set("size", targets);
      in.push_back(numbers(edges));
      in.push_back({DType::i32, {RowGroups::elements(targets, edges)}});
      return call(op, attrs, in);
    }));
  }
  return out;
}

/// Losses, norms, recurrent layers and attention over what is kept: of their dims some stay.
std::vector<CalibrationOp> layer_calls() {
  std::vector<CalibrationOp> out;
  out.push_back(by_bytes("cross_entropy_grad", "", [](DType t, double n) {
    const Shape s = matrix(n);
    const TensorType loss{DType::f32, {s[0]}};
    return call("cross_entropy_grad", {}, {loss, {t, s}, {DType::i64, {s[0]}}, loss});
  }));
  out.push_back(by_bytes("cross_entropy_sums", "", [](DType t, double n) {
    const Shape s = matrix(n);
    return call("cross_entropy_sums", {{"classes", s[1]}},
                {{t, s}, {DType::i64, {s[0]}}, {t, {s[0]}}});
  }));
  out.push_back(by_bytes("cross_entropy_join", "", [](DType t, double n) {
    const int64_t tokens = whole(n);
    return call("cross_entropy_join", {},
                {{DType::i64, {tokens}}, {t, {tokens}}, {DType::f32, {tokens, 2}}});
  }));
  // Of channels last, with the relu behind.
  const std::pair<const char*, const char*> norms[] = {{"batch_moments", "x"},
                                                       {"batch_norm", "xcccc"},
                                                       {"batch_norm_reduce_grad", "xxcccc"},
                                                       {"batch_norm_grad", "xxcccsc"}};
  for (const auto& [op, operands] : norms) {
    out.push_back(by_bytes(op, "", [op = op, kinds = std::string(operands)](DType t, double n) {
      const TensorType x{t, {whole(n / 1024), 4, 4, 64}}, c{DType::f32, {64}},
          sums{DType::f64, {2, 64}};
      Attrs attrs = {{"channels_last", int64_t{1}}};
      if (kinds.size() > 1) attrs.set("eps", 1e-5), attrs.set("relu", int64_t{1});
      if (std::string(op) == "batch_norm_grad") attrs.set("count", x.shape[0] * 16);
      std::vector<TensorType> in;
      for (const char kind : kinds) in.push_back(kind == 'x' ? x : kind == 'c' ? c : sums);
      return call(op, attrs, in);
    }));
  }
  out.push_back(by_bytes("lstm", "", [](DType, double n) {
    const int64_t steps = 8, samples = whole(n), hidden = 64;
    const TensorType gates{DType::f32, {steps, samples, 4, hidden}},
        weights{DType::f32, {4, hidden, hidden}}, first{DType::f32, {samples, hidden}};
    return call("lstm", {{"reverse", int64_t{0}}}, {gates, weights, first, first});
  }));
  out.push_back(by_bytes("lstm_grad", "", [](DType, double n) {
    const int64_t steps = 8, samples = whole(n), hidden = 64;
    const TensorType gates{DType::f32, {steps, samples, 4, hidden}},
        weights{DType::f32, {4, hidden, hidden}}, first{DType::f32, {samples, hidden}},
        states{DType::f32, {steps, samples, hidden}};
    return call("lstm_grad", {{"reverse", int64_t{0}}},
                {states, states, gates, states, weights, first});
  }));
  for (size_t last : {out.size() - 2, out.size() - 1})  // weights alone are 64 KiB
    out[last].sizes = {256 * kKi, 4 * kMi};
  out.push_back(by_bytes("cached_attention", "", [](DType t, double n) {
    const TensorType rows{t, {1, 12, 1, 64}}, kept{t, {whole(n), 1, 12, 64}};
    return call("cached_attention",
                {{"scale", 0.125}, {"queries", int64_t{1}}, {"has_mask", int64_t{0}}},
                {rows, kept, kept, {DType::i64, {1}}});
  }));
  out.push_back(by_bytes("batch_statistics", "", [](DType t, double n) {
    return call("batch_statistics", {{"count", int64_t{4}}, {"dtype", std::string(to_string(t))}},
                {{DType::f64, {2, whole(n)}}});
  }));
  return out;
}

/// Ops whose attributes say how large a result is, or what is drawn or looked for.
std::vector<CalibrationOp> other_calls() {
  std::vector<CalibrationOp> out;
  out.push_back(by_bytes("top_k", "", [](DType t, double n) {
    return call("top_k", {{"axis", int64_t{1}}, {"k", int64_t{1}}, {"largest", int64_t{1}}},
                {{t, matrix(n)}});
  }));
  out.push_back(by_bytes("trilu", "", [](DType t, double n) {
    return call("trilu", {{"upper", int64_t{0}}, {"k", int64_t{0}}}, {{t, matrix(n)}});
  }));
  out.push_back(by_bytes("fill", "", [](DType t, double n) {
    return call("fill",
                {{"shape", matrix(n)}, {"dtype", std::string(to_string(t))}, {"value", 1.0}}, {});
  }));
  out.push_back(by_bytes("iota", "", [](DType, double n) {
    return call("iota", {{"shape", matrix(n)}, {"dtype", std::string("i64")}, {"axis", int64_t{0}}},
                {});
  }));
  out.push_back(by_bytes("random_uniform", "", [](DType, double n) {
    const Shape s = matrix(n);
    return call("random_uniform",
                {{"shape", s},
                 {"global_shape", s},
                 {"start", Ints{0, 0}},
                 {"key", int64_t{11}},
                 {"seed", int64_t{3}}},
                {{DType::i64, {}}});
  }));
  return out;
}

}  // namespace

std::vector<CalibrationOp> calibration_ops() {
  std::vector<CalibrationOp> out;
  for (auto family : {movement_calls, window_calls}) {
    for (CalibrationOp& op : family()) out.push_back(std::move(op));
  }
  std::vector<CalibrationOp> others;
  for (auto family : {row_calls, layer_calls, other_calls}) {
    for (CalibrationOp& op : family()) others.push_back(std::move(op));
  }
  const auto has = [](const std::vector<CalibrationOp>& ops, const std::string& name) {
    return std::any_of(ops.begin(), ops.end(),
                       [&](const CalibrationOp& op) { return op.op == name; });
  };
  for (const OpDef* def : all_ops()) {
    // What is fused takes as long as what it is made of, and what else it reads and makes.
    const bool by_grid = def->name == "matmul" || def->name.starts_with("attention");
    if (by_grid || def->cost == CostClass::fused || has(out, def->name) || has(others, def->name) ||
        !stretches(*def))
      continue;
    others.push_back(by_bytes(
        def->name, "", [def](DType dtype, double times) { return stretched(*def, dtype, times); }));
  }
  // What every training step is made of goes first, in case time runs out.
  const std::vector<std::string> usual = {"add",
                                          "adamw",
                                          "layer_norm",
                                          "gelu",
                                          "layer_norm_grad",
                                          "gelu_grad",
                                          "mul",
                                          "cross_entropy",
                                          "cross_entropy_grad",
                                          "cross_entropy_and_grad",
                                          "gather",
                                          "gather_grad",
                                          "reduce_sum_squares",
                                          "rms_norm",
                                          "rms_norm_grad",
                                          "softmax",
                                          "softmax_grad",
                                          "relu",
                                          "sgd",
                                          "where",
                                          "sub",
                                          "div"};
  const auto place = [&](const CalibrationOp& op) {
    return std::find(usual.begin(), usual.end(), op.op) - usual.begin();
  };
  std::stable_sort(others.begin(), others.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
  for (CalibrationOp& op : others) {
    if (place(op) == static_cast<std::ptrdiff_t>(usual.size())) op.sizes = kFewSizes;
  }
  const auto rest = std::find_if(others.begin(), others.end(), [&](const CalibrationOp& op) {
    return place(op) == static_cast<std::ptrdiff_t>(usual.size());
  });
  out.insert(out.begin(), others.begin(), rest);
  out.insert(out.end(), rest, others.end());
  return out;
}

}  // namespace shardrun
