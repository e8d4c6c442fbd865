// Runs of neighbouring steps, and what each becomes.
#include "planner/join_updates.h"

#include <map>
#include <optional>

#include "graph/ops/optimizer.h"
#include "planner/step_uses.h"

namespace shardrun {
namespace {

/// Has the backend a kernel for `many` as for `alone`?
bool is_taken(const Program& program, const Step& many, const Step& alone, const TakesMany& takes) {
  const std::vector<TensorType> in = types_of(program, many.in), out = types_of(program, many.out);
  const std::vector<TensorType> own_in = types_of(program, alone.in),
                                own_out = types_of(program, alone.out);
  return !takes || takes({many.node, in, out}, {alone.node, own_in, own_out});
}

/// Is it the sum of two that only it reads?
template <class Sums>
bool adds(const Step& step, const Uses& uses, const Sums& sums) {
  if (!is_kernel(step, "add") || step.in[0] == step.in[1]) return false;
  return std::all_of(step.in.begin(), step.in.end(), [&](BufferId b) {
    return sums.count(b) > 0 && uses.passing(b) && uses.readers(b).size() == 1;
  });
}

/// What one number is the sum of squares of, and the steps that make it.
struct SumOfSquares {
  std::vector<BufferId> of;
  std::vector<size_t> steps;

  void take(const SumOfSquares& other) {
    of.insert(of.end(), other.of.begin(), other.of.end());
    steps.insert(steps.end(), other.steps.begin(), other.steps.end());
  }
};

class JoinSquares {
 public:
  JoinSquares(Program& program, const TakesMany& takes)
      : program_(program), uses_(program), takes_(takes) {}

  void run() {
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      if (!sums_.empty() && step.phase != phase_) end();
      phase_ = step.phase;
      if (is_kernel(step, "reduce_sum_squares")) {
        sums_[step.out[0]] = {step.in, {s}};
      } else if (adds(step, uses_, sums_)) {
        SumOfSquares sum;
        for (BufferId b : step.in) {
          sum.take(sums_.at(b));
          sums_.erase(b);
        }
        sum.steps.push_back(s);
        sums_[step.out[0]] = std::move(sum);
      } else {
        end();
      }
    }
    end();
    remove_gone(program_, gone_);
  }

 private:
  void end() {
    for (const auto& [buffer, sum] : sums_) {
      if (sum.steps.size() == 1) continue;
      const Step& first = program_.steps[sum.steps.front()];
      Step joined = first;
      joined.in = joined.node.inputs = sum.of;
      joined.out = joined.node.outputs = {buffer};
      joined.node.name = program_.steps[sum.steps.back()].node.name;
      joined.source = program_.steps[sum.steps.back()].source;
      if (!is_taken(program_, joined, first, takes_)) continue;
      program_.steps[sum.steps.back()] = std::move(joined);
      gone_.insert(sum.steps.begin(), sum.steps.end() - 1);
    }
    sums_.clear();
  }

  Program& program_;
  const Uses uses_;
  const TakesMany& takes_;
  std::map<BufferId, SumOfSquares> sums_;  // of the steps up to here
  Phase phase_ = Phase::micro;
  std::set<size_t> gone_;
};

/// Does each result take its operand's place? The update is of one parameter.
bool stays_in_place(const Step& step, const UpdateForm& form) {
  if (form.count > 1 || step.out[form.result(0, 0)] != step.in[form.operand(0, 0)]) return false;
  for (size_t i = 0; i < form.moments; ++i) {
    if (step.out[form.result(0, 1 + i)] != step.in[form.operand(0, 2 + i)]) return false;
  }
  return true;
}

/// Could both be one step?
bool go_together(const Step& a, const Step& b, const UpdateForm& form) {
  if (a.node.op != b.node.op || a.phase != b.phase) return false;
  for (size_t scalar : {form.lr(), form.step(), form.clip_scale()}) {
    if (a.in[scalar] != b.in[scalar]) return false;
  }
  const auto common = [](const Attrs& attrs) {
    Attrs out;
    for (const auto& [name, attr] : attrs.all()) {
      if (name != "weight_decay" && name != "copy") out.set(name, attr);
    }
    return out;
  };
  const Attrs &x = a.node.attrs, &y = b.node.attrs;
  return common(x) == common(y) && (!x.has("copy") || !y.has("copy") || x.s("copy") == y.s("copy"));
}

class JoinUpdates {
 public:
  JoinUpdates(Program& program, const TakesMany& takes)
      : program_(program), uses_(program), takes_(takes) {}

  void run() {
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      if (is_update(step)) {
        const UpdateForm form = UpdateForm::of(step.node, step.in.size());
        if (!updates_.empty() && !go_together(program_.steps[updates_[0]], step, form)) end();
        if (!stays_in_place(step, form)) {
          end();
          continue;
        }
        updates_.push_back(s);
        if (form.squares) sums_.insert(step.out[*form.squares]);
      } else if (!updates_.empty() && step.phase == program_.steps[updates_[0]].phase &&
                 adds(step, uses_, sums_)) {
        for (BufferId b : step.in) sums_.erase(b);
        sums_.insert(step.out[0]);
        adds_.push_back(s);
      } else {
        end();
      }
    }
    end();
    remove_gone(program_, gone_);
  }

 private:
  void end() {
    if (updates_.size() > 1 && sums_.size() <= 1) join();
    updates_.clear();
    adds_.clear();
    sums_.clear();
  }

  void join() {
    const Step& first = program_.steps[updates_[0]];
    const UpdateForm form = UpdateForm::of(first.node, first.in.size());
    std::vector<const Node*> nodes;
    Step joined = first;
    joined.in.clear();
    joined.out.clear();
    std::vector<BufferId> copies;
    for (size_t u : updates_) {
      const Step& step = program_.steps[u];
      nodes.push_back(&step.node);
      const auto in = step.in.begin(), out = step.out.begin();
      joined.in.insert(joined.in.end(), in, in + static_cast<std::ptrdiff_t>(form.lr()));
      joined.out.insert(joined.out.end(), out,
                        out + static_cast<std::ptrdiff_t>(form.result(1, 0)));
      if (step.node.attrs.has("copy")) copies.push_back(step.out.back());
    }
    for (size_t scalar : {form.lr(), form.step(), form.clip_scale()})
      joined.in.push_back(first.in[scalar]);
    joined.out.insert(joined.out.end(), sums_.begin(), sums_.end());
    joined.out.insert(joined.out.end(), copies.begin(), copies.end());
    joined.node = joined_update(nodes, !sums_.empty());
    joined.node.inputs = joined.in;
    joined.node.outputs = joined.out;
    if (!is_taken(program_, joined, first, takes_)) return;
    gone_.insert(updates_.begin() + 1, updates_.end());
    gone_.insert(adds_.begin(), adds_.end());
    program_.steps[updates_[0]] = std::move(joined);
  }

  Program& program_;
  const Uses uses_;
  const TakesMany& takes_;
  // Of the steps up to here: updates that go together, the adds among them, and of what these make
  // of their sums of squares that which is left.
  std::vector<size_t> updates_, adds_;
  std::set<BufferId> sums_;
  std::set<size_t> gone_;
};

}  // namespace

void join_updates(Program& program, const TakesMany& takes) {
  JoinSquares(program, takes).run();
  JoinUpdates(program, takes).run();
}

}  // namespace shardrun
