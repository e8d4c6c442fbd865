// The arrows of docs/architecture.md's picture, each called by the name that it has there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
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
#include "planner/solver/solver.h"
#include "planner/space/extract_plan.h"
#include "planner/space/search_space.h"
#include "program/compile.h"
#include "tests/collectives/ranks.h"
#include "tests/support/kernel_traits.h"

namespace shardrun {
namespace {

/// The words of the first picture.
std::vector<std::string> words_of_picture() {
  std::ifstream in(SHARDRUN_SOURCE_DIR "/docs/architecture.md");
  std::stringstream text;
  text << in.rdbuf();
  const std::string all = text.str(), begin = "## One picture";
  const size_t from = all.find(begin), to = all.find("Each arrow is a function");
  EXPECT_LT(from, to);
  EXPECT_NE(to, std::string::npos);
  std::vector<std::string> words(1);
  for (const char c : all.substr(from + begin.size(), to - from - begin.size())) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_')
      words.back() += c;
    else if (!words.back().empty())
      words.emplace_back();
  }
  return words;
}

TEST(Pipeline, EachArrowIsAFunctionOfItsName) {
  std::vector<std::string> called;
#define CALL(function, ...) (called.emplace_back(#function), function(__VA_ARGS__))
  const std::string path =
      std::filesystem::temp_directory_path() / str("shardrun_pipeline_", getpid(), ".onnx");
  GptOptions gpt;
  gpt.layers = 1, gpt.hidden = 8, gpt.heads = 2, gpt.vocab = 11, gpt.context = 4, gpt.batch = 2;
  write_gpt(gpt, path);
  ImportOptions import;
  import.evaluate = run_reference;
  Graph graph = CALL(import_onnx, path, import, nullptr);
  const TrainingStep step = CALL(make_training_step, std::move(graph), {});

  // What plan_shardings does, one after the other, of one node.
  const Cluster cluster = host_cluster();
  const Mesh mesh = Mesh::parse("2");
  const Node& node = step.train.nodes()[0];
  std::vector<TensorType> in, out;
  for (ValueId id : node.inputs) in.push_back(step.train.type(id));
  for (ValueId id : node.outputs) out.push_back(step.train.type(id));
  EXPECT_FALSE(discover(node, in).options.empty());
  EXPECT_GE(CALL(kernel_seconds, node, in, out, cluster), 0);
  const TensorType type{DType::f32, {4, 4}};
  Sharding cut = Sharding::replicated(2);
  cut.dims[0] = {0};
  EXPECT_GT(CALL(collective_seconds, Collective::Kind::all_gather, type, cut,
                 Sharding::replicated(2), 0, 0, std::vector<int>{0}, mesh, cluster),
            0);
  RuleCache rules;
  const Plan plan = plan_shardings(step.train, mesh, cluster, {}, rules);

  test::run_ranks(2, [&](Communicator& world) {
    const std::vector<const KernelList*> lists = {&reference_kernels()};
    const BackendTraits traits = test::with_kernels(traits_of(lists, false), lists);
    Executor executor(compile(step.train, plan, cluster, world.rank(), traits), lists, world, 1);
    executor.set_scalar(kLearningRate, 0.1);
    executor.set_scalar(kStep, 1);
    executor.begin_step();
    executor.run_micro();
    executor.run_update();
    EXPECT_TRUE(std::isfinite(executor.metric("loss")));
  });
#undef CALL
  // Called above, or by plan_shardings.
  called.insert(called.end(),
                {"discover", "build_problem", "solve", "extract_plan", "compile", "Executor"});
  (void)&build_problem;
  (void)static_cast<SolveResult (*)(const Problem&, SolverKind, const SolveOptions&)>(&solve);
  (void)&extract_plan;
  const std::vector<std::string> picture = words_of_picture();
  const auto has = [](const std::vector<std::string>& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  for (const std::string& name : called)
    EXPECT_TRUE(has(picture, name)) << "the picture has no arrow '" << name << "'";
  for (const std::string& word : picture) {
    const bool is_function = word.find('_') != std::string::npos;
    EXPECT_TRUE(!is_function || has(called, word)) << "the picture has an arrow '" << word << "'";
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace shardrun
