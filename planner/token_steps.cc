// From the logits backwards: which values are wanted, at which tokens; then the nodes that make
// them.
#include "planner/token_steps.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/passes/training.h"
#include "planner/rules/axis_ways.h"

namespace shardrun {
namespace {

using Place = std::optional<AxisPlace>;

/// A value as it is wanted: all of it, or some tokens of it: those that the step takes, or the last
/// one of them.
struct Want {
  Place place;  // of the tokens; none: all of the value
  bool last = false;
  friend auto operator<=>(const Want&, const Want&) = default;
};

/// How a node is run in the step.
struct Run {
  enum class Kind {
    as_it_is,  // whole
    by_token,  // some tokens, in `way`
    picked,    // whole, and then some tokens are picked from it
    the_last,  // takes the last token of its operand: the operand's last one is it
    attends,   // to kept keys and values
  };
  Kind kind = Kind::as_it_is;
  AxisWay way = {};
  bool last = false;
};

/// Does the node take nothing but the last of `size` indices of a dim? Which dim?
std::optional<int> takes_last(const Graph& g, const Node& node, int64_t size) {
  if (node.inputs.empty()) return std::nullopt;
  const Shape& shape = g.type(node.inputs[0]).shape;
  if (node.op == "slice") {
    for (size_t d = 0; d < shape.size(); ++d) {
      const int64_t begin = node.attrs.ints("starts")[d], end = node.attrs.ints("ends")[d];
      if (shape[d] == size && begin == size - 1 && end == size) return static_cast<int>(d);
    }
  }
  if (node.op == "gather") {
    const auto source = g.sources.find(node.inputs[1]);
    const auto axis = static_cast<int>(node.attrs.i("axis"));
    const bool one = element_count(g.type(node.inputs[1]).shape) == 1;
    if (shape[static_cast<size_t>(axis)] == size && one && source != g.sources.end() &&
        source->second.kind == Source::Kind::data && source->second.data.int_at(0) == size - 1)
      return axis;
  }
  return std::nullopt;
}

const Node* maker(const Graph& g, ValueId id, const char* op) {
  const NodeId producer = g.value(id).producer;
  return producer >= 0 && g.node(producer).op == op ? &g.node(producer) : nullptr;
}

/// Keys or values [B, H, S, D] whose heads are [B, K, S, D], each `times` times in a row.
struct Heads {
  ValueId of = kNoValue;
  int64_t times = 1;
};
Heads heads_of(const Graph& g, ValueId id) {
  const Node* reshape = maker(g, id, "reshape");
  const Node* expand = reshape != nullptr ? maker(g, reshape->inputs[0], "expand") : nullptr;
  const Node* apart = expand != nullptr ? maker(g, expand->inputs[0], "reshape") : nullptr;
  if (apart == nullptr) return {id, 1};
  const Shape wide = g.type(expand->outputs[0]).shape;
  if (wide.size() != 5 || wide[1] * wide[2] != g.type(id).shape[1]) return {id, 1};
  Shape narrow = wide;
  narrow[2] = 1;
  const bool fits = g.type(expand->inputs[0]).shape == narrow &&
                    g.type(apart->inputs[0]).shape == Shape{wide[0], wide[1], wide[3], wide[4]};
  return fits ? Heads{apart->inputs[0], wide[2]} : Heads{id, 1};
}

class StepBuilder {
 public:
  /// `count`: tokens that a step takes, whose keys and values are kept; 0: all, and none are.
  StepBuilder(const Graph& from, const TokenModel& model, int64_t count, RuleCache& rules)
      : from_(from),
        model_(model),
        count_(count),
        rules_(rules),
        runs_(from.nodes().size()),
        wants_(from.values().size()) {
    follows_.assign(from.values().size(), false);
    for (ValueId id : from.with_role(Role::batch)) follows_[at(id)] = true;
    for (const Node& node : from.nodes()) {
      const bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                                   [&](ValueId id) { return follows_[at(id)]; });
      for (ValueId id : node.outputs) follows_[at(id)] = any;
    }
  }

  /// Decides how all nodes run so that `logits` come out. False, with why(), if they cannot.
  bool plan(ValueId logits, const Want& want) {
    for (auto& wants : wants_) wants.clear();
    for (auto& runs : runs_) runs.clear();
    why_.clear();
    logits_ = {logits, normal(want)};
    this->want(logits, want);
    for (size_t n = from_.nodes().size(); n-- > 0 && why_.empty();) {
      const Node& node = from_.nodes()[n];
      for (size_t r = 0; r < node.outputs.size() && why_.empty(); ++r) {
        for (const Want& w : std::set<Want>(wants_[at(node.outputs[r])])) {
          if (!is_made(n, r, w)) choose(n, r, w);
        }
      }
    }
    for (size_t v = 0; v < wants_.size() && why_.empty(); ++v) check_leaf(static_cast<ValueId>(v));
    return why_.empty();
  }
  const std::string& why() const { return why_; }

  Graph build() {
    to_ = Graph();
    to_.name = from_.name;
    made_.clear();
    rows_.clear();
    TensorType tokens = from_.type(model_.tokens);
    if (count_ > 0) tokens.shape.back() = count_;
    tokens_ = to_.add_input(kTokens, tokens, Role::batch);
    position_ = to_.add_input(kPosition, {DType::i64, {}}, Role::scalar);
    for (size_t n = 0; n < runs_.size(); ++n) {
      for (const Run& run : runs_[n]) emit(from_.nodes()[n], run);
    }
    ValueId logits = get(logits_.first, logits_.second);
    const Shape rows = {element_count(to_.type(logits).shape) / model_.vocabulary,
                        model_.vocabulary};
    if (rows[0] > 1) {
      logits = to_.add("reshape", {logits}, {{"shape", rows}});
      logits =
          to_.add("slice", {logits},
                  {{"starts", Shape{0, 0}}, {"ends", Shape{1, rows[1]}}, {"steps", Shape{1, 1}}});
    }
    logits = to_.add("reshape", {logits}, {{"shape", Shape{rows[1]}}}, "logits/row");
    if (to_.type(logits).dtype != DType::f32)
      logits = to_.add("cast", {logits}, {{"to", std::string("f32")}}, "logits/f32");
    to_.value(logits).name = kLogits;
    to_.outputs = {logits};
    remove_dead_nodes(to_);
    return std::move(to_);
  }

 private:
  static size_t at(ValueId id) { return static_cast<size_t>(id); }
  bool keeps() const { return count_ > 0; }
  int64_t rows(bool last) const { return last ? 1 : count_; }
  void refuse(const std::string& why) {
    if (why_.empty()) why_ = why;
  }

  /// Of one token the last is all.
  Want normal(const Want& w) const { return {w.place, w.last && count_ != 1}; }
  void want(ValueId id, const Want& w) { wants_[at(id)].insert(normal(w)); }

  bool is_made(size_t n, size_t r, const Want& w) const {
    return std::any_of(runs_[n].begin(), runs_[n].end(), [&](const Run& run) {
      switch (run.kind) {
        case Run::Kind::as_it_is:
        case Run::Kind::the_last: return !w.place;
        case Run::Kind::by_token: return run.way.out[r] == w.place && run.last == w.last && w.place;
        case Run::Kind::attends: return r == 0 && run.last == w.last && w.place;
        case Run::Kind::picked: return run.way.out[r] == w.place && run.last == w.last;
      }
      return false;
    });
  }

  void choose(size_t n, size_t r, const Want& w) {
    const Node& node = from_.nodes()[n];
    if (!w.place) return choose_whole(n);
    if (keeps() && node.op == "attention" && follows_[at(node.inputs[1])])
      return choose_attention(n, r, w);
    const std::vector<TensorType> in = from_.types(node.inputs), out = from_.types(node.outputs);
    const std::vector<AxisWay> ways =
        ways_along(node, in, out, r, *w.place, model_.context, rules_);
    const auto needs_no_other = [&](const AxisWay& way) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!way.in[i] && follows_[at(node.inputs[i])]) return false;
      }
      return true;
    };
    auto way = std::find_if(ways.begin(), ways.end(), needs_no_other);
    if (way == ways.end() && !keeps()) way = ways.begin();
    if (way != ways.end()) {
      runs_[n].push_back({Run::Kind::by_token, *way, w.last});
      for (size_t i = 0; i < node.inputs.size(); ++i)
        want(node.inputs[i], way->in[i] ? Want{way->in[i], w.last} : Want{});
      return;
    }
    if (keeps() && follows_[at(node.outputs[r])])
      return refuse_mixing(ways.empty() ? node : maker_of_whole(node, ways[0]));
    // Made whole, and tokens picked from it.
    Run run{Run::Kind::picked, {}, w.last};
    run.way.out.resize(node.outputs.size());
    run.way.out[r] = w.place;
    runs_[n].push_back(run);
    const Want whole;
    if (!is_made(n, r, whole)) choose_whole(n);
  }

  /// What makes the operand of which the way needs all tokens.
  const Node& maker_of_whole(const Node& node, const AxisWay& way) const {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const NodeId producer = from_.value(node.inputs[i]).producer;
      if (!way.in[i] && follows_[at(node.inputs[i])] && producer >= 0) return from_.node(producer);
    }
    return node;
  }
  void refuse_mixing(const Node& node) {
    refuse(str("node '", node.name, "' (", node.op, ") mixes tokens"));
  }

  void choose_whole(size_t n) {
    const Node& node = from_.nodes()[n];
    const std::optional<int> dim = takes_last(from_, node, model_.context);
    if (dim && follows_[at(node.inputs[0])]) {
      runs_[n].insert(runs_[n].begin(), Run{Run::Kind::the_last, {{AxisPlace{*dim, 1}}, {}}, true});
      want(node.inputs[0], {AxisPlace{*dim, 1}, true});
      return;
    }
    runs_[n].insert(runs_[n].begin(), Run{});  // before tokens are picked from it
    for (ValueId id : node.inputs) want(id, {});
  }

  void choose_attention(size_t n, size_t r, const Want& w) {
    const Node& node = from_.nodes()[n];
    const AxisPlace tokens{2, 1};
    const std::string what = str("attention '", node.name, "' ");
    if (node.attrs.i("causal", 0) == 0 || node.attrs.i("q_offset", 0) != 0)
      return refuse(what + "is not causal: tokens see later ones");
    if (r != 0 || w.place != tokens || node.attrs.f("slope", 1.0) != 1 ||
        node.attrs.f("dropout", 0.0) != 0 || from_.type(node.inputs[1]).shape[2] != model_.context)
      return refuse(what + "is of a form of which keys are not kept");
    Run run{Run::Kind::attends, {}, w.last};
    run.way.in = {tokens, tokens, tokens};
    want(node.inputs[0], {tokens, w.last});
    for (size_t i : {1, 2}) want(kept_heads(node, i).of, {tokens, false});
    if (node.attrs.i("has_mask", 0) != 0) {
      const bool by_token = from_.type(node.inputs[3]).shape[2] != 1;
      run.way.in.push_back(by_token ? Place(tokens) : Place());
      want(node.inputs[3], by_token ? Want{tokens, w.last} : Want{});
    }
    runs_[n].push_back(run);
  }

  /// Keys (1) or values (2) as they are kept: each head once, where all queries agree on that.
  Heads kept_heads(const Node& node, size_t operand) const {
    const Heads k = heads_of(from_, node.inputs[1]), v = heads_of(from_, node.inputs[2]);
    const bool by_head =
        node.attrs.i("has_mask", 0) != 0 && from_.type(node.inputs[3]).shape[1] != 1;
    if (k.times != v.times || by_head) return {node.inputs[operand], 1};
    return operand == 1 ? k : v;
  }

  void check_leaf(ValueId id) {
    const Value& value = from_.value(id);
    if (value.producer >= 0 || wants_[at(id)].empty()) return;
    const std::set<Want>& wants = wants_[at(id)];
    if (id == model_.tokens) {
      const AxisPlace own{static_cast<int>(value.type.shape.size()) - 1, 1};
      for (const Want& w : wants) {
        if (!w.place && keeps()) return refuse("it takes all tokens at once");
        if (w.place && *w.place != own) return refuse("tokens and samples change places");
      }
      return;
    }
    if (value.role == Role::batch)
      return refuse(str("it also depends on input '", value.name, "'"));
    for (const Want& w : wants) {
      if (w.place && w.place->outer != 1)
        return refuse(str("'", value.name, "' has positions and samples in one dim"));
    }
  }

  // ---- the second pass ----

  /// i64 [rows]: the positions of the tokens.
  ValueId positions(bool last) {
    const auto [it, fresh] = rows_.try_emplace(last, kNoValue);
    if (!fresh) return it->second;
    const int64_t n = keeps() ? rows(last) : 1;
    const int64_t first = keeps() && last ? count_ - 1 : 0;
    const ValueId steps = to_.add("iota", {},
                                  {{"shape", Shape{n}},
                                   {"dtype", std::string("i64")},
                                   {"axis", int64_t{0}},
                                   {"start", first},
                                   {"step", int64_t{1}}},
                                  last ? "position/last" : "position/all");
    return it->second =
               to_.add("add", {steps, position_}, {}, last ? "positions/last" : "positions");
  }

  /// The rows of a value that is there whole.
  ValueId pick(ValueId whole, const Want& w) {
    SR_REQUIRE(w.place->outer == 1, internal, "tokens of '", to_.value(whole).name,
               "' are not rows of their own");
    return to_.add("gather", {whole, positions(w.last)}, {{"axis", int64_t{w.place->dim}}},
                   to_.value(whole).name + (w.last ? "/token" : "/tokens"));
  }

  ValueId get(ValueId id, const Want& w) {
    const auto known = made_.find({id, w});
    if (known != made_.end()) return known->second;
    SR_REQUIRE(from_.value(id).producer < 0, internal, "value '", from_.value(id).name,
               "' was not made as it is wanted");
    return made_[{id, w}] = leaf(id, w);
  }

  ValueId leaf(ValueId id, const Want& w) {
    if (id == model_.tokens) {
      if (!w.place || (keeps() && !w.last)) return tokens_;
      if (!keeps()) return pick(tokens_, w);
      const Shape shape = to_.type(tokens_).shape;
      Shape starts(shape.size(), 0);
      starts.back() = count_ - 1;
      return to_.add("slice", {tokens_},
                     {{"starts", starts}, {"ends", shape}, {"steps", Shape(shape.size(), 1)}},
                     "tokens/last");
    }
    if (w.place) return pick(get(id, {}), w);
    const Value& value = from_.value(id);
    const ValueId made = to_.add_input(value.name, value.type, value.role);
    if (auto it = from_.sources.find(id); it != from_.sources.end()) to_.sources[made] = it->second;
    if (auto it = from_.trainable.find(id); it != from_.trainable.end())
      to_.trainable[made] = it->second;
    if (auto it = from_.file_shapes.find(id); it != from_.file_shapes.end())
      to_.file_shapes[made] = it->second;
    return made;
  }

  void emit(const Node& node, const Run& run) {
    switch (run.kind) {
      case Run::Kind::as_it_is: return add(node, node.attrs, AxisWay(), false);
      case Run::Kind::by_token: {
        const Attrs attrs = attrs_along(node, from_.types(node.inputs), from_.types(node.outputs),
                                        run.way, model_.context, keeps() ? rows(run.last) : 1);
        return add(node, attrs, run.way, run.last);
      }
      case Run::Kind::picked:
        for (size_t r = 0; r < node.outputs.size(); ++r) {
          const Want w{run.way.out[r], run.last};
          if (w.place) made_[{node.outputs[r], w}] = pick(get(node.outputs[r], {}), w);
        }
        return;
      case Run::Kind::the_last: {
        const ValueId last = get(node.inputs[0], normal({run.way.in[0], true}));
        const Shape& shape = from_.type(node.outputs[0]).shape;
        made_[{node.outputs[0], Want{}}] =
            to_.type(last).shape == shape
                ? last
                : to_.add("reshape", {last}, {{"shape", shape}}, node.name);
        return;
      }
      case Run::Kind::attends: return attend(node, run);
    }
  }

  void add(const Node& node, const Attrs& attrs, const AxisWay& way, bool last) {
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Place place = way.in.empty() ? Place() : way.in[i];
      inputs.push_back(get(node.inputs[i], place ? Want{place, last} : Want{}));
    }
    const std::vector<ValueId> made = to_.add_node(node.op, inputs, attrs, node.name);
    for (size_t r = 0; r < made.size(); ++r) {
      const Place place = way.out.empty() ? Place() : way.out[r];
      made_[{node.outputs[r], place ? Want{place, last} : Want{}}] = made[r];
    }
  }

  ValueId transposed(ValueId id, std::vector<int64_t> perm, const std::string& name) {
    return to_.add("transpose", {id}, {{"perm", std::move(perm)}}, name);
  }
  ValueId reshaped(ValueId id, Shape shape, const std::string& name) {
    return to_.type(id).shape == shape ? id : to_.add("reshape", {id}, {{"shape", shape}}, name);
  }

  /// [B, H, count, D] goes to its positions among those kept, [context, B, H, D].
  ValueId keep(ValueId fresh, const std::string& name) {
    const TensorType type = to_.type(fresh);
    const Shape& s = type.shape;
    const ValueId kept = to_.add_persistent(name, {type.dtype, {model_.context, s[0], s[1], s[3]}},
                                            Role::state, Source{});
    to_.zeroed_each_step.insert(kept);
    const ValueId rows = transposed(fresh, {2, 0, 1, 3}, name + "/rows");
    const ValueId at = reshaped(positions(false), {s[2], 1}, "positions/column");
    const ValueId next = to_.add("scatter_nd", {kept, at, rows},
                                 {{"reduction", std::string("none")}}, name + "/next");
    to_.updates[kept] = next;
    return next;
  }

  void attend(const Node& node, const Run& run) {
    const AxisPlace tokens{2, 1};
    const Heads k = kept_heads(node, 1), v = kept_heads(node, 2);
    // A layer whose last token alone is wanted still keeps the keys and values of all.
    const auto [it, fresh] = kept_.try_emplace({k.of, v.of});
    if (fresh) {
      it->second = {keep(get(k.of, {tokens, false}), node.name + "/keys"),
                    keep(get(v.of, {tokens, false}), node.name + "/values")};
    }
    ValueId q = get(node.inputs[0], {tokens, run.last});
    const Shape s = to_.type(q).shape;  // [B, H, rows, D]
    const int64_t groups = s[1] / k.times;
    if (k.times > 1) {
      q = reshaped(q, {s[0], groups, k.times, s[2], s[3]}, node.name + "/groups");
      q = transposed(q, {0, 1, 3, 2, 4}, node.name + "/by_position");
      q = reshaped(q, {s[0], groups, s[2] * k.times, s[3]}, node.name + "/queries");
    }
    std::vector<ValueId> inputs = {q, it->second.first, it->second.second, positions(run.last)};
    const bool has_mask = run.way.in.size() > 3;
    if (has_mask)
      inputs.push_back(get(node.inputs[3], run.way.in[3] ? Want{run.way.in[3], run.last} : Want{}));
    ValueId y = to_.add(
        "cached_attention", inputs,
        {{"scale", node.attrs.f("scale")}, {"queries", k.times}, {"has_mask", int64_t{has_mask}}},
        node.name);
    const int64_t width = to_.type(y).shape[3];
    if (k.times > 1) {
      y = reshaped(y, {s[0], groups, s[2], k.times, width}, node.name + "/parts");
      y = transposed(y, {0, 1, 3, 2, 4}, node.name + "/by_head");
      y = reshaped(y, {s[0], s[1], s[2], width}, node.name + "/heads");
    }
    made_[{node.outputs[0], Want{tokens, run.last}}] = y;
  }

  const Graph& from_;
  const TokenModel& model_;
  const int64_t count_;
  RuleCache& rules_;
  std::vector<bool> follows_;           // by value: from a batch input
  std::vector<std::vector<Run>> runs_;  // by node
  std::vector<std::set<Want>> wants_;   // by value
  std::pair<ValueId, Want> logits_;
  std::string why_;

  Graph to_;
  ValueId tokens_ = kNoValue, position_ = kNoValue;
  std::map<std::pair<ValueId, Want>, ValueId> made_;
  std::map<bool, ValueId> rows_;
  std::map<std::pair<ValueId, ValueId>, std::pair<ValueId, ValueId>> kept_;
};

/// Which dims of a value may be [outer, tokens, rest], in the order to try them; none: it has no
/// tokens any more, but may be of the last one.
std::vector<Want> wants_of(const Shape& shape, const TokenModel& model) {
  std::vector<Want> out;
  for (size_t d = 0; d + 1 < shape.size(); ++d) {
    for (int64_t outer : {int64_t{1}, model.batch}) {
      if (shape[d] == outer * model.context)
        out.push_back({AxisPlace{static_cast<int>(d), outer}, true});
    }
  }
  out.push_back({});
  return out;
}

}  // namespace

TokenModel find_tokens(const Graph& forward) {
  TokenModel model;
  std::vector<std::set<ValueId>> from(forward.values().size());  // batch inputs, by value
  const auto inputs_of = [&](ValueId id) -> std::set<ValueId>& {
    return from[static_cast<size_t>(id)];
  };
  for (ValueId id : forward.with_role(Role::batch)) inputs_of(id) = {id};
  std::vector<ValueId> candidates = forward.outputs;
  for (const Node& node : forward.nodes()) {
    std::set<ValueId> all;
    for (ValueId id : node.inputs) all.insert(inputs_of(id).begin(), inputs_of(id).end());
    for (ValueId id : node.outputs) inputs_of(id) = all;
    if (takes_labels(node) || node.op == "log_softmax") candidates.push_back(node.inputs[0]);
  }
  std::string seen;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const ValueId id = candidates[i];
    const TensorType& type = forward.type(id);
    const std::set<ValueId>& inputs = inputs_of(id);
    // A loss that shifts its targets leaves out the last token's logits: before that they are
    // whole.
    const NodeId producer = forward.value(id).producer;
    if (producer >= 0) {
      const Elements elements = op_def(forward.node(producer).op).elements;
      if (elements == Elements::all || elements == Elements::some)
        candidates.push_back(forward.node(producer).inputs[0]);
    }
    seen += str(seen.empty() ? "" : ", ", "'", forward.value(id).name, "' ", type);
    if (!is_float(type.dtype) || type.shape.size() < 2 || inputs.size() != 1) continue;
    const ValueId tokens = *inputs.begin();
    const Shape& shape = forward.type(tokens).shape;
    if (is_float(forward.type(tokens).dtype) || shape.empty() || shape.size() > 2 ||
        shape.back() < 2 || (model.tokens != kNoValue && model.tokens != tokens))
      continue;
    if (model.tokens == kNoValue) {
      model.tokens = tokens;
      model.context = shape.back();
      model.batch = shape.size() == 2 ? shape[0] : 1;
      model.vocabulary = type.shape.back();
    }
    if (type.shape.back() == model.vocabulary) model.logits.push_back(id);
  }
  SR_REQUIRE(model.tokens != kNoValue, invalid_input,
             "takes no tokens: wanted an output of logits [batch, tokens, vocabulary] that follows "
             "from one integer input [batch, tokens], of two tokens or more; got ",
             seen);
  return model;
}

std::optional<Graph> cached_step(const Graph& forward, const TokenModel& model, int64_t count,
                                 RuleCache& rules, std::string* why) {
  StepBuilder builder(forward, model, count, rules);
  why->clear();
  for (ValueId logits : model.logits) {
    for (const Want& want : wants_of(forward.type(logits).shape, model)) {
      if (builder.plan(logits, want)) return builder.build();
      if (why->empty()) *why = builder.why();
    }
  }
  return std::nullopt;
}

Graph whole_step(const Graph& forward, const TokenModel& model, RuleCache& rules) {
  StepBuilder builder(forward, model, 0, rules);
  std::string why;
  for (ValueId logits : model.logits) {
    for (const Want& want : wants_of(forward.type(logits).shape, model)) {
      if (builder.plan(logits, want)) return builder.build();
      if (why.empty()) why = builder.why();
    }
  }
  fail(ErrorKind::invalid_input, "no logits of one token were found: ", why);
}

}  // namespace shardrun
