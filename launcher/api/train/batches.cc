// Which batches a training step wants, and where they come from.
#include "train/batches.h"

#include <algorithm>

#include "choices.h"
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
  bool ascends = false;                  // where bags begin
  /// At place t of the last dim, element t + reads looks up a row of a parameter, and the logits
  /// are compared with element t + offset: a model that shifts its labels itself has 1.
  std::optional<int64_t> reads, offset;
};

void at_least(std::optional<int64_t>& most, int64_t value) {
  most = most ? std::max(*most, value) : value;
}

void narrow(int64_t& bound, int64_t by) {
  if (by > 0 && (bound == 0 || by < bound)) bound = by;
}

/// How much earlier in the last dim result elements stand than they did in operand 0.
int64_t moved_by(const Node& node) {
  if (node.op == "slice") return node.attrs.ints("starts").back();
  if (node.op == "pad") return -node.attrs.ints("before").back();
  return 0;
}

/// By how many positions logits of [batch, positions, classes] were cut at their front.
int64_t logits_offset(const Graph& graph, ValueId id) {
  int64_t out = 0;
  while (graph.value(id).producer >= 0) {
    const Node& node = graph.node(graph.value(id).producer);
    if (node.op == "slice" && graph.type(id).shape.size() == 3) {
      out += node.attrs.ints("starts")[1];
    } else if (op_def(node.op).elements != Elements::all) {
      break;
    }
    id = node.inputs[0];
  }
  return out;
}

/// Rows of a parameter, perhaps cast or masked: an embedding's table.
bool is_table(const Graph& graph, ValueId id, int depth = 0) {
  constexpr int kDeepest = 6;
  const Value& value = graph.value(id);
  if (value.producer < 0) return value.role == Role::parameter || value.role == Role::state;
  const Node& node = graph.node(value.producer);
  return depth < kDeepest &&
         std::any_of(node.inputs.begin(), node.inputs.end(),
                     [&](ValueId in) { return is_table(graph, in, depth + 1); }) &&
         std::none_of(node.inputs.begin(), node.inputs.end(),
                      [&](ValueId in) { return graph.value(in).role == Role::batch; });
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
      if (takes_labels(node) && i == 1) {
        use.is_target = true;
        const int64_t ignore = node.attrs.i("ignore_index", -100);
        use.ignore = ignore == kNoIgnoredLabel ? std::nullopt : std::optional(ignore);
        use.offset = -logits_offset(graph, node.inputs[0]);
      }
      use.ascends = use.ascends || (i == 1 && node.attrs.i("ascending", 0) != 0);
      if (node.op == "gather" && i == 1 && is_table(graph, node.inputs[0])) at_least(use.reads, 0);
      const bool passes_on = i == 0 && op.elements != Elements::unstated;
      for (size_t r = 0; passes_on && r < node.outputs.size(); ++r) {
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
        use.ascends = use.ascends || beyond.ascends;
        if (beyond.reads) at_least(use.reads, *beyond.reads + moved_by(node));
        if (beyond.is_target) {
          use.is_target = true;
          use.ignore = beyond.ignore;
          use.offset = beyond.offset.value_or(0) + moved_by(node);
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

namespace {

/// Of a model that brings a loss in which nothing shows labels: the integer input that is called
/// like a target, or the second of two, if only the first has an embedding.
BatchField* guessed_target(std::vector<BatchField>& fields, const std::vector<IndexUse>& uses) {
  std::vector<size_t> integers;
  for (size_t i = 0; i < fields.size(); ++i) {
    const DType dtype = fields[i].type.dtype;
    if (is_float(dtype) || dtype == DType::boolean || fields[i].type.shape.empty()) continue;
    if (is_named_as_target(fields[i].name)) return &fields[i];
    integers.push_back(i);
  }
  const bool tells = integers.size() == 2 && uses[integers[0]].reads && !uses[integers[1]].reads &&
                     fields[integers[0]].type.shape == fields[integers[1]].type.shape;
  return tells ? &fields[integers[1]] : nullptr;
}

}  // namespace

std::vector<BatchField> batch_fields(const Graph& graph) {
  std::vector<BatchField> fields;
  std::vector<IndexUse> uses;
  for (ValueId id : graph.with_role(Role::batch)) {
    BatchField field;
    field.name = graph.value(id).name;
    field.type = graph.type(id);
    uses.push_back(is_float(field.type.dtype) ? IndexUse{} : index_use(graph, id));
    const IndexUse& use = uses.back();
    field.bound = use.bound;
    field.column_bounds = use.columns;
    field.ascends = use.ascends;
    field.ignore = use.ignore;
    field.shift = std::max<int64_t>(0, 1 - use.offset.value_or(0));
    field.role =
        field.name == kTarget || use.is_target ? BatchField::Role::target : BatchField::Role::input;
    fields.push_back(std::move(field));
  }
  const auto is_target = [](const BatchField& f) { return f.role == BatchField::Role::target; };
  const auto targets = std::count_if(fields.begin(), fields.end(), is_target);
  if (targets == 0) {
    if (BatchField* target = guessed_target(fields, uses)) {
      target->role = BatchField::Role::target;
      target->ignore = std::nullopt;
    }
  }
  // A model that takes tokens alone, and compares its logits with these.
  for (size_t i = 0; i < fields.size(); ++i) {
    const bool alone = std::none_of(fields.begin(), fields.end(), [&](const BatchField& other) {
      return &other != &fields[i] && other.type == fields[i].type;
    });
    if (uses[i].is_target && uses[i].reads && alone) fields[i].role = BatchField::Role::input;
  }
  return fields;
}

std::vector<BatchField> batch_fields(const Graph& graph, const TrainOptions& options) {
  std::vector<BatchField> fields = batch_fields(graph);
  const std::optional<int> shift =
      parse_choice("target-shift", kTargetShifts, options.target_shift);
  for (BatchField& field : fields) field.shift = shift.value_or(field.shift);
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
  return open_data(options.data, batch_fields(graph, options), data);
}

namespace {

bool is_of_tokens(const BatchField& field) {
  return (field.type.dtype == DType::i32 || field.type.dtype == DType::i64) &&
         field.type.shape.size() == 2 && field.type.shape[1] > 1;
}

/// Of the first training batch some samples, whether or not a batch of that size fits in memory.
std::vector<int64_t> first_samples(const DataSource& data, const BatchField& field) {
  constexpr int64_t kMostSamples = 256;
  TensorType some = field.type;
  some.shape[0] = std::min(some.shape[0], kMostSamples);
  Tensor tensor(some);
  data.read(0, Split::training, field, full_box(some.shape), tensor.data());
  return tensor.to_ints();
}

/// Is every target that counts the token `shift` behind its own place?
bool are_shifted_by(int64_t shift, const std::vector<int64_t>& targets, const BatchField& target,
                    const std::vector<int64_t>& tokens) {
  const int64_t context = target.type.shape[1];
  int64_t counted = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(targets.size()); ++i) {
    const int64_t at = targets[static_cast<size_t>(i)];
    if (i % context + shift >= context || (target.ignore && at == *target.ignore)) continue;
    if (at != tokens[static_cast<size_t>(i + shift)]) return false;
    ++counted;
  }
  return counted > 0;
}

}  // namespace

std::string note_on_labels(const Graph& graph, const TrainOptions& options,
                           const DataSource& data) {
  const std::vector<BatchField> fields = batch_fields(graph);
  for (const BatchField& target : fields) {
    if (!is_of_tokens(target)) continue;
    const IndexUse use = index_use(graph, graph.find(target.name));
    if (use.is_target && use.reads && *use.reads >= use.offset.value_or(0)) {
      return str("the loss compares the logits with '", target.name,
                 "', which the model also reads: unless it hides some of these tokens, it learns "
                 "to copy them; an export that got one tensor both as tokens and as targets "
                 "becomes so: give it another (targets.clone())");
    }
    if (target.role != BatchField::Role::target || options.data.empty()) continue;
    for (const BatchField& tokens : fields) {
      if (tokens.role != BatchField::Role::input || !is_of_tokens(tokens) ||
          tokens.type.shape != target.type.shape)
        continue;
      const std::vector<int64_t> read = first_samples(data, tokens),
                                 wanted = first_samples(data, target);
      const bool same = are_shifted_by(0, wanted, target, read);
      if (same == are_shifted_by(1, wanted, target, read)) continue;  // or all tokens are one
      if (same && target.shift == 1) {
        return str("the targets '", target.name, "' are the tokens of '", tokens.name,
                   "' themselves, and the model's loss compares them with its logits as they are: "
                   "it learns to copy; each target has to be the next token (",
                   "--target-shift 1 for text: and tokens:)");
      }
      if (!same && target.shift == 0) {
        return str("the targets '", target.name, "' are the next tokens of '", tokens.name,
                   "' already, and the model's loss shifts them once more: it learns to skip a "
                   "token; give it the tokens themselves (--target-shift 0 for text: and tokens:)");
      }
    }
  }
  return "";
}

nlohmann::json data_of_rank(const DataSource& data, const TrainOptions& options) {
  std::string text = data.describe();
  if (const std::string file = options.data + ": "; text.starts_with(file))
    text.erase(0, file.size());
  return {{"data", text}, {"data whose contents have the hash", contents_hash(options.data)}};
}

}  // namespace shardrun
