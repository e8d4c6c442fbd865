// Patterns over the steps of one rank.
#include "program/join_steps.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "graph/op_def.h"
#include "program/ops/post.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

/// The sum then takes the rows itself. It stays where it stands.
void join_rows(Program& program, const Uses& uses, size_t s, std::set<size_t>& gone) {
  Step& sum = program.steps[s];
  if (!is_kernel(sum, "add")) return;
  for (const size_t i : {0, 1}) {
    const BufferId rows = sum.in[i], other = sum.in[1 - i];
    if (rows == other || !uses.passing(rows) || uses.readers(rows).size() != 1) continue;
    const size_t made = uses.makers(rows)[0];
    const Step& scatter = program.steps[made];
    const TensorType& type = type_of(program, sum.out[0]);
    if (!is_kernel(scatter, "gather_grad") || scatter.phase != sum.phase ||
        type_of(program, rows) != type || type_of(program, other) != type) {
      continue;
    }
    const std::vector<BufferId> in = {other, scatter.in[0], scatter.in[1]};
    if (uses.written_between(in[1], made, s) || uses.written_between(in[2], made, s)) continue;
    sum.node.op = "add_rows";
    sum.node.attrs = {{"axis", scatter.node.attrs.i("axis")},
                      {"offset", scatter.node.attrs.i("offset", 0)}};
    sum.in = sum.node.inputs = in;
    gone.insert(made);
    return;
  }
}

/// The norm's gradient then adds what the sum would. It stays where it stands.
void join_residual(Program& program, const Uses& uses, size_t s, std::set<size_t>& gone) {
  const Step& sum = program.steps[s];
  if (!is_kernel(sum, "add") || !uses.passing(sum.out[0])) return;
  for (const size_t i : {0, 1}) {
    const BufferId dx = sum.in[i], other = sum.in[1 - i];
    if (dx == other || !uses.passing(dx) || uses.readers(dx).size() != 1) continue;
    const size_t made = uses.makers(dx)[0];
    Step& norm = program.steps[made];
    const bool layer = is_kernel(norm, "layer_norm_grad");
    if ((!layer && !is_kernel(norm, "rms_norm_grad")) || norm.in.size() != (layer ? 5 : 4) ||
        norm.out[0] != dx || norm.phase != sum.phase ||
        type_of(program, other) != type_of(program, dx) ||
        type_of(program, sum.out[0]) != type_of(program, dx) ||
        uses.makers(other) == std::vector{made} || uses.written_between(other, made, s)) {
      continue;
    }
    norm.in.push_back(other);
    norm.out[0] = sum.out[0];
    gone.insert(s);
    return;
  }
}

/// Rows of a product: of what it multiplies with operand `i`.
int64_t rows_beside(const Program& program, const Step& product, size_t i) {
  const auto flops =
      node_flops(product.node,
                 std::vector{type_of(program, product.in[0]), type_of(program, product.in[1])}, {});
  const auto elements = static_cast<double>(element_count(type_of(program, product.in[i]).shape));
  return elements == 0 ? 0 : static_cast<int64_t>(flops / 2 / elements);
}

/// The products that read a weight's cast then read the weight.
void join_cast(Program& program, const Uses& uses, const TakesStep& takes,
               const std::set<BufferId>& weights, size_t s, std::set<size_t>& gone) {
  const Step& cast = program.steps[s];
  if (!is_kernel(cast, "cast") || weights.count(cast.in[0]) == 0) return;
  const BufferId weight = cast.in[0], narrow = cast.out[0];
  if (type_of(program, weight).dtype != DType::f32 ||
      type_of(program, narrow).dtype != DType::bf16 || !uses.passing(narrow)) {
    return;
  }
  const auto operand = [&](const Step& step) { return step.in[0] == narrow ? size_t{0} : 1; };
  for (size_t r : uses.readers(narrow)) {
    const Step& product = program.steps[r];
    if (!is_kernel(product, "matmul") || product.phase != cast.phase ||
        product.in[0] == product.in[1] ||
        type_of(program, product.in[1 - operand(product)]).dtype != DType::bf16 ||
        rows_beside(program, product, operand(product)) < kManyRows ||
        uses.written_between(weight, s, r)) {
      return;
    }
    std::vector<TensorType> in = types_of(program, product.in);
    in[operand(product)] = type_of(program, weight);
    if (takes && !takes(product.node, in, types_of(program, product.out))) return;
  }
  for (size_t r : uses.readers(narrow)) {
    Step& product = program.steps[r];
    product.in[operand(product)] = weight;
    product.node.inputs = product.in;
  }
  gone.insert(s);
}

/// What a step makes for `reader` alone, by an op that reads `x` first and `rows` last; null if it
/// is not so.
const Step* table_for(const Program& program, const Uses& uses, BufferId table, size_t reader,
                      std::string_view op) {
  const Step& step = program.steps[reader];
  const std::vector<size_t>& readers = uses.readers(table);
  if (!uses.passing(table) || readers.back() != reader) return nullptr;
  const size_t made = uses.makers(table)[0];
  const Step& maker = program.steps[made];
  if (!is_kernel(maker, op) || maker.phase != step.phase || maker.in[0] != step.in[0] ||
      maker.in.back() != step.in.back() || maker.node.attrs.i("offset", 0) != 0)
    return nullptr;
  for (BufferId b : maker.in) {
    if (b != table && uses.written_between(b, made, reader)) return nullptr;
  }
  return &maker;
}

/// The softmax over segments then finds their maxima and sums itself, and its gradient their sums.
void join_segments(Program& program, const Uses& uses, size_t s, std::set<size_t>& gone) {
  Step& step = program.steps[s];
  const bool grad = is_kernel(step, "segment_softmax_grad");
  if ((!grad && !is_kernel(step, "segment_softmax")) || step.in.size() != 4) return;
  const Step* table = nullptr;
  if (grad) {
    table = table_for(program, uses, step.in[2], s, "segment_softmax_reduce_grad");
    if (table == nullptr || table->in[1] != step.in[1] || uses.readers(step.in[2]).size() != 1)
      return;
  } else {
    table = table_for(program, uses, step.in[1], s, "segment_max");
    const Step* total = table_for(program, uses, step.in[2], s, "segment_exp_sum");
    if (table == nullptr || total == nullptr || total->in[1] != step.in[1] ||
        uses.readers(step.in[1]).size() != 2 || uses.readers(step.in[2]).size() != 1)
      return;
    gone.insert(uses.makers(step.in[2])[0]);
  }
  gone.insert(uses.makers(step.in[grad ? 2 : 1])[0]);
  step.node.attrs.set("size", table->node.attrs.i("size"));
  step.in = grad ? table->in : std::vector{step.in[0], step.in[3]};
  step.node.inputs = step.in;
}

/// Steps behind `s` and before `end` that take what it makes, or what these make.
std::vector<size_t> dependents(const Program& program, size_t s, size_t end) {
  std::set<BufferId> made(program.steps[s].out.begin(), program.steps[s].out.end());
  std::vector<size_t> out;
  for (size_t t = s + 1; t < end; ++t) {
    const Step& step = program.steps[t];
    if (std::none_of(step.in.begin(), step.in.end(), [&](BufferId b) { return made.count(b) > 0; }))
      continue;
    made.insert(step.out.begin(), step.out.end());
    out.push_back(t);
  }
  return out;
}

/// May the steps `later`, in their order, run after step `end`? Not if a step that they then follow
/// writes what they read or write.
bool may_follow(const Program& program, const std::vector<size_t>& later, size_t end) {
  for (size_t moved : later) {
    const Step& step = program.steps[moved];
    for (size_t t = moved + 1; t <= end; ++t) {
      if (std::find(later.begin(), later.end(), t) != later.end()) continue;
      for (BufferId b : program.steps[t].out) {
        for (const auto* list : {&step.in, &step.out}) {
          if (std::find(list->begin(), list->end(), b) != list->end()) return false;
        }
      }
    }
  }
  return true;
}

/// The losses are then made where their gradient is, and what is made of them behind it.
void join_loss(Program& program, const Uses& uses, size_t s, std::set<size_t>& gone) {
  const Step& loss = program.steps[s];
  const BufferId lse = loss.out[1];
  if (!uses.passing(lse) || uses.readers(lse).size() != 1) return;
  const size_t g = uses.readers(lse)[0];
  const Step& grad = program.steps[g];
  if (!is_kernel(grad, "cross_entropy_grad") || grad.phase != loss.phase ||
      grad.in[1] != loss.in[0] || grad.in[2] != loss.in[1] || grad.in[3] != lse ||
      grad.node.attrs.i("offset", 0) != 0) {
    return;
  }
  std::vector<size_t> later = dependents(program, s, g);
  const auto reads = [&](size_t t) {
    const std::vector<BufferId>& out = program.steps[t].out;
    return std::find(out.begin(), out.end(), grad.in[0]) != out.end();
  };
  if (std::any_of(later.begin(), later.end(), reads) || uses.written_between(loss.in[0], s, g) ||
      uses.written_between(loss.in[1], s, g) || !may_follow(program, later, g))
    return;
  Step both = loss;
  both.node.op = "cross_entropy_and_grad";
  both.in = both.node.inputs = {grad.in[0], loss.in[0], loss.in[1]};
  both.out = both.node.outputs = {loss.out[0], grad.out[0]};
  std::vector<Step> order;
  for (size_t t = s + 1; t < g; ++t) {
    if (std::find(later.begin(), later.end(), t) == later.end())
      order.push_back(std::move(program.steps[t]));
  }
  order.push_back(std::move(both));
  for (size_t t : later) order.push_back(std::move(program.steps[t]));
  gone.insert(g);
  std::move(order.begin(), order.end(), program.steps.begin() + static_cast<std::ptrdiff_t>(s));
}

/// Collects the steps between `p` and `s` that make a buffer of what stands at `p`: a bias in the
/// shape and type that a sum wants. False if it is made otherwise.
bool made_early(const Program& program, const Uses& uses, BufferId b, size_t p, size_t s,
                std::set<size_t>& steps) {
  if (uses.stands(b, p, s)) return true;
  if (!uses.passing(b)) return false;
  const size_t made = uses.makers(b)[0];
  const Step& step = program.steps[made];
  if (made <= p || made >= s || step.kind != Step::Kind::kernel || step.out.size() != 1 ||
      step.phase != program.steps[p].phase)
    return false;
  steps.insert(made);
  return std::all_of(step.in.begin(), step.in.end(),
                     [&](BufferId in) { return made_early(program, uses, in, p, s, steps); });
}

/// The product and the first step that reads it become one, at the place of either: of the first
/// where all that the second takes is there by then, or is small and can be, else of the second
/// where that keeps nothing alive for longer. Returns that place, or nullopt if they stay two.
std::optional<size_t> join_next(Program& program, Uses& uses, const TakesStep& takes, size_t p) {
  const Step& product = program.steps[p];
  const BufferId result = product.out[0];
  const std::vector<size_t>& readers = uses.readers(result);
  const bool keep = !uses.passing(result) || readers.size() != 1;
  if (readers.empty() || !uses.makes_alone(result) || (keep && product.out.size() > 1))
    return std::nullopt;
  const size_t s = readers[0];
  const Step& next = program.steps[s];
  if (next.kind != Step::Kind::kernel || !is_post_op(next.node.op) || next.phase != product.phase ||
      next.out.size() != 1 || type_of(program, next.out[0]).shape != type_of(program, result).shape)
    return std::nullopt;
  const BufferId out = next.out[0];
  const auto found = std::find(next.in.begin(), next.in.end(), result);
  const auto at = static_cast<size_t>(found - next.in.begin());
  Step joined = product;
  joined.in.insert(joined.in.end(), next.in.begin(), found);
  joined.in.insert(joined.in.end(), found + 1, next.in.end());
  // In place of an operand, or of what others still read, it stays as it is.
  const auto takes_also = [&](BufferId b) {
    return std::find(joined.in.begin(), joined.in.end(), b) != joined.in.end();
  };
  if (!uses.makes_alone(out) || takes_also(out) || takes_also(result)) return std::nullopt;
  const auto all = [](auto begin, auto end, auto&& holds) {
    return std::all_of(begin, end, holds);
  };
  const auto others = joined.in.begin() + static_cast<std::ptrdiff_t>(product.in.size());
  size_t place = p;
  std::set<size_t> early;
  if (!all(others, joined.in.end(), [&](BufferId b) {
        const bool small =
            byte_size(type_of(program, b)) * 16 <= byte_size(type_of(program, result));
        return small ? made_early(program, uses, b, p, s, early) : uses.stands(b, p, s);
      })) {
    place = s;
    early.clear();
    if (!all(product.in.begin(), product.in.end(),
             [&](BufferId b) { return uses.lives_to(b, s, p) && !uses.written_between(b, p, s); }))
      return std::nullopt;
  }
  joined.out[0] = out;
  if (keep) joined.out.push_back(result);
  joined.node.inputs = joined.in;
  Node follower = next.node;
  follower.inputs = next.in;
  add_post_op(joined.node, follower, at, keep);
  joined.node.outputs = joined.out;
  const std::vector<TensorType> in = types_of(program, joined.in),
                                types = types_of(program, joined.out);
  if (takes && !takes(joined.node, in, types)) return std::nullopt;
  uses.forget(program, p, s + 1);
  program.steps[p] = program.steps[s] = Step();
  program.steps[place] = std::move(joined);
  for (const size_t step : early) {  // in their order, each to where the product stands
    const auto at = program.steps.begin();
    std::rotate(at + static_cast<std::ptrdiff_t>(place), at + static_cast<std::ptrdiff_t>(step),
                at + static_cast<std::ptrdiff_t>(step) + 1);
    ++place;
  }
  uses.note(program, p, s + 1);
  return place;
}

/// Steps that join_next has emptied.
bool is_gone(const Step& step) { return step.in.empty() && step.out.empty(); }

void join_post_ops(Program& program, const TakesStep& takes, std::set<size_t>& gone) {
  Uses uses(program);
  for (size_t first = 0; first < program.steps.size(); ++first) {
    std::optional<size_t> at = first;
    while (at && program.steps[*at].kind == Step::Kind::kernel && !is_gone(program.steps[*at]) &&
           (takes_post_ops(program.steps[*at].node.op) || has_post_ops(program.steps[*at].node.op)))
      at = join_next(program, uses, takes, *at);
  }
  for (size_t s = 0; s < program.steps.size(); ++s) {
    if (is_gone(program.steps[s])) gone.insert(s);
  }
}

/// The product that multiplies away what is summed then makes the sum, too.
void join_sum(Program& program, const Uses& uses, const TakesStep& takes, size_t s,
              std::set<size_t>& gone) {
  const Step& sum = program.steps[s];
  if (!is_kernel(sum, "reduce_sum") || sum.node.attrs.i("keepdims", 1) != 0) return;
  const BufferId of = sum.in[0], out = sum.out[0];
  if (!uses.makes_alone(out)) return;
  for (size_t p : uses.readers(of)) {
    Step& product = program.steps[p];
    const std::vector<size_t>& readers = uses.readers(out);
    if (!is_kernel(product, "matmul") || product.in[0] == product.in[1] ||
        product.phase != sum.phase || uses.written_between(of, std::min(s, p), std::max(s, p)) ||
        std::any_of(readers.begin(), readers.end(), [&](size_t r) { return r <= p; }))
      continue;
    Step joined = product;
    add_operand_sum(joined.node, product.in[0] == of ? 0 : 1);
    const DType type = type_of(program, product.out[0]).dtype;
    const Node same = operand_sum(joined.node, type_of(program, of).dtype, type);
    if (type_of(program, out).dtype != type ||
        same.attrs.ints("axes") != sum.node.attrs.ints("axes"))
      continue;
    joined.out.push_back(out);
    joined.node.outputs = joined.out;
    if (takes && !takes(joined.node, types_of(program, joined.in), types_of(program, joined.out)))
      continue;
    product = std::move(joined);
    gone.insert(s);
    return;
  }
}

std::set<BufferId> buffers_of(const Program& program, Role role) {
  std::set<BufferId> out;
  for (const Binding& b : program.bindings) {
    if (b.role == role) out.insert(b.buffer);
  }
  return out;
}

/// Is it the optimizer's update of `weight`, in its place?
bool updates(const Step& step, BufferId weight) {
  return is_update(step) && step.in[0] == weight && step.out[0] == weight;
}

/// Makes what several casts of a weight leave one buffer that outlives the step.
void keep_cast(Program& program, const Uses& uses, BufferId weight, const std::set<size_t>& casts,
               std::set<size_t>& gone) {
  const std::vector<size_t>& makers = uses.makers(weight);
  if (makers.size() > 1 || (makers.size() == 1 && !updates(program.steps[makers[0]], weight)))
    return;
  const BufferId kept = program.steps[*casts.begin()].out[0];
  for (size_t cast : casts) {
    const BufferId narrow = program.steps[cast].out[0];
    if (!uses.passing(narrow)) return;
    for (size_t r : uses.readers(narrow)) {
      if (!makers.empty() && r > makers[0]) return;  // it wants the old weight
    }
  }
  for (size_t cast : casts) {
    const BufferId narrow = program.steps[cast].out[0];
    for (size_t r : uses.readers(narrow)) {
      std::vector<BufferId>& in = program.steps[r].in;
      std::replace(in.begin(), in.end(), narrow, kept);
    }
  }
  if (!makers.empty()) {
    Step& update = program.steps[makers[0]];
    update.out.push_back(kept);
    update.node.attrs.set("copy", std::string(to_string(type_of(program, kept).dtype)));
  }
  program.setup.push_back(program.steps[*casts.begin()]);
  gone.insert(casts.begin(), casts.end());
}

/// Each moves steps, so that uses are found anew.
void join_losses(Program& program) {
  for (size_t s = 0; s < program.steps.size(); ++s) {
    if (!is_kernel(program.steps[s], "cross_entropy")) continue;
    std::set<size_t> gone;
    join_loss(program, Uses(program), s, gone);
    if (!gone.empty()) remove_gone(program, gone);
  }
}

}  // namespace

void join_steps(Program& program, const TakesStep& takes) {
  join_losses(program);
  const Uses uses(program);
  const std::set<BufferId> weights = buffers_of(program, Role::parameter);
  std::set<size_t> gone;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    join_rows(program, uses, s, gone);
    join_residual(program, uses, s, gone);
    join_cast(program, uses, takes, weights, s, gone);
    join_segments(program, uses, s, gone);
  }
  if (!gone.empty()) remove_gone(program, gone);
  gone.clear();
  join_post_ops(program, takes, gone);
  if (!gone.empty()) remove_gone(program, gone);
  gone.clear();
  const Uses rest(program);
  for (size_t s = 0; s < program.steps.size(); ++s) join_sum(program, rest, takes, s, gone);
  if (!gone.empty()) remove_gone(program, gone);
}

void keep_casts(Program& program) {
  const Uses uses(program);
  const std::set<BufferId> weights = buffers_of(program, Role::parameter);
  std::map<BufferId, std::set<size_t>> casts;  // by weight
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    if (is_kernel(step, "cast") && weights.count(step.in[0]) > 0 &&
        type_of(program, step.out[0]).dtype == DType::bf16)
      casts[step.in[0]].insert(s);
  }
  std::set<size_t> gone;
  for (const auto& [weight, steps] : casts) keep_cast(program, uses, weight, steps, gone);
  if (!gone.empty()) remove_gone(program, gone);
}

}  // namespace shardrun
