// Which batches a training step wants, and where they come from.
#include "batches.h"

#include <set>

#include "contents.h"
#include "graph/op_def.h"
#include "graph/passes/training.h"

namespace shardrun {
namespace {

/// What the users of an integer batch value say of it.
struct IndexUse {
  int64_t bound = 0;                     // the smallest of theirs; 0: none
  bool is_target = false;                // labels of a cross-entropy
  std::optional<int64_t> ignore = -100;  // the label that it leaves out
};

/// Ops whose results are elements of their first operand, moved or cast.
bool passes_on(const std::string& op) {
  static const std::set<std::string> kOps = {"reshape", "cast",   "transpose", "slice",
                                             "split",   "gather", "expand",    "squeeze"};
  return kOps.count(op) > 0;
}

IndexUse index_use(const Graph& graph, ValueId id) {
  IndexUse use;
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
        if (beyond.bound > 0 && (bound == 0 || beyond.bound < bound)) bound = beyond.bound;
        if (beyond.is_target) {
          use.is_target = true;
          use.ignore = beyond.ignore;
        }
      }
      if (bound > 0 && (use.bound == 0 || bound < use.bound)) use.bound = bound;
    }
  }
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
