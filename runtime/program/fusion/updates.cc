// Runs of neighbouring steps, and what each becomes.
#include "program/fusion/updates.h"

#include <map>
#include <optional>

#include "graph/ops/optimizer.h"

namespace shardrun {
namespace {

/// Is it a term that only one step reads?
bool is_term(const Uses& uses, BufferId b) {
  return uses.passing(b) && uses.readers(b).size() == 1;
}

/// A sum of squares and of other numbers, such as squares that ranks have added, and the steps that
/// make it.
struct SumOfSquares {
  struct Add {
    size_t step;
    std::vector<BufferId> others;  // of what it adds: the other numbers, or their sums
  };
  std::vector<BufferId> of;
  std::vector<size_t> squares;  // of[i] is what squares[i] sums
  std::vector<Add> adds;        // the last makes the sum
  std::optional<BufferId> others;

  /// Of a sum of many terms, one added after the other, none is copied.
  void take(SumOfSquares&& term) {
    const auto append = [](auto& to, auto& from) {
      if (to.empty()) return to.swap(from);
      to.insert(to.end(), std::make_move_iterator(from.begin()),
                std::make_move_iterator(from.end()));
    };
    append(of, term.of);
    append(squares, term.squares);
    append(adds, term.adds);
  }
};

class SquareFusion {
 public:
  SquareFusion(Program& program, const RunsAlike& takes)
      : program_(program), uses_(program), takes_(takes) {}

  void run() {
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      if (step.phase != phase_) end();
      phase_ = step.phase;
      if (is_kernel(step, "reduce_sum_squares") && step.in.size() == 1) {
        sums_[step.out[0]] = {step.in, {s}, {}, std::nullopt};
      } else if (is_kernel(step, "add")) {
        add(s);
      }
    }
    end();
    remove_gone(program_, gone_);
  }

 private:
  bool is_sum(BufferId b) const { return sums_.count(b) > 0 && is_term(uses_, b); }

  void add(size_t s) {
    const Step& step = program_.steps[s];
    const TensorType number{DType::f32, {}};
    if (step.in[0] == step.in[1] || (!is_sum(step.in[0]) && !is_sum(step.in[1])) ||
        type_of(program_, step.in[0]) != number || type_of(program_, step.in[1]) != number)
      return;
    SumOfSquares sum;
    SumOfSquares::Add made{s, {}};
    for (BufferId b : step.in) {
      if (!is_sum(b)) {
        if (!uses_.makes_alone(b)) return;
        made.others.push_back(b);
      } else if (sums_.at(b).others) {
        made.others.push_back(*sums_.at(b).others);
      }
    }
    for (BufferId b : step.in) {
      if (!is_sum(b)) continue;
      sum.take(std::move(sums_.at(b)));
      sums_.erase(b);
    }
    if (made.others.size() == 1) sum.others = made.others[0];
    if (made.others.size() == 2) sum.others = step.out[0];
    sum.adds.push_back(std::move(made));
    sums_[step.out[0]] = std::move(sum);
  }

  void end() {
    for (const auto& [buffer, sum] : sums_) {
      if (sum.squares.size() > 1 && uses_.makes_alone(buffer)) fuse(sum, buffer);
    }
    sums_.clear();
  }

  /// At the place of the last square, where what the others sum must be there for other steps
  /// anyway; the last add then adds the other numbers.
  void fuse(const SumOfSquares& sum, BufferId to) {
    const size_t place = *std::max_element(sum.squares.begin(), sum.squares.end());
    for (size_t i = 0; i < sum.of.size(); ++i) {
      const size_t s = sum.squares[i];
      if (s != place &&
          (!uses_.lives_to(sum.of[i], place, s) || uses_.written_between(sum.of[i], s, place)))
        return;
    }
    if (sum.adds.back().others.size() > 1) return;
    const Step& first = program_.steps[sum.squares[0]];
    Step& last = program_.steps[sum.adds.back().step];
    Step fused = program_.steps[place];
    if (!sum.others) {
      fused.out = {to};
      fused.node.name = last.node.name;
      fused.source = last.source;
    }
    fused.in = fused.node.inputs = sum.of;
    fused.node.outputs = fused.out;
    if (!runs_alike(program_, fused, first, takes_)) return;
    gone_.insert(sum.squares.begin(), sum.squares.end());
    for (const SumOfSquares::Add& add : sum.adds) {
      if (add.others.size() < 2) {
        gone_.insert(add.step);
      } else {
        Step& kept = program_.steps[add.step];
        kept.in = add.others;
        rename(kept);
      }
    }
    gone_.erase(place);
    if (sum.others) {
      gone_.erase(sum.adds.back().step);
      last.in = {*sum.others, fused.out[0]};
      rename(fused);
    }
    program_.steps[place] = std::move(fused);
  }

  /// What it makes is no longer what the Graph's node of that name does.
  void rename(Step& step) {
    const std::string name = step.node.name + " and others";
    step.node.name = name;
    program_.buffers[static_cast<size_t>(step.out[0])].name = name;
  }

  Program& program_;
  const Uses uses_;
  const RunsAlike& takes_;
  std::map<BufferId, SumOfSquares> sums_;  // of the steps up to here
  Phase phase_ = Phase::micro;
  std::set<size_t> gone_;
};

/// Does each result take its operand's place? The update is of one parameter.
bool takes_operands_places(const Step& step, const UpdateForm& form) {
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

class UpdateFusion {
 public:
  UpdateFusion(Program& program, const RunsAlike& takes) : program_(program), takes_(takes) {}

  void run() {
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      if (is_update(step)) {
        const UpdateForm form = UpdateForm::of(step.node, step.in.size());
        if (!updates_.empty() && !go_together(program_.steps[updates_[0]], step, form)) end();
        if (!takes_operands_places(step, form)) {
          end();
          continue;
        }
        updates_.push_back(s);
      } else {
        end();
      }
    }
    end();
    remove_gone(program_, gone_);
  }

 private:
  void end() {
    if (updates_.size() > 1) fuse();
    updates_.clear();
  }

  void fuse() {
    const Step& first = program_.steps[updates_[0]];
    const UpdateForm form = UpdateForm::of(first.node, first.in.size());
    std::vector<const Node*> nodes;
    Step fused = first;
    fused.in.clear();
    fused.out.clear();
    std::vector<BufferId> copies;
    for (size_t u : updates_) {
      const Step& step = program_.steps[u];
      nodes.push_back(&step.node);
      const auto in = step.in.begin(), out = step.out.begin();
      fused.in.insert(fused.in.end(), in, in + static_cast<std::ptrdiff_t>(form.lr()));
      fused.out.insert(fused.out.end(), out, out + static_cast<std::ptrdiff_t>(form.result(1, 0)));
      if (step.node.attrs.has("copy")) copies.push_back(step.out.back());
    }
    for (size_t scalar : {form.lr(), form.step(), form.clip_scale()})
      fused.in.push_back(first.in[scalar]);
    fused.out.insert(fused.out.end(), copies.begin(), copies.end());
    fused.node = fused_update(nodes);
    fused.node.inputs = fused.in;
    fused.node.outputs = fused.out;
    if (!runs_alike(program_, fused, first, takes_)) return;
    gone_.insert(updates_.begin() + 1, updates_.end());
    program_.steps[updates_[0]] = std::move(fused);
  }

  Program& program_;
  const RunsAlike& takes_;
  std::vector<size_t> updates_;  // that go together, of the steps up to here
  std::set<size_t> gone_;
};

}  // namespace

void fuse_updates(Program& program, const RunsAlike& takes) {
  SquareFusion(program, takes).run();
  UpdateFusion(program, takes).run();
}

}  // namespace shardrun
