// Calls of every op, as its samples and larger, smaller and empty ones of their kind, for tests
// that hold the kernels of a backend to the reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "graph/op_def.h"
#include "kernels/kernel.h"
#include "program/ops/group_rows.h"

namespace shardrun {

struct Case {
  Node node;
  std::vector<TensorType> in, out;
  double low = -1, high = 1;
};

inline std::string describe(const Case& c) {
  std::string text = c.node.op + "(";
  for (const TensorType& t : c.in) text += to_string(t) + " ";
  return text + "){" + to_string(c.node.attrs) + "}";
}

// Dims of size n > 1 become `grow(n)`, equal sizes staying equal; attributes follow by the op's own
// shrink rule. Nullopt where the op cannot follow.
template <class Grow>
std::optional<Case> resized(const OpDef& op, const OpDef::Sample& sample, Grow grow) {
  Case c;
  c.node.op = op.name;
  c.node.name = "node";
  c.node.attrs = sample.attrs;
  c.in = sample.in;
  c.low = sample.low, c.high = sample.high;
  for (TensorType& t : c.in) {
    for (int64_t& d : t.shape) d = d > 1 ? grow(d) : d;
  }
  try {
    if (op.shrink) c.node.attrs = op.shrink(c.node, sample.in, c.in);
    c.out = infer_types(c.node, c.in);
  } catch (const Error&) {
    return std::nullopt;
  }
  return c;
}

// An index into an empty dim has no valid value.
inline bool has_valid_indices(const Case& c) {
  const OpDef& op = op_def(c.node.op);
  for (size_t k = 0; k < c.in.size(); ++k) {
    if (is_float(c.in[k].dtype) || !op.index_bound || element_count(c.in[k].shape) == 0) continue;
    if (op.index_bound(c.node, c.in, k).value_or(1) < 1) return false;
  }
  return true;
}

inline std::optional<Case> with_dtype(const Case& c, DType dtype) {
  Case out = c;
  for (TensorType& t : out.in) {
    if (t.dtype == DType::f32 && !t.shape.empty()) t.dtype = dtype;
  }
  if (out.node.attrs.has("to") && is_float(parse_dtype(out.node.attrs.s("to")))) {
    out.node.attrs.set("to", std::string(out.node.attrs.s("to") == "f32" ? "bf16" : "f32"));
  }
  if (out.in == c.in && out.node.attrs == c.node.attrs) return std::nullopt;
  // Statistics and losses stay f32 in bf16 graphs: give those operands back their type if that
  // helps.
  try {
    out.out = infer_types(out.node, out.in);
    return out;
  } catch (const Error&) {
  }
  for (uint32_t keep = 1; keep < (1u << c.in.size()); ++keep) {
    Case mixed = out;
    for (size_t i = 0; i < c.in.size(); ++i) {
      if (keep >> i & 1) mixed.in[i].dtype = c.in[i].dtype;
    }
    if (mixed.in == c.in) continue;
    try {
      mixed.out = infer_types(mixed.node, mixed.in);
      return mixed;
    } catch (const Error&) {
    }
  }
  return std::nullopt;
}

inline std::vector<Tensor> random_operands(const Case& c, std::mt19937_64& rng) {
  std::vector<Tensor> in;
  for (size_t k = 0; k < c.in.size(); ++k) {
    const int64_t n = element_count(c.in[k].shape);
    std::vector<double> values(static_cast<size_t>(n));
    if (is_float(c.in[k].dtype)) {
      std::uniform_real_distribution<double> draw(c.low, c.high);
      for (double& v : values) v = draw(rng);
    } else {
      const OpDef& op = op_def(c.node.op);
      std::optional<int64_t> bound;
      if (op.index_bound) bound = op.index_bound(c.node, c.in, k);
      const int64_t top =
          c.in[k].dtype == DType::boolean ? 2 : std::max<int64_t>(1, bound.value_or(5));
      std::uniform_int_distribution<int64_t> draw(0, top - 1);
      for (double& v : values) v = static_cast<double>(draw(rng));
    }
    Tensor t(c.in[k]);
    convert(values.data(), DType::f64, t.data(), c.in[k].dtype, n);
    in.push_back(t);
  }
  return in;
}

// What the kernel keeps for calls with these operands and results.
inline std::vector<char> kept_by(const PreparedKernel& kernel, const KernelArgs& args) {
  std::vector<char> kept;
  if (kernel.keep) kept = kernel.keep(args);
  EXPECT_EQ(static_cast<int64_t>(kept.size()), kernel.kept_bytes);
  return kept;
}

// Runs the implementation with results and workspace full of garbage and guarded, so that reading
// what was not written, or writing past the end, shows.
inline std::vector<Tensor> run_impl(const KernelImpl& impl, const Case& c,
                                    const std::vector<Tensor>& in) {
  const PreparedKernel kernel = impl.prepare({c.node, c.in, c.out});
  EXPECT_EQ(kernel.impl, impl.name);
  std::vector<TensorView> in_views, out_views;
  std::vector<std::vector<unsigned char>> around;  // an operand amid NaNs
  for (const Tensor& t : in) {
    constexpr size_t kMargin = 4096;
    const auto bytes = static_cast<size_t>(byte_size(t.type()));
    auto& memory = around.emplace_back(bytes + 3 * kMargin, 0xff);
    void* at = memory.data() + kMargin;
    size_t space = bytes + 2 * kMargin;
    std::align(64, bytes, at, space);
    if (bytes > 0) std::memcpy(at, t.data(), bytes);
    in_views.push_back({at, t.type()});
  }
  std::vector<Tensor> out;
  for (const TensorType& t : c.out) {
    out.emplace_back(t);
    if (t.dtype != DType::boolean && byte_size(t) > 0) {
      std::memset(out.back().data(), 0xff, static_cast<size_t>(byte_size(t)));
    }
    out_views.push_back(out.back().view());
  }
  constexpr size_t kGuard = 256;
  const auto bytes = static_cast<size_t>(kernel.workspace_bytes);
  auto* memory =
      static_cast<unsigned char*>(std::aligned_alloc(64, (bytes + kGuard + 63) / 64 * 64));
  std::memset(memory, 0xff, bytes + kGuard);
  KernelArgs args{in_views, out_views, memory};
  const std::vector<char> kept = kept_by(kernel, args);
  args.kept = kept.data();
  kernel.run(args);
  for (size_t i = bytes; i < bytes + kGuard; ++i) {
    if (memory[i] != 0xff) {
      ADD_FAILURE() << "wrote past its workspace of " << bytes << " bytes";
      break;
    }
  }
  std::free(memory);
  return out;
}

inline void expect_close(const Tensor& got, const Tensor& want, double tolerance) {
  if (!is_float(want.dtype())) {
    for (int64_t i = 0; i < want.count(); ++i)
      ASSERT_EQ(got.int_at(i), want.int_at(i)) << "element " << i;
    return;
  }
  double error = 0, norm = 0;
  for (int64_t i = 0; i < want.count(); ++i) {
    const double g = got.at(i), w = want.at(i);
    if (std::isnan(w) || std::isinf(w)) {
      ASSERT_TRUE(std::isnan(w) ? std::isnan(g) : g == w)
          << "element " << i << ": got " << g << ", want " << w;
      continue;
    }
    ASSERT_FALSE(std::isnan(g)) << "element " << i << " is NaN, want " << w;
    error += (g - w) * (g - w);
    norm += w * w;
  }
  // Results whose exact value is near 0 are compared with the operands' size, about 1.
  const double floor = 1e-2 * std::sqrt(static_cast<double>(std::max<int64_t>(want.count(), 1)));
  EXPECT_LE(std::sqrt(error), tolerance * std::max(std::sqrt(norm), floor))
      << "relative to " << std::sqrt(norm);
}

// The samples of an op as they are, larger, with sizes in another order, and with empty dims, each
// in f32 and in bf16; what would take long to compute is left out.
inline std::vector<Case> cases_of(const OpDef& op) {
  std::vector<Case> out;
  for (const OpDef::Sample& sample : op.samples) {
    std::vector<std::optional<Case>> all = {
        resized(op, sample, [](int64_t d) { return d; }),
        resized(op, sample, [](int64_t d) { return 5 * d + 1; }),
        resized(op, sample, [](int64_t d) { return d == 2   ? 3
                                                   : d == 3 ? 2
                                                            : 19 * d; }),
        resized(op, sample, [](int64_t d) { return 141 * d; }),
        resized(op, sample, [](int64_t d) { return d <= 4 ? 0 : d; }),
        resized(op, sample, [](int64_t d) { return d > 4 ? 0 : d; }),
    };
    for (const auto& c : all) {
      if (!c || !has_valid_indices(*c)) continue;
      double elements = 1;
      for (const auto& types : {c->in, c->out}) {
        for (const TensorType& t : types) elements += static_cast<double>(element_count(t.shape));
      }
      if (elements > 3e6 || node_flops(c->node, c->in, c->out) > 4e7) continue;
      out.push_back(*c);
      if (const auto narrow = with_dtype(*c, DType::bf16)) out.push_back(*narrow);
    }
  }
  return out;
}

/// Kernels that look for groups of rows (runtime/program/ops/group_rows.h) do the same with groups
/// that are given, numbers that are outside among them.
inline void expect_same_of_groups(const KernelList& kernels, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::set<std::string> ops;
  const auto run_group_rows = [&](const Case& c, const std::vector<Tensor>& in) {
    for (const KernelImpl& impl : kernels) {
      if (impl.op == "group_rows") return run_impl(impl, c, in)[0];
    }
    return Tensor();
  };
  for (const KernelImpl& impl : kernels) {
    const OpDef* op = find_op(impl.op);
    for (const Case& c : op != nullptr ? cases_of(*op) : std::vector<Case>()) {
      const auto wanted = RowGroups::wanted_by(c.node, c.in);
      if (!wanted || impl.refuses({c.node, c.in, c.out})) continue;
      SCOPED_TRACE(describe(c));
      std::vector<Tensor> in = random_operands(c, rng);
      Tensor& numbers = in[wanted->numbers];
      std::vector<int64_t> drawn = numbers.to_ints();
      for (int64_t& number : drawn)
        number = std::uniform_int_distribution<int64_t>(0, wanted->size)(rng);
      numbers = convert(Tensor::from(numbers.shape(), drawn, DType::i64), numbers.dtype());
      Case groups;
      groups.node.op = groups.node.name = "group_rows";
      groups.node.attrs = {{"size", wanted->size}, {"offset", wanted->offset}};
      groups.in = {numbers.type()};
      groups.out = infer_types(groups.node, groups.in);
      const std::vector<Tensor> want = run_reference(c.node, in), got = run_impl(impl, c, in);
      bool bf16 = false;
      for (const TensorType& t : c.in) bf16 = bf16 || t.dtype == DType::bf16;
      expect_close(got[0], want[0], bf16 ? 2e-2 : 1e-4);
      Case grouped = c;
      grouped.node.attrs.set("rearranged", int64_t{1});
      in.push_back(run_group_rows(groups, {numbers}));
      grouped.in.push_back(in.back().type());
      ASSERT_FALSE(impl.refuses({grouped.node, grouped.in, grouped.out}));
      EXPECT_EQ(impl.prepare({grouped.node, grouped.in, grouped.out}).workspace_bytes, 0);
      const std::vector<Tensor> same = run_impl(impl, grouped, in);
      const auto bytes = static_cast<size_t>(byte_size(got[0].type()));
      EXPECT_TRUE(bytes == 0 || std::memcmp(same[0].data(), got[0].data(), bytes) == 0);
      expect_close(run_reference(grouped.node, in)[0], want[0], 0);
      ops.insert(impl.op);
    }
  }
  EXPECT_EQ(ops, (std::set<std::string>{"add_rows", "gather_grad", "segment_exp_sum", "segment_max",
                                        "segment_softmax", "segment_softmax_grad",
                                        "segment_softmax_reduce_grad"}));
}

}  // namespace shardrun
