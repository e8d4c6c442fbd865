// Views of operands, dims joined where all see them as one, and the text.
#include "kernels/cuda/elements/element_source.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "graph/op_def.h"
#include "graph/ops/elementwise.h"
#include "kernels/cuda/elements/math_text.h"
#include "kernels/cuda/refusals.h"

namespace shardrun::cuda {
namespace {

using Ints = std::vector<int64_t>;

// ---- ops that are a function of their operands' elements ----

struct Formula {
  const char* function = nullptr;             // of math.h
  Ints (*attributes)(const Node&) = nullptr;  // doubles, bit for bit
};

int64_t bits(double x) { return std::bit_cast<int64_t>(x); }

Ints alpha(const Node& n) { return {bits(activation_attr(n, "alpha"))}; }
Ints alpha_gamma(const Node& n) {
  return {bits(activation_attr(n, "alpha")), bits(activation_attr(n, "gamma"))};
}
Ints alpha_beta(const Node& n) {
  return {bits(activation_attr(n, "alpha")), bits(activation_attr(n, "beta"))};
}
Ints bounds(const Node& n) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  return {bits(n.attrs.f("min", -kInf)), bits(n.attrs.f("max", kInf))};
}
Ints signs(const Node& n) {
  return {bits(static_cast<double>(n.attrs.i("detect_negative", 1))),
          bits(static_cast<double>(n.attrs.i("detect_positive", 1)))};
}
Ints fmod_flag(const Node& n) { return {bits(n.attrs.i("fmod", 0) != 0 ? 1.0 : 0.0)}; }

/// By op; those of gelu and gelu_grad go by their attribute too.
const std::map<std::string, Formula>& formulas() {
  static const std::map<std::string, Formula> all = [] {
    std::map<std::string, Formula> m = {{"leaky_relu", {"leaky_relu", alpha}},
                                        {"elu", {"elu", alpha}},
                                        {"celu", {"celu", alpha}},
                                        {"selu", {"selu", alpha_gamma}},
                                        {"clip", {"clip", bounds}},
                                        {"hard_sigmoid", {"hard_sigmoid", alpha_beta}},
                                        {"thresholded_relu", {"thresholded_relu", alpha}},
                                        {"isinf", {"isinf", signs}},
                                        {"mod", {"mod", fmod_flag}},
                                        {"gelu", {"gelu_erf"}},
                                        {"gelu_grad", {"gelu_erf_grad"}}};
    for (const char* same :
         {"neg",           "abs",         "sign",        "floor",      "ceil",        "round",
          "exp",           "log",         "sqrt",        "reciprocal", "sin",         "cos",
          "tan",           "asin",        "acos",        "atan",       "sinh",        "cosh",
          "tanh",          "asinh",       "acosh",       "atanh",      "erf",         "sigmoid",
          "softplus",      "softsign",    "silu",        "mish",       "relu",        "hard_swish",
          "isnan",         "add",         "sub",         "mul",        "div",         "pow",
          "max",           "min",         "equal",       "less",       "less_equal",  "greater",
          "greater_equal", "logical_not", "logical_and", "logical_or", "logical_xor", "where"})
      m[same] = {same};
    for (const char* moved : {"identity", "cast", "reshape", "expand", "slice", "transpose"})
      m[moved] = {"identity"};
    return m;
  }();
  return all;
}

Formula formula_of(const Node& node) {
  if (node.op.starts_with("gelu") && node.attrs.s("approximate", "none") == "tanh")
    return {node.op == "gelu" ? "gelu_tanh" : "gelu_tanh_grad"};
  return formulas().at(node.op);
}

constexpr const char* kPositional[] = {"dropout", "random_uniform", "iota", "fill", "trilu"};

bool is_drawn(const Node& node) { return node.op == "dropout" || node.op == "random_uniform"; }

/// A formula that takes a place in the result's shape besides operands, or instead.
bool is_positional(const Node& node) {
  return std::find(std::begin(kPositional), std::end(kPositional), node.op) !=
         std::end(kPositional);
}

// ---- views ----

/// Where element (i0, i1, …) of the chain's shape finds what it wants: offset + i0 strides[0] + …
struct View {
  int64_t offset = 0;
  Ints strides;
  friend auto operator<=>(const View&, const View&) = default;
};

View broadcast_view(const Shape& from, const Shape& to) {
  const Shape own = row_major_strides(from);
  View view{0, Ints(to.size(), 0)};
  const size_t added = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] != 1) view.strides[added + d] = own[d];
  }
  return view;
}

View dense_view(const Shape& shape) { return {0, row_major_strides(shape)}; }

View operand_view(const Node& node, const Shape& from, const Shape& to) {
  if (node.op == "reshape") return dense_view(to);
  if (node.op == "slice") {
    View view{0, row_major_strides(from)};
    for (size_t d = 0; d < from.size(); ++d) {
      view.offset += node.attrs.ints("starts")[d] * view.strides[d];
      view.strides[d] *= node.attrs.ints("steps")[d];
    }
    return view;
  }
  if (node.op == "transpose") {
    const Shape own = row_major_strides(from);
    View view;
    for (int64_t d : node.attrs.ints("perm")) view.strides.push_back(own[static_cast<size_t>(d)]);
    return view;
  }
  return broadcast_view(from, to);
}

/// What a positional op counts, as a linear function of the place.
View position_view(const Node& node, const Shape& shape) {
  View view{0, Ints(shape.size(), 0)};
  if (node.op == "iota") {
    view.offset = node.attrs.i("start", 0);
    view.strides[static_cast<size_t>(node.attrs.i("axis"))] = node.attrs.i("step", 1);
  } else if (node.op == "trilu") {  // column - row
    view.strides[shape.size() - 1] = 1;
    view.strides[shape.size() - 2] = -1;
  } else if (is_drawn(node)) {
    view.strides = row_major_strides(node.attrs.ints("global_shape"));
    for (size_t d = 0; d < shape.size(); ++d)
      view.offset += node.attrs.ints("start")[d] * view.strides[d];
  }
  return view;
}

// ---- the text ----

const char* element_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float";
    case DType::f64: return "double";
    case DType::bf16: return "math::Bf16";
    case DType::i8: return "signed char";
    case DType::u8: return "unsigned char";
    case DType::i32: return "int";
    case DType::i64: return "math::Int";
    case DType::boolean: return "bool";
    case DType::f16: break;
  }
  fail(ErrorKind::internal, "no element source for ", dtype);
}

const char* number_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::bf16: return "float";
    case DType::f64: return "double";
    case DType::boolean: return "bool";
    default: return "math::Int";
  }
}

std::string hexadecimal(int64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llxull", static_cast<unsigned long long>(value));  // NOLINT
  return text;
}

/// Everything of a chain that decides its text.
class Writer {
 public:
  Writer(const ElementChain& chain, int64_t widest) : chain_(chain) {
    shape_ = chain.values[static_cast<size_t>(chain.calls[0].out)].shape;
    collect();
    merge();
    choose_width(widest);
  }

  ElementSource source() const {
    ElementSource out;
    out.count = element_count(shape_);
    out.threads = (out.count + width_ - 1) / width_;
    out.alignment = width_ * largest_moved();
    out.text = text();
    return out;
  }

 private:
  struct Load {
    int place;  // in values
    View view;
  };

  const TensorType& type(int place) const { return chain_.values[static_cast<size_t>(place)]; }

  bool is_read(int place) const {
    return std::find(chain_.reads.begin(), chain_.reads.end(), place) != chain_.reads.end();
  }

  size_t load_of(const ElementChain::Call& call, int place) const {
    const View view = operand_view(call.node, type(place).shape, shape_);
    for (size_t i = 0; i < loads_.size(); ++i) {
      if (loads_[i].place == place && unmerged_[i] == view) return i;
    }
    fail(ErrorKind::internal, "no load of value ", place);
  }

  /// Every view of an operand, once; every position.
  void collect() {
    for (const ElementChain::Call& call : chain_.calls) {
      SR_REQUIRE(type(call.out).shape == shape_, internal, "a chain of several shapes");
      for (int place : call.in) {
        if (!is_read(place)) continue;
        const View view = operand_view(call.node, type(place).shape, shape_);
        bool known = false;
        for (const Load& load : loads_) known = known || (load.place == place && load.view == view);
        if (!known) loads_.push_back({place, view});
      }
      positions_.push_back(is_positional(call.node) ? position_view(call.node, shape_)
                                                    : View{0, Ints(shape_.size(), 0)});
    }
    for (const Load& load : loads_) unmerged_.push_back(load.view);
  }

  /// Neighbouring dims that all views see as one become one; dims of 1 go.
  void merge() {
    std::vector<View*> views;
    for (Load& load : loads_) views.push_back(&load.view);
    for (View& view : positions_) views.push_back(&view);
    std::vector<Ints> strides(views.size());
    for (size_t d = 0; d < shape_.size(); ++d) {
      if (shape_[d] == 1) continue;
      bool joins = !sizes_.empty();
      for (size_t v = 0; joins && v < views.size(); ++v)
        joins = strides[v].back() == views[v]->strides[d] * shape_[d];
      if (joins) {
        sizes_.back() *= shape_[d];
        for (size_t v = 0; v < views.size(); ++v) strides[v].back() = views[v]->strides[d];
      } else {
        sizes_.push_back(shape_[d]);
        for (size_t v = 0; v < views.size(); ++v) strides[v].push_back(views[v]->strides[d]);
      }
    }
    if (sizes_.empty()) {
      sizes_.push_back(1);
      for (Ints& s : strides) s.push_back(0);
    }
    for (size_t v = 0; v < views.size(); ++v) views[v]->strides = strides[v];
  }

  bool flat() const { return sizes_.size() == 1; }

  /// Bytes of the widest element that neighbours have side by side.
  int64_t largest_moved() const {
    int64_t largest = 1;
    for (const Load& load : loads_) {
      if (load.view.strides.back() == 1)
        largest = std::max(largest, size_of(type(load.place).dtype));
    }
    for (int place : chain_.writes) largest = std::max(largest, size_of(type(place).dtype));
    return largest;
  }

  /// Elements that a thread makes at a time: neighbours along the last dim.
  void choose_width(int64_t widest) {
    width_ = std::max<int64_t>(1, widest / largest_moved());
    while (!flat() && width_ > 1 && sizes_.back() % width_ != 0) width_ /= 2;
  }

  /// Can the elements for `width_` neighbours be moved at once?
  bool is_wide(const View& view) const {
    bool wide = view.strides.back() == 1 && view.offset % width_ == 0;
    for (size_t d = 0; d + 1 < view.strides.size(); ++d)
      wide = wide && view.strides[d] % width_ == 0;
    return wide;
  }

  std::string place_text(const View& view) const {
    std::string text = str("math::Int{", view.offset, "}");
    for (size_t d = 0; d < sizes_.size(); ++d) {
      if (view.strides[d] != 0)
        text += str(" + math::Int(", flat() ? "i" : str("d", d), ") * ", view.strides[d]);
    }
    return text;
  }

  std::string parameters() const {
    std::string text;
    for (size_t n = 0; n < chain_.reads.size(); ++n)
      text += str("const ", element_name(type(chain_.reads[n]).dtype), "* in", n, ", ");
    for (size_t n = 0; n < chain_.writes.size(); ++n)
      text += str(element_name(type(chain_.writes[n]).dtype), "* out", n, ", ");
    return text;
  }

  std::string arguments() const {
    std::string text;
    for (size_t n = 0; n < chain_.reads.size(); ++n) text += str(", in", n);
    for (size_t n = 0; n < chain_.writes.size(); ++n) text += str(", out", n);
    return text;
  }

  size_t argument_of(int place) const {
    return static_cast<size_t>(std::find(chain_.reads.begin(), chain_.reads.end(), place) -
                               chain_.reads.begin());
  }

  /// The number of operand `n` of a call, within the loop over k.
  std::string operand(const ElementChain::Call& call, size_t n) const {
    const int place = call.in[n];
    if (!is_read(place)) return str("v", place);
    const size_t load = load_of(call, place);
    const View& view = loads_[load].view;
    if (view.strides.back() == 0) return str("x", load);
    if (is_wide(view)) return str("math::number(x", load, ".at[k])");
    return str("math::number(in", argument_of(place), "[at", load, " + k * math::Int{",
               view.strides.back(), "}])");
  }

  std::string expression(size_t c) const {
    const ElementChain::Call& call = chain_.calls[c];
    const Node& node = call.node;
    const char* number = call.in.empty() ? "" : number_name(type(call.in[0]).dtype);
    if (node.op == "iota")
      return str("p", c, " + k * math::Int{", positions_[c].strides.back(), "}");
    if (node.op == "fill")
      return str("math::double_of(", hexadecimal(bits(node.attrs.f("value"))), ")");
    if (node.op == "trilu") {
      const bool upper = node.attrs.i("upper") != 0;
      return str("p", c, " + k * math::Int{", positions_[c].strides.back(), "} ",
                 upper ? ">=" : "<=", " math::Int{", node.attrs.i("k", 0), "} ? ", operand(call, 0),
                 " : ", number, "(0)");
    }
    if (node.op == "random_uniform") return str("math::uniform(p", c, ".bits[k])");
    if (node.op == "dropout") {
      const double p = node.attrs.f("p");
      const auto threshold = static_cast<uint32_t>(std::ceil(p * 16777216.0));
      const auto factor = static_cast<double>(static_cast<float>(1 / (1 - p)));
      return str("math::dropout<", number, ">(", operand(call, 0), ", p", c, ".bits[k], ",
                 threshold, "u, ", number, "(math::double_of(", hexadecimal(bits(factor)), ")))");
    }
    const Formula formula = formula_of(node);
    std::string text = str("math::", formula.function, "(");
    for (size_t n = 0; n < call.in.size(); ++n) text += str(n == 0 ? "" : ", ", operand(call, n));
    // The bounds of an integer's clip are no integers.
    const bool as_doubles = node.op == "clip" && number == std::string("math::Int");
    if (formula.attributes != nullptr) {
      for (int64_t value : formula.attributes(node)) {
        text += str(", ", as_doubles ? "double" : number, "(math::double_of(", hexadecimal(value),
                    "))");
      }
    }
    return text + ")";
  }

  /// What is done for elements i … i + V - 1 of the shape in row-major order.
  std::string body() const {
    std::string text;
    if (!flat()) {
      std::string rest = "i";
      for (size_t d = sizes_.size(); d-- > 1;) {
        text += str("  const Index d", d, " = ", rest, " % ", sizes_[d], "u, q", d, " = ", rest,
                    " / ", sizes_[d], "u;\n");
        rest = str("q", d);
      }
      text += str("  const Index d0 = ", rest, ";\n");
    }
    for (size_t n = 0; n < loads_.size(); ++n) {
      const Load& load = loads_[n];
      const size_t argument = argument_of(load.place);
      const std::string place = place_text(load.view);
      if (load.view.strides.back() == 0) {
        text += str("  const ", number_name(type(load.place).dtype), " x", n, " = math::number(in",
                    argument, "[", place, "]);\n");
      } else if (is_wide(load.view)) {
        text += str("  const auto x", n, " = math::load<V>(in", argument, " + ", place, ");\n");
      } else {
        text += str("  const math::Int at", n, " = ", place, ";\n");
      }
    }
    for (size_t c = 0; c < chain_.calls.size(); ++c) {
      const ElementChain::Call& call = chain_.calls[c];
      if (call.node.op == "iota" || call.node.op == "trilu")
        text += str("  const math::Int p", c, " = ", place_text(positions_[c]), ";\n");
      if (is_drawn(call.node)) {
        const bool whole = width_ % 4 == 0 && is_wide(positions_[c]);
        text += str("  const math::Draw<V> p", c, "(", place_text(positions_[c]), ", ",
                    positions_[c].strides.back(), ", ", hexadecimal(call.node.attrs.i("seed", 0)),
                    ", ", hexadecimal(call.node.attrs.i("key", 0)), ", ",
                    operand(call, call.in.size() - 1), ", ", whole ? "true" : "false", ");\n");
      }
    }
    for (size_t n = 0; n < chain_.writes.size(); ++n)
      text += str("  math::Many<", element_name(type(chain_.writes[n]).dtype), ", V> y", n, ";\n");
    text += "#pragma unroll\n  for (int k = 0; k < V; ++k) {\n";
    for (size_t c = 0; c < chain_.calls.size(); ++c) {
      const int out = chain_.calls[c].out;
      const char* element = element_name(type(out).dtype);
      text += str("    const ", element, " e", out, " = math::Element<", element, ">::of(",
                  expression(c), ");\n    const ", number_name(type(out).dtype), " v", out,
                  " = math::number(e", out, ");\n    (void)v", out, ";\n");
    }
    for (size_t n = 0; n < chain_.writes.size(); ++n)
      text += str("    y", n, ".at[k] = e", chain_.writes[n], ";\n");
    text += "  }\n";
    for (size_t n = 0; n < chain_.writes.size(); ++n)
      text += str("  math::store<V>(out", n, " + i, y", n, ");\n");
    return text;
  }

  std::string text() const {
    const bool wide = element_count(shape_) > std::numeric_limits<int32_t>::max();
    const char* index = wide ? "unsigned long long" : "unsigned int";
    const std::string steps =
        str("  for (Index v = first; v < count / ", width_, "; v += stride) element<", width_,
            ">(v * ", width_, arguments(), ");\n");
    // Only where there is one dim can elements be left over.
    const std::string rest =
        str("  for (Index i = count / ", width_, " * ", width_,
            " + first; i < count; i += stride) element<1>(i", arguments(), ");\n");
    const std::string typed = parameters();
    return str(
        kMathText, "\nnamespace math = shardrun::cuda::math;\nnamespace {\nusing Index = ", index,
        ";\ntemplate <int V>\nvoid element(Index i, ", typed.substr(0, typed.size() - 2), ") {\n",
        body(), "}\n}\n\nextern \"C\" __global__ void __launch_bounds__(256) kernel(", typed,
        "unsigned long long count) {\n  const Index first = Index{blockIdx.x} * blockDim.x + "
        "threadIdx.x, stride = Index{gridDim.x} * blockDim.x;\n",
        steps, flat() && width_ > 1 ? rest : "", "}\n");
  }

  const ElementChain& chain_;
  Shape shape_;
  std::vector<Load> loads_;
  std::vector<View> unmerged_;   // of loads_, over shape_
  std::vector<View> positions_;  // one a call; of calls that take none: zeros
  Ints sizes_;                   // of the merged dims, at least one
  int64_t width_ = 1;
};

}  // namespace

ElementChain chain_of(const KernelCall& call) {
  ElementChain chain;
  ElementChain::Call only{call.node, {}, static_cast<int>(call.in.size())};
  for (const TensorType& type : call.in) {
    only.in.push_back(static_cast<int>(chain.values.size()));
    chain.reads.push_back(only.in.back());
    chain.values.push_back(type);
  }
  chain.values.push_back(call.out[0]);
  chain.writes = {only.out};
  chain.calls = {only};
  return chain;
}

std::vector<std::string> element_ops() {
  std::vector<std::string> ops(std::begin(kPositional), std::end(kPositional));
  for (const auto& [op, formula] : formulas()) ops.push_back(op);
  return ops;
}

std::optional<std::string> element_refuses(const KernelCall& call) {
  const size_t operands = op_def(call.node.op).samples.front().in.size();
  if (auto reason = refuse_more(call, operands, 1, {"alpha",
                                                    "beta",
                                                    "gamma",
                                                    "min",
                                                    "max",
                                                    "detect_negative",
                                                    "detect_positive",
                                                    "fmod",
                                                    "approximate",
                                                    "to",
                                                    "shape",
                                                    "perm",
                                                    "starts",
                                                    "ends",
                                                    "steps",
                                                    "axis",
                                                    "start",
                                                    "step",
                                                    "dtype",
                                                    "value",
                                                    "upper",
                                                    "k",
                                                    "p",
                                                    "key",
                                                    "seed",
                                                    "global_shape"}))
    return reason;
  for (const auto& types : {call.in, call.out}) {
    for (const TensorType& type : types) {
      if (type.dtype == DType::f16) return "computes in no f16";
    }
  }
  return std::nullopt;
}

bool fuses_chains(const Node& node) {
  return node.op != "reshape" && node.op != "slice" && node.op != "transpose" &&
         node.op != "expand";
}

ElementSource element_source(const ElementChain& chain, int64_t widest) {
  return Writer(chain, widest).source();
}

}  // namespace shardrun::cuda
