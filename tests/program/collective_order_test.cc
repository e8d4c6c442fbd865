// Where collectives go: together where they may, with no more memory, on every rank alike.
#include "program/collective_order.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "planner/planner.h"
#include "planner/schedule/schedule.h"
#include "program/compile.h"
#include "tests/planner/gpt_step.h"
#include "tests/support/memory_check.h"

namespace shardrun {
namespace {

/// Steps by name, "out = kind(in, …)": of kernels the name is "neg", of others a collective's.
class Written {
 public:
  BufferId held(const std::string& name, int64_t bytes = 8) {
    Binding b;
    b.buffer = buffer(name, bytes);
    program_.bindings.push_back(b);
    return b.buffer;
  }
  /// Of a new buffer, or into one that is there already.
  BufferId add(const std::string& op, std::vector<BufferId> in, const std::string& out,
               int64_t bytes = 8, Phase phase = Phase::micro) {
    sums_.push_back(op == "all_reduce" ? one_call_ : -1);
    Step step;
    step.phase = phase;
    step.in = std::move(in);
    step.out = {names_.count(out) > 0 ? names_.at(out) : buffer(out, bytes)};
    step.node.name = out;
    if (op == "tanh" || op == "add") {
      step.node.op = op;
    } else {
      step.kind = Step::Kind::collective;
    }
    meets_.push_back(step.kind == Step::Kind::collective && op != "slice");
    program_.steps.push_back(std::move(step));
    return program_.steps.back().out[0];
  }
  /// A time at which much is alive, so that memory is no matter at others.
  void fill(BufferId x, int64_t bytes = 100) {
    add("tanh", {add("tanh", {x}, "fullest", bytes)}, "");
  }
  /// May one call make the sums that are added from here on? Else each is of its own kind.
  void sums_go_together() { one_call_ = 0; }
  std::vector<std::string> order() const {
    return names(collectives_together(program_, meets_, sums_, bytes_));
  }
  std::vector<std::string> early() const {
    return names(collectives_early(program_, meets_, bytes_));
  }

 private:
  std::vector<std::string> names(const std::vector<size_t>& order) const {
    std::vector<std::string> out;
    for (size_t s : order) out.push_back(program_.steps[s].node.name);
    return out;
  }
  BufferId buffer(const std::string& name, int64_t bytes) {
    bytes_.push_back(bytes);
    return names_[name] = static_cast<BufferId>(bytes_.size() - 1);
  }
  Program program_;
  std::vector<bool> meets_;
  std::vector<int> sums_;
  int one_call_ = -1;
  std::vector<int64_t> bytes_;
  std::map<std::string, BufferId> names_;
};

using Names = std::vector<std::string>;

TEST(CollectiveOrder, AGradientWaitsForTheNextSumThatIsNeeded) {
  Written w;
  const BufferId x = w.held("x");
  const BufferId dw = w.add("tanh", {x}, "dw");
  const BufferId shard = w.add("reduce_scatter", {dw}, "shard", 4);
  const BufferId dx = w.add("tanh", {x}, "dx");
  const BufferId sum = w.add("all_reduce", {dx}, "sum");
  const BufferId back = w.add("tanh", {sum}, "back");
  w.add("add", {back, shard}, "update");
  EXPECT_EQ(w.order(), (Names{"dw", "dx", "shard", "sum", "back", "update"}));
}

TEST(CollectiveOrder, AWeightIsGatheredAtTheLastSumBeforeItsUse) {
  Written w;
  const BufferId x = w.held("x"), weight = w.held("weight", 4);
  const BufferId first = w.add("all_reduce", {x}, "first");
  const BufferId a = w.add("tanh", {first}, "a");
  const BufferId second = w.add("all_reduce", {a}, "second");
  const BufferId b = w.add("tanh", {second}, "b");
  const BufferId big = w.add("tanh", {b}, "big", 100);
  const BufferId whole = w.add("all_gather", {weight}, "whole");
  w.add("add", {big, whole}, "y", 100);
  EXPECT_EQ(w.order(), (Names{"first", "a", "second", "whole", "b", "big", "y"}));
}

/// The first sum would go to the nearest place where ranks wait anyway, and be a call by itself.
TEST(CollectiveOrder, SumsOfOneCallGoToOnePlace) {
  for (const bool together : {false, true}) {
    Written w;
    const BufferId x = w.held("x");
    w.fill(x);
    if (together) w.sums_go_together();
    const BufferId sum1 = w.add("all_reduce", {w.add("tanh", {x}, "dw1")}, "sum1");
    const BufferId y = w.add("reduce_scatter", {w.add("tanh", {x}, "dy")}, "y");
    const BufferId dw2 = w.add("tanh", {y}, "dw2");
    const BufferId sum2 = w.add("all_reduce", {dw2}, "sum2");
    const BufferId z = w.add("reduce_scatter", {w.add("tanh", {dw2}, "dz")}, "z");
    w.add("tanh", {z}, "back");
    w.add("add", {sum1, sum2}, "update");
    EXPECT_EQ(w.order(), together ? (Names{"fullest", "", "dw1", "dy", "y", "dw2", "dz", "sum1",
                                           "sum2", "z", "back", "update"})
                                  : (Names{"fullest", "", "dw1", "dy", "sum1", "y", "dw2", "dz",
                                           "sum2", "z", "back", "update"}));
  }
}

TEST(CollectiveOrder, AloneItStays) {
  Written w;
  const BufferId x = w.held("x");
  const BufferId dw = w.add("tanh", {x}, "dw");
  const BufferId sum = w.add("all_reduce", {dw}, "sum");
  w.add("tanh", {x}, "dx");
  w.add("tanh", {sum}, "update");
  EXPECT_EQ(w.order(), (Names{"dw", "sum", "dx", "update"}));
}

/// Gradients of 8 bytes, of which a shard has 4, are all put off until the end if the fullest time
/// leaves memory for that, and summed where they stand if it does not.
TEST(CollectiveOrder, NoMoreMemoryThanBefore) {
  for (const int64_t full : {8, 100}) {
    Written w;
    const BufferId x = w.held("x");
    w.fill(x, full);
    std::vector<BufferId> shards;
    for (const char* name : {"a", "b", "c"}) {
      const BufferId gradient = w.add("tanh", {x}, std::string("d") + name);
      shards.push_back(w.add("reduce_scatter", {gradient}, name, 4));
    }
    w.add("add", shards, "update", 4);
    EXPECT_EQ(w.order(), full == 8
                             ? (Names{"fullest", "", "da", "a", "db", "b", "dc", "c", "update"})
                             : (Names{"fullest", "", "da", "db", "dc", "a", "b", "c", "update"}))
        << full;
  }
}

/// What a collective needs of another stays behind it, wherever that goes.
TEST(CollectiveOrder, OneBehindAnother) {
  Written w;
  const BufferId x = w.held("x");
  w.fill(x);
  const BufferId part = w.add("tanh", {x}, "part");
  const BufferId summed = w.add("reduce_scatter", {part}, "summed", 4);
  const BufferId whole = w.add("all_gather", {summed}, "whole");
  const BufferId other = w.add("tanh", {x}, "other");
  const BufferId now = w.add("all_reduce", {other}, "now");
  w.add("add", {now, whole}, "y");
  EXPECT_EQ(w.order(), (Names{"fullest", "", "part", "other", "summed", "whole", "now", "y"}));
}

/// A held weight is gathered before its update writes it, and replaced after its last reader.
TEST(CollectiveOrder, NotPastAWriterOfItsOperandNorAReaderOfItsResult) {
  Written w;
  const BufferId x = w.held("x"), weight = w.held("weight"), next = w.held("next");
  const BufferId whole = w.add("all_gather", {weight}, "whole");
  w.add("tanh", {x}, "weight");
  const BufferId now = w.add("all_reduce", {x}, "now");
  w.add("add", {now, whole}, "y");
  const BufferId made = w.add("tanh", {now}, "made");
  w.add("tanh", {next}, "reads next");
  w.add("all_gather", {made}, "next");
  EXPECT_EQ(w.order(), (Names{"whole", "now", "weight", "y", "made", "reads next", "next"}));
}

TEST(CollectiveOrder, NoneLeavesItsPhase) {
  Written w;
  const BufferId x = w.held("x"), a = w.held("a"), b = w.held("b");
  w.fill(x);
  w.add("all_reduce", {w.add("tanh", {x}, "da")}, "sum a");
  w.add("tanh", {x}, "dx");
  w.add("all_reduce", {w.add("tanh", {x}, "db")}, "sum b");
  w.add("tanh", {a}, "update a", 8, Phase::update);
  w.add("all_gather", {b}, "b again", 8, Phase::update);
  EXPECT_EQ(w.order(),
            (Names{"fullest", "", "da", "dx", "db", "sum a", "sum b", "b again", "update a"}));
}

int places(const Program& p) {
  int count = 0;
  bool met = false;
  for (const Step& step : p.steps) {
    const bool meets = step.kind == Step::Kind::collective && !step.collective->traits().local;
    count += meets && !met;
    met = meets;
  }
  return count;
}

/// Of whole models: the same steps, as many bytes, fewer places, one order on all ranks.
TEST(CollectiveOrder, OfAModelUnderEveryPlanner) {
  GptOptions o;
  o.layers = 3, o.hidden = 24, o.heads = 2, o.vocab = 31, o.context = 6, o.batch = 7;
  const Graph graph = test::gpt_step(o, {}, false);
  RuleCache rules;
  for (const char* text : {"2", "3", "2x2"}) {
    const Mesh mesh = Mesh::parse(text);
    for (const char* planner : {"ilp", "dp", "fsdp", "megatron"}) {
      PlanOptions options;
      options.planner = parse_planner(planner);
      const Plan plan = plan_shardings(graph, mesh, host_cluster(), options, rules);
      Cluster overlapping = host_cluster();
      overlapping.collectives = Collectives::apart;
      const Partition apart(graph, plan, overlapping), together(graph, plan, host_cluster());
      Names first;
      int64_t most = 0, most_apart = 0;
      for (int64_t rank = 0; rank < mesh.size(); ++rank) {
        const CompileOptions unfused{.steps = Steps::all};
        const Program a = compile(apart, plan, rank, {}, unfused),
                      b = compile(together, plan, rank, {}, unfused);
        check_memory(b);
        most = std::max(most, b.arena_bytes);
        most_apart = std::max(most_apart, a.arena_bytes);
        EXPECT_LE(places(b), places(a)) << text << " " << planner;
        if (planner == std::string("fsdp")) {
          EXPECT_LT(3 * places(b), 2 * places(a)) << text;
        }
        Names names, sorted, before;
        for (const Step& step : b.steps) names.push_back(step.node.name);
        for (const Step& step : a.steps) before.push_back(step.node.name);
        sorted = names;
        std::sort(sorted.begin(), sorted.end());
        std::sort(before.begin(), before.end());
        EXPECT_EQ(sorted, before);
        if (rank == 0) first = names;
        EXPECT_EQ(names, first) << text << " " << planner << " rank " << rank;
      }
      // But for what fits less well, and what steps that are joined later do not have.
      EXPECT_LE(most, most_apart + most_apart / 10) << text << " " << planner;
    }
  }
}

/// Weights of 8 bytes, of which a shard has 4: gathered up to two products ahead where the fullest
/// time leaves memory, one ahead where it has less, and just before they are read where it has
/// none.
TEST(CollectiveOrder, WeightsAreGatheredAheadAsMemoryAllows) {
  const std::map<int64_t, Names> wanted = {
      {100, {"fullest", "", "a", "b", "c", "x1", "d", "x2", "x3", "x4"}},
      {16, {"fullest", "", "a", "b", "x1", "c", "x2", "d", "x3", "x4"}},
      {8, {"fullest", "", "a", "x1", "b", "x2", "c", "x3", "d", "x4"}}};
  for (const auto& [full, names] : wanted) {
    Written w;
    std::vector<BufferId> shards;
    for (const char* name : {"wa", "wb", "wc", "wd"}) shards.push_back(w.held(name, 4));
    BufferId x = w.held("x");
    w.fill(x, full);
    const Names gathered = {"a", "b", "c", "d"}, products = {"x1", "x2", "x3", "x4"};
    for (size_t i = 0; i < shards.size(); ++i) {
      const BufferId weight = w.add("all_gather", {shards[i]}, gathered[i], 8);
      x = w.add("add", {x, weight}, products[i], 4);
    }
    EXPECT_EQ(w.early(), names) << full;
  }
}

TEST(CollectiveOrder, NothingIsAskedForBeforeItsOperand) {
  Written w;
  const BufferId x = w.held("x"), weight = w.held("weight", 4);
  w.fill(x);
  const BufferId dw = w.add("tanh", {x}, "dw");
  const BufferId shard = w.add("reduce_scatter", {dw}, "shard", 4);
  const BufferId dx = w.add("tanh", {x}, "dx");
  const BufferId sum = w.add("all_reduce", {dx}, "sum");
  const BufferId back = w.add("tanh", {sum}, "back");
  const BufferId whole = w.add("all_gather", {weight}, "whole");
  const BufferId next = w.add("add", {back, whole}, "next");
  w.add("add", {next, shard}, "update");
  EXPECT_EQ(w.early(),
            (Names{"fullest", "", "dw", "shard", "dx", "sum", "whole", "back", "next", "update"}));
}

}  // namespace
}  // namespace shardrun
