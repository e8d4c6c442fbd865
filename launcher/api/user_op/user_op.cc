// A user's shape rule and kernels become an OpDef and a KernelImpl, and those of its gradient
// another pair under the name 'acme::Swish/gradient'.
#include "user_op/user_op.h"

#include <algorithm>
#include <memory>
#include <mutex>

#include "base/round_up.h"
#include "elements.h"
#include "graph/onnx/import.h"

namespace shardrun {
namespace {

using SharedOp = std::shared_ptr<const UserOp>;

/// On a gradient's node: how many of its operands are the op's own. No name in a model begins so.
constexpr const char* kOwnOperands = "/operands";
constexpr std::string_view kGradient = "/gradient";

std::vector<TensorInfo> infos(std::span<const TensorType> types) {
  std::vector<TensorInfo> out;
  for (const TensorType& type : types) out.push_back({element_type(type.dtype), type.shape});
  return out;
}

/// Calls what a user has written; what it throws becomes an Error of `kind` behind `what`.
template <class F>
auto guarded(ErrorKind kind, const std::string& what, F&& f) {
  try {
    return f();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail(kind, what, e.what());
  } catch (...) {
    fail(kind, what, "it threw something that is no std::exception");
  }
}

std::vector<TensorType> infer(const UserOp& op, const Node& node, std::span<const TensorType> in) {
  const std::vector<TensorInfo> out = guarded(ErrorKind::invalid_input, "", [&] {
    return op.shape(user_attributes(node.attrs), infos(in));
  });
  SR_REQUIRE(!out.empty(), invalid_input, "its shape rule gives no result");
  for (const TensorInfo& info : out) {
    for (int64_t dim : info.shape) {
      SR_REQUIRE(dim >= 0, invalid_input, "its shape rule gives the shape ",
                 to_string(Shape(info.shape)), "; dims are 0 or more");
    }
  }
  return internal_types(out);
}

// ---- kernels

/// One tensor of a kernel's call: where the kernel finds it, and how it gets there.
struct Passed {
  OpTensor tensor;
  DType dtype = DType::f32, seen = DType::f32;
  int64_t scratch = -1;  // offset in the workspace where it is converted; -1: in place

  void* at(const TensorView& view, void* workspace) const {
    return scratch < 0 ? view.data : static_cast<char*>(workspace) + scratch;
  }
};

/// A call that is ready: all but the addresses.
struct ReadyCall {
  std::string op;
  OpKernel kernel;
  Attributes attributes;
  bool single = false;  // runs in float
  std::vector<Passed> in, out;
  std::vector<OpTensor> in_tensors, out_tensors;

  void run(const KernelArgs& args) {
    const auto count = [](const TensorView& view) { return view.count(); };
    if (!args.out.empty() &&
        std::all_of(args.out.begin(), args.out.end(), [&](const auto& v) { return count(v) == 0; }))
      return;
    for (size_t i = 0; i < in.size(); ++i) {
      in_tensors[i].data = in[i].at(args.in[i], args.workspace);
      if (in[i].scratch >= 0)
        convert(args.in[i].data, in[i].dtype, in_tensors[i].data, in[i].seen, count(args.in[i]));
    }
    for (size_t r = 0; r < out.size(); ++r)
      out_tensors[r].data = out[r].at(args.out[r], args.workspace);
    guarded(ErrorKind::device, "kernel of '" + op + "' failed: ", [&] {
      if (single) {
        kernel.in_float(OpCall<float>(attributes, in_tensors, out_tensors));
      } else {
        kernel.in_double(OpCall<double>(attributes, in_tensors, out_tensors));
      }
    });
    for (size_t r = 0; r < out.size(); ++r) {
      if (out[r].scratch >= 0)
        convert(out_tensors[r].data, out[r].seen, args.out[r].data, out[r].dtype,
                count(args.out[r]));
    }
  }
};

PreparedKernel prepare(const std::string& name, const OpKernel& kernel, const KernelCall& call) {
  auto ready = std::make_shared<ReadyCall>();
  ready->op = name;
  ready->kernel = kernel;
  ready->attributes = user_attributes(call.node.attrs);
  const auto wide = [](const TensorType& type) { return type.dtype == DType::f64; };
  ready->single = kernel.in_float != nullptr &&
                  std::none_of(call.in.begin(), call.in.end(), wide) &&
                  std::none_of(call.out.begin(), call.out.end(), wide);
  int64_t workspace = 0;
  const auto pass = [&](std::span<const TensorType> types, std::vector<Passed>& passed,
                        std::vector<OpTensor>& tensors) {
    for (const TensorType& type : types) {
      Passed p;
      const bool floating = is_float(type.dtype);
      const int64_t count = element_count(type.shape);
      tensors.push_back({type.shape, floating, nullptr, static_cast<size_t>(count)});
      p.dtype = type.dtype;
      p.seen = !floating ? DType::i64 : ready->single ? DType::f32 : DType::f64;
      if (p.dtype != p.seen) {
        p.scratch = workspace;
        workspace += round_up_64(count * size_of(p.seen));
      }
      passed.push_back(std::move(p));
    }
  };
  pass(call.in, ready->in, ready->in_tensors);
  pass(call.out, ready->out, ready->out_tensors);
  PreparedKernel prepared;
  prepared.run = [ready](const KernelArgs& args) { ready->run(args); };
  prepared.workspace_bytes = workspace;
  return prepared;
}

/// The kernels as they were given, by the names of their ops; a gradient may be another op's.
struct Given {
  std::map<std::string, OpKernel> kernels;
  std::map<std::string, std::string> other_names;
  std::mutex mutex;
};

Given& given() {
  static Given instance;
  return instance;
}

const OpKernel& find_kernel(const std::string& op) {
  Given& g = given();
  const std::lock_guard lock(g.mutex);
  const auto other = g.other_names.find(op);
  const auto it = g.kernels.find(other == g.other_names.end() ? op : other->second);
  SR_REQUIRE(it != g.kernels.end(), invalid_input, "op '", op, "' has no kernel",
             other == g.other_names.end() ? "" : "; '" + other->second + "' is not registered");
  return it->second;
}

// ---- the gradient

Attrs without_own_operands(const Attrs& attrs) {
  Attrs out;
  for (const auto& [name, attr] : attrs.all()) {
    if (name != kOwnOperands) out.set(name, attr);
  }
  return out;
}

/// The op's node of which `node` is the gradient's.
Node forward_node(const UserOp& op, const Node& node) {
  Node forward;
  forward.op = op.name;
  forward.name = node.name;
  forward.attrs = without_own_operands(node.attrs);
  return forward;
}

std::vector<TensorType> infer_gradient(const UserOp& op, const Node& node,
                                       std::span<const TensorType> in) {
  const auto own = static_cast<size_t>(node.attrs.i(kOwnOperands));
  SR_REQUIRE(in.size() >= own, internal, "gradient of '", op.name, "' has ", in.size(),
             " operands, the op alone has ", own);
  const Node forward = forward_node(op, node);
  const std::vector<TensorType> made = infer(op, forward, in.first(own));
  std::vector<Shape> wanted;
  for (const TensorType& type : made) wanted.push_back(type.shape);
  for (const TensorType& type : made) {
    if (is_float(type.dtype)) wanted.push_back(type.shape);
  }
  bool fits = in.size() == own + wanted.size();
  for (size_t i = 0; fits && i < wanted.size(); ++i) fits = in[own + i].shape == wanted[i];
  SR_REQUIRE(fits, invalid_input,
             "operands of the gradient are not those of the op, its results "
             "and the gradients of its floating results");
  std::vector<TensorType> out;
  for (const TensorType& type : in.first(own)) {
    if (is_float(type.dtype)) out.push_back(type);
  }
  if (op.gradient_op.empty()) return out;
  const OpDef* other = find_op(op.gradient_op);
  SR_REQUIRE(other != nullptr && other->foreign, invalid_input, "gradient_op '", op.gradient_op,
             "' is not registered; register_op it as well");
  const std::vector<TensorType> theirs = other->infer(forward, in);
  SR_REQUIRE(theirs == out, invalid_input, "gradient_op '", op.gradient_op,
             "' makes results of other types than the floating operands of '", op.name, "'");
  return out;
}

std::vector<ValueId> append_gradient(const UserOp& op, GradientContext& c) {
  std::vector<ValueId> in = c.node.inputs;
  in.insert(in.end(), c.node.outputs.begin(), c.node.outputs.end());
  for (size_t r = 0; r < c.node.outputs.size(); ++r) {
    const TensorType type = c.graph.type(c.node.outputs[r]);
    if (!is_float(type.dtype)) continue;
    const std::string dtype(to_string(type.dtype));
    ValueId grad = c.out_grads[r];
    if (grad == kNoValue) {
      grad = c.graph.add("fill", {}, {{"shape", type.shape}, {"dtype", dtype}, {"value", 0.0}});
    } else if (c.graph.type(grad).dtype != type.dtype) {
      grad = c.graph.add("cast", {grad}, {{"to", dtype}});
    }
    in.push_back(grad);
  }
  Attrs attrs = c.node.attrs;
  attrs.set(kOwnOperands, static_cast<int64_t>(c.node.inputs.size()));
  const std::vector<ValueId> made =
      c.graph.add_node(op.name + std::string(kGradient), in, std::move(attrs));
  std::vector<ValueId> out(c.node.inputs.size(), kNoValue);
  size_t next = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (is_float(c.in_type(i).dtype)) out[i] = made.at(next++);
  }
  return out;
}

/// Forward results among random operands become what the op makes of its own.
void settle_gradient(const UserOp& op, const Node& node, std::span<Tensor> operands) {
  const auto own = static_cast<size_t>(node.attrs.i(kOwnOperands));
  const std::vector<Tensor> made = run_reference(forward_node(op, node), operands.first(own));
  for (size_t r = 0; r < made.size(); ++r)
    operands[own + r] = convert(made[r], operands[own + r].dtype());
}

// ---- registration

void check(const UserOp& op) {
  const size_t colons = op.name.find("::");
  const bool form = colons != std::string::npos && colons > 0 && colons + 2 < op.name.size() &&
                    op.name.find(':', colons + 2) == std::string::npos &&
                    std::all_of(op.name.begin(), op.name.end(), [](unsigned char c) {
                      return c > ' ' && c != '/' && c != '\'' && c < 0x7f;
                    });
  SR_REQUIRE(form, invalid_input, "op '", op.name,
             "': field 'name' is not of the form domain::op_type, such as acme::Swish");
  if (op.name.rfind("ai.onnx::", 0) == 0) {
    const std::vector<std::string> known = supported_onnx_operators();
    SR_REQUIRE(
        std::find(known.begin(), known.end(), op.name.substr(9)) == known.end(), invalid_input,
        "op '", op.name,
        "': field 'name' is an ai.onnx operator that shardrun has; take a domain of your own");
  }
  SR_REQUIRE(op.shape != nullptr, invalid_input, "op '", op.name, "': field 'shape' is not set");
  SR_REQUIRE(static_cast<bool>(op.kernel), invalid_input, "op '", op.name,
             "': field 'kernel' is not set");
  SR_REQUIRE(!op.gradient || op.gradient_op.empty(), invalid_input, "op '", op.name,
             "': fields 'gradient' and 'gradient_op' are both set; one of them says how");
}

OpDef definition(const SharedOp& op) {
  OpDef def;
  def.name = op->name;
  def.foreign = true;
  def.infer = [op](const Node& node, std::span<const TensorType> in) {
    return infer(*op, node, in);
  };
  if (op->flops != nullptr) {
    def.flops = [op](const Node& node, std::span<const TensorType> in,
                     std::span<const TensorType> out) {
      return guarded(ErrorKind::invalid_input, "flops of '" + op->name + "': ", [&] {
        return op->flops(user_attributes(node.attrs), infos(in), infos(out));
      });
    };
  }
  if (!op->indices.empty()) {
    def.index_bound = [op](const Node&, std::span<const TensorType> in,
                           size_t operand) -> std::optional<int64_t> {
      for (const IndexOperand& index : op->indices) {
        if (index.operand == operand && index.of < in.size() &&
            index.dim < in[index.of].shape.size())
          return in[index.of].shape[index.dim];
      }
      return std::nullopt;
    };
  }
  if (op->gradient || !op->gradient_op.empty())
    def.gradient = [op](GradientContext& c) { return append_gradient(*op, c); };
  return def;
}

OpDef gradient_definition(const SharedOp& op) {
  OpDef def = definition(op);
  def.name += kGradient;
  def.gradient = nullptr;
  def.flops = nullptr;
  if (op->flops != nullptr) {  // a product's two gradients are two products
    def.flops = [forward = definition(op), op](const Node& node, std::span<const TensorType> in,
                                               std::span<const TensorType>) {
      const auto own = in.first(static_cast<size_t>(node.attrs.i(kOwnOperands)));
      const Node of = forward_node(*op, node);
      return 2 * forward.flops(of, own, forward.infer(of, own));
    };
  }
  def.infer = [op](const Node& node, std::span<const TensorType> in) {
    return infer_gradient(*op, node, in);
  };
  def.settle = [op](const Node& node, std::span<Tensor> operands) {
    settle_gradient(*op, node, operands);
  };
  return def;
}

KernelImpl implementation(const std::string& name) {
  KernelImpl impl;
  impl.op = name;
  impl.name = "user";
  // Looked up when it is needed: that of another op may be registered later.
  impl.prepare = [name](const KernelCall& call) { return prepare(name, find_kernel(name), call); };
  return impl;
}

/// The call of an op's gradient that belongs to a call of the op.
OpDef::Sample gradient_sample(const OpDef& def, const OpDef::Sample& sample) {
  Node node;
  node.op = def.name;
  node.attrs = sample.attrs;
  OpDef::Sample out = sample;
  out.attrs.set(kOwnOperands, static_cast<int64_t>(sample.in.size()));
  const std::vector<TensorType> made = def.infer(node, sample.in);
  out.in.insert(out.in.end(), made.begin(), made.end());
  std::copy_if(made.begin(), made.end(), std::back_inserter(out.in),
               [](const TensorType& type) { return is_float(type.dtype); });
  return out;
}

}  // namespace

Attributes user_attributes(const Attrs& attrs) {
  std::map<std::string, Attributes::Value> values;
  for (const auto& [name, attr] : attrs.all()) {
    if (name != kOwnOperands) values.emplace(name, attr);
  }
  return Attributes(std::move(values));
}

Attrs internal_attrs(const Attributes& attributes) {
  Attrs out;
  for (const auto& [name, value] : attributes.all()) out.set(name, value);
  return out;
}

std::vector<TensorType> internal_types(const std::vector<TensorInfo>& given) {
  std::vector<TensorType> out;
  for (const TensorInfo& info : given) out.push_back({element_dtype(info.type), info.shape});
  return out;
}

const OpKernel& user_kernel_of(const Node& node) { return find_kernel(node.op); }

std::optional<Node> gradient_node(const Node& node, std::span<const TensorType> in,
                                  std::vector<TensorType>& types) {
  const OpDef& def = op_def(node.op);
  if (def.gradient == nullptr) return std::nullopt;
  const OpDef::Sample sample = gradient_sample(def, {{in.begin(), in.end()}, node.attrs});
  types = sample.in;
  Node gradient;
  gradient.op = node.op + std::string(kGradient);
  gradient.name = node.name + std::string(kGradient);
  gradient.attrs = sample.attrs;
  return gradient;
}

void add_user_op(const UserOp& given_op, std::vector<OpDef::Sample> samples) {
  check(given_op);
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  SR_REQUIRE(find_op(given_op.name) == nullptr, invalid_input, "op '", given_op.name,
             "' is registered already; an op is registered once, before it is used");
  const auto op = std::make_shared<const UserOp>(given_op);
  const std::string gradient = op->name + std::string(kGradient);
  const bool has_gradient = op->gradient || !op->gradient_op.empty();
  // Kernels first: an op that can be found can be run.
  {
    Given& g = given();
    const std::lock_guard kernels(g.mutex);
    g.kernels.emplace(op->name, op->kernel);
    if (op->gradient) g.kernels.emplace(gradient, op->gradient);
    if (!op->gradient_op.empty()) g.other_names.emplace(gradient, op->gradient_op);
  }
  register_reference_kernel(implementation(op->name));
  OpDef def = definition(op), gradient_def = gradient_definition(op);
  if (has_gradient) {
    register_reference_kernel(implementation(gradient));
    for (const OpDef::Sample& sample : samples)
      gradient_def.samples.push_back(gradient_sample(def, sample));
    register_op(std::move(gradient_def));
  }
  def.samples = std::move(samples);
  register_op(std::move(def));
}

}  // namespace shardrun
