// Reference kernels of the element-wise ops. Floats go through double, integers through int64.
#include "graph/ops/elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/reference/elements.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

constexpr int64_t kBlock = 512;  // elements converted at a time

/// The numbers that an activation reads from its attributes.
struct Parameters {
  double alpha = 0, beta = 0;
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

double gelu_erf(double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }
double gelu_tanh(double x) {
  const double k = std::sqrt(2 / std::numbers::pi);
  return 0.5 * x * (1 + std::tanh(k * (x + 0.044715 * x * x * x)));
}
double gelu_erf_slope(double x) {
  return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) +
         x * std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
}
double gelu_tanh_slope(double x) {
  const double k = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}

// ---- unary ----

using FloatLoop = void (*)(const Parameters&, double*, int64_t);
using IntLoop = void (*)(const Parameters&, int64_t*, int64_t);

template <auto F>
void float_loop(const Parameters& p, double* x, int64_t n) {
  if constexpr (std::is_invocable_v<decltype(F), double>) {
    for (int64_t i = 0; i < n; ++i) x[i] = F(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) x[i] = F(x[i], p);
  }
}

template <auto F>
void int_loop(const Parameters& p, int64_t* x, int64_t n) {
  if constexpr (std::is_invocable_v<decltype(F), int64_t>) {
    for (int64_t i = 0; i < n; ++i) x[i] = F(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) x[i] = F(x[i], p);
  }
}

template <class T, class Loop>
void run_blocks(const TensorView& in, const TensorView& out, const Parameters& p, Loop loop) {
  T block[kBlock];
  const int64_t count = out.count();
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t n = std::min(kBlock, count - i);
    load(in, i, 1, n, block);
    loop(p, block, n);
    store(out, i, 1, n, block);
  }
}

/// `ints` is null where the op takes floats only.
KernelImpl unary(const char* op, FloatLoop floats, IntLoop ints = nullptr,
                 Parameters (*parameters)(const Node&) = nullptr) {
  KernelImpl impl;
  impl.op = op;
  impl.name = "reference";
  impl.prepare = [=](const KernelCall& call) {
    const Parameters p = parameters == nullptr ? Parameters{} : parameters(call.node);
    const bool use_ints = !is_float(call.in[0].dtype);
    SR_REQUIRE(!use_ints || ints != nullptr, unsupported, call.node.op, " does not take ",
               call.in[0].dtype);
    PreparedKernel prepared;
    prepared.run = [=](const KernelArgs& args) {
      if (use_ints) {
        run_blocks<int64_t>(args.in[0], args.out[0], p, ints);
      } else {
        run_blocks<double>(args.in[0], args.out[0], p, floats);
      }
    };
    return prepared;
  };
  return impl;
}

Parameters alpha_only(const Node& node) { return {activation_attr(node, "alpha"), 0}; }
Parameters alpha_gamma(const Node& node) {
  return {activation_attr(node, "alpha"), activation_attr(node, "gamma")};
}
Parameters alpha_beta(const Node& node) {
  return {activation_attr(node, "alpha"), activation_attr(node, "beta")};
}
Parameters min_max(const Node& node) {
  const double inf = std::numeric_limits<double>::infinity();
  return {node.attrs.f("min", -inf), node.attrs.f("max", inf)};
}
Parameters detect(const Node& node) {
  return {static_cast<double>(node.attrs.i("detect_negative", 1)),
          static_cast<double>(node.attrs.i("detect_positive", 1))};
}
Parameters approximate(const Node& node) {
  return {node.attrs.s("approximate", "none") == "tanh" ? 1.0 : 0.0, 0};
}

double clip_float(double x, const Parameters& p) {  // NaN stays; max wins over min
  return x < p.alpha ? std::min(p.alpha, p.beta) : x > p.beta ? p.beta : x;
}
int64_t clip_int(int64_t x, const Parameters& p) {
  if (static_cast<double>(x) < p.alpha) x = static_cast<int64_t>(p.alpha);
  if (static_cast<double>(x) > p.beta) x = static_cast<int64_t>(p.beta);
  return x;
}

void add_unary(KernelList& list) {
  using P = Parameters;
  auto add = [&](const char* op, FloatLoop f, IntLoop i = nullptr,
                 P(*parameters)(const Node&) = nullptr) {
    list.push_back(unary(op, f, i, parameters));
  };
  add("neg", float_loop<[](double x) { return -x; }>,
      int_loop<[](int64_t x) { return static_cast<int64_t>(-static_cast<uint64_t>(x)); }>);
  add("abs", float_loop<[](double x) { return std::fabs(x); }>,
      int_loop<[](int64_t x) { return x < 0 ? -x : x; }>);
  add("sign", float_loop<[](double x) { return (x > 0) ? 1.0
                                               : x < 0 ? -1.0
                                                       : x; }>,
      int_loop<[](int64_t x) { return int64_t{(x > 0)} - int64_t{x < 0}; }>);
  add("floor", float_loop<[](double x) { return std::floor(x); }>);
  add("ceil", float_loop<[](double x) { return std::ceil(x); }>);
  add("round", float_loop<[](double x) { return std::nearbyint(x); }>);  // half to even
  add("exp", float_loop<[](double x) { return std::exp(x); }>);
  add("log", float_loop<[](double x) { return std::log(x); }>);
  add("sqrt", float_loop<[](double x) { return std::sqrt(x); }>);
  add("reciprocal", float_loop<[](double x) { return 1 / x; }>);
  add("sin", float_loop<[](double x) { return std::sin(x); }>);
  add("cos", float_loop<[](double x) { return std::cos(x); }>);
  add("tan", float_loop<[](double x) { return std::tan(x); }>);
  add("asin", float_loop<[](double x) { return std::asin(x); }>);
  add("acos", float_loop<[](double x) { return std::acos(x); }>);
  add("atan", float_loop<[](double x) { return std::atan(x); }>);
  add("sinh", float_loop<[](double x) { return std::sinh(x); }>);
  add("cosh", float_loop<[](double x) { return std::cosh(x); }>);
  add("tanh", float_loop<[](double x) { return std::tanh(x); }>);
  add("asinh", float_loop<[](double x) { return std::asinh(x); }>);
  add("acosh", float_loop<[](double x) { return std::acosh(x); }>);
  add("atanh", float_loop<[](double x) { return std::atanh(x); }>);
  add("erf", float_loop<[](double x) { return std::erf(x); }>);
  add("sigmoid", float_loop<[](double x) { return sigmoid(x); }>);
  add("softplus", float_loop<[](double x) { return softplus(x); }>);
  add("softsign", float_loop<[](double x) { return x / (1 + std::fabs(x)); }>);
  add("silu", float_loop<[](double x) { return x * sigmoid(x); }>);
  add("mish", float_loop<[](double x) { return x * std::tanh(softplus(x)); }>);
  add("relu", float_loop<[](double x) { return x < 0 ? 0.0 : x; }>,
      int_loop<[](int64_t x) { return x < 0 ? int64_t{0} : x; }>);
  add("gelu",
      float_loop<[](double x, const P& p) { return p.alpha != 0 ? gelu_tanh(x) : gelu_erf(x); }>,
      nullptr, approximate);
  add("leaky_relu", float_loop<[](double x, const P& p) { return x < 0 ? p.alpha * x : x; }>,
      nullptr, alpha_only);
  add("elu", float_loop<[](double x, const P& p) { return x < 0 ? p.alpha * std::expm1(x) : x; }>,
      nullptr, alpha_only);
  add("selu", float_loop<[](double x, const P& p) {
        return p.beta * (x < 0 ? p.alpha * std::expm1(x) : x);
      }>,
      nullptr, alpha_gamma);
  add("celu", float_loop<[](double x, const P& p) {
        return x < 0 ? p.alpha * std::expm1(x / p.alpha) : x;
      }>,
      nullptr, alpha_only);
  add("hard_sigmoid",
      float_loop<[](double x, const P& p) { return std::clamp(p.alpha * x + p.beta, 0.0, 1.0); }>,
      nullptr, alpha_beta);
  add("hard_swish", float_loop<[](double x) { return x * std::clamp(x / 6 + 0.5, 0.0, 1.0); }>);
  add("thresholded_relu", float_loop<[](double x, const P& p) { return (x > p.alpha) ? x : 0.0; }>,
      nullptr, alpha_only);
  add("clip", float_loop<clip_float>, int_loop<clip_int>, min_max);
  add("logical_not", nullptr, int_loop<[](int64_t x) { return int64_t{x == 0}; }>);
  add("isnan", float_loop<[](double x) { return std::isnan(x) ? 1.0 : 0.0; }>);
  add("isinf", float_loop<[](double x, const P& p) {
        return std::isinf(x) ? (x < 0 ? p.alpha : p.beta) : 0.0;
      }>,
      nullptr, detect);
}

// ---- binary ----

using FloatPair = void (*)(bool flag, const double*, const double*, double*, int64_t);
using IntPair = void (*)(bool flag, const int64_t*, const int64_t*, int64_t*, int64_t);

template <class T, auto F>
void pair_loop(bool flag, const T* a, const T* b, T* y, int64_t n) {
  if constexpr (std::is_invocable_v<decltype(F), T, T>) {
    for (int64_t i = 0; i < n; ++i) y[i] = F(a[i], b[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = F(a[i], b[i], flag);
  }
}

template <class T, class Loop>
void run_pairs(const Walk& walk, const KernelArgs& args, bool flag, Loop loop) {
  const TensorView &a = args.in[0], &b = args.in[1], &y = args.out[0];
  T left[kBlock], right[kBlock], result[kBlock];
  walk.rows([&](const int64_t* offset) {
    for (int64_t i = 0; i < walk.length(); i += kBlock) {
      const int64_t n = std::min(kBlock, walk.length() - i);
      load(a, offset[0] + i * walk.stride(0), walk.stride(0), n, left);
      load(b, offset[1] + i * walk.stride(1), walk.stride(1), n, right);
      loop(flag, left, right, result, n);
      store(y, offset[2] + i * walk.stride(2), walk.stride(2), n, result);
    }
  });
}

KernelImpl binary(const char* op, FloatPair floats, IntPair ints, const char* flag_name = nullptr) {
  KernelImpl impl;
  impl.op = op;
  impl.name = "reference";
  impl.prepare = [=](const KernelCall& call) {
    const bool flag = flag_name != nullptr && call.node.attrs.i(flag_name, 0) != 0;
    const bool use_ints = !is_float(call.in[0].dtype);
    const Shape &a = call.in[0].shape, &b = call.in[1].shape, &y = call.out[0].shape;
    const Walk walk(y, {broadcast_strides(a, y), broadcast_strides(b, y), row_major_strides(y)});
    PreparedKernel prepared;
    prepared.run = [=](const KernelArgs& args) {
      if (use_ints) {
        run_pairs<int64_t>(walk, args, flag, ints);
      } else {
        run_pairs<double>(walk, args, flag, floats);
      }
    };
    return prepared;
  };
  return impl;
}

uint64_t u(int64_t x) { return static_cast<uint64_t>(x); }

int64_t int_div(int64_t a, int64_t b) {  // truncates; x / 0 = 0
  if (b == 0) return 0;
  return b == -1 ? static_cast<int64_t>(-u(a)) : a / b;
}

int64_t int_mod(int64_t a, int64_t b, bool fmod) {  // fmod: the dividend's sign, else the divisor's
  if (b == 0 || b == -1) return 0;
  const int64_t r = a % b;
  return !fmod && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double float_mod(double a, double b, bool fmod) {
  const double r = std::fmod(a, b);
  return !fmod && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

int64_t int_pow(int64_t a, int64_t b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
  uint64_t result = 1, base = u(a);
  for (; b > 0; b >>= 1, base *= base) {
    if ((b & 1) != 0) result *= base;
  }
  return static_cast<int64_t>(result);
}

double float_max(double a, double b) { return std::isnan(a) || a > b ? a : b; }  // NaN propagates
double float_min(double a, double b) { return std::isnan(a) || a < b ? a : b; }

template <auto F, auto G>
KernelImpl pair_kernel(const char* op, const char* flag_name = nullptr) {
  return binary(op, pair_loop<double, F>, pair_loop<int64_t, G>, flag_name);
}

/// One formula for both.
template <auto F>
KernelImpl same_kernel(const char* op) {
  return pair_kernel<[](double a, double b) { return static_cast<double>(F(a, b)); },
                     [](int64_t a, int64_t b) { return static_cast<int64_t>(F(a, b)); }>(op);
}

void add_binary(KernelList& list) {
  list.push_back(
      pair_kernel<[](double a, double b) { return a + b; },
                  [](int64_t a, int64_t b) { return static_cast<int64_t>(u(a) + u(b)); }>("add"));
  list.push_back(
      pair_kernel<[](double a, double b) { return a - b; },
                  [](int64_t a, int64_t b) { return static_cast<int64_t>(u(a) - u(b)); }>("sub"));
  list.push_back(
      pair_kernel<[](double a, double b) { return a * b; },
                  [](int64_t a, int64_t b) { return static_cast<int64_t>(u(a) * u(b)); }>("mul"));
  list.push_back(pair_kernel<[](double a, double b) { return a / b; }, int_div>("div"));
  list.push_back(pair_kernel<[](double a, double b) { return std::pow(a, b); }, int_pow>("pow"));
  list.push_back(
      pair_kernel<float_max, [](int64_t a, int64_t b) { return std::max(a, b); }>("max"));
  list.push_back(
      pair_kernel<float_min, [](int64_t a, int64_t b) { return std::min(a, b); }>("min"));
  list.push_back(pair_kernel<float_mod, int_mod>("mod", "fmod"));
  list.push_back(same_kernel<[](auto a, auto b) { return a == b; }>("equal"));
  list.push_back(same_kernel<[](auto a, auto b) { return a < b; }>("less"));
  list.push_back(same_kernel<[](auto a, auto b) { return a <= b; }>("less_equal"));
  list.push_back(same_kernel<[](auto a, auto b) { return (a > b); }>("greater"));
  list.push_back(same_kernel<[](auto a, auto b) { return a >= b; }>("greater_equal"));
  list.push_back(same_kernel<[](auto a, auto b) { return a != 0 && b != 0; }>("logical_and"));
  list.push_back(same_kernel<[](auto a, auto b) { return a != 0 || b != 0; }>("logical_or"));
  list.push_back(same_kernel<[](auto a, auto b) { return (a != 0) != (b != 0); }>("logical_xor"));
}

// ---- the rest ----

void run_gelu_grad(const Node& node, const KernelArgs& args) {
  const bool use_tanh = node.attrs.s("approximate", "none") == "tanh";
  double x[kBlock], dy[kBlock];
  const int64_t count = args.out[0].count();
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t n = std::min(kBlock, count - i);
    load(args.in[0], i, 1, n, x);
    load(args.in[1], i, 1, n, dy);
    for (int64_t j = 0; j < n; ++j) {
      dy[j] *= use_tanh ? gelu_tanh_slope(x[j]) : gelu_erf_slope(x[j]);
    }
    store(args.out[0], i, 1, n, dy);
  }
}

template <class T>
void select_rows(const Walk& walk, const KernelArgs& args) {
  const auto* cond = args.in[0].as<uint8_t>();
  const T *a = args.in[1].as<T>(), *b = args.in[2].as<T>();
  T* y = args.out[0].as<T>();
  walk.rows([&](const int64_t* o) {
    for (int64_t i = 0; i < walk.length(); ++i) {
      y[o[3] + i * walk.stride(3)] = cond[o[0] + i * walk.stride(0)] != 0
                                         ? a[o[1] + i * walk.stride(1)]
                                         : b[o[2] + i * walk.stride(2)];
    }
  });
}

void run_where(const Node&, const KernelArgs& args) {
  const Shape& shape = args.out[0].type.shape;
  std::vector<std::vector<int64_t>> strides;
  for (const TensorView& v : args.in) strides.push_back(broadcast_strides(v.type.shape, shape));
  strides.push_back(row_major_strides(shape));
  const Walk walk(shape, std::move(strides));
  switch (size_of(args.out[0].type.dtype)) {
    case 1: return select_rows<uint8_t>(walk, args);
    case 2: return select_rows<uint16_t>(walk, args);
    case 4: return select_rows<uint32_t>(walk, args);
    default: return select_rows<uint64_t>(walk, args);
  }
}

}  // namespace

KernelList elementwise_kernels() {
  KernelList list;
  add_unary(list);
  add_binary(list);
  list.push_back(kernel("gelu_grad", run_gelu_grad));
  list.push_back(kernel("where", run_where));
  list.push_back(kernel("identity", [](const Node&, const KernelArgs& args) {
    copy_elements(args.in[0], args.out[0]);
  }));
  list.push_back(kernel("cast", [](const Node&, const KernelArgs& args) {
    convert(args.in[0].data, args.in[0].type.dtype, args.out[0].data, args.out[0].type.dtype,
            args.out[0].count());
  }));
  return list;
}

}  // namespace shardrun::reference
