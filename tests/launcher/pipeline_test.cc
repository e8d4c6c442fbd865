// The arrows of docs/architecture.md's picture, each called by the name that it has there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <regex>
#include <set>
#include <sstream>

#include "exec/executor.h"
#include "graph/onnx/import.h"
#include "graph/passes/training_step.h"
#include "kernels/reference/interpreter.h"
#include "models/gpt.h"
#include "planner/cost/collective_cost.h"
#include "planner/cost/kernel_cost.h"
#include "planner/planner.h"
#include "planner/rules/discovery.h"
#include "planner/solver/limited_search.h"
#include "planner/space/extract_plan.h"
#include "planner/space/partial_kinds.h"
#include "planner/space/search_space.h"
#include "program/compile.h"
#include "tests/collectives/ranks.h"
#include "tests/support/kernel_traits.h"

namespace shardrun {
namespace {

/// The names on the arrows of the first picture: "A ─f→ B", "A ─f, g┘", "┌─f─┘".
std::set<std::string> arrows_of_picture() {
  std::ifstream in(SHARDRUN_SOURCE_DIR "/docs/architecture.md");
  std::stringstream text;
  text << in.rdbuf();
  const std::string all = text.str(), begin = "## One picture";
  const size_t from = all.find(begin), to = all.find("Each arrow is a function or");
  EXPECT_LT(from, to);
  EXPECT_NE(to, std::string::npos);
  const std::string picture = all.substr(from + begin.size(), to - from - begin.size());
  const std::regex label("─([A-Za-z_, ]+)(?:→|─|┘)"), name("[A-Za-z_]+");
  const std::sregex_iterator end;
  std::set<std::string> names;
  for (std::sregex_iterator at(picture.begin(), picture.end(), label); at != end; ++at) {
    const std::string words = (*at)[1];
    for (std::sregex_iterator word(words.begin(), words.end(), name); word != end; ++word)
      names.insert(word->str());
  }
  return names;
}

/// What has been called, by its name in the picture.
class Called {
 public:
  void note(const std::string& name) {
    const std::lock_guard lock(mutex_);
    names_.insert(name);
  }
  const std::set<std::string>& names() const { return names_; }

 private:
  std::mutex mutex_;  // ranks are threads
  std::set<std::string> names_;
};

#define CALL(function, ...) (called.note(#function), function(__VA_ARGS__))

TrainingStep small_step(Called& called) {
  const std::string path =
      std::filesystem::temp_directory_path() / str("shardrun_pipeline_", getpid(), ".onnx");
  GptOptions gpt;
  gpt.layers = 1, gpt.hidden = 8, gpt.heads = 2, gpt.vocab = 11, gpt.context = 4, gpt.batch = 2;
  write_gpt(gpt, path);
  ImportOptions import;
  import.evaluate = run_reference;
  Graph graph = CALL(OnnxFile, path).import(import);
  std::filesystem::remove(path);
  return CALL(make_training_step, std::move(graph), {});
}

/// By class of the Folding; one discovery for each rule_key, as RuleCache does it.
std::vector<SpmdRule> rules_of(const Graph& graph, const Folding& folding, Called& called) {
  std::map<std::string, SpmdRule> known;
  std::vector<SpmdRule> rules(folding.classes.size());
  for (size_t c = 0; c < rules.size(); ++c) {
    if (folding.classes[c].nodes.empty()) continue;
    const Node& node = graph.node(folding.classes[c].nodes[0]);
    const std::vector<TensorType> in = graph.types(node.inputs);
    const auto [at, is_new] = known.try_emplace(rule_key(node, in));
    if (is_new) at->second = CALL(discover, node, in);
    rules[c] = at->second;
  }
  drop_useless_partials(graph, folding, {}, rules);
  return rules;
}

/// What plan_shardings does for a plan without a limit, one call after the other.
Plan plan_by_hand(const Graph& graph, const Mesh& mesh, const Cluster& cluster, Called& called) {
  const Folding folding = fold(graph, {});
  const std::vector<SpmdRule> rules = rules_of(graph, folding, called);
  SearchSpace space;
  space.sum_prices = sum_prices(graph, cluster, 1);
  space.strategies.resize(folding.classes.size());
  for (size_t c = 0; c < folding.classes.size(); ++c) {
    if (folding.classes[c].nodes.empty()) continue;
    const Node& node = graph.node(folding.classes[c].nodes[0]);
    space.strategies[c] =
        enumerate_strategies(node, graph.types(node.inputs), graph.types(node.outputs), rules[c],
                             mesh, cluster, false, [](NodePlan&) { return int64_t{1}; });
  }
  add_value_strategies(space, graph, folding, {});
  ReshardTimes times(mesh, cluster);
  JointProblem joint = CALL(build_problem, space, graph, folding, mesh, times);
  const LimitedResult found = CALL(LimitedSearch, joint.problem, LimitedOptions()).run({}, {}, 10);
  EXPECT_TRUE(found.solution);
  if (!found.solution) return {};
  const PlanContext context{graph, mesh, folding, space, joint, times};
  return CALL(extract_plan, context, *found.solution, true);
}

TEST(Pipeline, EachArrowIsAFunctionOfItsName) {
  Called called;
  const TrainingStep step = small_step(called);
  const Cluster cluster = host_cluster();
  const Mesh mesh = Mesh::parse("2");

  // The prices that strategies and resharding have: a node's, and that of a tensor [4, 4] cut in
  // two and gathered.
  const Node& node = step.train.nodes()[0];
  EXPECT_GE(CALL(kernel_seconds, node, step.train.types(node.inputs),
                 step.train.types(node.outputs), cluster),
            0);
  const TensorType type{DType::f32, {4, 4}};
  Sharding cut = Sharding::replicated(2);
  cut.dims[0] = {0};
  EXPECT_GT(CALL(collective_seconds, Collective::Kind::all_gather, type, cut,
                 Sharding::replicated(2), 0, 0, std::vector<int>{0}, mesh, cluster),
            0);

  const Plan plan = plan_by_hand(step.train, mesh, cluster, called);
  RuleCache rules;
  const Plan planned = plan_shardings(step.train, mesh, cluster, {}, rules);
  EXPECT_NEAR(plan.seconds, planned.seconds, 1e-2 * planned.seconds);

  test::run_ranks(2, [&](Communicator& world) {
    const std::vector<const KernelList*> lists = {&reference_kernels()};
    const BackendTraits traits = test::with_kernels(traits_of(lists, false), lists);
    const Program program = CALL(compile, step.train, plan, cluster, world.rank(), traits);
    Executor executor = CALL(Executor, program, lists, world, 1);  // a prvalue: not copied
    executor.set_scalar(kLearningRate, 0.1);
    executor.set_scalar(kStep, 1);
    executor.begin_step();
    executor.run_micro();
    executor.run_update();
    EXPECT_TRUE(std::isfinite(executor.metric("loss")));
  });

  EXPECT_EQ(called.names(), arrows_of_picture());
}

#undef CALL

}  // namespace
}  // namespace shardrun
