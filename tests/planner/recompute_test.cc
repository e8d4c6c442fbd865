// Computing again: the same bits whatever runs twice, the bytes that it saves, and what is chosen.
#include "planner/recompute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "graph/passes/node_order.h"
#include "graph/passes/recompute.h"
#include "models/gat.h"
#include "models/wide_resnet.h"
#include "tests/planner/gpt_step.h"

namespace shardrun {
namespace {

// Of batches large enough that activations, and not gradients, are what there is most.

Graph gpt() {
  GptOptions options;
  options.layers = 2;
  options.heads = 2;
  options.hidden = 16;
  options.vocab = 19;
  options.context = 8;
  options.batch = 6;
  options.dropout = 0.2;
  return test::gpt_step(options);
}

Graph wide_resnet() {
  WideResNetOptions options;
  options.family = WideResNetOptions::Family::cifar;
  options.layers = 10;
  options.width = 1;
  options.image = 8;
  options.classes = 3;
  options.batch = 12;
  options.dropout = 0.3;
  return test::written_step([&](const std::string& path) { write_wide_resnet(options, path); },
                            LossKind::cross_entropy);
}

Graph gat() {
  GatOptions options;
  options.layers = 3;
  options.nodes = 48;
  options.edges = 160;
  options.features = 5;
  options.dropout = options.attention_dropout = 0.4;
  return test::written_step([&](const std::string& path) { write_gat(options, path); },
                            LossKind::cross_entropy);
}

int64_t peak(const Graph& graph) {
  const std::vector<int64_t> alive = bytes_alive(graph, whole_bytes(graph));
  return *std::max_element(alive.begin(), alive.end());
}

std::set<std::string> all_that_may(const Graph& graph) {
  const Recomputation recomputation(graph);
  std::set<std::string> out;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    if (recomputation.may_run_again(static_cast<NodeId>(n))) out.insert(graph.nodes()[n].name);
  }
  return out;
}

NamedTensors feeds(const Graph& graph) {
  std::mt19937_64 random(11);
  NamedTensors out;
  for (const Value& value : graph.values()) {
    if (value.role != Role::batch && value.role != Role::scalar) continue;
    std::vector<double> numbers(static_cast<size_t>(element_count(value.type.shape)));
    for (double& number : numbers) {
      number = is_float(value.type.dtype) ? static_cast<double>(random() % 1000) / 500 - 1
                                          : static_cast<double>(random() % 3);
    }
    out[value.name] =
        convert(Tensor::from<double>(value.type.shape, numbers, DType::f64), value.type.dtype);
  }
  return out;
}

/// Two steps of both: every parameter and all state, running statistics too, bit for bit.
void expect_same_training(const Graph& a, const Graph& b) {
  Interpreter one(a, 3), other(b, 3);
  const NamedTensors batch = feeds(a);
  for (int step = 0; step < 2; ++step) {
    const Tensor x = one.step({batch}, {{a.loss}})[0], y = other.step({batch}, {{b.loss}})[0];
    EXPECT_EQ(x.at(0), y.at(0));
  }
  EXPECT_FALSE(a.updates.empty());
  for (const auto& [held, next] : a.updates) {
    const std::string& name = a.value(held).name;
    const Tensor &x = one.persistent(name), &y = other.persistent(name);
    ASSERT_EQ(x.type(), y.type());
    EXPECT_EQ(std::memcmp(x.data(), y.data(), static_cast<size_t>(byte_size(x.type()))), 0) << name;
  }
}

TEST(WithRecomputed, WholeForwardPassesRunAgainToTheSameBits) {
  for (Graph graph : {gpt(), wide_resnet(), gat()}) {
    SCOPED_TRACE(graph.name);
    order_for_memory(graph);
    const Graph again = with_recomputed(graph, all_that_may(graph));
    check_graph(again);
    EXPECT_GT(again.nodes().size(), graph.nodes().size() + 15);
    expect_same_training(graph, again);
  }
}

TEST(WithRecomputed, RunsInFrontOfTheFirstLateReader) {
  const Graph graph = gpt();
  const Graph again = with_recomputed(graph, {"h.0.Gelu"});
  ASSERT_EQ(again.nodes().size(), graph.nodes().size() + 1);
  const auto copy = std::find_if(again.nodes().begin(), again.nodes().end(),
                                 [](const Node& n) { return n.name == "again/h.0.Gelu"; });
  ASSERT_NE(copy, again.nodes().end());
  ASSERT_NE(copy + 1, again.nodes().end());
  EXPECT_EQ(std::count((copy + 1)->inputs.begin(), (copy + 1)->inputs.end(), copy->outputs[0]), 1);
  // The first result is read in the forward pass alone.
  const ValueId first = again.find("%h.0.Gelu");
  for (auto node = copy; node != again.nodes().end(); ++node)
    EXPECT_EQ(std::count(node->inputs.begin(), node->inputs.end(), first), 0) << node->name;
}

TEST(WithRecomputed, RefusesWhatIsNotOfTheForwardPass) {
  const Graph graph = gpt();
  for (const std::string& name : {std::string("nobody"), graph.nodes().back().name}) {
    try {
      with_recomputed(graph, {name});
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
      EXPECT_NE(std::string(e.what()).find("'" + name + "'"), std::string::npos) << e.what();
    }
  }
}

TEST(ChooseRecomputed, FitsWithLessAndLessAndTheSameBits) {
  for (Graph graph : {gpt(), wide_resnet(), gat()}) {
    SCOPED_TRACE(graph.name);
    order_for_memory(graph);
    const ValueBytes bytes = whole_bytes(graph);
    std::vector<double> seconds;
    for (const Node& node : graph.nodes())
      seconds.push_back(node_flops(node, graph.types(node.inputs), graph.types(node.outputs)));
    const auto cost = [&](const std::set<std::string>& names) {
      double out = 0;
      for (size_t n = 0; n < seconds.size(); ++n)
        out += names.count(graph.nodes()[n].name) > 0 ? seconds[n] : 0;
      return out;
    };
    EXPECT_TRUE(choose_recomputed(graph, bytes, seconds, peak(graph)).nodes.empty());
    double last = 0;
    for (const int percent : {95, 85, 80}) {
      const int64_t limit = peak(graph) * percent / 100;
      const auto [names, fits] = choose_recomputed(graph, bytes, seconds, limit);
      EXPECT_TRUE(fits) << percent;
      EXPECT_EQ(names, choose_recomputed(graph, bytes, seconds, limit).nodes);
      const Graph again = with_recomputed(graph, names);
      check_graph(again);
      EXPECT_LE(peak(again), limit) << percent;
      EXPECT_FALSE(names.empty());
      EXPECT_GE(cost(names), last) << percent;
      last = cost(names);
      if (percent == 80) expect_same_training(graph, again);
    }
  }
}

/// What is cheap for its bytes goes first: at 95 % of a GPT no product runs again.
TEST(ChooseRecomputed, TakesTheCheapestBytes) {
  Graph graph = gpt();
  std::vector<double> seconds;
  for (const Node& node : graph.nodes())
    seconds.push_back(node_flops(node, graph.types(node.inputs), graph.types(node.outputs)));
  const std::set<std::string> names =
      choose_recomputed(graph, whole_bytes(graph), seconds, peak(graph) * 95 / 100).nodes;
  EXPECT_FALSE(names.empty());
  for (const Node& node : graph.nodes()) {
    EXPECT_FALSE(node.op == "matmul" && names.count(node.name) > 0) << node.name;
  }
}

}  // namespace
}  // namespace shardrun
