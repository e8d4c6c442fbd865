// Lowering of LSTM, GRU and RNN. An LSTM as frameworks have it is one op; the steps of all else are
// written out, one after the other.
#include <algorithm>
#include <functional>
#include <map>

#include "base/printable.h"
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

/// What the three operators have in common: S steps of B samples, H hidden numbers, and `gates` H
/// rows of weights. States are [B, H].
class Recurrence {
 public:
  /// `activations`: internal ops, unless the node names others.
  Recurrence(NodeContext& c, int64_t gates, std::vector<std::string> activations)
      : c_(c), b_(c.b), gates_(gates), activations_(std::move(activations)) {
    for (size_t i = 0; i < 3; ++i) {
      SR_REQUIRE(b_.rank(c.in(i)) == 3, invalid_input, "input ", i, " has three dims, got ",
                 b_.type(c.in(i)));
    }
    batch_first_ = c.attr_i("layout", 0) != 0;
    x_ = batch_first_ ? b_.transpose(c.in(0), {1, 0, 2}) : c.in(0);
    steps_ = b_.shape(x_)[0], batch_ = b_.shape(x_)[1];
    const Shape weights = b_.shape(c.in(2));
    directions = weights[0], hidden_ = weights[2];
    SR_REQUIRE(c.attr_i("hidden_size", hidden_) == hidden_, invalid_input, "hidden_size is ",
               c.attr_i("hidden_size", hidden_), ", recurrent weights are ", b_.type(c.in(2)));
    SR_REQUIRE(steps_ > 0, invalid_input, "input 0, ", b_.type(c.in(0)), ", has no steps");
    const std::string direction = c.attr_s("direction", "forward");
    reversed_ = direction == "reverse";
    if (!reversed_ && direction != "forward" && direction != "bidirectional")
      c.refuse_attr("direction", "supported are forward, reverse and bidirectional");
    SR_REQUIRE(directions == (direction == "bidirectional" ? 2 : 1), invalid_input, "direction ",
               direction, " with weights for ", directions);
    const Shape state =
        batch_first_ ? Shape{batch_, directions, hidden_} : Shape{directions, batch_, hidden_};
    require_shape(1, {directions, gates * hidden_, b_.shape(x_)[2]});
    require_shape(2, {directions, gates * hidden_, hidden_});
    require_shape(3, {directions, 2 * gates * hidden_});
    require_shape(4, {batch_});
    require_shape(5, state);
    require_shape(6, state);
    require_shape(7, {directions, 3 * hidden_});
    if (c.attr_f("clip", 0) != 0) c.refuse_attr("clip", "export it without");
    per_direction_ = activations_.size();
    for (size_t i = 0; directions == 2 && i < per_direction_; ++i)
      activations_.push_back(activations_[i]);
    if (c.has_attr("activations")) read_activations();
    if (c.has(4)) read_lengths();
    one_bias = c.report.producer.rfind("tf2onnx ", 0) == 0;
  }

  int64_t directions = 1;
  /// TensorFlow's layers have one bias for each gate, which tf2onnx writes as W's, with zeros as
  /// R's that are to stay: trained, they would double what the bias learns.
  bool one_bias = false;

  /// Direction d of an input [directions, …], without that dim.
  V part(size_t input, int64_t d) const {
    const V all = c_.in(input);
    const Shape shape = b_.shape(all);
    return b_.reshape(b_.slice(all, 0, d, d + 1), Shape(shape.begin() + 1, shape.end()));
  }

  /// x + the biases of `count` gates from gate `first` of both halves of the input.
  V with_bias(V x, int64_t d, int64_t first, int64_t count) const {
    if (!c_.has(3)) return x;
    V bias = gates(part(3, d), 0, first, count);
    if (one_bias && first >= gates_) bias = b_.add("identity", {bias}, {{"detach", int64_t{1}}});
    return b_.add("add", {x, bias});
  }

  /// x W' and W's bias, of all steps at once: [S, B, gates H].
  V inputs(int64_t d) const {
    const V y = b_.add("matmul", {x_, part(1, d)}, {{"equation", std::string("sbi,gi->sbg")}});
    return with_bias(y, d, 0, gates_);
  }
  V of_step(V all, int64_t step) const {
    return b_.reshape(b_.slice(all, 0, step, step + 1), {batch_, b_.shape(all)[2]});
  }
  V recurrent(V h, V weights) const {
    return b_.add("matmul", {h, weights}, {{"equation", std::string("bh,gh->bg")}});
  }
  V gates(V all, int64_t axis, int64_t first, int64_t count) const {
    return b_.slice(all, axis, first * hidden_, (first + count) * hidden_);
  }
  V activate(int64_t d, size_t which, V x) const {
    return b_.add(activations_[static_cast<size_t>(d) * per_direction_ + which], {x});
  }

  /// The states behind a step, of those before it; the first one is what the layer gives.
  using Step = std::function<std::vector<V>(int64_t d, int64_t step, const std::vector<V>& before)>;

  /// Runs all steps from the states at inputs 5, 6, … and sets the outputs.
  void run(size_t states, const Step& next) const {
    constexpr int64_t kStepBytes = 5000;  // at least
    b_.budget.check(kStepBytes * steps_, "its steps, written out,");
    std::vector<std::vector<V>> last(states);
    std::vector<V> of_directions;
    for (int64_t d = 0; d < directions; ++d) {
      std::vector<V> held, given(static_cast<size_t>(steps_));
      for (size_t i = 0; i < states; ++i) held.push_back(initial(5 + i, d));
      for (int64_t i = 0; i < steps_; ++i) {
        const int64_t step = reversed_ || d == 1 ? steps_ - 1 - i : i;
        const std::vector<V> made = next(d, step, held);
        const V zeros = b_.fill(0, b_.dtype(x_), {batch_, hidden_});
        given[static_cast<size_t>(step)] =
            b_.reshape(while_running(step, made[0], zeros), {1, 1, batch_, hidden_});
        for (size_t k = 0; k < states; ++k) held[k] = while_running(step, made[k], held[k]);
      }
      of_directions.push_back(b_.concat(given, 0));
      for (size_t k = 0; k < states; ++k)
        last[k].push_back(b_.reshape(held[k], {1, batch_, hidden_}));
    }
    set_outputs(of_directions, last);
  }

  /// An LSTM of the usual activations, all of whose samples have all steps.
  bool is_plain_lstm() const {
    const std::vector<std::string> usual = {"sigmoid", "tanh", "tanh"};
    return lengths_ == kNone && !c_.has(7) &&
           std::equal(activations_.begin(), activations_.begin() + 3, usual.begin()) &&
           (directions == 1 ||
            std::equal(activations_.begin() + 3, activations_.end(), usual.begin()));
  }

  /// x: of each direction's gates [S, B, 4 H].
  void run_plain_lstm(const std::vector<V>& x) const {
    std::vector<std::vector<V>> last(2);
    std::vector<V> of_directions;
    for (int64_t d = 0; d < directions; ++d) {
      const bool back = reversed_ || d == 1;
      const V seen = b_.reshape(x[static_cast<size_t>(d)], {steps_, batch_, 4, hidden_});
      const V weights = b_.reshape(part(2, d), {4, hidden_, hidden_});
      const std::vector<V> made = b_.add_n("lstm", {seen, weights, initial(5, d), initial(6, d)},
                                           {{"reverse", int64_t{back}}});
      of_directions.push_back(b_.reshape(made[0], {steps_, 1, batch_, hidden_}));
      const int64_t end = back ? 0 : steps_ - 1;
      for (size_t k = 0; k < last.size(); ++k)
        last[k].push_back(b_.slice(made[k], 0, end, end + 1));
    }
    set_outputs(of_directions, last);
  }

 private:
  /// of_directions: [S, 1, B, H] each. last: of each state, [1, B, H] of each direction.
  void set_outputs(const std::vector<V>& of_directions,
                   const std::vector<std::vector<V>>& last) const {
    const V y = b_.concat(of_directions, 1);  // [S, directions, B, H]
    if (c_.wants(0)) c_.out(0, batch_first_ ? b_.transpose(y, {2, 0, 1, 3}) : y);
    for (size_t k = 0; k < last.size(); ++k) {
      const V state = b_.concat(last[k], 0);  // [directions, B, H]
      if (c_.wants(k + 1)) c_.out(k + 1, batch_first_ ? b_.transpose(state, {1, 0, 2}) : state);
    }
  }

  void require_shape(size_t input, const Shape& wanted) const {
    if (!c_.has(input)) return;
    const TensorType& type = b_.type(c_.in(input));
    SR_REQUIRE(type.shape == wanted, invalid_input, "input ", input, " is ", type, ", wanted ",
               TensorType{type.dtype, wanted});
  }

  /// State `input` at the beginning: zeros where it is absent.
  V initial(size_t input, int64_t d) const {
    if (!c_.has(input)) return b_.fill(0, b_.dtype(x_), {batch_, hidden_});
    const int64_t axis = batch_first_ ? 1 : 0;
    return b_.reshape(b_.slice(c_.in(input), axis, d, d + 1), {batch_, hidden_});
  }

  /// `then` for samples that have this step, `otherwise` for those that have ended.
  V while_running(int64_t step, V then, V otherwise) const {
    if (lengths_ == kNone) return then;
    const V running = b_.add("greater", {lengths_, b_.constant(Tensor::scalar_i64(step))});
    return b_.add("where", {b_.reshape(running, {batch_, 1}), then, otherwise});
  }

  void read_activations() {
    static const std::map<std::string, std::string> ops = {
        {"Relu", "relu"}, {"Sigmoid", "sigmoid"}, {"Tanh", "tanh"}};
    std::vector<std::string> named;
    for (const std::string& name : c_.find("activations")->strings()) {
      if (ops.count(name) == 0)
        c_.refuse_attr("activations",
                       "supported are Relu, Sigmoid and Tanh, this has " + printable(name));
      named.push_back(ops.at(name));
    }
    SR_REQUIRE(named.size() == activations_.size(), invalid_input, "attribute activations names ",
               named.size(), ", wanted ", activations_.size());
    activations_ = std::move(named);
  }

  /// Samples may end early. Backward, a sample's state stays the initial one up to its own last
  /// step.
  void read_lengths() {
    const Tensor* known = b_.known(c_.in(4));
    bool all = known != nullptr;
    for (int64_t i = 0; all && i < known->count(); ++i) all = known->at(i) >= steps_;
    if (!all) lengths_ = b_.cast(c_.in(4), DType::i64);
  }

  NodeContext& c_;
  Builder& b_;
  int64_t gates_, steps_ = 0, batch_ = 0, hidden_ = 0;
  size_t per_direction_ = 0;
  std::vector<std::string> activations_;  // of both directions
  bool batch_first_ = false, reversed_ = false;
  V x_ = kNone, lengths_ = kNone;
};

/// Gates i, o, f and the cell's candidate g: c = f c + i g, h = o tanh(c). A peephole adds the
/// cell, weighted, to what a gate sees.
void lstm(NodeContext& c) {
  if (c.attr_i("input_forget", 0) != 0) c.refuse_attr("input_forget", "export it as two gates");
  Builder& b = c.b;
  const Recurrence r(c, 4, {"sigmoid", "tanh", "tanh"});
  std::vector<V> x, weights, peepholes;
  for (int64_t d = 0; d < r.directions; ++d) {
    x.push_back(r.with_bias(r.inputs(d), d, 4, 4));
    weights.push_back(r.part(2, d));
    if (c.has(7)) peepholes.push_back(r.part(7, d));
  }
  if (r.is_plain_lstm()) return r.run_plain_lstm(x);
  r.run(2, [&](int64_t d, int64_t step, const std::vector<V>& before) -> std::vector<V> {
    const auto at = static_cast<size_t>(d);
    const V z = b.add("add", {r.of_step(x[at], step), r.recurrent(before[0], weights[at])});
    auto gate = [&](int64_t which, V cell) {
      V seen = r.gates(z, 1, which, 1);
      if (!peepholes.empty())
        seen = b.add("add", {seen, b.add("mul", {cell, r.gates(peepholes[at], 0, which, 1)})});
      return r.activate(d, 0, seen);
    };
    const V kept = b.add("mul", {gate(2, before[1]), before[1]});
    const V candidate = r.activate(d, 1, r.gates(z, 1, 3, 1));
    const V cell = b.add("add", {kept, b.add("mul", {gate(0, before[1]), candidate})});
    return {b.add("mul", {gate(1, cell), r.activate(d, 2, cell)}), cell};
  });
}

/// Gates z, r and the candidate g: h = g + z (h - g). What the candidate sees of h goes through r
/// before the product with its weights, or behind it (linear_before_reset, PyTorch's).
void gru(NodeContext& c) {
  Builder& b = c.b;
  const bool reset_last = c.attr_i("linear_before_reset", 0) != 0;
  Recurrence r(c, 3, {"sigmoid", "tanh"});
  r.one_bias = r.one_bias && !reset_last;
  std::vector<V> x, of_gates, of_candidate;
  for (int64_t d = 0; d < r.directions; ++d) {
    x.push_back(r.inputs(d));
    of_gates.push_back(r.gates(r.part(2, d), 0, 0, 2));
    of_candidate.push_back(r.gates(r.part(2, d), 0, 2, 1));
  }
  r.run(1, [&](int64_t d, int64_t step, const std::vector<V>& before) -> std::vector<V> {
    const auto at = static_cast<size_t>(d);
    const V h = before[0], seen = r.of_step(x[at], step);
    const V both = r.with_bias(r.recurrent(h, of_gates[at]), d, 3, 2);
    const V gates = r.activate(d, 0, b.add("add", {r.gates(seen, 1, 0, 2), both}));
    const V z = r.gates(gates, 1, 0, 1), reset = r.gates(gates, 1, 1, 1);
    V hidden = r.recurrent(reset_last ? h : b.add("mul", {reset, h}), of_candidate[at]);
    hidden = r.with_bias(hidden, d, 5, 1);
    if (reset_last) hidden = b.add("mul", {reset, hidden});
    const V candidate = r.activate(d, 1, b.add("add", {r.gates(seen, 1, 2, 1), hidden}));
    return {b.add("add", {candidate, b.add("mul", {z, b.add("sub", {h, candidate})})})};
  });
}

void rnn(NodeContext& c) {
  Builder& b = c.b;
  const Recurrence r(c, 1, {"tanh"});
  std::vector<V> x, weights;
  for (int64_t d = 0; d < r.directions; ++d) {
    x.push_back(r.with_bias(r.inputs(d), d, 1, 1));
    weights.push_back(r.part(2, d));
  }
  r.run(1, [&](int64_t d, int64_t step, const std::vector<V>& before) -> std::vector<V> {
    const auto at = static_cast<size_t>(d);
    const V h = r.recurrent(before[0], weights[at]);
    return {r.activate(d, 0, b.add("add", {r.of_step(x[at], step), h}))};
  });
}

constexpr Lowering kRecurrentLowerings[] = {{"GRU", 7, gru}, {"LSTM", 7, lstm}, {"RNN", 7, rnn}};

}  // namespace

std::span<const Lowering> recurrent_lowerings() { return kRecurrentLowerings; }

}  // namespace shardrun::importer
