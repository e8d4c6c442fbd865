// The MLP of the mesh dialect's RFC (its end-to-end walkthroughs), from what is annotated to what a
// rank runs: 1D weight stationary, figure 2(a) of arXiv 2211.05102.
//
// The RFC's functions return their result cut along its last dim. Here that is how the loss, the
// squared error behind the MLP, reads it.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "graph/onnx/import.h"
#include "graph/passes/training_step.h"
#include "kernels/kernel.h"
#include "tests/planner/schedule/planned_step.h"

namespace shardrun {
namespace {

/// Annotations on tensors: the argument, the second product's sum in parts, and how it is used.
const std::vector<std::string> kOnTensors = {"x=[-,-,m]", "dot2=[-,-,-] partial(sum: m)",
                                             "dot2>loss/difference=[-,-,m]"};
/// The second product's option instead: its reduction loop, way 2 of `shardrun rules`, along m.
const std::vector<std::string> kOnOperations = {"x=[-,-,m]", "dot2()=[-,-,m]",
                                                "dot2>loss/difference=[-,-,m]"};
const std::vector<std::string> kNodes = {"dot1", "max", "dot2"};

Graph mlp() {
  ImportOptions import;
  import.evaluate = run_reference;
  import.has_own_loss = false;
  TrainingStepOptions options;
  options.loss = LossKind::mse;
  return make_training_step(OnnxFile(SHARDRUN_GOLDEN "/rfc_mlp.onnx").import(import), options)
      .train;
}

Plan plan_of(const Graph& graph, const std::string& mesh,
             const std::vector<std::string>& requests) {
  PlanOptions options;
  options.planner = parse_planner("propagate");
  options.requests = requests;
  const Plan plan =
      plan_shardings(graph, Mesh::parse(mesh), host_cluster(), options, test::rules());
  check_plan(plan, graph);
  return plan;
}

const Node& node_named(const Graph& graph, const std::string& name) {
  return *std::find_if(graph.nodes().begin(), graph.nodes().end(),
                       [&](const Node& node) { return node.name == name; });
}

/// How the MLP's values lie, and how its nodes read them.
std::string completed(const Graph& graph, const Plan& plan) {
  std::string out;
  const auto list = [&](const std::vector<ValueId>& ids, const std::vector<Sharding>& as) {
    for (size_t i = 0; i < ids.size(); ++i)
      out += str(i > 0 ? ", " : "", graph.value(ids[i]).name, ' ', to_string(as[i], plan.mesh));
  };
  for (const std::string& name : kNodes) {
    const Node& node = node_named(graph, name);
    for (ValueId id : node.inputs) {
      const Value& value = graph.value(id);
      if (value.role != Role::computed)
        out += str(value.name, " lies ", to_string(plan.values.at(value.name), plan.mesh), '\n');
    }
    out += name + " reads ";
    list(node.inputs, plan.nodes.at(name).in);
    out += " and leaves ";
    list(node.outputs, plan.nodes.at(name).out);
    out += '\n';
  }
  return out;
}

bool of_mlp(const Step& step) {
  const std::string name = step.source.substr(0, step.source.find('@'));
  return std::find(kNodes.begin(), kNodes.end(), name) != kNodes.end() || name == "x" ||
         name == "%dot2";
}

/// Its nodes, with the collectives between them.
std::string materialised(const Graph& graph, const Plan& plan) {
  const Program program = Partition(graph, plan, host_cluster()).program(0);
  const auto name = [&](BufferId id) { return program.buffers[static_cast<size_t>(id)].name; };
  std::string out;
  for (const Step& step : program.steps) {
    if (!of_mlp(step)) continue;
    out += str(name(step.out[0]), " = ",
               step.kind == Step::Kind::collective ? step.collective->traits().name
                                                   : std::string_view(step.node.op),
               '(');
    for (BufferId id : step.in) out += str(id == step.in[0] ? "" : ", ", name(id));
    out += ")\n";
  }
  return out;
}

/// The same lines of a rank's program, with local shapes, and what it holds of the operands.
std::string partitioned(const Graph& graph, const Plan& plan, int64_t rank) {
  std::istringstream lines(to_string(Partition(graph, plan, host_cluster()).program(rank)));
  std::string out, line;
  while (std::getline(lines, line)) {
    const std::string by = line.substr(line.rfind("  # ") + 4);
    const bool bound = line.rfind("  bind ", 0) == 0 && line.find("update/") == std::string::npos &&
                       line.find("adam_") == std::string::npos;
    if (bound || by == "x@all_gather" || by == "%dot2@reduce_scatter" ||
        std::find(kNodes.begin(), kNodes.end(), by) != kNodes.end())
      out += line + '\n';
  }
  return out;
}

TEST(Walkthrough, AnnotationsOnTensors) {
  const Graph graph = mlp();
  const Plan plan = plan_of(graph, "m=2", kOnTensors);
  std::string text = "annotated, on mesh m=2:\n\n";
  for (const std::string& request : kOnTensors) text += request + '\n';
  text += "\ncompleted:\n\n" + completed(graph, plan);
  text += "\nmaterialised:\n\n" + materialised(graph, plan);
  text += "\npartitioned, rank 1:\n\n" + partitioned(graph, plan, 1);
  std::ifstream in(SHARDRUN_GOLDEN "/rfc_mlp.txt");
  std::stringstream golden;
  golden << in.rdbuf();
  EXPECT_EQ(text, golden.str());
  test::expect_losses_of_one(graph, plan);
}

/// The same Program, bit for bit, for every rank of eight.
TEST(Walkthrough, OptionsOnOperations) {
  const Graph graph = mlp();
  const Plan tensors = plan_of(graph, "m=8", kOnTensors),
             operations = plan_of(graph, "m=8", kOnOperations);
  EXPECT_EQ(tensors.nodes, operations.nodes);
  EXPECT_EQ(tensors.values, operations.values);
  for (int64_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(to_string(Partition(graph, tensors, host_cluster()).program(rank)),
              to_string(Partition(graph, operations, host_cluster()).program(rank)));
  }
  EXPECT_EQ(materialised(graph, operations),
            materialised(graph, plan_of(graph, "m=2", kOnTensors)));
  test::expect_losses_of_one(graph, operations);
}

}  // namespace
}  // namespace shardrun
