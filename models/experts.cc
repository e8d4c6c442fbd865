// Top-k gating with a capacity (Lepikhin et al., 2020; Fedus et al., 2021), by gathers of rows.
#include "models/experts.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace shardrun {
namespace {

std::string summed(OnnxWriter& w, const std::string& x, int64_t axis, int64_t keep) {
  return w.node("ReduceSum", {x, w.ints({axis})}, {{"keepdims", keep}});
}

/// The rows that `rows` [batch, …] names of data [batch, rows, hidden].
std::string rows_of_samples(OnnxWriter& w, const std::string& data, const std::string& rows) {
  return w.node("GatherND", {data, w.node("Unsqueeze", {rows, w.ints({-1})})},
                {{"batch_dims", int64_t{1}}});
}

}  // namespace

int64_t expert_slots(int64_t context, int64_t top_k, int64_t experts, double capacity) {
  const double even = static_cast<double>(context * top_k) / static_cast<double>(experts);
  return static_cast<int64_t>(
      std::clamp(std::ceil(capacity * even), 1.0, static_cast<double>(context)));
}

ExpertRoutes route_to_experts(OnnxWriter& w, const std::string& x, const std::string& router,
                              const ExpertSizes& sizes) {
  const int64_t choices = sizes.context * sizes.top_k, all = sizes.experts * sizes.slots;
  const std::string among =
      w.node("Softmax", {w.node("MatMul", {x, router})}, {{"axis", int64_t{-1}}});
  const std::vector<std::string> best =
      w.node_n("TopK", {among, w.ints({sizes.top_k})}, 2, {{"axis", int64_t{-1}}});
  std::string weight = best[0];
  if (sizes.top_k > 1) weight = w.node("Div", {weight, summed(w, weight, -1, 1)});

  // A choice's place is the number of choices of its expert before it.
  const std::string expert = w.node("Reshape", {best[1], w.ints({0, choices})});
  const std::string chosen = w.node("OneHot", {expert, w.integer(sizes.experts), w.ints({0, 1})});
  const std::string before = w.node("CumSum", {chosen, w.integer(1)}, {{"exclusive", int64_t{1}}});
  const std::string place = summed(w, w.node("Mul", {chosen, before}), -1, 0);
  const std::string kept = w.node("Less", {place, w.integer(sizes.slots)});
  const std::string first = w.node("Mul", {expert, w.integer(sizes.slots)});
  return {w.node("Where", {kept, w.node("Add", {first, place}), w.integer(all)}),
          w.node("Mul", {w.node("Reshape", {weight, w.ints({0, choices})}),
                         w.node("Cast", {kept}, {{"to", int64_t{kFloat}}})})};
}

std::string send_to_experts(OnnxWriter& w, const std::string& x, const ExpertRoutes& routes,
                            const ExpertSizes& sizes) {
  const int64_t all = sizes.experts * sizes.slots;
  std::vector<int64_t> tokens;
  for (int64_t token = 0; token < sizes.context; ++token)
    tokens.insert(tokens.end(), static_cast<size_t>(sizes.top_k), token);
  // The last column takes the choices without a place.
  const std::string shape = w.node("Shape", {routes.slot});
  const std::string batch =
      w.node("Shape", {routes.slot}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
  const std::string empty =
      w.node("Expand",
             {w.integer(0), w.node("Concat", {batch, w.ints({all + 1})}, {{"axis", int64_t{0}}})});
  const std::string table =
      w.node("ScatterElements", {empty, routes.slot, w.node("Expand", {w.ints(tokens), shape})},
             {{"axis", int64_t{1}}});
  const std::string from = w.node("Slice", {table, w.ints({0}), w.ints({all}), w.ints({1})});
  return rows_of_samples(w, x, w.node("Reshape", {from, w.ints({0, sizes.experts, sizes.slots})}));
}

std::string bring_from_experts(OnnxWriter& w, const std::string& y, const ExpertRoutes& routes,
                               const ExpertSizes& sizes) {
  const int64_t all = sizes.experts * sizes.slots;
  const std::string made = w.node("Reshape", {y, w.ints({0, all, sizes.hidden})});
  const std::string back =
      rows_of_samples(w, made, w.node("Min", {routes.slot, w.integer(all - 1)}));
  const std::string weighted =
      w.node("Mul", {back, w.node("Unsqueeze", {routes.weight, w.ints({-1})})});
  return summed(
      w, w.node("Reshape", {weighted, w.ints({0, sizes.context, sizes.top_k, sizes.hidden})}), 2,
      0);
}

}  // namespace shardrun
