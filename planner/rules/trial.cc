// Trials: runs the shards of a candidate and looks how their results combine.
#include "planner/rules/trial.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "planner/rules/placing.h"

namespace shardrun {
namespace {

/// The local results of one result of the op in one trial, and what they should amount to.
struct Locals {
  const Tensor& whole;
  std::vector<Tensor> parts;
  int cut;        // dim along which the parts are shorter than the whole; -1: none is
  int64_t count;  // shards
  double tolerance;
  const Placement* meant;                  // windows or blocks; null for all else
  std::vector<Box> boxes;                  // windows: of the parts
  std::vector<std::vector<Range>> blocks;  // of the parts
};

bool identical(const Locals& l) {
  return l.meant == nullptr && l.cut < 0 &&
         std::all_of(l.parts.begin(), l.parts.end(),
                     [&](const Tensor& p) { return same_values(p, l.whole, l.tolerance); });
}

bool gathers(const Locals& l) {
  if (l.meant != nullptr || l.cut < 0) return false;
  Tensor joined(l.whole.type());
  for (int64_t s = 0; s < l.count; ++s) {
    Box box = full_box(l.whole.shape());
    const auto d = static_cast<size_t>(l.cut);
    box[d] = shard_range(l.whole.shape()[d], l.count, s);
    copy_box(l.parts[static_cast<size_t>(s)].data(), box, joined.data(), full_box(l.whole.shape()),
             box, size_of(l.whole.dtype()));
  }
  return same_values(joined, l.whole, l.tolerance);
}

/// Blocks of the parts, each joined with the other parts' like it (MetaDist, appendix A.3.2).
bool gathers_blocks(const Locals& l) {
  if (l.meant == nullptr || l.meant->blocks.empty()) return false;
  Tensor joined(l.whole.type());
  const auto d = static_cast<size_t>(l.meant->dim);
  for (size_t s = 0; s < l.parts.size(); ++s) {
    int64_t row = 0;
    for (const Range& block : l.blocks[s]) {
      Box local = full_box(l.parts[s].shape()), region = full_box(l.whole.shape());
      local[d].begin = block.begin - row;
      region[d] = block;
      copy_box(l.parts[s].data(), local, joined.data(), full_box(l.whole.shape()), region,
               size_of(l.whole.dtype()));
      row += block.size;
    }
  }
  return same_values(joined, l.whole, l.tolerance);
}

/// Windows that overlap: the sum of what the parts made of each element (MetaDist, appendix A.3.1,
/// a positive halo of the result).
bool adds_windows(const Locals& l) {
  if (l.meant == nullptr || !l.meant->window || l.whole.dtype() == DType::boolean) return false;
  Tensor sum({DType::f64, l.whole.shape()}), magnitude({DType::f64, l.whole.shape()});
  const Box all = full_box(l.whole.shape());
  for (size_t s = 0; s < l.parts.size(); ++s) {
    Tensor placed({DType::f64, l.whole.shape()});
    const Tensor part = convert(l.parts[s], DType::f64);
    copy_box(part.data(), l.boxes[s], placed.data(), all, l.boxes[s], size_of(DType::f64));
    for (int64_t i = 0, count = sum.count(); i < count; ++i) {
      sum.as<double>()[i] += placed.as<double>()[i];
      magnitude.as<double>()[i] += std::abs(placed.as<double>()[i]);
    }
  }
  return same_values(convert(sum, l.whole.dtype()), l.whole, l.tolerance, &magnitude);
}

template <ReduceOp kOp>
bool reduces(const Locals& l) {
  if (l.meant != nullptr || l.cut >= 0 || l.whole.dtype() == DType::boolean) return false;
  if (kOp != ReduceOp::sum || !is_float(l.whole.dtype())) {
    return same_values(reduce_tensors(l.parts, kOp), l.whole, l.tolerance);
  }
  Tensor magnitude({DType::f64, l.whole.shape()});  // of the terms: what rounding is relative to
  const int64_t count = magnitude.count();
  for (const Tensor& part : l.parts) {
    const Tensor terms = part.dtype() == DType::f64 ? part : convert(part, DType::f64);
    for (int64_t i = 0; i < count; ++i)
      magnitude.as<double>()[i] += std::abs(terms.as<double>()[i]);
  }
  return same_values(reduce_tensors(l.parts, kOp), l.whole, l.tolerance, &magnitude);
}

/// The ways in which local results can combine, the one to prefer first.
struct Combine {
  bool (*holds)(const Locals&);
  Placement (*placement)(int cut, const Placement& meant);
};
constexpr Combine kCombines[] = {
    {identical, [](int, const Placement&) { return Placement{}; }},
    {gathers, [](int cut, const Placement&) { return Placement::shard(cut); }},
    {adds_windows, [](int, const Placement& meant) { return meant; }},
    {gathers_blocks, [](int, const Placement& meant) { return meant; }},
    {reduces<ReduceOp::sum>,
     [](int, const Placement&) { return Placement::partial(ReduceOp::sum); }},
    {reduces<ReduceOp::max>,
     [](int, const Placement&) { return Placement::partial(ReduceOp::max); }},
    {reduces<ReduceOp::min>,
     [](int, const Placement&) { return Placement::partial(ReduceOp::min); }},
    {reduces<ReduceOp::prod>,
     [](int, const Placement&) { return Placement::partial(ReduceOp::prod); }},
};
// Small results are looked at more often: of scalars, round(a) + round(b) = round(a + b) holds
// every now and then.
constexpr int64_t kLeastElements = 12;  // per kind of data, over its repetitions
constexpr size_t kFewKinds = 2;         // of data, where all would cost much and show little more
constexpr unsigned kAllWays = (1u << std::size(kCombines)) - 1;

/// The one mesh axis of a trial.
Mesh mesh_of_parts(int64_t parts) { return Mesh({{"parts", parts}}); }

/// Sizes of the dims in shards: of operands, or else of the first result that is cut.
template <class F>
void for_sharded_dims(const SmallNode& small, const Trials::Candidate& candidate, F f) {
  bool any = false;
  for (size_t i = 0; i < candidate.in.size(); ++i) {
    if (!candidate.in[i].is_shard()) continue;
    f(small.in[i].shape[static_cast<size_t>(candidate.in[i].dim)]);
    any = true;
  }
  for (size_t r = 0; r < candidate.out.size() && !any; ++r) {
    if (!candidate.out[r].is_shard()) continue;
    f(small.out[r].shape[static_cast<size_t>(candidate.out[r].dim)]);
    any = true;
  }
}

bool has_blocks(const Trials::Candidate& candidate) {
  return std::any_of(candidate.out.begin(), candidate.out.end(),
                     [](const Placement& p) { return !p.blocks.empty(); });
}

/// Does the candidate say exactly which part of each result a shard makes?
bool is_exact(const Trials::Candidate& candidate) {
  const auto windowed = [](const Placement& p) { return p.window.has_value(); };
  return has_blocks(candidate) || std::any_of(candidate.in.begin(), candidate.in.end(), windowed) ||
         std::any_of(candidate.out.begin(), candidate.out.end(), windowed);
}

bool no_empty_shard(int64_t size, int64_t parts) {
  return parts <= size && shard_range(size, parts, parts - 1).size > 0;
}

uint64_t data_seed(size_t data, size_t trial) { return 17 + 31 * data + 1009 * trial; }

}  // namespace

Trials::Trials(const Node& node, std::span<const TensorType> in, const Evidence& evidence)
    : evidence_(evidence),
      whole_{node, std::vector<TensorType>(in.begin(), in.end()), infer_types(node, in)},
      def_(op_def(node.op)) {
  if (def_.foreign) evidence_.data.push_back(Evidence::Data::spread);
  for (const KernelImpl& impl : reference_kernels()) {
    if (impl.op == node.op) kernels_.push_back(impl);
  }
  // A kernel that does not compute in f64 is tried in the node's own types, on whole numbers.
  for (bool as_f64 : {true, false}) {
    for (const SmallNode& small : small_nodes(node, in, evidence.size_sets, as_f64))
      add_trial(small);
    if (!trials_.empty()) return;
  }
}

bool Trials::add_trial(const SmallNode& small) {
  Trial trial{small, nullptr, {}, {}, {}};
  int64_t least = kLeastElements;
  for (const TensorType& t : small.out)
    least = std::min(least, std::max<int64_t>(1, element_count(t.shape)));
  // Where runs take long, other sizes than the first see two kinds of data; of a user's op all.
  const size_t kinds = !trials_.empty() && !def_.foreign && is_long_run(def_, small)
                           ? std::min(evidence_.data.size(), kFewKinds)
                           : evidence_.data.size();
  for (int64_t seen = 0; seen < kLeastElements; seen += least) {
    trial.kinds.insert(trial.kinds.end(), evidence_.data.begin(),
                       evidence_.data.begin() + static_cast<std::ptrdiff_t>(kinds));
  }
  try {
    trial.kernel = std::make_shared<PreparedKernel>(prepare(small.node, small.in, small.out));
    for (size_t d = 0; d < trial.kinds.size(); ++d) {
      trial.operands.push_back(
          random_operands(small.node, small.in, trial.kinds[d], data_seed(d, trials_.size())));
      trial.results.push_back(run(*trial.kernel, trial.operands.back(), small.out));
    }
  } catch (const std::exception&) {
    return false;  // not a node that the reference kernel runs
  }
  trials_.push_back(std::move(trial));
  return true;
}

PreparedKernel Trials::prepare(const Node& node, std::span<const TensorType> in,
                               std::span<const TensorType> out) const {
  const KernelList* lists[] = {&kernels_};
  return select_kernel(lists, {node, in, out});
}

std::vector<Tensor> Trials::run(const PreparedKernel& kernel, std::span<const Tensor> in,
                                std::span<const TensorType> out) {
  if (kernel.workspace_bytes > 0 && (!workspace_ || workspace_.count() < kernel.workspace_bytes)) {
    workspace_ = Tensor({DType::u8, {kernel.workspace_bytes}});
  }
  // Views are kept, with the memory of their shapes.
  in_views_.resize(std::max(in_views_.size(), in.size()));
  out_views_.resize(std::max(out_views_.size(), out.size()));
  const auto look_at = [](TensorView& view, const Tensor& tensor) {
    view.data = tensor.data();
    view.type = tensor.type();
  };
  for (size_t i = 0; i < in.size(); ++i) look_at(in_views_[i], in[i]);
  std::vector<Tensor> results;
  results.reserve(out.size());
  for (size_t r = 0; r < out.size(); ++r) {
    results.emplace_back(out[r]);
    look_at(out_views_[r], results[r]);
  }
  kernel.run({std::span(in_views_).first(in.size()), std::span(out_views_).first(out.size()),
              workspace_.data()});
  ++*kernel_runs_;
  return results;
}

std::vector<int64_t> Trials::shard_counts(int64_t size) const {
  std::vector<int64_t> counts;
  for (int64_t p : evidence_.shards) {
    if (no_empty_shard(size, p)) counts.push_back(p);
  }
  if (def_.localise != nullptr) {
    for (int64_t p : evidence_.shards_by_place) {
      if (no_empty_shard(size, p)) counts.push_back(p);
    }
  }
  // Sizes that the op insists on: 4 is cut in 2 and 4 instead of 2 and 3.
  if (counts.size() < evidence_.shards.size() && no_empty_shard(size, 4)) counts.push_back(4);
  return counts;
}

std::vector<int64_t> Trials::part_counts(const SmallNode& small, const Candidate& candidate) const {
  int64_t least = 0, most = 0;
  for_sharded_dims(small, candidate, [&](int64_t size) {
    least = least == 0 ? size : std::min(least, size);
    most = std::max(most, size);
  });
  // Blocks are of whatever size their operands have; a short one leaves some ranks without it.
  if (has_blocks(candidate)) return shard_counts(most);
  if (least != most) return {};
  return most == 0 ? evidence_.shards : shard_counts(most);
}

bool Trials::shapes_fit(const SmallNode& small, const Candidate& candidate, int64_t parts) const {
  if (def_.localise != nullptr) return true;  // attributes may change with the shapes
  std::vector<TensorType> in = small.in;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!candidate.in[i].is_shard()) continue;
    int64_t& size = in[i].shape[static_cast<size_t>(candidate.in[i].dim)];
    size = shard_range(size, parts, 0).size;
  }
  try {
    def_.infer(small.node, in);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::optional<std::vector<Trials::Shard>> Trials::shards(const SmallNode& small,
                                                         const Candidate& candidate,
                                                         int64_t parts) const {
  const bool exact = is_exact(candidate);
  if (!exact && !shapes_fit(small, candidate, parts)) return std::nullopt;
  const Mesh mesh = mesh_of_parts(parts);
  NodePlan plan = replicated_node(small.in, small.out);
  place(plan, candidate.in, candidate.out, 0);
  std::vector<Shape> in_shapes, out_shapes;
  for (const TensorType& t : small.in) in_shapes.push_back(t.shape);
  for (const TensorType& t : small.out) out_shapes.push_back(t.shape);
  int64_t cut_size = 0;
  if (!exact) {
    for (size_t i = 0; i < small.in.size(); ++i) {
      if (candidate.in[i].kind == Placement::Kind::shard)
        cut_size = in_shapes[i][static_cast<size_t>(candidate.in[i].dim)];
    }
  }
  std::vector<Shard> out;
  try {
    for (int64_t s = 0; s < parts; ++s) {
      Shard shard;
      shard.node = small.node;
      shard.boxes = node_boxes(plan, in_shapes, out_shapes, mesh, {s});
      for (size_t i = 0; i < small.in.size(); ++i)
        shard.in_types.push_back({small.in[i].dtype, box_shape(shard.boxes.in[i])});
      if (def_.localise != nullptr) {
        shard.node.attrs = def_.localise(small.node, small.in, {shard.boxes.in, shard.boxes.out});
      }
      shard.out_types = def_.infer(shard.node, shard.in_types);
      if (shard.out_types.size() != small.out.size()) return std::nullopt;
      for (size_t r = 0; r < small.out.size(); ++r) {
        const Shape &whole = small.out[r].shape, &local = shard.out_types[r].shape;
        if (whole.size() != local.size()) return std::nullopt;
        if (exact) {
          const Placement& meant = candidate.out[r];
          if (local != box_shape(shard.boxes.out[r])) return std::nullopt;
          shard.cut.push_back(meant.is_shard() ? meant.dim : -1);
          continue;
        }
        int cut = -1;
        for (size_t d = 0; d < whole.size(); ++d) {
          if (whole[d] == local[d]) continue;
          // One dim, of the operands' size, in the same shards: else real sizes would not line up.
          if (cut >= 0 || (cut_size > 0 && whole[d] != cut_size) ||
              local[d] != shard_range(whole[d], parts, s).size) {
            return std::nullopt;
          }
          cut = static_cast<int>(d);
        }
        if (s > 0 && cut != out[0].cut[r]) return std::nullopt;
        shard.cut.push_back(cut);
      }
      out.push_back(std::move(shard));
    }
  } catch (const std::exception&) {
    return std::nullopt;  // the shape rule refuses these shards
  }
  return out;
}

bool Trials::results_steer_localise() const {
  if (def_.localise == nullptr) return false;
  const SmallNode& small = first();
  std::vector<Box> in, out;
  for (const TensorType& t : small.in) in.push_back(full_box(t.shape));
  for (const TensorType& t : small.out) out.push_back(full_box(t.shape));
  try {
    const Attrs whole = def_.localise(small.node, small.in, {in, out});
    for (Box& box : out) {
      for (Range& range : box) {
        const Range full = range;
        range = shard_range(full.size, 2, 1);
        if (def_.localise(small.node, small.in, {in, out}) != whole) return true;
        range = full;
      }
    }
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

std::optional<std::vector<int>> Trials::implied_cuts(const Candidate& candidate) const {
  const std::vector<int64_t> counts = part_counts(first(), candidate);
  if (counts.empty()) return std::nullopt;
  const auto found = shards(first(), candidate, counts[0]);
  return found.has_value() ? std::optional(found->at(0).cut) : std::nullopt;
}

bool Trials::fits_node(const Candidate& candidate) const {
  for (const Trial& trial : trials_) {
    for (const auto& [name, attr] : whole_.node.attrs.all()) {
      const Attrs& shrunk = trial.small.node.attrs;
      if (!shrunk.has(name)) return false;
      const Attr& now = shrunk.all().at(name);
      if (now == attr || std::holds_alternative<std::string>(attr)) continue;  // f32 is f64 now
      const auto *before = std::get_if<std::vector<int64_t>>(&attr),
                 *after = std::get_if<std::vector<int64_t>>(&now);
      if (before == nullptr || after == nullptr || !are_sizes(*before, *after, trial.small))
        return false;
    }
  }
  for (int64_t parts : part_counts(whole_, candidate)) {
    if (!shards(whole_, candidate, parts)) return false;
  }
  return true;
}

/// Is every number of `before` that is another in `after` the size of a dim of the node's operands
/// or results, and the other number that of the small ones' dim?
bool Trials::are_sizes(const std::vector<int64_t>& before, const std::vector<int64_t>& after,
                       const SmallNode& small) const {
  const auto is_size = [](int64_t a, int64_t b, const std::vector<TensorType>& whole,
                          const std::vector<TensorType>& shrunk) {
    for (size_t i = 0; i < whole.size(); ++i) {
      for (size_t d = 0; d < whole[i].shape.size(); ++d) {
        if (whole[i].shape[d] == a && shrunk[i].shape[d] == b) return true;
      }
    }
    return false;
  };
  if (before.size() != after.size()) return false;
  for (size_t k = 0; k < before.size(); ++k) {
    if (before[k] != after[k] && !is_size(before[k], after[k], whole_.in, small.in) &&
        !is_size(before[k], after[k], whole_.out, small.out)) {
      return false;
    }
  }
  return true;
}

std::vector<Tensor> Trials::other_operands(size_t trial, size_t data) const {
  const SmallNode& small = trials_[trial].small;
  return random_operands(small.node, small.in, trials_[trial].kinds[data],
                         data_seed(data, trial) + 500);
}

std::vector<Tensor> Trials::run_whole(size_t trial, std::span<const Tensor> operands) {
  return run(*trials_[trial].kernel, operands, trials_[trial].small.out);
}

bool Trials::indices_in_bounds(const Shard& shard, std::span<const Tensor> operands) const {
  if (def_.index_bound == nullptr || def_.localise != nullptr)
    return true;  // localised ops skip what is elsewhere
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto bound = def_.index_bound(shard.node, shard.in_types, i);
    if (!bound.has_value()) continue;
    for (int64_t k = 0; k < operands[i].count(); ++k) {
      if (operands[i].int_at(k) >= *bound) return false;
    }
  }
  return true;
}

bool Trials::refute(const Trial& trial, size_t data, const Candidate& candidate,
                    const std::vector<Shard>& shards, const std::vector<std::vector<Tensor>>& local,
                    std::vector<unsigned>& ways) const {
  for (size_t r = 0; r < ways.size(); ++r) {
    Locals l{trial.results[data][r],
             {},
             shards[0].cut[r],
             static_cast<int64_t>(shards.size()),
             evidence_.tolerance,
             nullptr,
             {},
             {}};
    if (!candidate.out.empty() && candidate.out[r].kind == Placement::Kind::shard &&
        !candidate.out[r].is_shard()) {
      l.meant = &candidate.out[r];
      for (const Shard& shard : shards) {
        l.boxes.push_back(shard.boxes.out[r]);
        l.blocks.push_back(shard.boxes.blocks[r]);
      }
    }
    for (const auto& results : local) l.parts.push_back(results[r]);
    for (size_t w = 0; w < std::size(kCombines); ++w) {
      if ((ways[r] >> w & 1u) != 0 && !kCombines[w].holds(l)) ways[r] &= ~(1u << w);
    }
    if (ways[r] == 0) return true;
  }
  return false;
}

const std::vector<Tensor>& Trials::summands(size_t trial, size_t data, size_t operand, ReduceOp op,
                                            int64_t parts) {
  std::vector<Tensor>& found = summands_[{trial, data, operand, op, parts}];
  if (found.empty()) {
    found = split_value(trials_[trial].operands[data][operand], op, parts,
                        trials_[trial].kinds[data], data_seed(data, trial) + 7 * operand);
  }
  return found;
}

size_t Trials::kinds_for(const Trial& trial, const std::vector<int64_t>& counts,
                         int64_t parts) const {
  const auto place = std::find(counts.begin(), counts.end(), parts) - counts.begin();
  const bool all = static_cast<size_t>(place) < evidence_.shards.size();
  return all ? trial.kinds.size() : std::min(trial.kinds.size(), kFewKinds);
}

std::optional<std::vector<Placement>> Trials::combine(const Candidate& candidate) {
  std::vector<unsigned> ways(first().out.size(), kAllWays);
  std::vector<int> cut;
  for (size_t t = 0; t < trials_.size(); ++t) {
    const Trial& trial = trials_[t];
    const std::vector<int64_t> counts = part_counts(trial.small, candidate);
    if (counts.empty()) return std::nullopt;
    for (int64_t parts : counts) {
      auto split = shards(trial.small, candidate, parts);
      if (!split.has_value()) return std::nullopt;
      for (size_t r = 0; r < candidate.out.size(); ++r) {
        const int wanted = candidate.out[r].is_shard() ? candidate.out[r].dim : -1;
        if (split->at(0).cut[r] != wanted) return std::nullopt;
      }
      if (cut.empty()) cut = split->at(0).cut;
      if (cut != split->at(0).cut) return std::nullopt;
      try {
        for (size_t s = 0; s < split->size(); ++s) {
          Shard& shard = (*split)[s];
          for (size_t o = 0; o < s && shard.kernel == nullptr; ++o) {
            const Shard& other = (*split)[o];
            if (other.in_types == shard.in_types && other.node.attrs == shard.node.attrs)
              shard.kernel = other.kernel;
          }
          if (shard.kernel == nullptr) {
            shard.kernel = std::make_shared<PreparedKernel>(
                prepare(shard.node, shard.in_types, shard.out_types));
          }
        }
        const size_t kinds = kinds_for(trial, counts, parts);
        std::vector<std::vector<Tensor>> operands(split->size(),
                                                  std::vector<Tensor>(candidate.in.size()));
        for (size_t d = 0; d < kinds; ++d) {
          for (size_t i = 0; i < candidate.in.size(); ++i) {
            const Tensor& whole = trial.operands[d][i];
            for (size_t s = 0; s < split->size(); ++s) {
              Tensor& operand = operands[s][i];
              switch (candidate.in[i].kind) {
                case Placement::Kind::replicate: operand = whole; break;
                case Placement::Kind::shard:
                  operand = cut_tensor(whole, (*split)[s].boxes.in[i]);
                  break;
                case Placement::Kind::partial:
                  operand = summands(t, d, i, candidate.in[i].op, parts)[s];
                  break;
              }
            }
          }
          std::vector<std::vector<Tensor>> local;
          for (size_t s = 0; s < split->size(); ++s) {
            const Shard& shard = (*split)[s];
            if (!indices_in_bounds(shard, operands[s])) return std::nullopt;
            local.push_back(run(*shard.kernel, operands[s], shard.out_types));
          }
          if (refute(trial, d, candidate, *split, local, ways)) return std::nullopt;
        }
      } catch (const std::exception&) {
        return std::nullopt;  // the kernel refuses such a shard
      }
    }
  }
  std::vector<Placement> placements;
  for (size_t r = 0; r < ways.size(); ++r) {
    size_t w = 0;
    while ((ways[r] >> w & 1u) == 0) ++w;
    placements.push_back(
        kCombines[w].placement(cut[r], candidate.out.empty() ? Placement{} : candidate.out[r]));
  }
  return placements;
}

}  // namespace shardrun
