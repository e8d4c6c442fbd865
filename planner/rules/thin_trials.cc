// Thin trials: for dependence, which is looked at row by row.
#include <algorithm>

#include "planner/rules/dependence.h"

namespace shardrun {
namespace {

/// Do all operands lie whole or in plain shards, and results in shards or as partial values?
bool cuts_plainly(const SpmdRule::Option& option) {
  const auto is_shard = [](const Placement& p) { return p.is_shard(); };
  return std::all_of(option.in.begin(), option.in.end(),
                     [](const Placement& p) {
                       return p.kind == Placement::Kind::replicate || p.is_shard();
                     }) &&
         std::any_of(option.in.begin(), option.in.end(), is_shard) &&
         std::all_of(option.out.begin(), option.out.end(), [](const Placement& p) {
           return p.kind == Placement::Kind::partial || p.is_shard();
         });
}

/// See Trials::thinned.
SmallNode thin_node(const OpDef& def, const SmallNode& small,
                    const std::vector<SpmdRule::Option>& options,
                    const std::vector<NodeDim>& keep) {
  constexpr int64_t kRows = 2;
  std::vector<Box> in, out;
  for (const TensorType& t : small.in) in.push_back(full_box(t.shape));
  for (const TensorType& t : small.out) out.push_back(full_box(t.shape));
  for (const SpmdRule::Option& option : options) {
    if (!cuts_plainly(option)) continue;
    std::vector<Range*> ranges;
    bool is_free = true;
    for (const bool result : {false, true}) {
      const std::vector<Placement>& placements = result ? option.out : option.in;
      for (size_t i = 0; i < placements.size(); ++i) {
        if (!placements[i].is_shard()) continue;
        const NodeDim dim{result, static_cast<int>(i), placements[i].dim};
        is_free = is_free && std::find(keep.begin(), keep.end(), dim) == keep.end();
        ranges.push_back(&(result ? out : in)[i][static_cast<size_t>(dim.dim)]);
      }
    }
    is_free = is_free && std::all_of(ranges.begin(), ranges.end(), [&](const Range* range) {
                return range->size > kRows && range->size == ranges[0]->size;
              });
    for (Range* range : ranges) range->size = is_free ? kRows : range->size;
  }
  SmallNode thin = small;
  try {
    if (def.localise != nullptr) thin.node.attrs = def.localise(small.node, small.in, {in, out});
    for (size_t i = 0; i < in.size(); ++i) thin.in[i].shape = box_shape(in[i]);
    thin.out = def.infer(thin.node, thin.in);
  } catch (const std::exception&) {
    return small;
  }
  for (size_t r = 0; r < out.size(); ++r) {
    if (thin.out[r].shape != box_shape(out[r])) return small;
  }
  return thin;
}

}  // namespace

Trials Trials::thinned(const std::vector<SpmdRule::Option>& options,
                       const std::vector<NodeDim>& keep) const {
  Trials out = *this;
  out.trials_.clear();
  out.summands_.clear();
  out.evidence_.data.resize(std::min(evidence_.data.size(), Dependence::kKinds));
  for (const Trial& trial : trials_) {
    if (!out.add_trial(thin_node(def_, trial.small, options, keep))) return *this;
  }
  return out;
}

}  // namespace shardrun
