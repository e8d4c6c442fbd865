// Which batches a training step wants, and where they come from.
#include "batches.h"

#include <algorithm>
#include <set>

#include "contents.h"
#include "graph/op_def.h"
#include "graph/passes/training.h"

namespace shardrun {
namespace {

constexpr int64_t kMostColumns = 4096;  // of a table of features; beyond, one bound is for all

/// What the users of an integer batch value say of it.
struct IndexUse {
  int64_t bound = 0;                     // the smallest of theirs; 0: none
  bool is_target = false;                // labels of a cross-entropy
  std::optional<int64_t> ignore = -100;  // the label that it leaves out
  std::vector<int64_t> columns;          // of the last dim, each its bound; 0: none
};

void narrow(int64_t& bound, int64_t by) {
  if (by > 0 && (bound == 0 || by < bound)) bound = by;
}

/// Ops whose results are elements of their first operand, moved or cast.
bool passes_on(const std::string& op) {
  static const std::set<std::string> kOps = {"reshape", "cast",   "transpose", "slice",
                                             "split",   "gather", "expand",    "squeeze"};
  return kOps.count(op) > 0;
}

/// Which columns of operand 0, its last dim, result `r` holds: {first, count}. None: not whole
/// columns that lie together, or not known.
std::optional<std::pair<int64_t, int64_t>> columns_taken(const Graph& graph, const Node& node,
                                                         size_t r) {
  const Shape& shape = graph.type(node.inputs[0]).shape;
  if (shape.empty()) return std::nullopt;
  const auto last = static_cast<int64_t>(shape.size()) - 1;
  if (node.op == "slice") {
    for (size_t d = 0; d < shape.size(); ++d) {
      if (node.attrs.ints("steps")[d] != 1) return std::nullopt;
    }
    const int64_t begin = node.attrs.ints("starts").back();
    return std::pair(begin, node.attrs.ints("ends").back() - begin);
  }
  if (node.op == "split" && node.attrs.i("axis") == last) {
    int64_t begin = 0;
    for (size_t before = 0; before < r; ++before)
      begin += graph.type(node.outputs[before]).shape.back();
    return std::pair(begin, graph.type(node.outputs[r]).shape.back());
  }
  if (node.op != "gather" || node.attrs.i("axis") != last) return std::nullopt;
  const auto source = graph.sources.find(node.inputs[1]);
  if (source == graph.sources.end() || source->second.kind != Source::Kind::data ||
      source->second.data.count() != 1)
    return std::nullopt;
  return std::pair(source->second.data.int_at(0), int64_t{1});
}

IndexUse index_use(const Graph& graph, ValueId id) {
  IndexUse use;
  const Shape& shape = graph.type(id).shape;
  const bool tabular = shape.size() > 1 && shape.back() <= kMostColumns;
  std::vector<int64_t> columns(tabular ? static_cast<size_t>(shape.back()) : 0);
  for (const Node& node : graph.nodes()) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] != id) continue;
      const OpDef& op = op_def(node.op);
      int64_t bound = 0;
      if (op.index_bound) bound = op.index_bound(node, graph.types(node.inputs), i).value_or(0);
      if (node.op == "cross_entropy" && i == 1) {
        use.is_target = true;
        const int64_t ignore = node.attrs.i("ignore_index", -100);
        use.ignore = ignore == kNoIgnoredLabel ? std::nullopt : std::optional(ignore);
      }
      for (size_t r = 0; i == 0 && passes_on(node.op) && r < node.outputs.size(); ++r) {
        const IndexUse beyond = index_use(graph, node.outputs[r]);
        const auto taken = columns_taken(graph, node, r);
        if (taken && !columns.empty() && beyond.columns.empty()) {
          for (int64_t k = taken->first; k < taken->first + taken->second; ++k)
            narrow(columns[static_cast<size_t>(k)], beyond.bound);
        } else if (node.op == "cast" && !beyond.columns.empty()) {
          for (size_t k = 0; k < columns.size(); ++k) narrow(columns[k], beyond.columns[k]);
        } else {
          narrow(bound, beyond.bound);
        }
        if (beyond.is_target) {
          use.is_target = true;
          use.ignore = beyond.ignore;
        }
      }
      narrow(use.bound, bound);
    }
  }
  for (int64_t& column : columns) narrow(column, use.bound);
  const bool apart = std::any_of(columns.begin(), columns.end(),
                                 [&](int64_t column) { return column != columns[0]; });
  for (int64_t column : columns) narrow(use.bound, column);
  if (apart) use.columns = std::move(columns);
  return use;
}

}  // namespace

std::vector<BatchField> batch_fields(const Graph& graph) {
  std::vector<BatchField> fields;
  for (ValueId id : graph.with_role(Role::batch)) {
    BatchField field;
    field.name = graph.value(id).name;
    field.type = graph.type(id);
    const IndexUse use = is_float(field.type.dtype) ? IndexUse{} : index_use(graph, id);
    field.bound = use.bound;
    field.column_bounds = use.columns;
    field.ignore = use.ignore;
    field.role =
        field.name == kTarget || use.is_target ? BatchField::Role::target : BatchField::Role::input;
    fields.push_back(std::move(field));
  }
  return fields;
}

std::unique_ptr<DataSource> open_batches(const Graph& graph, const TrainOptions& options) {
  constexpr int64_t kMostValidationBatches = 200;
  DataOptions data;
  data.seed = options.seed;
  data.validation_fraction = options.validation;
  data.max_validation_batches =
      options.eval_batches > 0 ? options.eval_batches : kMostValidationBatches;
  data.augment = options.augment;
  data.normalise = options.normalise;
  data.sort_edges = options.sort_edges;
  return open_data(options.data, batch_fields(graph), data);
}

nlohmann::json data_of_rank(const DataSource& data, const TrainOptions& options) {
  const std::string text = data.describe();
  return {{"data", text.rfind(options.data, 0) == 0 ? text.substr(options.data.size()) : text},
          {"data whose contents have the hash", contents_hash(options.data)}};
}

}  // namespace shardrun
