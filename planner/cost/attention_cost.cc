// What a pair of a query and a key takes, and how many pairs there are.
#include "planner/cost/attention_cost.h"

#include <algorithm>
#include <cmath>

#include "graph/ops/attention.h"
#include "planner/cost/tile_cost.h"

namespace shardrun {
namespace {

constexpr double kTile = 128;       // queries or keys
constexpr double kInstruction = 2;  // FLOPs that are counted of a multiply-add
constexpr double kForwardInstructions = 4, kGradientInstructions = 6;
constexpr double kScoreBytes = 4;       // f32
constexpr double kFusedScoreBytes = 2;  // of ds: bf16

double tiles_of(double rows) { return std::ceil(rows / kTile); }

double fused_attention_seconds(const AttentionWork& work, const Cluster& cluster) {
  const double queries = tiles_of(work.queries), keys = tiles_of(work.keys);
  const double tiles = work.heads * (work.causal ? queries * (keys + 1) / 2 : queries * keys);
  const double pairs = tiles * kTile * kTile;
  const double f32 = cluster.flops_for(DType::f32);
  const double multiplied =
      work.gradient ? 3 * work.width + 2 * work.value_width : work.width + work.value_width;
  const double instructions =
      work.gradient ? kGradientInstructions : kForwardInstructions + work.value_width / kTile;
  const double each = 2 * multiplied / cluster.flops_for(work.dtype) +
                      (cluster.tiles.exponential_flops + kInstruction * instructions) / f32;
  // A multiprocessor takes all tiles of some queries, or for the gradient of some keys.
  const double rows = work.heads * (work.gradient ? keys : queries);
  const auto multiprocessors = static_cast<double>(cluster.tiles.multiprocessors);
  const double idle = rows == 0 ? 1 : std::max(1.0, multiprocessors / rows);
  const double passes = work.gradient ? 2 : 0;
  return pairs * each * idle + passes * pairs * kFusedScoreBytes / cluster.memory_bandwidth.value();
}

double unfused_attention_seconds(const AttentionWork& work, const Cluster& cluster) {
  const double pairs = work.heads * work.queries * work.keys;
  const auto element = static_cast<double>(size_of(work.dtype));
  const auto pass = [&](double bytes) { return pairs * bytes / cluster.memory_bandwidth.value(); };
  const std::vector<MatmulWork> products = attention_products(work);
  const size_t scores = work.gradient ? 2 : 1;  // the first products make scores
  double seconds = static_cast<double>(scores) * pass(kScoreBytes + element);
  for (size_t i = 0; i < products.size(); ++i) {
    seconds += std::max(product_seconds(products[i], work.dtype, cluster),
                        pass(i < scores ? kScoreBytes : element)) +
               cluster.kernel_latency;
  }
  return seconds;
}

}  // namespace

AttentionWork attention_work(CostClass cost, const Node& node, std::span<const TensorType> in) {
  const size_t first = cost == CostClass::attention_grad ? 1 : 0;  // the gradient's comes before
  const Shape &q = in[first].shape, &k = in[first + 1].shape, &v = in[first + 2].shape;
  AttentionWork work;
  work.gradient = first == 1;
  work.causal = AttentionAttrs::of(node).causal;
  work.dtype = in[first].dtype;
  work.heads = static_cast<double>(q[0] * q[1]);
  work.queries = static_cast<double>(q[2]), work.keys = static_cast<double>(k[2]);
  work.width = static_cast<double>(q[3]), work.value_width = static_cast<double>(v[3]);
  // Of a cut causal mask ranks but the first have an offset.
  work.fused = !refuse_fused_attention(node, in[first], in[first + 2]) &&
               node.attrs.i("keys", k[2]) == k[2] && (!work.causal || q[2] == k[2]);
  return work;
}

std::vector<MatmulWork> attention_products(const AttentionWork& work) {
  const auto product = [&](double m, double n, double k) {
    return MatmulWork{.layout = "", .batch = work.heads, .m = m, .n = n, .k = k};
  };
  const MatmulWork scores = product(work.queries, work.keys, work.width);
  if (!work.gradient) return {scores, product(work.queries, work.value_width, work.keys)};
  return {scores, product(work.queries, work.keys, work.value_width),
          product(work.keys, work.value_width, work.queries),
          product(work.queries, work.width, work.keys),
          product(work.keys, work.width, work.queries)};
}

double attention_seconds(const AttentionWork& work, const Cluster& cluster) {
  return work.fused ? fused_attention_seconds(work, cluster)
                    : unfused_attention_seconds(work, cluster);
}

}  // namespace shardrun
