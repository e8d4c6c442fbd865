// One pass for the ranges, one for the memory that goes from operands to results.
#include "graph/passes/liveness.h"

#include <algorithm>

#include "base/at.h"

namespace shardrun {
namespace {

class Ranges {
 public:
  Ranges(std::span<const LiveStep> steps, const LiveValues& values)
      : steps_(steps),
        values_(values),
        end_(static_cast<int>(steps.size())),
        last_(values.bytes.size(), -1),
        taken_(values.bytes.size(), false) {
    for (int s = 0; s < end_; ++s) {
      for (ValueId id : steps_[at(s)].out) last_[at(id)] = s;
      for (ValueId id : steps_[at(s)].in) last_[at(id)] = s;
    }
    for (ValueId id : values_.kept) last_[at(id)] = end_ - 1;
  }

  std::vector<int64_t> alive() {
    change_.assign(steps_.size() + 1, 0);
    for (ValueId id : values_.given) hold(0, last_[at(id)], values_.bytes[at(id)]);
    for (int s = 0; s < end_; ++s) {
      for (size_t r = 0; r < steps_[at(s)].out.size(); ++r) add_result(s, r);
    }
    std::vector<int64_t> out(steps_.size());
    int64_t now = 0;
    for (size_t s = 0; s < out.size(); ++s) out[s] = now += change_[s];
    return out;
  }

 private:
  void hold(int from, int to, int64_t bytes) {
    if (from > to) return;
    change_[at(from)] += bytes;
    change_[at(to) + 1] -= bytes;
  }

  /// The operand that result `r` of step `s` may be written over, by the op, and that dies there.
  template <class Fits>
  ValueId over(int s, size_t r, Fits&& fits) const {
    const LiveStep& step = steps_[at(s)];
    for (const auto& [result, operand] : step.op->in_place) {
      if (at(result) != r || at(operand) >= step.in.size()) continue;
      const ValueId id = step.in[at(operand)];
      if (last_[at(id)] == s && std::count(step.in.begin(), step.in.end(), id) == 1 && fits(id))
        return id;
    }
    return kNoValue;
  }

  void add_result(int s, size_t r) {
    const ValueId result = steps_[at(s)].out[r];
    const int64_t bytes = values_.bytes[at(result)];
    int last = last_[at(result)];
    if (const ValueId held = values_.becomes[at(result)]; held != kNoValue) {
      if (last_[at(held)] < s) return;
      if (over(s, r, [&](ValueId id) { return id == held; }) != kNoValue) return;
      last = std::max(last, last_[at(held)]);
    }
    const ValueId dying = over(s, r, [&](ValueId id) {
      return bytes > 0 && values_.bytes[at(id)] == bytes && !taken_[at(id)];
    });
    if (dying != kNoValue) taken_[at(dying)] = true;
    hold(dying != kNoValue ? s + 1 : s, last, bytes);
  }

  std::span<const LiveStep> steps_;
  const LiveValues& values_;
  int end_;
  std::vector<int> last_;    // step, by value
  std::vector<bool> taken_;  // a result goes on in its memory
  std::vector<int64_t> change_;
};

}  // namespace

ValueBytes whole_bytes(const Graph& graph) {
  ValueBytes out;
  for (const Value& value : graph.values()) {
    const bool passing = value.role == Role::computed || value.role == Role::batch;
    out.push_back(passing ? byte_size(value.type) : 0);
  }
  return out;
}

LiveValues live_values(const Graph& graph, ValueBytes bytes) {
  LiveValues out;
  out.bytes = std::move(bytes);
  for (size_t v = 0; v < graph.values().size(); ++v) {
    if (graph.values()[v].role == Role::batch) out.given.push_back(static_cast<ValueId>(v));
  }
  out.kept = out.given;
  out.kept.insert(out.kept.end(), graph.outputs.begin(), graph.outputs.end());
  for (const auto& [name, id] : graph.metrics) out.kept.push_back(id);
  out.becomes.assign(graph.values().size(), kNoValue);
  for (const auto& [held, next] : graph.updates) out.becomes[at(next)] = held;
  return out;
}

std::vector<int64_t> bytes_alive(std::span<const LiveStep> steps, const LiveValues& values) {
  return Ranges(steps, values).alive();
}

std::vector<int64_t> bytes_alive(const Graph& graph, const ValueBytes& bytes) {
  std::vector<LiveStep> steps;
  for (const Node& node : graph.nodes())
    steps.push_back({node.inputs, node.outputs, &op_def(node.op)});
  return bytes_alive(steps, live_values(graph, bytes));
}

}  // namespace shardrun
