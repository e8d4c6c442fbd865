// Measured kernels where there are some, the roofline elsewhere.
#include "planner/cost/kernel_cost.h"

#include <algorithm>
#include <array>

#include "graph/op_def.h"
#include "graph/ops/einsum.h"
#include "graph/ops/window.h"
#include "planner/cost/attention_cost.h"
#include "planner/cost/tile_cost.h"
#include "program/ops/pack.h"
#include "program/ops/post.h"

namespace shardrun {
namespace {

bool has(const std::string& term, char letter) { return term.find(letter) != std::string::npos; }

/// Kernels of 3 x 3 without strides save multiplications, if channels come in sixteens.
bool is_three_by_three(const Node& node, const Shape& weights) {
  const std::vector<int64_t> ones = {1, 1};
  return node.attrs.ints("strides") == ones && node.attrs.ints("dilations") == ones &&
         channels_last(node) && weights.size() == 4 && weights[0] % 16 == 0 &&
         weights[1] % 16 == 0 && weights[2] == 3 && weights[3] == 3;
}

/// Which dims a reduction sums and whether a transpose moves the last dim decide in what order they
/// go through memory.
std::string variant_of(CostClass cost, const Node& node, std::span<const TensorType> in,
                       std::span<const TensorType> out) {
  switch (cost) {
    case CostClass::transpose: {
      const std::vector<int64_t>& perm = node.attrs.ints("perm");
      const bool stays = perm.empty() || perm.back() == static_cast<int64_t>(perm.size()) - 1;
      return !stays ? "elements" : in[0].shape.back() < 48 ? "short rows" : "rows";
    }
    case CostClass::reduction: {
      if (!node.attrs.has("axes")) return "";
      const std::vector<int64_t>& axes = node.attrs.ints("axes");
      if (axes.size() == in[0].shape.size()) return "all";
      const auto last = static_cast<int64_t>(in[0].shape.size()) - 1;
      return std::find(axes.begin(), axes.end(), last) != axes.end() ? "columns" : "rows";
    }
    case CostClass::convolution: return is_three_by_three(node, in[1].shape) ? "3 x 3" : "";
    case CostClass::convolution_weights:
      return is_three_by_three(node, out[0].shape) ? "3 x 3" : "";
    case CostClass::conversion: return std::string(to_string(out[0].dtype));
    default: return "";
  }
}

/// What a call without the causal mask takes of one with it, which skips nearly half.
constexpr double kUnmasked = 1.8;

/// Seconds by the grid of the op, if it has one; else 0.
double grid_seconds(CostClass cost, const Node& node, std::span<const TensorType> in, DType dtype,
                    const MeasuredKernels& measured) {
  if (cost == CostClass::product) {
    const MatmulWork w = matmul_work(node, in);
    auto grid = measured.grids.find({node.op, w.layout, dtype});
    if (grid == measured.grids.end()) grid = measured.grids.find({node.op, "nn", dtype});
    if (grid == measured.grids.end()) return 0;
    // The call costs once what the smallest product does, the batch the rest.
    const double call = grid->second.seconds[0];
    const double one = grid->second.at({w.m, w.n, w.k}, {1, 1, 1});
    return call + w.batch * std::max(one - call, 0.0);
  }
  if (cost == CostClass::attention || cost == CostClass::attention_grad) {
    const auto grid = measured.grids.find({node.op, "", dtype});
    if (grid == measured.grids.end()) return 0;
    const AttentionWork w = attention_work(cost, node, in);
    const double length = std::max(w.keys, 1.0);
    // Fewer queries than keys, as when the queries are cut, are so many heads less.
    const double heads = w.heads * w.queries / length;
    // Values may be wider than queries. Of a pair's two products one is over each width, of the
    // gradient's five two are over the values'.
    const double width =
        w.gradient ? (3 * w.width + 2 * w.value_width) / 5 : (w.width + w.value_width) / 2;
    const double masked = grid->second.at({heads, length, width}, {1, 2, 1});
    return w.causal ? masked : kUnmasked * masked;
  }
  return 0;
}

/// Of GPUs, products by their tiles and attention by its pairs; else FLOPs at the rate of large
/// products.
double arithmetic_of(CostClass cost, const Node& node, std::span<const TensorType> in,
                     const KernelWork& work, const Cluster& cluster) {
  if (cluster.tiles.multiprocessors > 0) {
    if (cost == CostClass::product)
      return product_seconds(matmul_work(node, in), work.dtype, cluster);
    if (cost == CostClass::attention || cost == CostClass::attention_grad)
      return attention_seconds(attention_work(cost, node, in), cluster);
  }
  return work.flops / cluster.flops_for(work.dtype);
}

/// Seconds of the measured op most like this one; 0 if there is none.
double measured_seconds(CostClass cost, const Node& node, std::span<const TensorType> in,
                        const KernelWork& work, const MeasuredKernels& measured,
                        const Cluster& cluster) {
  if (const double seconds = grid_seconds(cost, node, in, work.dtype, measured); seconds > 0)
    return seconds;
  const std::array<DType, 2> dtypes = {work.dtype, DType::f32};
  for (const DType dtype : dtypes) {
    for (const std::string& variant : {work.variant, std::string()}) {
      const auto op = measured.ops.find({node.op, variant, dtype});
      if (op == measured.ops.end()) continue;
      // Bytes take as long in either type, FLOPs do not.
      if (op->second.by_flops && dtype != work.dtype) continue;
      return op->second.curve.at(op->second.by_flops ? work.flops : work.bytes);
    }
  }
  // Not measured itself: as long as so many bytes, or its arithmetic if that takes longer.
  for (const DType dtype : dtypes) {
    if (const MeasuredKernels::Op* streaming = measured.streaming(dtype))
      return std::max(streaming->curve.at(work.bytes),
                      arithmetic_of(cost, node, in, work, cluster));
  }
  return 0;
}

double bytes_of(std::span<const TensorType> types) {
  double bytes = 0;
  for (const TensorType& t : types) bytes += static_cast<double>(byte_size(t));
  return bytes;
}

/// What an op behind a product takes more. Alone it would also read the result so far from memory
/// and write its own there; now these two pass through registers. An add is left with its other
/// operand, a GELU with its exponentials.
double post_seconds(const PostOp& post, const TensorType& result, std::span<const TensorType> in,
                    const Cluster& cluster) {
  const std::vector<TensorType> operands = types_of(post, result, in);
  const double bandwidth = cluster.memory_bandwidth.value();
  const double passed = 2 * static_cast<double>(byte_size(result));
  const double alone = kernel_seconds(post.node, operands, {&result, 1}, cluster);
  return std::max(alone - cluster.kernel_latency - passed / bandwidth,
                  (bytes_of(operands) - passed / 2) / bandwidth);
}

/// A product with what follows it, or an update that lays out weights. What neither of the parts
/// has comes from memory once.
double fused_seconds(const Node& node, std::span<const TensorType> in,
                     std::span<const TensorType> out, const Cluster& cluster) {
  const double bandwidth = cluster.memory_bandwidth.value();
  if (is_packed_update(node.op)) {
    const size_t results = PackedUpdate::of(node, in.size()).first;
    return kernel_seconds(without_layouts(node), in, out.first(results), cluster) +
           bytes_of(out.subspan(results)) / bandwidth;
  }
  double seconds =
      kernel_seconds(without_post_ops(node), in.first(kOwnOperands), out.first(1), cluster) +
      bytes_of(out.subspan(1)) / bandwidth;
  for (const PostOp& post : post_ops(node)) seconds += post_seconds(post, out[0], in, cluster);
  return seconds;
}

}  // namespace

KernelWork work_of(const Node& node, std::span<const TensorType> in,
                   std::span<const TensorType> out) {
  const CostClass cost = op_def(node.op).cost;
  KernelWork work;
  double written = 0, read = 0;
  for (const TensorType& t : out) written += static_cast<double>(byte_size(t));
  if (cost == CostClass::row_update)  // in place: the rest of the table stays
    written = std::min(written, static_cast<double>(byte_size(in[1])));
  for (size_t i = 0; i < in.size(); ++i) {
    const double bytes = static_cast<double>(byte_size(in[i]));
    const bool taken_from = i == 0 && (cost == CostClass::lookup || cost == CostClass::row_update);
    read += taken_from ? std::min(bytes, written) : bytes;
  }
  work.bytes = read + written;
  work.flops = node_flops(node, in, out);
  for (const TensorType& t : in) {
    if (is_float(t.dtype)) {
      work.dtype = t.dtype;
      break;
    }
  }
  work.variant = variant_of(cost, node, in, out);
  return work;
}

MatmulWork matmul_work(const Node& node, std::span<const TensorType> in) {
  Einsum e = Einsum::parse(node.attrs.s("equation"));
  const auto size = e.sizes(in[0].shape, in[1].shape);
  // The result's columns come from b.
  if (!e.out.empty() && has(e.a, e.out.back()) && !has(e.b, e.out.back())) std::swap(e.a, e.b);
  MatmulWork work;
  bool a_transposed = false, b_transposed = false;  // by their last letter of more than one element
  for (const auto& [letter, n] : size) {
    const bool a = has(e.a, letter), b = has(e.b, letter), c = has(e.out, letter);
    double& part = a && b && c ? work.batch : !b ? work.m : !a ? work.n : work.k;
    part *= static_cast<double>(n);
  }
  for (char letter : e.a) {
    if (size.at(letter) > 1) a_transposed = work.k > 1 && !has(e.b, letter);
  }
  for (char letter : e.b) {
    if (size.at(letter) > 1) b_transposed = work.n > 1 && has(e.a, letter) && !has(e.out, letter);
  }
  work.layout = {a_transposed ? 't' : 'n', b_transposed ? 't' : 'n'};
  return work;
}

double kernel_seconds(const Node& node, std::span<const TensorType> in,
                      std::span<const TensorType> out, const Cluster& cluster) {
  const OpDef& def = op_def(node.op);
  const CostClass cost = def.cost;
  if (cost == CostClass::fused) return fused_seconds(node, in, out, cluster);
  KernelWork work = work_of(node, in, out);
  if (def.reshapes) work.bytes = work.flops = 0;
  if (const MeasuredKernels* measured = cluster.measured.kernels_now()) {
    const double seconds = measured_seconds(cost, node, in, work, *measured, cluster);
    if (seconds > 0) return seconds;
  }
  return std::max(arithmetic_of(cost, node, in, work, cluster),
                  work.bytes / cluster.memory_bandwidth.value()) +
         cluster.kernel_latency;
}

double arithmetic_seconds(const Node& node, std::span<const TensorType> in,
                          std::span<const TensorType> out, const Cluster& cluster) {
  if (has_post_ops(node.op))
    return arithmetic_seconds(without_post_ops(node), in.first(kOwnOperands), out.first(1),
                              cluster);
  return arithmetic_of(op_def(node.op).cost, node, in, work_of(node, in, out), cluster);
}

}  // namespace shardrun
