// Options, the numbers themselves, and counting.
#include "planner/rules/numbered_rows.h"

#include <algorithm>

#include "base/at.h"
#include "kernels/kernel.h"
#include "planner/rules/trial.h"

namespace shardrun {
std::vector<SpmdRule::Option> row_options(const SpmdRule& rule, const OpDef::NumberedRows& rows) {
  std::vector<SpmdRule::Option> out;
  for (const SpmdRule::Option& option : rule.options) {
    // A summand of an operand counts in all rows of the result.
    bool fits = option.in[at(rows.numbers)].is_shard() &&
                std::none_of(option.in.begin(), option.in.end(),
                             [](const Placement& p) { return p.kind == Placement::Kind::partial; });
    SpmdRule::Option changed = option;
    for (const OpDef::NumberedRows::Dim& dim : rows.of) {
      Placement& of = (dim.result ? changed.out : changed.in)[at(dim.index)];
      fits =
          fits && of.kind == (dim.result ? Placement::Kind::partial : Placement::Kind::replicate);
      of = Placement::rows_named(dim.dim, rows.numbers, of.op);
    }
    if (fits) out.push_back(std::move(changed));
  }
  return out;
}

namespace {

const TensorType& type_of(const NodeDim& dim, std::span<const TensorType> in,
                          std::span<const TensorType> out) {
  return (dim.result ? out : in)[at(dim.index)];
}

/// most_named and most_owned of `extent` rows over `axes`, by numbers that lie as `cut`.
std::pair<int64_t, int64_t> count_rows(const Tensor& numbers, const Sharding& cut, int64_t extent,
                                       const Axes& axes, const Mesh& mesh) {
  const Tensor all = numbers.dtype() == DType::i64 ? numbers : convert(numbers, DType::i64);
  const Sharding rows{{axes}, {}};
  int64_t most_named = 0;
  std::vector<int64_t> owned(static_cast<size_t>(mesh.size()), 0);
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const Tensor own = cut_tensor(all, local_box(all.shape(), cut, mesh, mesh.coordinates(rank)));
    std::vector<char> marks(static_cast<size_t>(extent), 0);
    for (int64_t i = 0; i < own.count(); ++i) {
      const int64_t row = own.as<int64_t>()[i];
      if (row >= 0 && row < extent) marks[static_cast<size_t>(row)] = 1;
    }
    int64_t named = 0;
    for (int64_t member : mesh.group(rank, axes.list())) {
      if (member == rank) continue;
      const Range range = local_box({extent}, rows, mesh, mesh.coordinates(member))[0];
      const auto begin = marks.begin() + range.begin;
      const int64_t count = std::count(begin, begin + range.size, 1);
      named += count;
      owned[static_cast<size_t>(member)] += count;
    }
    most_named = std::max(most_named, named);
  }
  return {most_named, *std::max_element(owned.begin(), owned.end())};
}

}  // namespace

void count_rows(const Tensor& numbers, std::span<const TensorType> in,
                std::span<const TensorType> out, const Mesh& mesh, NodePlan& plan) {
  for (Rows& rows : plan.rows) {
    const auto [named, owned] =
        count_rows(numbers, plan.in[at(rows.by.index)],
                   type_of(rows.of, in, out).shape[at(rows.of.dim)], axes_of(plan, rows.of), mesh);
    rows.most_named = std::max(rows.most_named, named);
    rows.most_owned = std::max(rows.most_owned, owned);
  }
}

NumberedRows::NumberedRows(const Graph& graph, const InputContents& contents)
    : graph_(graph), contents_(contents) {}

std::optional<OpDef::NumberedRows> NumberedRows::of(const Node& node) {
  const OpDef& def = op_def(node.op);
  if (!def.numbered_rows) return std::nullopt;
  auto rows = def.numbered_rows(node, graph_.types(node.inputs));
  if (!rows || !is_known(node.inputs[at(rows->numbers)])) return std::nullopt;
  return rows;
}

/// Without computing anything: what the value follows from, all the way up.
bool NumberedRows::is_known(ValueId id) {
  const auto [it, fresh] = known_.try_emplace(id, false);
  if (!fresh) return it->second;
  const Value& value = graph_.value(id);
  bool known = false;
  if (value.role == Role::constant) {
    known = true;
  } else if (value.role == Role::batch && !is_float(value.type.dtype) && contents_) {
    std::optional<Tensor> found = contents_(value.name);
    known = found && found->shape() == value.type.shape;
    if (known) values_[id] = convert(*found, value.type.dtype);
  } else if (value.role == Role::computed && value.producer >= 0) {
    const Node& node = graph_.node(value.producer);
    known = std::all_of(node.inputs.begin(), node.inputs.end(),
                        [&](ValueId in) { return is_known(in); });
  }
  return known_[id] = known;
}

const Tensor& NumberedRows::numbers(ValueId id) {
  SR_REQUIRE(is_known(id), internal, "the numbers '", graph_.value(id).name, "' are not known");
  if (const auto found = values_.find(id); found != values_.end()) return found->second;
  const Value& value = graph_.value(id);
  if (value.role == Role::constant) {
    Tensor read(value.type);
    read_source(graph_.sources.at(id), value.type, full_box(value.type.shape), 0, read.data());
    return values_[id] = std::move(read);
  }
  const Node& node = graph_.node(value.producer);
  std::vector<Tensor> in;
  for (ValueId operand : node.inputs) in.push_back(numbers(operand));
  const std::vector<Tensor> results = run_reference(node, in);
  for (size_t r = 0; r < results.size(); ++r) values_[node.outputs[r]] = results[r];
  return values_.at(id);
}

void NumberedRows::count(const Node& node, const Mesh& mesh, NodePlan& plan) {
  const std::vector<TensorType> in = graph_.types(node.inputs), out = graph_.types(node.outputs);
  for (Rows& rows : plan.rows) {
    const ValueId value = node.inputs[at(rows.by.index)];
    const Sharding& cut = plan.in[at(rows.by.index)];
    const Axes axes = axes_of(plan, rows.of);
    const int64_t extent = type_of(rows.of, in, out).shape[at(rows.of.dim)];
    const auto [it, fresh] = counts_.try_emplace({value, cut, extent, axes});
    if (fresh) it->second = count_rows(numbers(value), cut, extent, axes, mesh);
    rows.most_named = std::max(rows.most_named, it->second.first);
    rows.most_owned = std::max(rows.most_owned, it->second.second);
  }
}

int64_t NumberedRows::sharers(const Node& node) const {
  const auto numbers_of = [&](const Node& n) {
    const OpDef& def = op_def(n.op);
    const auto rows =
        def.numbered_rows ? def.numbered_rows(n, graph_.types(n.inputs)) : std::nullopt;
    return rows ? n.inputs[at(rows->numbers)] : kNoValue;
  };
  const ValueId value = numbers_of(node);
  return std::count_if(graph_.nodes().begin(), graph_.nodes().end(),
                       [&](const Node& n) { return numbers_of(n) == value; });
}

}  // namespace shardrun
