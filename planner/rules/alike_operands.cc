// The shorter node, and its options made longer.
#include "planner/rules/alike_operands.h"

#include <algorithm>

#include "base/at.h"
#include "planner/rules/trial.h"

namespace shardrun {
namespace {

/// Of so few operands discovery tries every subset as partial maxima, and a concatenation has an
/// option of each. From one more on it has the options of any length.
constexpr size_t kKept = 4;

/// Each placement of the operands alike must be the same.
std::optional<std::vector<Placement>> lengthened_operands(const std::vector<Placement>& in,
                                                          const ShorterNode& shorter) {
  const auto begin = in.begin() + static_cast<std::ptrdiff_t>(shorter.first);
  const auto end = begin + static_cast<std::ptrdiff_t>(shorter.kept);
  if (std::any_of(begin, end, [&](const Placement& p) { return p != *begin; })) return std::nullopt;
  std::vector<Placement> out(in.begin(), begin);
  out.insert(out.end(), shorter.all, *begin);
  out.insert(out.end(), end, in.end());
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
  std::optional<std::vector<Placement>> in = lengthened_operands(option.in, shorter);
  if (!in) return std::nullopt;
  SpmdRule::Option out{std::move(*in), option.out, option.divisor};
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

}  // namespace

std::optional<ShorterNode> shorter_node(const Node& node, std::span<const TensorType> in) {
  const OpDef& def = op_def(node.op);
  size_t first = 0, all = 0;
  for (size_t begin = 0, end = 0; begin < in.size(); begin = end) {
    while (end < in.size() && in[end] == in[begin]) ++end;
    if (end - begin <= all) continue;
    first = begin;
    all = end - begin;
  }
  if (def.foreign || all <= kKept) return std::nullopt;
  ShorterNode out{node, {}, first, kKept, all};
  out.node.inputs.clear();
  out.node.outputs.clear();
  for (size_t i = 0; i < in.size(); ++i) {
    if (i < first + kKept || i >= first + all) out.in.push_back(in[i]);
  }
  try {
    if (infer_types(out.node, out.in).size() != infer_types(node, in).size()) return std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;  // the shape rule wants so many operands
  }
  return out;
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
