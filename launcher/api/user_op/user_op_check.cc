// The public side of users' ops: registering one, and trying one out on small operands. Is its
// kernel what discovery and execution take it for?
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "base/philox.h"
#include "graph/op_def.h"
#include "planner/rules/discovery.h"
#include "planner/rules/trial.h"
#include "ranks/world.h"
#include "user_op/user_op.h"

namespace shardrun {
namespace {

constexpr size_t kGuard = 512;           // elements around a result that have to stay as they are
constexpr int64_t kMostQuotients = 200;  // elements of which a difference quotient is taken

/// A kernel that throws: no error where nobody asked for these operands.
struct Refused {
  std::string why;
};

/// A tensor of a call with guard elements around it.
template <class T>
class Guarded {
 public:
  Guarded(const TensorType& type, T fill, int64_t fill_ints)
      : floating_(is_float(type.dtype)), shape_(type.shape), count_(element_count(type.shape)) {
    const size_t padded = static_cast<size_t>(count_) * 2 + 2 * kGuard;
    if (floating_) {
      floats_.assign(padded, fill);
    } else {
      ints_.assign(padded, fill_ints);
    }
  }

  OpTensor tensor() { return {shape_, floating_, begin(), static_cast<size_t>(count_)}; }
  void load(const Tensor& from) {
    convert(from.data(), from.dtype(), begin(), floating_ ? dtype() : DType::i64, count_);
  }
  bool same(int64_t i, const Guarded& other) const {
    return std::memcmp(at(i), other.at(i), width()) == 0;
  }
  /// Is every element outside the tensor as in `fresh`?
  bool intact(const Guarded& fresh) const {
    const auto guard = static_cast<int64_t>(kGuard);
    for (int64_t i = -guard; i < count_ + count_ + guard; ++i) {
      if (i == 0) i = count_;
      if (i < count_ + count_ + guard && !same(i, fresh)) return false;
    }
    return true;
  }
  int64_t count() const { return count_; }
  std::string text(int64_t i) const {
    return floating_ ? str(*static_cast<const T*>(at(i)))
                     : str(*static_cast<const int64_t*>(at(i)));
  }

 private:
  static constexpr DType dtype() { return sizeof(T) == 4 ? DType::f32 : DType::f64; }
  size_t width() const { return floating_ ? sizeof(T) : sizeof(int64_t); }
  const void* at(int64_t i) const {
    const auto index = static_cast<size_t>(i + static_cast<int64_t>(kGuard));
    return floating_ ? static_cast<const void*>(&floats_[index])
                     : static_cast<const void*>(&ints_[index]);
  }
  void* begin() { return const_cast<void*>(at(0)); }

  bool floating_;
  Shape shape_;
  int64_t count_;
  std::vector<T> floats_;
  std::vector<int64_t> ints_;
};

template <class T>
void call(const std::function<void(const OpCall<T>&)>& kernel, const Node& node,
          std::vector<Guarded<T>>& in, std::vector<Guarded<T>>& out) {
  std::vector<OpTensor> in_tensors, out_tensors;
  for (Guarded<T>& g : in) in_tensors.push_back(g.tensor());
  for (Guarded<T>& g : out) out_tensors.push_back(g.tensor());
  const Attributes attributes = user_attributes(node.attrs);
  try {
    kernel(OpCall<T>(attributes, in_tensors, out_tensors));
  } catch (const std::exception& e) {
    throw Refused{e.what()};
  } catch (...) {
    throw Refused{"something that is no std::exception"};
  }
}

/// Runs a kernel twice, its results filled with NaN the first time and with numbers the second.
template <class T>
void check_kernel(const std::function<void(const OpCall<T>&)>& kernel, const SmallNode& small,
                  std::span<const Tensor> operands) {
  if (kernel == nullptr) return;
  constexpr T kFills[2] = {std::numeric_limits<T>::quiet_NaN(), T(0.40625)};
  constexpr int64_t kIntFills[2] = {0x5555555555555555, -77777777};
  std::vector<Guarded<T>> operand_copies, fresh[2], out[2];
  for (size_t i = 0; i < operands.size(); ++i) {
    operand_copies.emplace_back(small.in[i], T(7e30), 7777777);
    operand_copies.back().load(operands[i]);
  }
  for (int run = 0; run < 2; ++run) {
    for (const TensorType& type : small.out)
      fresh[run].emplace_back(type, kFills[run], kIntFills[run]);
    out[run] = fresh[run];
    std::vector<Guarded<T>> in = operand_copies;
    call(kernel, small.node, in, out[run]);
    for (size_t i = 0; i < in.size(); ++i) {
      bool same = in[i].intact(operand_copies[i]);
      for (int64_t k = 0; same && k < in[i].count(); ++k) same = in[i].same(k, operand_copies[i]);
      SR_REQUIRE(same, invalid_input, "its kernel changes operand ", i, ", which is not its own");
    }
  }
  for (size_t r = 0; r < small.out.size(); ++r) {
    SR_REQUIRE(out[0][r].intact(fresh[0][r]) && out[1][r].intact(fresh[1][r]), invalid_input,
               "its kernel writes outside result ", r, ", which is ", small.out[r],
               " by the shape rule");
    for (int64_t i = 0; i < out[0][r].count(); ++i) {
      const bool unwritten = out[0][r].same(i, fresh[0][r]) && out[1][r].same(i, fresh[1][r]);
      SR_REQUIRE(!unwritten, invalid_input, "its kernel does not write element ", i, " of result ",
                 r, ", which is ", small.out[r], " by the shape rule");
      SR_REQUIRE(out[0][r].same(i, out[1][r]), invalid_input,
                 "its kernel gives different results on the same operands (element ", i,
                 " of result ", r, ": ", out[0][r].text(i), " and ", out[1][r].text(i),
                 "); it must depend on its operands, shapes and attributes alone, and not add to "
                 "what a result holds before");
    }
  }
}

/// Throws what is wrong; Refused where the kernel throws.
void check_call(const Node& node, std::span<const TensorType> in) {
  const OpKernel& kernel = user_kernel_of(node);
  for (bool as_f64 : {true, false}) {
    for (const SmallNode& small : small_nodes(node, in, {0, 1}, as_f64)) {
      for (Evidence::Data kind : {Evidence::Data::mixed, Evidence::Data::positive}) {
        const std::vector<Tensor> operands = random_operands(small.node, small.in, kind, 5);
        check_kernel(kernel.in_double, small, operands);
        check_kernel(kernel.in_float, small, operands);
      }
    }
  }
}

/// Sum over the results of result x weight.
double weighted(const Node& node, std::span<const Tensor> in, std::span<const Tensor> weights) {
  double sum = 0;
  size_t w = 0;
  for (const Tensor& result : run_reference(node, in)) {
    if (!is_float(result.dtype())) continue;
    for (int64_t i = 0; i < result.count(); ++i)
      sum += result.as<double>()[i] * weights[w].as<double>()[i];
    ++w;
  }
  return sum;
}

/// The gradient against central differences, in f64.
double gradient_error(const SmallNode& small) {
  std::vector<TensorType> types;
  const std::optional<Node> gradient = gradient_node(small.node, small.in, types);
  const std::vector<Tensor> operands = random_operands(*gradient, types, Evidence::Data::mixed, 11);
  const size_t own = small.in.size();
  const std::vector<Tensor> weights(
      operands.begin() + static_cast<std::ptrdiff_t>(own + small.out.size()), operands.end());
  const std::vector<Tensor> found = run_reference(*gradient, operands);
  std::vector<Tensor> in(operands.begin(), operands.begin() + static_cast<std::ptrdiff_t>(own));
  double largest = 0, error = 0;
  size_t next = 0;
  for (size_t i = 0; i < own; ++i) {
    if (!is_float(small.in[i].dtype)) continue;
    const Tensor& grad = found.at(next++);
    const int64_t stride = std::max<int64_t>(1, grad.count() / kMostQuotients);
    for (int64_t k = 0; k < grad.count(); k += stride) {
      constexpr double kStep = 1e-5;
      double& x = in[i].as<double>()[k];
      const double at = x;
      x = at + kStep;
      const double above = weighted(small.node, in, weights);
      x = at - kStep;
      const double below = weighted(small.node, in, weights);
      x = at;
      largest = std::max(largest, std::abs(grad.as<double>()[k]));
      error = std::max(error, std::abs(grad.as<double>()[k] - (above - below) / (2 * kStep)));
    }
  }
  return largest > 0 ? error / largest : error;
}

std::vector<std::string> rules_of(const Node& node, std::span<const TensorType> in) {
  std::vector<std::string> out;
  for (const SpmdRule::Option& option : discover(node, in).options)
    out.push_back(to_string(option));
  return out;
}

}  // namespace

std::vector<std::string> check_user_ops(const Graph& graph) {
  std::vector<std::string> notes;
  std::set<std::string> seen;
  for (const Node& node : graph.nodes()) {
    if (!op_def(node.op).foreign) continue;
    const std::vector<TensorType> in = graph.types(node.inputs);
    if (!seen.insert(rule_key(node, in)).second) continue;
    try {
      check_call(node, in);
    } catch (const Refused& refused) {
      notes.push_back(str("op ", node.op,
                          ": runs whole on every rank, because its kernel refuses "
                          "the small operands that its rule is found on: ",
                          refused.why));
    } catch (const Error& e) {
      throw e.with_context(str(node.op, " '", node.name, "'"));
    }
  }
  return notes;
}

void register_op(const UserOp& op) {
  at_boundary([&] { add_user_op(op); });
}

OpReport examine_op(const std::string& name, const std::vector<TensorInfo>& operands,
                    const Attributes& attributes) {
  return at_boundary([&] {
    Node node;
    node.op = node.name = name;
    node.attrs = internal_attrs(attributes);
    const OpDef* def = find_op(name);
    SR_REQUIRE(def != nullptr && def->foreign, invalid_input, "op '", name,
               "' is not registered; register_op adds it");
    OpReport report;
    try {
      const std::vector<TensorType> in = internal_types(operands);
      infer_types(node, in);
      check_call(node, in);
      report.rules = rules_of(node, in);
      std::vector<TensorType> types;
      if (const auto gradient = gradient_node(node, in, types)) {
        check_call(*gradient, types);
        report.gradient_rules = rules_of(*gradient, types);
        const std::vector<SmallNode> small = small_nodes(node, in, {0}, true);
        if (!small.empty()) report.gradient_error = gradient_error(small[0]);
      }
    } catch (const Refused& refused) {
      fail(ErrorKind::invalid_input, "op '", name, "': its kernel failed: ", refused.why);
    } catch (const Error& e) {
      throw e.with_context("op '" + name + "'");
    }
    return report;
  });
}

}  // namespace shardrun
