// Data parallelism, ZeRO and Megatron-LM, as the planner lays them out and as they train.
#include <gtest/gtest.h>

#include "planner/planner.h"
#include "planner/schedule/schedule.h"
#include "planner/versions.h"
#include "tests/planner/schedule/planned_step.h"

namespace shardrun {
namespace {

using test::collectives;
using test::gpt_step;
using test::perceptron;
using test::rules;
using test::small;

Plan plan_of(const Graph& graph, const std::string& planner, const std::string& mesh) {
  PlanOptions options;
  options.planner = parse_planner(planner);
  const Plan plan =
      plan_shardings(graph, Mesh::parse(mesh), host_cluster(), options, rules(), nullptr);
  check_plan(plan, graph);
  return plan;
}

std::string layout(const Plan& plan, const std::string& value) {
  const auto it = plan.values.find(value);
  return it == plan.values.end() ? "no such value" : to_string(it->second, plan.mesh);
}

/// A pass left it behind.
bool is_dead(const Value& value) { return value.role == Role::computed && value.producer < 0; }

/// Does `sharding` cut some dim along `axis`?
bool cut_over(const Sharding& sharding, int axis) {
  return std::any_of(sharding.dims.begin(), sharding.dims.end(), [&](const auto& axes) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
  });
}

/// How many of them start with `kind` and move `shape`, the whole value's.
int count_moves(const Graph& graph, const Plan& plan, const std::string& kind, const Shape& shape) {
  int count = 0;
  for (const std::string& c : collectives(graph, plan)) {
    const size_t space = c.find(' ');
    const ValueId id = graph.find(c.substr(space + 1));
    count += c.substr(0, space) == kind && id != kNoValue && graph.type(id).shape == shape;
  }
  return count;
}

void expect_trains_alike(const Graph& graph, const std::string& planner, const std::string& mesh) {
  SCOPED_TRACE(planner + " on " + mesh);
  test::expect_trains_as_one(graph, plan_of(graph, planner, mesh));
}

const Graph& step() {
  static const Graph graph = gpt_step(small());
  return graph;
}

TEST(Baselines, DataParallelCutsNothingButTheBatch) {
  const Plan plan = plan_of(step(), "dp", "data=4");
  for (const Value& value : step().values()) {
    if (is_dead(value)) continue;
    const Sharding& s = plan.values.at(value.name);
    if (value.role == Role::computed || value.role == Role::batch) {
      for (size_t d = 0; d < s.dims.size(); ++d)
        EXPECT_EQ(s.dims[d].empty(), value.type.shape[d] != 10) << value.name;
    } else {
      EXPECT_TRUE(s.is_replicated()) << value.name;
    }
  }
  EXPECT_EQ(layout(plan, "tokens"), "[{data}, -]");
  EXPECT_EQ(layout(plan, "%h.0.MatMul_4"), "[{data}, -, -]");
  // Each gradient is all-reduced, and the loss and its token count; nothing else moves.
  const size_t parameters = step().with_role(Role::parameter).size();
  const std::vector<std::string> moved = collectives(step(), plan);
  EXPECT_EQ(moved.size(), parameters + 2);
  for (const std::string& c : moved) EXPECT_EQ(c.substr(0, 10), "all_reduce") << c;
}

/// With each stage one more kind of value is cut: state, gradients, parameters.
TEST(Baselines, TheStagesOfZero) {
  const std::map<std::string, std::vector<std::string>> kinds = {
      {"zero1", {"all_gather", "all_reduce"}},
      {"zero2", {"all_gather", "all_reduce", "reduce_scatter"}},
      {"fsdp", {"all_gather", "all_reduce", "reduce_scatter"}}};
  for (const auto& [planner, wanted] : kinds) {
    const Plan plan = plan_of(step(), planner, "data=4");
    std::set<std::string> moved;
    for (const std::string& c : collectives(step(), plan)) moved.insert(c.substr(0, c.find(' ')));
    EXPECT_EQ(std::vector<std::string>(moved.begin(), moved.end()), wanted) << planner;
    for (const Value& value : step().values()) {
      if (is_dead(value)) continue;
      const Sharding& s = plan.values.at(value.name);
      if (value.role == Role::state) {
        EXPECT_TRUE(cut_over(s, 0)) << value.name;
      }
      if (value.role == Role::parameter) {
        EXPECT_EQ(cut_over(s, 0), planner == "fsdp") << planner << " " << value.name;
      }
    }
    // The weights of products are whole where they are used, and the batch is cut.
    const NodePlan& product = plan.nodes.at("h.0.MatMul_4");
    EXPECT_TRUE(product.in[1].is_replicated()) << planner;
    EXPECT_EQ(to_string(product.out[0], plan.mesh), "[{data}, -, -]") << planner;
    // A gradient [16, 64]: made as a sum over the ranks, then whole or cut.
    const Shape weight = {16, 64};
    EXPECT_EQ(count_moves(step(), plan, "all_reduce", weight), planner == "zero1" ? 2 : 0);
    EXPECT_EQ(count_moves(step(), plan, "reduce_scatter", weight), planner == "zero1" ? 0 : 2);
  }
}

/// The layout of Megatron-LM (Shoeybi et al. 2019, figure 3): c_attn and c_fc by columns, both
/// c_proj by rows, the vocabulary cut; in each layer two all-reduces forward and two backward.
void expect_megatron(const Graph& graph, const Plan& plan, const std::string& axis, bool data) {
  for (const std::string layer : {"h.0.", "h.1."}) {
    EXPECT_EQ(layout(plan, layer + "attn.c_attn.weight"), "[-, {" + axis + "}]");
    EXPECT_EQ(layout(plan, layer + "attn.c_attn.bias"), "[{" + axis + "}]");
    EXPECT_EQ(layout(plan, layer + "attn.c_proj.weight"), "[{" + axis + "}, -]");
    EXPECT_EQ(layout(plan, layer + "attn.c_proj.bias"), "[-]");
    EXPECT_EQ(layout(plan, layer + "mlp.c_fc.weight"), "[-, {" + axis + "}]");
    EXPECT_EQ(layout(plan, layer + "mlp.c_proj.weight"), "[{" + axis + "}, -]");
    EXPECT_EQ(layout(plan, layer + "ln_1.weight"), "[-]");
    EXPECT_EQ(layout(plan, "adam_m/" + layer + "mlp.c_fc.weight"), "[-, {" + axis + "}]");
    // Heads.
    const std::string rows = data ? "{data}" : "-";
    EXPECT_EQ(layout(plan, "%" + layer + "MatMul_2/attention:0"),
              "[" + rows + ", {" + axis + "}, -, -]");
  }
  EXPECT_EQ(layout(plan, "wte.weight"), "[{" + axis + "}, -]");
  EXPECT_EQ(layout(plan, "wpe.weight"), "[-, -]");
  // Two and two a layer; one for the embedding, and one for the gradient that enters the first
  // layer. Without a cut batch that stays in parts: one call sums what it becomes, wpe's gradient.
  EXPECT_EQ(count_moves(graph, plan, "all_reduce", {10, 8, 16}), 2 * 4 + (data ? 2 : 1));
  EXPECT_EQ(count_moves(graph, plan, "all_reduce", {8, 16}), 1);
  for (const char* kind : {"all_gather", "reduce_scatter", "all_to_all"})
    EXPECT_EQ(count_moves(graph, plan, kind, {10, 8, 16}), 0) << kind;
}

TEST(Baselines, MegatronsLayout) {
  const Plan plan = plan_of(step(), "megatron", "model=4");
  expect_megatron(step(), plan, "model", false);
  EXPECT_EQ(count_moves(step(), plan, "all_gather", {10, 8, 24}), 1);  // logits, for the loss
}

/// Where the logits are many, the loss takes them as the head leaves them: what is reduced over the
/// ranks is a maximum and two sums of each token.
TEST(Baselines, MegatronsLossOfACutVocabulary) {
  GptOptions options = small();
  options.vocab = 1201;
  const Graph graph = gpt_step(options);
  for (const auto& [planner, mesh] :
       std::vector<std::pair<std::string, std::string>>{{"megatron", "model=2"},
                                                        {"megatron", "model=3"},
                                                        {"megatron", "model=4"},
                                                        {"dp+megatron", "data=2,model=2"}}) {
    SCOPED_TRACE(planner + " on " + mesh);
    const Plan plan = plan_of(graph, planner, mesh);
    const std::string rows = planner == "megatron" ? "-" : "{data}";
    for (const char* logits : {"%MatMul", "%cross_entropy_grad"})
      EXPECT_EQ(layout(plan, logits), "[" + rows + ", -, {model}]") << logits;
    for (const char* kind : {"all_gather", "all_to_all", "all_reduce", "reduce_scatter"})
      EXPECT_EQ(count_moves(graph, plan, kind, {10, 8, 1201}), 0) << kind;
    EXPECT_EQ(count_moves(graph, plan, "all_reduce", {10, 8}), 1);     // maxima
    EXPECT_EQ(count_moves(graph, plan, "all_reduce", {10, 8, 2}), 1);  // sums
    expect_trains_alike(graph, planner, mesh);
  }
}

TEST(Baselines, MegatronWithData) {
  const Plan plan = plan_of(step(), "dp+megatron", "data=2,model=2");
  expect_megatron(step(), plan, "model", true);
  EXPECT_EQ(layout(plan, "tokens"), "[{data}, -]");
  EXPECT_EQ(layout(plan, "%h.0.Add_2"), "[{data}, -, -]");
}

TEST(Baselines, FsdpWithMegatronCutsWeightsTwice) {
  const Plan plan = plan_of(step(), "fsdp+megatron", "data=2,model=2");
  for (ValueId id : step().with_role(Role::parameter)) {
    const Value& value = step().value(id);
    EXPECT_TRUE(cut_over(plan.values.at(value.name), 0)) << value.name;
  }
  const std::string fc = layout(plan, "h.0.mlp.c_fc.weight");
  EXPECT_TRUE(fc == "[{data}, {model}]" || fc == "[-, {data,model}]") << fc;
  // Used as Megatron has them.
  EXPECT_EQ(to_string(plan.nodes.at("h.0.MatMul_4").in[1], plan.mesh), "[-, {model}]");
  EXPECT_EQ(to_string(plan.nodes.at("h.0.MatMul_5").in[1], plan.mesh), "[{model}, -]");
}

/// Between blocks the sequence is cut (Korthikanti et al. 2022, figure 5): an all-gather into each
/// block and a reduce-scatter out of it, forward and backward.
TEST(Baselines, MegatronWithSequenceSharding) {
  const Plan plan = plan_of(step(), "megatron-sp", "model=4");
  EXPECT_EQ(layout(plan, "h.0.mlp.c_fc.weight"), "[-, {model}]");
  EXPECT_EQ(layout(plan, "h.1.mlp.c_proj.weight"), "[{model}, -]");
  EXPECT_EQ(layout(plan, "%h.0.Add_2"), "[-, {model}, -]");
  EXPECT_EQ(layout(plan, "%h.0.LayerNormalization_1:0"), "[-, {model}, -]");
  EXPECT_EQ(layout(plan, "%h.0.Gelu"), "[-, -, {model}]");
  EXPECT_EQ(layout(plan, "%h.0.MatMul_2/attention:0"), "[-, {model}, -, -]");
  const Shape stream = {10, 8, 16};
  EXPECT_EQ(count_moves(step(), plan, "all_reduce", stream), 0);
  EXPECT_EQ(count_moves(step(), plan, "reduce_scatter", stream), 2 * 4 + 2);
  // Two a layer into the blocks, and their gradients' two; the head's.
  EXPECT_EQ(count_moves(step(), plan, "all_gather", stream), 2 * 4 + 1);
}

/// Roles follow from the graph: with every name replaced the plan is the same.
TEST(Baselines, NamesDoNotMatter) {
  Graph renamed = step();
  std::map<std::string, std::string> before;
  for (size_t v = 0; v < renamed.values().size(); ++v) {
    Value& value = renamed.value(static_cast<ValueId>(v));
    if (value.role == Role::scalar || is_dead(value)) continue;
    before["v" + std::to_string(v)] = value.name;
    value.name = "v" + std::to_string(v);
  }
  for (const char* planner : {"zero2", "fsdp", "megatron", "megatron-sp"}) {
    const Plan plan = plan_of(step(), planner, "ranks=2");
    const Plan other = plan_of(renamed, planner, "ranks=2");
    for (const auto& [name, original] : before)
      EXPECT_EQ(other.values.at(name), plan.values.at(original)) << planner << " " << original;
  }
}

/// bf16 casts weights where they are used; Megatron's layout is the same, and fsdp gathers the cast
/// weights, half the bytes.
TEST(Baselines, CastWeights) {
  const Graph graph = gpt_step(small(), {}, true);
  expect_megatron(graph, plan_of(graph, "megatron", "model=4"), "model", false);
  const Plan plan = plan_of(graph, "fsdp", "data=4");
  int gathered = 0;
  for (const std::string& c : collectives(graph, plan)) {
    if (c.substr(0, 11) != "all_gather ") continue;
    const ValueId id = graph.find(c.substr(11));
    if (graph.type(id).shape == Shape{16, 64}) {
      EXPECT_EQ(graph.type(id).dtype, DType::bf16) << c;
      ++gathered;
    }
  }
  EXPECT_EQ(gathered, 4);  // one weight of each layer, forward and backward
}

/// A perceptron has no residual connections: every second product is by columns, the others by
/// rows.
TEST(Baselines, MegatronWithoutResiduals) {
  const Plan plan = plan_of(perceptron(8, {12, 32, 20, 32, 12}), "megatron", "model=2");
  EXPECT_EQ(layout(plan, "w0"), "[-, {model}]");
  EXPECT_EQ(layout(plan, "w1"), "[{model}, -]");
  EXPECT_EQ(layout(plan, "w2"), "[-, {model}]");
  EXPECT_EQ(layout(plan, "w3"), "[{model}, -]");
  EXPECT_EQ(layout(plan, "%w0/relu"), "[-, {model}]");
  EXPECT_TRUE(plan.values.at("%w1/relu").is_replicated()) << layout(plan, "%w1/relu");
}

/// 7 columns on 5 ranks are 2, 2, 2, 1 and none.
TEST(Baselines, MegatronLeavesRanksWithoutColumns) {
  const Graph g = perceptron(2, {5, 7, 3});
  for (const char* mesh : {"model=5", "model=6", "model=8"}) {
    const Plan plan = plan_of(g, "megatron", mesh);
    EXPECT_EQ(layout(plan, "w0"), "[-, {model}]") << mesh;
    EXPECT_EQ(layout(plan, "w1"), "[{model}, -]") << mesh;
  }
  EXPECT_EQ(layout(plan_of(g, "megatron", "a=2,b=3"), "w0"), "[-, {a,b}]");
}

class TrainsAlike : public testing::TestWithParam<Named<Baseline>> {};

TEST_P(TrainsAlike, OnTwoThreeAndFourRanks) {
  for (const char* mesh : {"r=2", "r=3", "r=4", "r=2,s=2"})
    expect_trains_alike(step(), std::string(GetParam().name), mesh);
}
INSTANTIATE_TEST_SUITE_P(Baselines, TrainsAlike, testing::ValuesIn(kBaselines),
                         [](const auto& info) {
                           std::string name(info.param.name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// Queries cut by one axis and keys by the other: a rank has a block of a head's scores.
TEST(SplitAttention, TrainsAlikeWithQueriesAndKeysCut) {
  GptOptions options = small();
  options.heads = 1;
  options.context = 32;
  Graph graph = gpt_step(options);
  split_attention(graph);
  for (const std::string name : {"q=2,k=2", "k=2", "k=3", "k=4"}) {
    SCOPED_TRACE(name);
    const Mesh mesh = Mesh::parse(name);
    const int keys = mesh.axis_count() - 1;
    const std::string rows = keys > 0 ? "[-,-,q]" : "[-,-,-]";
    PlanOptions how;
    how.planner = parse_planner("ilp");
    how.requests = {"%.*/attention/top=" + rows + " partial(max: k)",
                    "%.*/attention/sums:1=" + rows + " partial(sum: k)"};
    const Plan plan = plan_shardings(graph, mesh, host_cluster(), how, rules(), nullptr);
    for (const char* layer : {"h.0.", "h.1."}) {
      for (const char* part : {"top", "sums"}) {
        const NodePlan& node = plan.nodes.at(str(layer, "MatMul_2/attention/", part));
        EXPECT_EQ(node.in[0].dims[2].size(), static_cast<size_t>(keys)) << layer << part;
        EXPECT_EQ(node.in[1].dims[2], std::vector<int>{keys}) << layer << part;
      }
    }
    test::expect_trains_as_one(graph, plan);
  }
}

TEST(Baselines, CombinationsTrainAlike) {
  for (const char* planner : {"dp+megatron", "fsdp+megatron", "zero1+megatron-sp", "zero2+dp",
                              "fsdp+megatron-sp", "megatron+fsdp"}) {
    expect_trains_alike(step(), planner, "r=2,s=2");
  }
}

/// Two samples on four ranks: two of them have nothing, and all end with the same weights.
TEST(Baselines, ABatchSmallerThanTheMesh) {
  GptOptions options = small();
  options.batch = 2;
  const Graph graph = gpt_step(options);
  for (const char* planner : {"dp", "zero2", "fsdp"}) {
    EXPECT_EQ(layout(plan_of(graph, planner, "data=4"), "%h.0.Gelu"), "[{data}, -, -]") << planner;
    expect_trains_alike(graph, planner, "data=4");
  }
}

/// 16 samples on 5 ranks are 4, 4, 4, 4 and none, and there is no other dim to cut. 4 on 5 and 7 on
/// 8 leave one without as well; 2 on 5 would leave most.
TEST(Baselines, TheFreePlannerMayLeaveARankEmpty) {
  for (const auto& [samples, mesh, cut] :
       {std::tuple(16, "a=5", true), {4, "a=5", true}, {7, "a=8", true}, {2, "a=5", false}}) {
    Graph graph;
    const TensorType type{DType::f32, {samples, 4, 4, 4, 4, 4, 4, 4}};
    ValueId x = graph.add_input("x", type, Role::batch);
    for (int i = 0; i < 4; ++i) x = graph.add("exp", {x});
    graph.outputs = {
        graph.add("reduce_sum", {x},
                  {{"axes", std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7}}, {"keepdims", int64_t{0}}})};
    const std::string lies = layout(plan_of(graph, "auto", mesh), "x");
    EXPECT_EQ(lies == "[{a}, -, -, -, -, -, -, -]", cut)
        << samples << " on " << mesh << ": " << lies;
  }
}

/// Accumulated gradients are summands of whole ones under dp and zero1, reduced once a step, and
/// cut under zero2.
TEST(Baselines, AccumulatedGradients) {
  const Graph graph = gpt_step(small(), {.accumulate = 2});
  for (const char* planner : {"dp", "zero1"}) {
    EXPECT_EQ(layout(plan_of(graph, planner, "data=4"), "accumulated/h.0.mlp.c_fc.weight"),
              "[-, -] partial(sum: data)")
        << planner;
  }
  for (const char* planner : {"zero2", "fsdp"}) {
    const Plan plan = plan_of(graph, planner, "data=4");
    EXPECT_TRUE(cut_over(plan.values.at("accumulated/h.0.mlp.c_fc.weight"), 0)) << planner;
  }
}

TEST(Baselines, NamesPerAxis) {
  const Mesh two = Mesh::parse("data=2,model=2");
  const auto targets = [&](const std::string& planner) {
    std::vector<std::pair<int, Target>> out;
    const Schedule schedule = baseline_schedule(parse_planner(planner), two).value();
    for (const Cut& cut : schedule) out.emplace_back(cut.axis, cut.target);
    return out;
  };
  using List = std::vector<std::pair<int, Target>>;
  EXPECT_EQ(targets("dp"), (List{{0, Target::batch}, {1, Target::batch}}));
  EXPECT_EQ(
      targets("fsdp+megatron-sp"),
      (List{{0, Target::batch}, {0, Target::weights}, {1, Target::inner}, {1, Target::sequence}}));
  EXPECT_FALSE(baseline_schedule(parse_planner("auto"), two));
  EXPECT_THROW(parse_planner("dp+magic"), Error);
  try {
    (void)baseline_schedule(parse_planner("fsdp+megatron"), Mesh::parse("data=4"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "planner 'fsdp+megatron' names 2 mesh axes, the mesh data=4 has 1; give each axis "
                 "one, as --planner fsdp+megatron --mesh data=2,model=4 does");
  }
}

/// What is known of a baseline before it is searched: where it names too much, it is left out.
TEST(Baselines, HoldAtLeastWhatIsSaidBeforehand) {
  const Graph graphs[] = {step(), perceptron(64, {48, 96, 32}, {})};
  const Cluster cluster = host_cluster();
  for (const Graph& graph : graphs) {
    for (const std::string text : {"a=4", "a=2,b=3", "a=2,b=2"}) {
      const Mesh mesh = Mesh::parse(text);
      MeshTables tables(mesh, cluster);
      int64_t most = 0;
      for (const PlannerChoice& baseline : baselines_of(mesh)) {
        SCOPED_TRACE(graph.name + " " + text + " " + to_string(baseline));
        PlanOptions options;
        options.planner = baseline;
        PlanSearch search(graph, tables, options, rules());
        PlanReport report;
        search.pose(report);
        const int64_t held = least_held(graph, baseline, mesh);
        EXPECT_LE(held, search.held_bytes());
        EXPECT_GT(3 * held, search.held_bytes());  // or it would say nothing
        most = std::max(most, held);
      }
      EXPECT_EQ(most, least_held(graph, parse_planner("dp"), mesh));
    }
  }
}

}  // namespace
}  // namespace shardrun
