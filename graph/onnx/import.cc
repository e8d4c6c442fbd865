// Import: flatten, decide on weights, bind dims, lower node by node.
#include "graph/onnx/import.h"

#include <algorithm>

#include "graph/onnx/exporter/export_signature.h"
#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/exporter/lost_nodes.h"
#include "graph/onnx/exporter/lost_weights.h"
#include "graph/onnx/exporter/older_exporter.h"
#include "graph/onnx/exporter/tied_names.h"
#include "graph/onnx/exporter/written_batch_norm.h"
#include "graph/onnx/file/device_configurations.h"
#include "graph/onnx/import_model.h"
#include "graph/onnx/loss_output.h"
#include "graph/onnx/lower/picked.h"
#include "graph/onnx/model_inputs.h"
#include "graph/onnx/supported.h"
#include "graph/onnx/weights/given_weights.h"
#include "graph/onnx/weights/make_weight_map.h"
#include "graph/onnx/weights/weights.h"
#include "graph/optimizer.h"

namespace shardrun::importer {
namespace {

constexpr int kDeepestBranch = 32;
constexpr int64_t kInputBytes = 1000;  // what is kept of a graph input

class Importer {
 public:
  Importer(ModelFile& model, const ImportOptions& options, ImportReport& report)
      : model_(model),
        options_(options),
        patterns_(options),
        report_(report),
        b_(graph_, options, *model.budget),
        flattener_(model.proto, *model.budget) {}

  Graph run() {
    graph_.name = model_.file->path();
    report_.annotations = read_annotations(model_.proto);
    const Weights weights = read_weights();
    if (options_.weights) {
      MatchedWeights given = match_weights(
          make_weight_map(model_, nodes_, restored_, weights, tied_), *options_.weights);
      given_ = std::move(given.sources);
      for (const auto& [name, source] : given_) report_.given.push_back(name);
      report_.notes.insert(report_.notes.end(), given.notes.begin(), given.notes.end());
    }
    for (const auto& [tensor, change] : weights.changed.by_name) {
      if (change.is_read_back) read_back_.emplace(change.next, tensor);
      for (const std::string& value : change.earlier) read_back_.emplace(value, tensor);
    }
    bind_inputs(nodes_);
    add_weights(weights);
    lower_all(nodes_, weights.changed);
    change_tensors(weights.changed);
    note_batch_norms();
    note_restored();
    set_outputs();
    name_places();
    remove_dead_nodes(graph_);
    return std::move(graph_);
  }

  WeightMap map() {
    const Weights weights = read_weights();
    return make_weight_map(model_, nodes_, restored_, weights, tied_);
  }

 private:
  /// The nodes, and what of the file's numbers are weights.
  Weights read_weights() {
    const auto& proto = model_.proto.graph();
    report_.ir_version = model_.proto.ir_version();
    report_.opset = main_opset(model_.proto);
    report_.producer = model_.proto.producer_name() + " " + model_.proto.producer_version();
    nodes_ = flattener_.consume(*model_.proto.mutable_graph(), main_opset(model_.proto));
    check_all_names(nodes_);
    loss_ = find_loss_output(proto, nodes_, options_);
    const std::set<std::string> changes = values_of_changes(model_);
    drop_dead(nodes_, proto, changes);
    look_beside_loss(changes);
    check_supported(nodes_, beside_loss_, report_);
    restore_older(model_, nodes_, report_);
    restore_hamming_windows(model_, nodes_, report_);
    if (options_.training) {
      restore_lost_nodes(model_, nodes_, report_);
      tied_ = tied_names(model_, nodes_);
      restored_ = restore_lost_weights(
          model_, nodes_, tied_, options_,
          [&](const std::string& name) { return patterns_.leave_out({name}); }, report_);
      gather_batch_norms(model_, nodes_);
    }
    return decide_weights(model_, restored_, tied_, nodes_, loss_.name, options_, patterns_,
                          report_);
  }

  void look_beside_loss(std::set<std::string> needed) {
    if (!options_.training) return;
    needed.insert(loss_.name);
    beside_loss_.look(nodes_, std::move(needed));
  }

  /// Of a weight: what was given in its place, or the file's.
  Source source_of(const std::string& name, const Source& own) const {
    const auto given = given_.find(name);
    return given == given_.end() ? own : given->second;
  }

  void check_all_names(const std::vector<FlatNode>& nodes) {
    std::set<std::string> names;
    for (const auto* input : model_inputs(model_)) {
      check_name(input->name(), "a graph input");
      SR_REQUIRE(names.insert(input->name()).second, invalid_input, "two graph inputs are named '",
                 input->name(), "'");
    }
    for (const StoredTensor& tensor : model_.initialisers) names.insert(tensor.name);
    check_names(nodes, model_.proto.graph(),
                [&](const std::string& name) { return names.count(name) > 0; });
    SR_REQUIRE(model_.proto.graph().output_size() > 0, invalid_input, "the graph has no outputs");
  }

  std::vector<std::string> input_names() const {
    std::vector<std::string> names;
    for (const auto* input : model_inputs(model_)) names.push_back(input->name());
    return names;
  }

  /// The contents of an input, where they are known: as given, or because they decide sizes.
  std::optional<Tensor> known_contents(const std::string& name, const TensorType& type,
                                       bool sizes_depend) {
    const auto given = options_.constants.find(name);
    if (given != options_.constants.end()) return convert(given->second, type.dtype);
    if (!sizes_depend || is_float(type.dtype) || !options_.contents) return std::nullopt;
    std::optional<Tensor> contents = options_.contents(name, input_names());
    if (!contents) return std::nullopt;
    SR_REQUIRE(contents->shape() == type.shape, invalid_input, "input '", name, "' is ", type,
               ", but its data are ", to_string(contents->shape()),
               "; export the model for them, or with dynamic dims");
    report_.notes.push_back(str("input '", name,
                                "' is a constant, as the data have it: its contents decide sizes "
                                "(NonZero)"));
    return convert(*contents, type.dtype);
  }

  void bind_inputs(const std::vector<FlatNode>& nodes) {
    const bool sizes_depend = std::any_of(nodes.begin(), nodes.end(), [](const FlatNode& node) {
      return node.proto.op_type() == "NonZero";
    });
    const std::map<std::string, int64_t> dims = bind_dims(model_, options_);
    for (const auto* input : model_inputs(model_)) {
      report_.inputs.push_back(input->name());
      const TensorType type = input_type(*input, dims);
      const auto contents = known_contents(input->name(), type, sizes_depend);
      model_.budget->take(kInputBytes, "its inputs");
      values_[input->name()] = contents
                                   ? b_.constant(*contents)
                                   : b_.value(graph_.add_input(input->name(), type, Role::batch));
    }
  }

  V add_parameter(const std::string& name, const TensorType& type, Source source, bool trainable,
                  const std::string& why) {
    const ValueId id = graph_.add_persistent(name, type, Role::parameter, std::move(source));
    graph_.trainable[id] = trainable;
    report_.parameters.push_back({name, type, trainable, why});
    return b_.value(id);
  }

  void add_weights(const Weights& weights) {
    for (const std::string& name : weights.order) {
      const Weight& w = weights.by_name.at(name);
      if (!w.tied_to.empty()) continue;
      Source source = source_of(name, w.tensor.source());
      if (w.is_parameter) {
        values_[name] = add_parameter(name, w.tensor.type, std::move(source), w.trainable, w.why);
        auto& names = report_.parameters.back().other_names;
        for (const auto* more : {&w.lost_names, &w.other_names})
          names.insert(names.end(), more->begin(), more->end());
        report_.parameters.back().is_frozen = w.is_frozen;
      } else if (w.is_state) {
        values_[name] =
            b_.value(graph_.add_persistent(name, w.tensor.type, Role::state, std::move(source)));
      } else if (w.tensor.count() <= kFoldLimit &&
                 model_.budget->holds(kCopies * byte_size(w.tensor.type))) {
        Tensor contents(w.tensor.type);
        read_source(source, contents.type(), full_box(contents.shape()), 0, contents.data());
        values_[name] = b_.constant(std::move(contents));
      } else {
        values_[name] =
            b_.value(graph_.add_persistent(name, w.tensor.type, Role::constant, std::move(source)));
      }
    }
    for (const std::string& name : weights.order) {
      const Weight& w = weights.by_name.at(name);
      if (w.tied_to.empty()) continue;
      b_.node_name = name;
      V v = values_.at(w.tied_to);
      if (w.transposed) v = b_.transpose(v, {1, 0});
      values_[name] = b_.reshape(v, w.tensor.type.shape);
    }
  }

  V random_step() {
    if (random_step_ == kNone)
      random_step_ = b_.value(graph_.add_input(kRandomStep, {DType::i64, {}}, Role::scalar));
    return random_step_;
  }

  void name(const std::string& name, V v) {
    const auto [known, fresh] = values_.try_emplace(name, v);
    if (inside_) hidden_.push_back({name, fresh ? kNone : known->second});
    known->second = v;
  }

  /// The main graph's nodes. Constants that no later node reads go.
  void lower_all(const std::vector<FlatNode>& nodes, const ChangedTensors& changed) {
    std::map<std::string, size_t> last;  // the node that reads a name last
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const std::string& name : names_read(nodes[i].proto)) last[name] = i;
    }
    for (const auto& output : model_.proto.graph().output()) last.erase(output.name());
    for (const auto& [tensor, change] : changed.by_name) last.erase(change.next);
    std::map<V, int> names;  // that a value has
    for (const auto& [name, v] : values_) ++names[v];
    look_beside_loss(values_of_changes(model_));
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (beside_loss_.reads_left_out(nodes[i])) {
        beside_loss_.leave_out(nodes[i], "");
        continue;
      }
      try {
        lower({&nodes[i], 1});
      } catch (const Error& e) {
        if (!beside_loss_.holds(nodes[i]) || e.kind() != ErrorKind::unsupported) throw;
        beside_loss_.leave_out(nodes[i], e.what());
        continue;
      }
      for (const std::string& name : nodes[i].proto.output()) {
        if (!name.empty()) ++names[values_.at(name)];
      }
      for (const std::string& name : names_read(nodes[i].proto)) {
        const auto read = last.find(name);
        if (read == last.end() || read->second != i) continue;
        last.erase(read);
        const auto value = values_.find(name);  // none: it is a subgraph's own
        if (value != values_.end() && --names[value->second] == 0) b_.forget(value->second);
      }
    }
  }

  void lower(std::span<const FlatNode> nodes) {
    for (const FlatNode& node : nodes) {
      const Lowering* lowering = node.own == nullptr ? &lowering_of(node) : nullptr;
      try {
        lower_node(node, lowering);
      } catch (const Error& e) {
        throw e.with_context(
            str(node.label, ": op ", node.proto.op_type(), " (opset ", node.opset, ")"));
      }
    }
  }

  /// A value that exists, by its name; else kNone.
  V named(const std::string& name) const {
    const auto it = values_.find(name);
    return it == values_.end() ? kNone : it->second;
  }

  /// Lowerings look at their constants' numbers, which takes time where these are many: a number
  /// the fourth part of an operation, so that a mask of 1024 x 1024 may serve 750 layers.
  void look_at_constants(const std::vector<V>& inputs) {
    constexpr double kLook = 0.25;
    for (V v : inputs) {
      const Tensor* known = v == kNone ? nullptr : b_.known(v);
      SR_REQUIRE(known == nullptr || known->count() <= kSmall ||
                     b_.budget.spend(kLook * static_cast<double>(known->count())),
                 unsupported,
                 "the arithmetic on the model's constants takes more operations than "
                 "the import of a file may; export it with them computed");
    }
  }

  /// `lowering`: null of a user's own operator.
  void lower_node(const FlatNode& node, const Lowering* lowering) {
    std::vector<V> inputs;
    for (const auto& name : node.proto.input()) {
      if (name.empty()) {
        inputs.push_back(kNone);
        continue;
      }
      auto it = values_.find(name);
      SR_REQUIRE(it != values_.end() && it->second != kNone, invalid_input, "input '", name,
                 "' has no value");
      inputs.push_back(it->second);
    }
    b_.node_name = !node.proto.name().empty() ? node.proto.name()
                   : node.proto.output_size() > 0
                       ? node.proto.op_type() + "/" + node.proto.output(0)
                       : node.proto.op_type();
    look_at_constants(inputs);
    const size_t first = graph_.nodes().size();
    const std::vector<V> read = inputs;
    NodeContext c(b_, report_, node.proto, node.opset, std::move(inputs));
    c.random_step = [this] { return random_step(); };
    c.named = [this](const std::string& name) { return named(name); };
    c.load_tensor = [this](const ::onnx::TensorProto& tensor) {
      return store_tensor(tensor, *model_.external, *model_.budget).load();
    };
    c.stream = scope_ + (node.proto.output_size() > 0 ? node.proto.output(0) : "");
    c.lower_subgraph = [this, &node](const ::onnx::GraphProto& graph, std::span<const V> in,
                                     const std::string& scope, const Outer& outer) {
      return lower_branch(graph, in, node.opset, scope, outer);
    };
    c.add_parameter = [&](const Source& source, const TensorType& type, bool trained) {
      Training training{true, trained, false,
                        trained ? "described by the model" : "a buffer, described by the model"};
      patterns_.apply({node.proto.output(0)}, training);
      const V v = add_parameter(node.proto.output(0), type, source_of(node.proto.output(0), source),
                                training.trainable, training.why);
      report_.parameters.back().is_frozen = training.is_frozen;
      return v;
    };
    c.add_state = [this](const std::string& placeholder, const TensorType& type, double start) {
      return unwritten_state(placeholder, type, start);
    };
    if (lowering == nullptr) {
      lower_user_op(c);
    } else {
      takes_picked(b_, read) ? lower_picked(c, *lowering) : lowering->lower(c);
      c.check_attributes_used();
      c.check_inputs_used();
    }
    for (size_t i = 0; i < c.output_count(); ++i) {
      if (!c.wants(i)) continue;
      const bool made = i < c.outputs().size() && c.outputs()[i] != kNone;
      SR_REQUIRE(made, unsupported, "output ", i, " '", node.proto.output(static_cast<int>(i)),
                 "' is not supported");
      const std::string& made_name = node.proto.output(static_cast<int>(i));
      V v = c.outputs()[i];
      if (const auto back = read_back_.find(made_name); back != read_back_.end())
        v = held(v, back->second, "reads");
      name(made_name, v);
    }
    if (node.place >= 0) note_place(node, first, read);
  }

  /// What the nodes from `first` on were made of.
  void note_place(const FlatNode& node, size_t first, const std::vector<V>& read) {
    Place& place = places_.emplace_back();
    place.node = node.place;
    for (size_t n = first; n < graph_.nodes().size(); ++n)
      place.made.push_back(graph_.nodes()[n].name);
    for (size_t i = 0; i < read.size(); ++i) {
      if (read[i] != kNone)
        place.inputs.emplace_back(node.proto.input(static_cast<int>(i)), read[i]);
    }
    for (const std::string& name : node.proto.output()) {
      if (!name.empty()) place.outputs.emplace_back(name, values_.at(name));
    }
  }

  void name_places() {
    const auto named = [&](const std::vector<std::pair<std::string, V>>& values) {
      std::vector<std::pair<std::string, std::string>> out;
      for (const auto& [name, v] : values) {
        const ValueId id = b_.id_or_none(v);
        if (id != kNoValue) out.emplace_back(name, graph_.value(id).name);
      }
      return out;
    };
    for (Place& place : places_)
      report_.placed.push_back(
          {place.node, std::move(place.made), named(place.inputs), named(place.outputs)});
  }

  V unwritten_state(const std::string& placeholder, const TensorType& type, double start) {
    if (placeholders_.empty()) placeholders_ = signature_of(model_.proto.graph()).placeholders;
    const auto known = placeholders_.find(placeholder);
    const std::string& name = known == placeholders_.end() ? placeholder : known->second;
    const ValueId there = graph_.find(name);
    if (there != kNoValue) return b_.value(there);
    unwritten_.push_back(name);
    Source source;
    source.kind = Source::Kind::constant;
    source.a = start;
    return b_.value(
        graph_.add_persistent(name, type, Role::state, state_source(name, type, source)));
  }

  /// Of state that is not in the file.
  Source state_source(const std::string& name, const TensorType& type, const Source& own) const {
    Source out = source_of(name, own);
    SR_REQUIRE(given_.count(name) == 0 || out.kind != Source::Kind::file || out.shape == type.shape,
               invalid_input, options_.weights->origin, ": '", name, "' is ", to_string(out.shape),
               ", wanted ", to_string(type.shape));
    return out;
  }

  /// What a tensor of the module becomes, as a value of its own. `how` "reads": who reads the value
  /// reads the tensor; "copies": the tensor gets a copy of it.
  V held(V v, const std::string& tensor, const char* how) {
    const ValueId before = graph_.find(tensor);
    if (before != kNoValue) v = b_.expand(v, graph_.type(before).shape);
    return b_.value(
        graph_.add("identity", {b_.id(v)}, {{"detach", int64_t{1}}, {how, tensor}}, b_.node_name));
  }

  void change_tensors(const ChangedTensors& changed) {
    for (const auto& [tensor, change] : changed.by_name) {
      b_.node_name = tensor + "/next";
      V next = values_.at(change.next);
      if (!change.is_read_back) next = held(next, tensor, "copies");
      const ValueId id = b_.id(next);
      ValueId before = graph_.find(tensor);
      // Written before it is read, it need not be in the file.
      if (before == kNoValue)
        before = graph_.add_persistent(tensor, b_.type(next), Role::state,
                                       state_source(tensor, b_.type(next), Source{}));
      SR_REQUIRE(graph_.type(before) == graph_.type(id), invalid_input, "'", tensor, "' is ",
                 graph_.type(before), ", but forward() makes it ", graph_.type(id));
      graph_.updates[before] = id;
    }
  }

  /// The nodes of a subgraph, checked against the names around it; a loop's body comes many times.
  const std::vector<FlatNode>& nodes_of_branch(const ::onnx::GraphProto& graph, int64_t opset) {
    const auto [branch, fresh] = branches_.try_emplace(&graph);
    if (!fresh) return branch->second;
    std::vector<FlatNode> nodes = flattener_.run(graph, opset);
    check_names(nodes, graph, [&](const std::string& name) { return values_.count(name) > 0; });
    drop_dead(nodes, graph);
    check_supported(nodes, BesideLoss(), report_);
    return branch->second = std::move(nodes);
  }

  std::vector<V> lower_branch(const ::onnx::GraphProto& graph, std::span<const V> in, int64_t opset,
                              const std::string& scope, const Outer& outer) {
    SR_REQUIRE(++depth_ <= kDeepestBranch, unsupported, "branches nest deeper than ",
               kDeepestBranch);
    SR_REQUIRE(graph.input_size() == static_cast<int>(in.size()), invalid_input, "subgraph has ",
               graph.input_size(), " inputs, the node gives ", in.size());
    const std::string outer_scope = scope_;
    scope_ += scope;
    const auto outer_hidden = std::exchange(hidden_, std::vector<Hidden>());
    const bool outer_inside = std::exchange(inside_, true);
    for (const auto& [read, v] : outer) name(read, v);
    for (size_t i = 0; i < in.size(); ++i) name(graph.input(static_cast<int>(i)).name(), in[i]);
    for (const auto& proto : graph.initializer())
      name(proto.name(), b_.constant(store_tensor(proto, *model_.external, *model_.budget).load()));
    lower(nodes_of_branch(graph, opset));
    std::vector<V> out;
    for (const auto& output : graph.output()) out.push_back(values_.at(output.name()));
    for (auto it = hidden_.rbegin(); it != hidden_.rend(); ++it) {
      if (it->value == kNone)
        values_.erase(it->name);
      else
        values_[it->name] = it->value;
    }
    hidden_ = outer_hidden;
    inside_ = outer_inside;
    scope_ = outer_scope;
    --depth_;
    return out;
  }

  void note_batch_norms() {
    const ImportReport& r = report_;
    if (!unwritten_.empty()) {
      report_.notes.push_back(
          str("the exporter leaves out what instance normalisations keep for evaluation: ",
              listed(unwritten_), ": means start at 0 and variances at 1, as a new module's do"));
    }
    if (r.promoted > 0) {
      report_.notes.push_back(str(
          r.promoted, " batch normalisations were exported in inference form and use the batch's ",
          "own statistics when training (",
          options_.mode == ImportOptions::Mode::train
              ? "as --mode train asks"
              : "the export's metadata says that the model was in training mode",
          ")"));
    }
    if (options_.mode == ImportOptions::Mode::train && r.batch_statistics == 0) {
      report_.notes.push_back(
          "--mode train changes nothing: no batch normalisation was found in the file");
    }
    if (r.stored_statistics > 0) {
      report_.notes.push_back(str(
          r.stored_statistics, " batch normalisations were exported in evaluation mode: they use ",
          "their stored statistics, which stay as they are; --mode train normalises by the batch"));
    }
  }

  /// One note for all arguments that were read from calls.
  void note_restored() {
    std::string list;
    for (const auto& [argument, nodes] : report_.restored)
      list += str(list.empty() ? "" : ", ", argument, " of ", listed(nodes, 1));
    if (!list.empty()) {
      report_.notes.push_back("applied as PyTorch was called, though the exporter left it out: " +
                              list);
    }
    if (!report_.inactive_dropouts.empty()) {
      report_.notes.push_back(
          str("Dropout nodes that were exported inactive drop nothing: ",
              listed(report_.inactive_dropouts, 1),
              "; export with model.train(), and an attention as softmax and dropout "
              "(attn_implementation=\"eager\")"));
    }
  }

  void set_outputs() {
    if (const std::string note = beside_loss_.note(model_.proto.graph()); !note.empty())
      report_.notes.push_back(note);
    for (const auto& output : model_.proto.graph().output()) {
      if (beside_loss_.is_left_out(output.name())) continue;
      const V v = values_.at(output.name());
      if (b_.items(v) != nullptr)
        fail(ErrorKind::unsupported, "graph output '", output.name(), "' is a sequence");
      if (b_.rows(v) != nullptr) {
        SR_REQUIRE(output.name() != loss_.name && options_.has_own_loss, unsupported,
                   "graph output '", output.name(),
                   "' has as many rows as a mask picks; leave it "
                   "out of what the model returns");
        continue;  // with a loss, other outputs are not computed
      }
      graph_.outputs.push_back(b_.id(v));
      report_.outputs.push_back(output.name());
    }
    const V loss = values_.at(loss_.name);
    const bool is_scalar =
        is_float(b_.dtype(loss)) && element_count(b_.shape(loss)) == 1 && b_.rank(loss) <= 1;
    SR_REQUIRE(is_scalar || options_.loss_output.empty(), invalid_input, "--loss-output '",
               loss_.name, "': is ", b_.type(loss), ", wanted one floating number");
    if (!loss_.note.empty()) report_.notes.push_back(loss_.note);
    if (!is_scalar || !options_.has_own_loss) return;
    b_.node_name = "loss";
    graph_.loss = b_.id(b_.reshape(loss, {}));
  }

  ModelFile& model_;
  std::vector<FlatNode> nodes_;
  RestoredWeights restored_;
  std::map<std::string, std::string> tied_;
  std::map<std::string, Source> given_;  // by name of the weight
  const ImportOptions& options_;
  NamePatterns patterns_;
  ImportReport& report_;
  Graph graph_;
  Builder b_;
  Flattener flattener_;
  std::map<const ::onnx::GraphProto*, std::vector<FlatNode>> branches_;  // checked, by subgraph
  std::map<std::string, V> values_;
  LossOutput loss_;
  BesideLoss beside_loss_;
  std::map<std::string, std::string> read_back_;  // a value whose readers read a tensor: that
  std::map<std::string, std::string> placeholders_;
  std::vector<std::string> unwritten_;  // buffers that are not in the file
  V random_step_ = kNone;
  struct Place {
    int64_t node = 0;
    std::vector<std::string> made;
    std::vector<std::pair<std::string, V>> inputs, outputs;
  };
  std::vector<Place> places_;  // of the main graph's nodes
  /// What a name meant outside the branch at hand (kNone: nothing).
  struct Hidden {
    std::string name;
    V value;
  };
  std::vector<Hidden> hidden_;  // of that branch
  bool inside_ = false;         // of a branch
  int depth_ = 0;               // branches around a node
  std::string scope_;           // turns of the loops around a node
};

}  // namespace

Graph import_model(ModelFile& model, const ImportOptions& options, ImportReport& report) {
  return Importer(model, options, report).run();
}

WeightMap map_model(ModelFile& model, const ImportOptions& options) {
  ImportReport unread;
  return Importer(model, options, unread).map();
}

}  // namespace shardrun::importer
