// ShardCombine's search: which candidates to try (MetaDist, Algorithm 1). trial.cc tries them.
//
// Algorithm 1 gives each operand dim to one option. Here a dim may serve several: of all candidates
// that combine, the minimal ones are kept (no option's cuts contain another's).
#include "planner/rules/discovery.h"

#include <algorithm>

#include "planner/rules/trial.h"
#include "planner/rules/window_candidates.h"

namespace shardrun {
namespace {

using Candidate = Trials::Candidate;
using Kind = Placement::Kind;

// Of cut dims of one size; beyond, one operand or two are cut, or all; of more pairs, one or all.
constexpr size_t kMostCombinations = 2048, kMostPairs = 500;
constexpr double kMostResultCuts = 512;
constexpr int kMostDims = 16;  // looked at where one dim is cut throughout
// Operands of which every subset is tried as partial sums; of more, each alone and all together.
constexpr size_t kMostSummed = 8;
// As partial maxima or minima; of more, all together: else a concat of many had an option of each.
constexpr size_t kMostExtremes = 3;

int cut_count(const std::vector<Placement>& in) {
  return static_cast<int>(std::count_if(
      in.begin(), in.end(), [](const Placement& p) { return p.kind != Kind::replicate; }));
}

/// Does `in` do all that `less` does, and perhaps more?
bool contains(const std::vector<Placement>& in, const std::vector<Placement>& less) {
  for (size_t i = 0; i < in.size(); ++i) {
    if (less[i].kind != Kind::replicate && less[i] != in[i]) return false;
  }
  return true;
}

class RuleDiscovery {
 public:
  RuleDiscovery(const Node& node, std::span<const TensorType> in, const Evidence& evidence)
      : trials_(node, in, evidence) {
    results_steer_ = !trials_.empty() && trials_.results_steer_localise();
  }

  SpmdRule run() {
    if (!trials_.empty()) {
      cut_operands();
      if (results_steer_) cut_results_only();
      try_windows(trials_, rule_.options, [&](const Candidate& candidate) {
        rule_.by_sizes = true;
        return trials_.fits_node(candidate) && try_candidate(candidate);
      });
      split_operands();
    }
    rule_.kernel_runs = trials_.kernel_runs();
    return std::move(rule_);
  }

 private:
  size_t operand_count() const { return trials_.first().in.size(); }

  void add(std::vector<Placement> in, std::vector<Placement> out) {
    SpmdRule::Option option{std::move(in), std::move(out)};
    if (std::find(rule_.options.begin(), rule_.options.end(), option) == rule_.options.end()) {
      rule_.options.push_back(std::move(option));
    }
  }

  // ---- operands are cut, all along dims of one size

  void cut_operands() {
    std::vector<int64_t> sizes;
    for (const TensorType& t : trials_.first().in) {
      for (int64_t d : t.shape) {
        if (d > 1 && trials_.can_cut(d) && std::find(sizes.begin(), sizes.end(), d) == sizes.end())
          sizes.push_back(d);
      }
    }
    for (int64_t size : sizes) {
      std::vector<std::vector<Placement>> found;
      for (const std::vector<Placement>& in : combinations(size)) {
        const bool more = std::any_of(found.begin(), found.end(),
                                      [&](const auto& less) { return contains(in, less); });
        if (!more && (try_cut(in) || try_cut_and_split(in))) found.push_back(in);
      }
    }
  }

  /// Every choice of at most one dim of this size per operand, fewest operands first.
  std::vector<std::vector<Placement>> combinations(int64_t size) const {
    std::vector<std::vector<int>> dims;
    double total = 1;
    size_t choices = 0;
    for (const TensorType& t : trials_.first().in) {
      dims.emplace_back();
      for (size_t d = 0; d < t.shape.size(); ++d) {
        if (t.shape[d] == size) dims.back().push_back(static_cast<int>(d));
      }
      total *= static_cast<double>(dims.back().size() + 1);
      choices += dims.back().size();
    }
    std::vector<std::vector<Placement>> out;
    const std::vector<Placement> none(dims.size());
    std::vector<Placement> now = none;
    if (total <= static_cast<double>(kMostCombinations)) {
      choose(dims, 0, dims.size(), now, out);
    } else {
      choose(dims, 0, choices * choices / 2 <= kMostPairs ? 2 : 1, now, out);
      // One dim throughout: what concat and sums of many operands take.
      for (int d = 0; d < kMostDims; ++d) {
        std::vector<Placement> all = none;
        for (size_t i = 0; i < dims.size(); ++i) {
          if (std::find(dims[i].begin(), dims[i].end(), d) != dims[i].end())
            all[i] = Placement::shard(d);
        }
        if (cut_count(all) > 2) out.push_back(all);
      }
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const auto& a, const auto& b) { return cut_count(a) < cut_count(b); });
    return out;
  }

  static void choose(const std::vector<std::vector<int>>& dims, size_t operand, size_t most,
                     std::vector<Placement>& now, std::vector<std::vector<Placement>>& out) {
    if (operand == dims.size()) {
      if (cut_count(now) > 0) out.push_back(now);
      return;
    }
    if (static_cast<size_t>(cut_count(now)) < most) {
      for (int d : dims[operand]) {
        now[operand] = Placement::shard(d);
        choose(dims, operand + 1, most, now, out);
        now[operand] = {};
      }
    }
    choose(dims, operand + 1, most, now, out);
  }

  /// What a result starts from, such as a scatter's data, may be a sum where the rest is cut:
  /// otherwise each rank would add it once more.
  bool try_cut_and_split(const std::vector<Placement>& in) {
    const SmallNode& small = trials_.first();
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i].kind != Kind::replicate || !is_float(small.in[i].dtype) ||
          std::find(small.out.begin(), small.out.end(), small.in[i]) == small.out.end())
        continue;
      std::vector<Placement> with = in;
      with[i] = Placement::partial(ReduceOp::sum);
      if (try_cut(with)) return true;
    }
    return false;
  }

  bool try_cut(const std::vector<Placement>& in) {
    if (trials_.def().localise == nullptr) {
      const Candidate candidate{in, {}};
      return trials_.implied_cuts(candidate).has_value() && try_candidate(candidate);
    }
    for (const std::vector<int>& out_cut : result_cuts(in)) {
      if (try_candidate({in, in_shards(out_cut)})) return true;
    }
    return false;
  }

  static std::vector<Placement> in_shards(const std::vector<int>& cuts) {
    std::vector<Placement> out;
    for (int d : cuts) out.push_back(d < 0 ? Placement{} : Placement::shard(d));
    return out;
  }

  bool try_candidate(const Candidate& candidate) {
    auto out = trials_.combine(candidate);
    if (!out.has_value()) return false;
    add(candidate.in, std::move(*out));
    return true;
  }

  /// For an op with localise: the result cuts for which local attributes and shapes agree. Where
  /// the attributes do not depend on the result boxes, asking once tells; else all cuts are tried.
  std::vector<std::vector<int>> result_cuts(const std::vector<Placement>& in) const {
    const std::vector<TensorType>& out = trials_.first().out;
    std::vector<std::vector<int>> found;
    std::vector<int> guess(out.size(), -1);
    for (int round = 0; round < 2; ++round) {
      const auto implied = trials_.implied_cuts({in, in_shards(guess)});
      if (!implied.has_value()) break;
      if (*implied == guess) {
        found.push_back(guess);
        break;
      }
      guess = *implied;
    }
    if (!results_steer_) return found;
    int64_t size = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i].kind == Kind::shard)
        size = trials_.first().in[i].shape[static_cast<size_t>(in[i].dim)];
    }
    for (const std::vector<int>& cuts : all_result_cuts(size)) {
      if (!found.empty() && found[0] == cuts) continue;
      const auto implied = trials_.implied_cuts({in, in_shards(cuts)});
      if (implied.has_value() && *implied == cuts) found.push_back(cuts);
    }
    return found;
  }

  /// Every choice of at most one dim per result, of `size` unless that is 0; -1 for none. Of too
  /// many, one dim throughout.
  std::vector<std::vector<int>> all_result_cuts(int64_t size) const {
    std::vector<std::vector<int>> dims;
    double total = 1;
    for (const TensorType& t : trials_.first().out) {
      dims.push_back({-1});
      for (size_t d = 0; d < t.shape.size(); ++d) {
        const int64_t n = t.shape[d];
        if (n > 1 && trials_.can_cut(n) && (size == 0 || n == size))
          dims.back().push_back(static_cast<int>(d));
      }
      total *= static_cast<double>(dims.back().size());
    }
    std::vector<std::vector<int>> out(1);
    if (total > kMostResultCuts) {
      out[0].assign(dims.size(), -1);
      for (int d = 0; d < kMostDims; ++d) {
        std::vector<int> all(dims.size(), -1);
        for (size_t r = 0; r < dims.size(); ++r) {
          if (std::find(dims[r].begin(), dims[r].end(), d) != dims[r].end()) all[r] = d;
        }
        if (all != out[0]) out.push_back(std::move(all));
      }
      return out;
    }
    for (const std::vector<int>& choices : dims) {
      std::vector<std::vector<int>> longer;
      for (const std::vector<int>& cuts : out) {
        for (int d : choices) {
          longer.push_back(cuts);
          longer.back().push_back(d);
        }
      }
      out = std::move(longer);
    }
    return out;
  }

  // ---- no operand is cut, and yet each rank can make its shard: iota, fill, expand, gather_grad

  void cut_results_only() {
    const std::vector<Placement> in(operand_count());
    for (const std::vector<int>& cuts : all_result_cuts(0)) {
      if (std::all_of(cuts.begin(), cuts.end(), [](int d) { return d < 0; }) ||
          same_results_from_cut(cuts))
        continue;
      const auto implied = trials_.implied_cuts({in, in_shards(cuts)});
      if (implied.has_value() && *implied == cuts) try_candidate({in, in_shards(cuts)});
    }
  }

  /// Is there an option that leaves the results so from cut operands? Cutting a replicated operand
  /// costs no communication, so that one serves.
  bool same_results_from_cut(const std::vector<int>& cuts) const {
    const std::vector<Placement> out = in_shards(cuts);
    return std::any_of(rule_.options.begin(), rule_.options.end(),
                       [&](const auto& o) { return o.out == out; });
  }

  // ---- operands are partial: what passes through linear (sum) and monotone (max, min) ops

  void split_operands() {
    std::vector<size_t> eligible;
    const SmallNode& small = trials_.first();
    for (size_t i = 0; i < small.in.size(); ++i) {
      const bool index = trials_.def().index_bound != nullptr &&
                         trials_.def().index_bound(small.node, small.in, i).has_value();
      if (small.in[i].dtype != DType::boolean && !index && element_count(small.in[i].shape) > 0)
        eligible.push_back(i);
    }
    // Products are reduced where they are made.
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
      std::vector<std::vector<Placement>> found;
      for (const std::vector<size_t>& subset : subsets(eligible, op)) {
        Candidate candidate{std::vector<Placement>(operand_count()), {}};
        for (size_t i : subset) candidate.in[i] = Placement::partial(op);
        // f linear in a and in (a, b) does not depend on b. Not so for max(a, b).
        if (op == ReduceOp::sum && std::any_of(found.begin(), found.end(), [&](const auto& less) {
              return contains(candidate.in, less);
            })) {
          continue;
        }
        auto out = trials_.combine(candidate);
        if (!out.has_value()) continue;
        // A result that no operand's value changes (isnan of numbers) says nothing of partial
        // values. A sum over the ranks that hold the greatest (x == max) counts those twice that
        // hold nothing of two operands over two axes: what is monotone gives maxima or minima.
        const bool sums = std::any_of(out->begin(), out->end(), [](const Placement& p) {
          return p.kind == Kind::partial && p.op == ReduceOp::sum;
        });
        // exp(a + b) is exp(a) exp(b), but those may overflow where the whole does not.
        const bool products = std::any_of(out->begin(), out->end(), [](const Placement& p) {
          return p.kind == Kind::partial && p.op == ReduceOp::prod;
        });
        if ((op != ReduceOp::sum && sums) || products ||
            std::all_of(out->begin(), out->end(),
                        [](const Placement& p) { return p.kind == Kind::replicate; }))
          continue;
        found.push_back(candidate.in);
        add(candidate.in, std::move(*out));
      }
    }
  }

  static std::vector<std::vector<size_t>> subsets(const std::vector<size_t>& of, ReduceOp op) {
    std::vector<std::vector<size_t>> out;
    if (of.size() <= (op == ReduceOp::sum ? kMostSummed : kMostExtremes)) {
      for (size_t bits = 1; bits < size_t{1} << of.size(); ++bits) {
        out.emplace_back();
        for (size_t i = 0; i < of.size(); ++i) {
          if ((bits >> i & 1u) != 0) out.back().push_back(of[i]);
        }
      }
      std::stable_sort(out.begin(), out.end(),
                       [](const auto& a, const auto& b) { return a.size() < b.size(); });
      return out;
    }
    if (op == ReduceOp::sum) {
      for (size_t i : of) out.push_back({i});
    }
    out.push_back(of);
    return out;
  }

  Trials trials_;
  bool results_steer_ = false;
  SpmdRule rule_;
};

}  // namespace

SpmdRule discover(const Node& node, std::span<const TensorType> in, const Evidence& evidence) {
  if (op_def(node.op).reshapes) return reshape_rule(in[0].shape, infer_types(node, in)[0].shape);
  return RuleDiscovery(node, in, evidence).run();
}

}  // namespace shardrun
