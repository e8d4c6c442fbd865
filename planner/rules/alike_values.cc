// The shorter node, and its options made longer.
#include "planner/rules/alike_values.h"

#include <algorithm>
#include <numeric>

#include "base/at.h"
#include "planner/rules/trial.h"

namespace shardrun {
namespace {

/// Of so few operands discovery tries every subset as partial maxima, and a concatenation has an
/// option of each. From one more on it has the options of any length.
constexpr size_t kKept = 4;

/// Each placement of those alike must be the same.
std::optional<std::vector<Placement>> lengthened(const std::vector<Placement>& few,
                                                 const ShorterNode& shorter) {
  const auto begin = few.begin() + static_cast<std::ptrdiff_t>(shorter.first);
  const auto end = begin + static_cast<std::ptrdiff_t>(shorter.kept);
  if (std::any_of(begin, end, [&](const Placement& p) { return p != *begin; })) return std::nullopt;
  std::vector<Placement> out(few.begin(), begin);
  out.insert(out.end(), shorter.all, *begin);
  out.insert(out.end(), end, few.end());
  return out;
}

/// The operands alike must follow each other in order.
std::optional<std::vector<int>> lengthened_blocks(const std::vector<int>& blocks,
                                                  const ShorterNode& shorter) {
  const size_t end = shorter.first + shorter.kept;
  std::vector<int> out;
  size_t next = shorter.first;  // of those alike
  for (int block : blocks) {
    const size_t operand = at(block);
    const bool alike = shorter.first <= operand && operand < end;
    if (alike ? operand != next : shorter.first < next && next < end) return std::nullopt;
    if (alike) ++next;
    if (alike && operand != shorter.first) continue;
    const size_t moved = operand < end ? operand : operand + shorter.all - shorter.kept;
    for (size_t k = 0; k < (alike ? shorter.all : 1); ++k)
      out.push_back(static_cast<int>(moved + k));
  }
  return next == end || next == shorter.first ? std::optional(out) : std::nullopt;
}

std::optional<SpmdRule::Option> lengthened(const SpmdRule::Option& option,
                                           const ShorterNode& shorter) {
  SpmdRule::Option out = option;
  std::vector<Placement>& placements = shorter.results ? out.out : out.in;
  std::optional<std::vector<Placement>> all = lengthened(placements, shorter);
  if (!all) return std::nullopt;
  placements = std::move(*all);
  if (shorter.results) return out;
  for (Placement& p : out.out) {
    std::optional<std::vector<int>> blocks = lengthened_blocks(p.blocks, shorter);
    if (!blocks) return std::nullopt;
    p.blocks = std::move(*blocks);
  }
  return out;
}

/// What discovery would have tried to find the option.
Trials::Candidate candidate_of(const SpmdRule::Option& option, const OpDef& def) {
  const auto is_plain = [](const Placement& p) {
    return p.kind != Placement::Kind::shard || p.is_shard();
  };
  if (def.localise == nullptr && std::all_of(option.in.begin(), option.in.end(), is_plain) &&
      std::all_of(option.out.begin(), option.out.end(), is_plain))
    return {option.in, {}};
  Trials::Candidate candidate{option.in, option.out};
  for (Placement& p : candidate.out) p = p.kind == Placement::Kind::shard ? p : Placement{};
  return candidate;
}

/// The longest row of values of one type.
struct Row {
  size_t first = 0, count = 0;
};
Row longest_row(std::span<const TensorType> types) {
  Row out;
  for (size_t begin = 0, end = 0; begin < types.size(); begin = end) {
    while (end < types.size() && types[end] == types[begin]) ++end;
    if (end - begin > out.count) out = {begin, end - begin};
  }
  return out;
}

/// Without what is left out of those alike.
template <class T>
std::vector<T> shortened(std::span<const T> all, const ShorterNode& shorter) {
  std::vector<T> out;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i < shorter.first + shorter.kept || i >= shorter.first + shorter.all) out.push_back(all[i]);
  }
  return out;
}

/// Of the node's results; none where its shape rule refuses.
std::vector<TensorType> types_or_none(const Node& node, std::span<const TensorType> in) {
  try {
    return infer_types(node, in);
  } catch (const std::exception&) {
    return {};
  }
}

/// Leaves out results of `out`: see shorter_node. False: it cannot be done.
bool shorten_results(ShorterNode& shorter, std::span<const TensorType> in,
                     std::span<const TensorType> out) {
  if (in.size() != 1) return false;
  const std::vector<TensorType> fewer = shortened(out, shorter);
  for (const auto& [name, attr] : shorter.node.attrs.all()) {
    const auto* numbers = std::get_if<std::vector<int64_t>>(&attr);
    if (numbers == nullptr || numbers->size() != out.size()) continue;
    const std::vector<int64_t> left = shortened(std::span(*numbers), shorter);
    Node node = shorter.node;
    node.attrs.set(name, left);
    TensorType operand = in[0];
    for (size_t d = 0; d < operand.shape.size(); ++d) {
      operand.shape[d] = std::accumulate(left.begin(), left.end(), int64_t{0});
      if (types_or_none(node, std::span(&operand, 1)) == fewer) {
        shorter.node = std::move(node);
        shorter.in = {std::move(operand)};
        return true;
      }
      operand.shape[d] = in[0].shape[d];
    }
  }
  return false;
}

}  // namespace

std::optional<ShorterNode> shorter_node(const Node& node, std::span<const TensorType> in) {
  if (op_def(node.op).foreign) return std::nullopt;
  ShorterNode out{node, {}, false, 0, kKept, 0};
  out.node.inputs.clear();
  out.node.outputs.clear();
  const std::vector<TensorType> types = types_or_none(node, in);
  if (const Row operands = longest_row(in); operands.count > kKept) {
    out.first = operands.first;
    out.all = operands.count;
    out.in = shortened(in, out);
    const size_t results = types_or_none(out.node, out.in).size();
    return results > 0 && results == types.size() ? std::optional(out) : std::nullopt;
  }
  const Row results = longest_row(types);
  if (results.count <= kKept) return std::nullopt;
  out.results = true;
  out.first = results.first;
  out.all = results.count;
  return shorten_results(out, in, types) ? std::optional(out) : std::nullopt;
}

std::optional<SpmdRule> lengthened_rule(const SpmdRule& rule, const ShorterNode& shorter,
                                        const Node& node, std::span<const TensorType> in) {
  Evidence fewer;
  fewer.data = {Evidence::Data::mixed, Evidence::Data::negative};
  fewer.size_sets = {0};
  Trials trials(node, in, fewer);
  SpmdRule out;
  out.by_sizes = rule.by_sizes;
  if (trials.empty()) return std::nullopt;
  for (const SpmdRule::Option& option : rule.options) {
    std::optional<SpmdRule::Option> longer = lengthened(option, shorter);
    if (!longer) return std::nullopt;
    const Trials::Candidate candidate = candidate_of(*longer, trials.def());
    if (rule.by_sizes && !trials.fits_node(candidate)) return std::nullopt;
    if (trials.combine(candidate) != longer->out) return std::nullopt;
    out.options.push_back(std::move(*longer));
  }
  out.kernel_runs = trials.kernel_runs();
  return out;
}

}  // namespace shardrun
