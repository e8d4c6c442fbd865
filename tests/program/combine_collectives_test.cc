// Which collectives become one call, that it is the same on every rank, and that it takes no bytes.
#include "program/combine_collectives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "planner/planner.h"
#include "planner/reshard/sum_price.h"
#include "program/compile.h"
#include "tests/planner/gpt_step.h"
#include "tests/support/memory_check.h"

namespace shardrun {
namespace {

/// Steps on f32[4] over a mesh of 2x2: "sum" and "max" are all_reduces, "gather" an all_gather, and
/// all else kernels.
class Written {
 public:
  Written() {
    program_.mesh = Mesh::parse("a=2,b=2");
    Binding x;
    x.name = "x";
    x.buffer = buffer();
    x.role = Role::batch;
    program_.bindings.push_back(x);
  }
  BufferId x() const { return program_.bindings[0].buffer; }
  BufferId kernel(std::vector<BufferId> in, DType dtype = DType::f32) {
    Step step;
    step.node.op = in.size() == 1 ? "tanh" : "add";
    step.node.phase = step.phase = phase;
    return add(std::move(step), std::move(in), dtype);
  }
  BufferId collective(const std::string& what, BufferId in, std::vector<int> axes = {0}) {
    Collective c;
    c.kind = what == "gather" ? Collective::Kind::all_gather : Collective::Kind::all_reduce;
    c.op = what == "max" ? ReduceOp::max : ReduceOp::sum;
    c.axes = std::move(axes);
    c.group = program_.mesh.group(0, c.axes);
    Step step;
    step.kind = Step::Kind::collective;
    step.phase = phase;
    step.collective = std::make_shared<const Collective>(std::move(c));
    return add(std::move(step), {in}, type_of(program_, in).dtype);
  }
  /// Calls as "3, 1": how many steps each has that does collectives.
  std::string calls() {
    combine_collectives(program_);
    std::string out;
    for (size_t s = 0; s < program_.steps.size(); s += call_size(program_, s)) {
      if (program_.steps[s].kind == Step::Kind::kernel) continue;
      out += (out.empty() ? "" : ", ") + std::to_string(call_size(program_, s));
    }
    return out;
  }
  Phase phase = Phase::micro;

 private:
  BufferId buffer(DType dtype = DType::f32) {
    Buffer b;
    b.type = {dtype, {4}};
    program_.buffers.push_back(b);
    return static_cast<BufferId>(program_.buffers.size() - 1);
  }
  BufferId add(Step step, std::vector<BufferId> in, DType dtype) {
    step.in = std::move(in);
    step.out = {buffer(dtype)};
    step.node.inputs = step.in;
    step.node.outputs = step.out;
    program_.steps.push_back(std::move(step));
    return program_.steps.back().out[0];
  }
  Program program_;
};

TEST(CombineCollectives, Neighbours) {
  Written w;
  const BufferId a = w.kernel({w.x()}), b = w.kernel({w.x()}), c = w.kernel({w.x()});
  const BufferId ra = w.collective("sum", a), rb = w.collective("sum", b);
  const BufferId k = w.kernel({w.x()});
  const BufferId rc = w.collective("sum", c);
  w.kernel({w.kernel({ra, rb}), w.kernel({rc, k})});
  EXPECT_EQ(w.calls(), "2, 1");
}

TEST(CombineCollectives, OfOneGroupOperationTypeAndPhase) {
  const auto second = [](const std::function<BufferId(Written&, BufferId)>& make, DType dtype) {
    Written w;
    const BufferId a = w.kernel({w.x()}), b = w.kernel({w.x()}, dtype);
    const BufferId ra = w.collective("sum", a), rb = make(w, b);
    w.kernel({ra});
    w.kernel({rb});
    return w.calls();
  };
  const auto sum = [](Written& w, BufferId b) { return w.collective("sum", b); };
  EXPECT_EQ(second(sum, DType::f32), "2");
  EXPECT_EQ(second(sum, DType::bf16), "1, 1");
  EXPECT_EQ(second([](Written& w, BufferId b) { return w.collective("max", b); }, DType::f32),
            "1, 1");
  EXPECT_EQ(second([](Written& w, BufferId b) { return w.collective("gather", b); }, DType::f32),
            "1, 1");
  EXPECT_EQ(second([](Written& w, BufferId b) { return w.collective("sum", b, {1}); }, DType::f32),
            "1, 1");
  EXPECT_EQ(second(
                [](Written& w, BufferId b) {
                  w.phase = Phase::update;
                  return w.collective("sum", b);
                },
                DType::f32),
            "1, 1");
}

/// A sum over one axis and then over the other is two calls, of which each waits for the one
/// before.
TEST(CombineCollectives, NotWhatNeedsTheOther) {
  Written w;
  const BufferId a = w.kernel({w.x()});
  w.kernel({w.collective("sum", w.collective("sum", a))});
  EXPECT_EQ(w.calls(), "1, 1");
}

/// Those of one group are brought together, whatever sums over other ranks stand between.
TEST(CombineCollectives, GroupsThatAlternate) {
  Written w;
  std::vector<BufferId> made, sums;
  for (int i = 0; i < 6; ++i) made.push_back(w.kernel({w.x()}));
  for (size_t i = 0; i < made.size(); ++i)
    sums.push_back(w.collective("sum", made[i], {static_cast<int>(i % 2)}));
  for (BufferId sum : sums) w.kernel({sum});
  EXPECT_EQ(w.calls(), "3, 3");
}

/// So are those of several steps each: what the second call reads, the first has made.
TEST(CombineCollectives, SumsInTwoSteps) {
  Written w;
  std::vector<BufferId> made, sums;
  for (int i = 0; i < 3; ++i) made.push_back(w.kernel({w.x()}));
  for (BufferId m : made) sums.push_back(w.collective("sum", w.collective("sum", m, {0}), {1}));
  for (BufferId sum : sums) w.kernel({sum});
  EXPECT_EQ(w.calls(), "3, 3");
}

/// A gather reads what the sum behind it is of: that one stays behind.
TEST(CombineCollectives, NotPastWhatReadsTheOperand) {
  Written w;
  const BufferId a = w.kernel({w.x()}), b = w.kernel({w.x()});
  const BufferId ra = w.collective("sum", a), gathered = w.collective("gather", b),
                 rb = w.collective("sum", b);
  w.kernel({w.kernel({ra, rb}), gathered});
  EXPECT_EQ(w.calls(), "1, 1, 1");
}

/// Two that are in place, and between them one whose operand is read again: it needs a copy, and is
/// made behind the call of the others.
TEST(CombineCollectives, OnlyInPlace) {
  Written w;
  const BufferId a = w.kernel({w.x()}), b = w.kernel({w.x()}), c = w.kernel({w.x()});
  const BufferId ra = w.collective("sum", a), rb = w.collective("sum", b),
                 rc = w.collective("sum", c);
  w.kernel({w.kernel({ra, rb}), w.kernel({rc, b})});
  EXPECT_EQ(w.calls(), "2, 1");
}

/// What nobody reads has no memory of its own behind its step.
TEST(CombineCollectives, NotWhatNobodyReads) {
  Written w;
  const BufferId a = w.kernel({w.x()}), b = w.kernel({w.x()});
  const BufferId ra = w.collective("sum", a);
  w.collective("sum", b);
  w.kernel({ra});
  EXPECT_EQ(w.calls(), "1, 1");
}

/// By step that is a collective: does the call before it do it?
std::vector<bool> joined(const Program& program) {
  std::vector<bool> out;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    if (program.steps[s].kind == Step::Kind::collective) out.push_back(joins_call(program, s));
  }
  return out;
}

int64_t calls(const Program& program) {
  int64_t count = 0;
  for (const bool joins : joined(program)) count += !joins;
  return count;
}

struct Whole {
  std::string mesh, planner;
};

/// Of whole models whose dims do not divide: the same calls on every rank, and where each buffer
/// lies does not depend on them.
TEST(CombineCollectives, OfAModelOnEveryRank) {
  GptOptions o;
  o.layers = 2, o.hidden = 24, o.heads = 2, o.vocab = 31, o.context = 6, o.batch = 7;
  const Graph graph = test::gpt_step(o, {}, false);
  RuleCache rules;
  for (const Whole& whole : {Whole{"2", "dp"},
                             {"3", "dp"},
                             {"4", "dp"},
                             {"3", "megatron"},
                             {"2x2", "dp+megatron"},
                             {"3", "fsdp"},
                             {"2x2", "ilp"}}) {
    SCOPED_TRACE(whole.planner + " on " + whole.mesh);
    const Mesh mesh = Mesh::parse(whole.mesh);
    PlanOptions options;
    options.planner = parse_planner(whole.planner);
    const Plan plan = plan_shardings(graph, mesh, host_cluster(), options, rules);
    Cluster apart = host_cluster();
    apart.collectives = Collectives::apart;
    std::vector<bool> first;
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      Program program = compile(graph, plan, host_cluster(), rank, {});
      check_memory(program);
      if (rank == 0) first = joined(program);
      EXPECT_EQ(joined(program), first) << "rank " << rank;
      if (whole.planner == "dp") {
        EXPECT_LT(calls(program), 6);
        EXPECT_GT(first.size(), 20U);
      }
      const Program alone = compile(graph, plan, apart, rank, {});
      EXPECT_EQ(calls(alone), static_cast<int64_t>(joined(alone).size()));
      for (size_t s = 0; s < program.steps.size(); ++s) {
        if (program.steps[s].call == 0) continue;
        ASSERT_EQ(program.steps[s].kind, Step::Kind::collective);
        EXPECT_EQ(program.steps[s].collective->kind, Collective::Kind::all_reduce);
      }
      Program each = program;
      for (Step& step : each.steps) step.call = 0;
      place_memory(each, nullptr);
      EXPECT_EQ(each.arena_bytes, program.arena_bytes);
      for (size_t b = 0; b < program.buffers.size(); ++b)
        EXPECT_EQ(each.buffers[b].offset, program.buffers[b].offset);
    }
  }
}

/// Under dp one call sums all gradients, and no other: those that the search prices so.
TEST(CombineCollectives, TheSearchKnowsWhatGoesTogether) {
  GptOptions o;
  o.layers = 2, o.hidden = 24, o.heads = 2, o.vocab = 31, o.context = 6, o.batch = 8;
  const Graph graph = test::gpt_step(o, {}, false);
  RuleCache rules;
  PlanOptions options;
  options.planner = parse_planner("dp");
  const Plan plan = plan_shardings(graph, Mesh::parse("2"), host_cluster(), options, rules);
  const Program program = compile(graph, plan, host_cluster(), 0, {});
  const std::vector<SumPrice> expected = sum_prices(graph, host_cluster(), 1);
  std::map<int32_t, double> bytes, most;  // by call
  std::set<ValueId> summed;
  for (const Step& step : program.steps) {
    if (step.call == 0) continue;
    const ValueId value = graph.find(step.source);
    bytes[step.call] += static_cast<double>(byte_size(graph.type(value)));
    most[step.call] = std::max(most[step.call], expected[static_cast<size_t>(value)].call);
    summed.insert(value);
  }
  EXPECT_TRUE(std::any_of(bytes.begin(), bytes.end(),
                          [&](const auto& call) { return call.second == most.at(call.first); }));
  size_t gradients = 0, hidden = 0;
  for (size_t v = 0; v < expected.size(); ++v) {
    if (expected[v].call == 0) continue;
    ++gradients;
    EXPECT_EQ(summed.count(static_cast<ValueId>(v)), 1U) << graph.values()[v].name;
  }
  Cluster apart = host_cluster();
  apart.collectives = Collectives::apart;
  for (const SumPrice& one : sum_prices(graph, apart, 0.5)) {
    EXPECT_EQ(one.call, 0);
    hidden += one.exposed == 0.5;
  }
  EXPECT_GT(gradients, 20U);
  EXPECT_EQ(hidden, gradients);
}

}  // namespace
}  // namespace shardrun
