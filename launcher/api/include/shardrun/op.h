// An op of your own. A shape rule and a reference kernel are all that it takes to be imported, cut,
// planned and run on any mesh like any other op; with a gradient it is trained through as well.
//
//   shardrun::UserOp swish;
//   swish.name = "acme::Swish";                      // the node's domain and op_type
//   swish.shape = [](const shardrun::Attributes&, const auto& in) { return std::vector{in.at(0)};
//   }; swish.kernel = [](const auto& call) {            // called with floats and with doubles
//     const double beta = call.attributes().number("beta", 1.0);
//     const auto x = call.in(0);
//     const auto y = call.out(0);
//     for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / (1 + std::exp(-beta * x[i]));
//   };
//   swish.gradient = [](const auto& call) {          // operands: x, y, dL/dy; result: dL/dx
//     const double beta = call.attributes().number("beta", 1.0);
//     const auto x = call.in(0), dy = call.in(2);
//     const auto dx = call.out(0);
//     for (size_t i = 0; i < x.size(); ++i) {
//       const double s = 1 / (1 + std::exp(-beta * x[i]));
//       dx[i] = dy[i] * s * (1 + beta * x[i] * (1 - s));
//     }
//   };
//   shardrun::register_op(swish);                    // before load_model
//
// How the op can be cut is not asked: it is found by running the kernel on small operands, cutting
// them, running the pieces and looking how the results go together. So the kernel has to be a
// function of its operands, their shapes and the attributes, and of nothing else; it writes every
// element of its results, and may be called from several threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace shardrun {

enum class ElementType { f32, f64, bf16, i8, u8, i32, i64, boolean };
inline bool is_floating(ElementType type) {
  return type == ElementType::f32 || type == ElementType::f64 || type == ElementType::bf16;
}

/// Element type and shape of an operand or result. A model's floats are f32, or bf16 with --dtype
/// bf16; while its rule is being found an op is called with f64.
struct TensorInfo {
  ElementType type = ElementType::f32;
  std::vector<int64_t> shape;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

/// A node's attributes, as its model gives them.
class Attributes {
 public:
  using Value =
      std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;
  Attributes() = default;
  /// {{"slope", 0.5}} is one.
  Attributes(std::map<std::string, Value> values)  // NOLINT(google-explicit-constructor)
      : values_(std::move(values)) {}

  bool has(const std::string& name) const { return values_.count(name) > 0; }
  const std::map<std::string, Value>& all() const { return values_; }

  /// Throw std::invalid_argument if there is none of that name, or one of another kind. A whole
  /// number serves as a number too.
  int64_t integer(const std::string& name) const { return get<int64_t>(name, "a whole number"); }
  double number(const std::string& name) const {
    return holds<int64_t>(name) ? static_cast<double>(integer(name))
                                : get<double>(name, "a number");
  }
  const std::string& text(const std::string& name) const {
    return get<std::string>(name, "a text");
  }
  const std::vector<int64_t>& integers(const std::string& name) const {
    return get<std::vector<int64_t>>(name, "a list of whole numbers");
  }
  const std::vector<double>& numbers(const std::string& name) const {
    return get<std::vector<double>>(name, "a list of numbers");
  }
  /// The same with what to take where the node has none.
  int64_t integer(const std::string& name, int64_t otherwise) const {
    return has(name) ? integer(name) : otherwise;
  }
  double number(const std::string& name, double otherwise) const {
    return has(name) ? number(name) : otherwise;
  }
  std::string text(const std::string& name, const std::string& otherwise) const {
    return has(name) ? text(name) : otherwise;
  }
  std::vector<int64_t> integers(const std::string& name,
                                const std::vector<int64_t>& otherwise) const {
    return has(name) ? integers(name) : otherwise;
  }
  std::vector<double> numbers(const std::string& name, const std::vector<double>& otherwise) const {
    return has(name) ? numbers(name) : otherwise;
  }

 private:
  template <class T>
  bool holds(const std::string& name) const {
    const auto it = values_.find(name);
    return it != values_.end() && std::holds_alternative<T>(it->second);
  }
  template <class T>
  const T& get(const std::string& name, const char* kind) const {
    if (!has(name)) throw std::invalid_argument("attribute '" + name + "' is missing");
    if (!holds<T>(name)) throw std::invalid_argument("attribute '" + name + "' is not " + kind);
    return std::get<T>(values_.at(name));
  }
  std::map<std::string, Value> values_;
};

/// One tensor of an OpCall: dense row-major elements.
struct OpTensor {
  std::vector<int64_t> shape;
  bool floating = true;
  void* data = nullptr;  // `count` elements of the call's T, or of int64_t
  size_t count = 0;
};

/// What a kernel is called with. Floating tensors are spans of T, which is float or double; all
/// others, booleans too, are spans of int64_t (a boolean result is true where it is not 0). Tensors
/// of other types are converted before and after. On a rank that runs a shard, shapes and
/// contents are those of the shard.
template <class T>
class OpCall {
 public:
  using Element = T;
  OpCall(const Attributes& attributes, std::span<const OpTensor> in, std::span<const OpTensor> out)
      : attributes_(attributes), in_(in), out_(out) {}

  const Attributes& attributes() const { return attributes_; }
  size_t operands() const { return in_.size(); }
  size_t results() const { return out_.size(); }
  const std::vector<int64_t>& in_shape(size_t i) const { return at(in_, i, "operand").shape; }
  const std::vector<int64_t>& out_shape(size_t r) const { return at(out_, r, "result").shape; }
  bool in_is_floating(size_t i) const { return at(in_, i, "operand").floating; }

  /// Throw std::out_of_range if there is no such tensor, std::invalid_argument if it is of the
  /// other kind.
  std::span<const T> in(size_t i) const { return elements<T>(in_, i, true, "operand"); }
  std::span<const int64_t> ints(size_t i) const {
    return elements<int64_t>(in_, i, false, "operand");
  }
  std::span<T> out(size_t r) const { return elements<T>(out_, r, true, "result"); }
  std::span<int64_t> out_ints(size_t r) const {
    return elements<int64_t>(out_, r, false, "result");
  }

 private:
  static const OpTensor& at(std::span<const OpTensor> tensors, size_t i, const char* what) {
    if (i >= tensors.size()) {
      throw std::out_of_range(std::string("wants ") + what + " " + std::to_string(i) +
                              ", the node has " + std::to_string(tensors.size()));
    }
    return tensors[i];
  }
  template <class E>
  static std::span<E> elements(std::span<const OpTensor> tensors, size_t i, bool floating,
                               const char* what) {
    const OpTensor& tensor = at(tensors, i, what);
    if (tensor.floating != floating) {
      throw std::invalid_argument(std::string(what) + " " + std::to_string(i) +
                                  (floating ? " holds whole numbers, wanted floats"
                                            : " holds floats, wanted whole numbers"));
    }
    return {static_cast<E*>(tensor.data), tensor.count};
  }

  const Attributes& attributes_;
  std::span<const OpTensor> in_, out_;
};

/// A kernel: any callable that takes an OpCall<double>, because rules are found in double
/// precision. One that takes an OpCall<float> as well, such as a lambda over `const auto&`, runs in
/// float where the model does; else floats are converted to double and back.
class OpKernel {
 public:
  OpKernel() = default;
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, OpKernel>) OpKernel(F f) {  // NOLINT: implicit
    static_assert(std::is_invocable_v<F&, const OpCall<double>&>,
                  "a kernel takes const shardrun::OpCall<double>&, or is generic in the type");
    if constexpr (std::is_invocable_v<F&, const OpCall<float>&>) in_float = f;
    in_double = std::move(f);
  }
  explicit operator bool() const { return in_double != nullptr; }

  std::function<void(const OpCall<float>&)> in_float;
  std::function<void(const OpCall<double>&)> in_double;
};

/// Whole numbers that are positions in a dim: elements of operand `operand` are in [0, n), n being
/// the size of dim `dim` of operand `of`.
struct IndexOperand {
  size_t operand = 0, of = 0, dim = 0;
};

struct UserOp {
  std::string name;  // "acme::Swish": domain::op_type

  /// The results' types from the attributes and the operands' types. Throws (anything derived from
  /// std::exception) where operands do not fit; what() is shown to the user behind the node's name.
  /// It is asked about cut operands too, and the op is not cut where it refuses: a rule that wants
  /// an even size gets even shards.
  std::function<std::vector<TensorInfo>(const Attributes&, const std::vector<TensorInfo>& in)>
      shape;

  OpKernel kernel;

  /// The gradient, in one of two forms; with none, a loss that depends on a trained parameter
  /// through this op is refused, and elsewhere the op may stand.
  ///   operands: the op's operands, then its results, then dL/d(result) for each floating result
  ///   results:  dL/d(operand) for each floating operand, of that operand's type and shape
  OpKernel gradient;        // a kernel for it, or
  std::string gradient_op;  // the name of another registered op, which takes and makes just these

  /// Operands that index. All other whole numbers are tried as any small ones, negative too.
  std::vector<IndexOperand> indices;

  /// Floating-point operations, for the planner's times. Null: one per element of the results.
  std::function<double(const Attributes&, const std::vector<TensorInfo>& in,
                       const std::vector<TensorInfo>& out)>
      flops;
};

/// Adds the op to those that load_model knows, in this process and for good; under mpirun every
/// rank does. Thread-safe. A model's function of the same name gives way to it. Throws
/// Failure(call), naming the op and the field, if something is missing or wrong, if the name is
/// taken, or if it is that of an ai.onnx operator which shardrun has.
void register_op(const UserOp& op);

/// Loads a library of ops, once: a shared object linked to shardrun::shardrun, which exports
///   extern "C" void shardrun_ops() { shardrun::register_op(swish()); }
/// ModelOptions::ops and the command's --ops name such libraries. Throws Failure(call) naming the
/// file.
void load_ops(const std::string& library);

/// What is found of a registered op on operands of these types and with these attributes.
struct OpReport {
  /// The ways to cut it by one mesh axis, one an entry: "[S0, -] -> [S0]" cuts dim 0 of the first
  /// operand and leaves the result cut along dim 0, "[S1, S0] -> [P(sum)]" leaves summands.
  std::vector<std::string> rules, gradient_rules;
  /// Largest difference between the gradient and the difference quotient of the kernel in double
  /// precision, relative to the largest gradient; 0 if the op has no gradient.
  double gradient_error = 0;
};
/// Tries an op out on small operands. Throws Failure(call) with a sentence if a kernel throws,
/// gives different results on the same operands, leaves elements of a result as they were, writes
/// outside a result or changes an operand. load_model tries the ops of its model so, too.
OpReport examine_op(const std::string& name, const std::vector<TensorInfo>& operands,
                    const Attributes& attributes = {});

}  // namespace shardrun
