// Steps of a few tokens against the pass over all of them, for models that tests write and that
// PyTorch exported.
#include "planner/token_steps.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "exec/executor.h"
#include "graph/onnx/import.h"
#include "graph/passes/channels_last.h"
#include "graph/passes/recognise/recognise.h"
#include "graph/passes/training.h"
#include "kernels/cpu/cpu.h"
#include "kernels/reference/interpreter.h"
#include "models/gpt.h"
#include "planner/planner.h"
#include "program/compile.h"
#include "tests/support/memory_check.h"
#include "tests/support/sharded_run.h"

namespace shardrun {
namespace {

using test::NamedTensors;

RuleCache& rules() {
  static RuleCache cache;
  return cache;
}

Graph forward_of(const std::string& path, std::map<std::string, int64_t> dims = {}) {
  ImportOptions options;
  options.evaluate = run_reference;
  options.shared = ImportOptions::Shared::keep;
  options.dims = std::move(dims);
  for (const SymbolicDim& dim : OnnxFile(path).symbolic_dims()) {
    if (dim.axis == 0) options.dims.try_emplace(dim.name, 1);
  }
  Graph graph = OnnxFile(path).import(options);
  recognise(graph);
  put_channels_last(graph);
  graph.loss = kNoValue;
  graph = evaluation_form(graph);
  remove_dead_nodes(graph);
  reshape_before_transposes(graph);
  remove_no_ops(graph);
  fold_transposes(graph);
  return graph;
}

Graph written(const GptOptions& options) {
  const std::string path =
      (std::filesystem::temp_directory_path() / str("token_steps_", getpid(), ".onnx")).string();
  write_gpt(options, path);
  return forward_of(path);
}

Graph golden(const std::string& name) { return forward_of(str(SHARDRUN_GOLDEN, "/", name)); }

/// Any sequence.
std::vector<int64_t> sequence(const TokenModel& model) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < model.context; ++i)
    out.push_back((7 * i * i + 3 * i + 1) % std::min<int64_t>(model.vocabulary, 50));
  return out;
}

Tensor as_tokens(const TensorType& type, const std::vector<int64_t>& row) {
  const auto columns = static_cast<size_t>(type.shape.back());
  std::vector<int64_t> all;
  for (int64_t i = 0; i < element_count(type.shape); ++i)
    all.push_back(row.at(static_cast<size_t>(i) % columns));
  return convert(Tensor::from(type.shape, all, DType::i64), type.dtype);
}

/// One rank's run of several step Graphs that share their state.
class Steps {
 public:
  explicit Steps(std::vector<Graph> graphs) : comm_(make_local_communicators(1)) {
    const std::vector<const KernelList*> lists = {&cpu_kernels(), &reference_kernels()};
    const StepNeeds needs(lists);
    int64_t bytes = 0;
    std::vector<Program> programs;
    for (const Graph& graph : graphs) {
      check_graph(graph);
      const Plan plan = plan_shardings(graph, Mesh(), host_cluster(), {}, rules());
      programs.push_back(compile(graph, plan, host_cluster(), 0, {.needs = needs},
                                 {.steps = shardrun::Steps::all,
                                  .persistent_like = programs.empty() ? nullptr : &programs[0]}));
      check_memory(programs.back());
      bytes = std::max(bytes, programs.back().arena_bytes);
    }
    const auto arena = std::make_shared<Arena>(bytes, *comm_[0]);
    for (Program& program : programs) {
      runs_.push_back(std::make_unique<Executor>(std::move(program), lists, *comm_[0], 0, arena,
                                                 runs_.empty()));
      runs_.back()->begin_step();
    }
  }

  const Program& program(size_t i) const { return runs_[i]->program(); }

  std::vector<float> run(size_t i, const std::vector<int64_t>& tokens, int64_t position) {
    Executor& e = *runs_[i];
    e.write(kTokens, as_tokens(e.find(kTokens)->global, tokens));
    e.set_scalar(kPosition, position);
    e.run_micro();
    const Tensor logits = e.read(*e.find_output(kLogits));
    return {logits.as<float>(), logits.as<float>() + logits.count()};
  }

 private:
  std::vector<std::unique_ptr<Communicator>> comm_;
  std::vector<std::unique_ptr<Executor>> runs_;
};

/// Of every position, by one pass of the reference kernels.
std::vector<std::vector<double>> logits_of(const Graph& forward, const TokenModel& model,
                                           ValueId logits) {
  Graph whole = forward;
  whole.outputs = {logits};
  remove_dead_nodes(whole);
  const Value& tokens = forward.value(model.tokens);
  const Tensor out =
      evaluate_graph(whole, {{tokens.name, as_tokens(tokens.type, sequence(model))}})[0];
  std::vector<std::vector<double>> rows;
  for (int64_t t = 0; t < model.context; ++t) {
    rows.emplace_back();
    for (int64_t v = 0; v < model.vocabulary; ++v)
      rows.back().push_back(out.at(t * model.vocabulary + v));
  }
  return rows;
}

void expect_row(const std::vector<float>& got, const std::vector<double>& want,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 1e-30, difference = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    difference = std::max(difference, std::abs(want[i] - got[i]));
  }
  EXPECT_LE(difference, 2e-5 * largest) << what;
}

/// Token by token from the first on, and behind a first step of several.
void expect_same_logits(const Graph& forward, int64_t caches) {
  const TokenModel model = find_tokens(forward);
  const auto want = logits_of(forward, model, model.logits[0]);
  const std::vector<int64_t> all = sequence(model);
  const int64_t first = model.context / 2 + 1;
  std::string why;
  const auto one = cached_step(forward, model, 1, rules(), &why);
  ASSERT_TRUE(one) << why;
  const auto many = cached_step(forward, model, first, rules(), &why);
  ASSERT_TRUE(many) << why;
  EXPECT_EQ(std::ssize(one->with_role(Role::state)), 2 * caches);
  Steps alone({*one}), behind({*one, *many});
  expect_row(behind.run(1, {all.begin(), all.begin() + first}, 0),
             want[static_cast<size_t>(first - 1)], "the first step");
  for (int64_t t = 0; t < model.context; ++t) {
    const std::vector<int64_t> token = {all[static_cast<size_t>(t)]};
    expect_row(alone.run(0, token, t), want[static_cast<size_t>(t)], str("token ", t));
    if (t >= first)
      expect_row(behind.run(0, token, t), want[static_cast<size_t>(t)], str("behind, ", t));
  }
}

TEST(TokenSteps, OfWrittenModels) {
  GptOptions gpt2;
  gpt2.layers = 2, gpt2.hidden = 32, gpt2.context = 12, gpt2.vocab = 40;
  expect_same_logits(written(gpt2), 2);
  GptOptions with_dropout = gpt2;
  with_dropout.dropout = 0.1;
  expect_same_logits(written(with_dropout), 2);
  GptOptions fixed_batch = gpt2;
  fixed_batch.batch = 3;
  expect_same_logits(written(fixed_batch), 2);
  GptOptions llama = gpt2;
  llama.kv_heads = 2, llama.norm = GptOptions::Norm::rms, llama.mlp = GptOptions::Mlp::swiglu,
  llama.positions = GptOptions::Positions::rotary;
  llama.biases = llama.tied = false;
  expect_same_logits(written(llama), 2);
}

TEST(TokenSteps, OfExportedModels) {
  for (const char* name : {"gpt_manual.dynamo.onnx", "gpt_manual.legacy.onnx",
                           "gpt_sdpa.dynamo.onnx", "gpt_sdpa.dynamo23.onnx", "gpt_sdpa.legacy.onnx",
                           "gpt_loss.dynamo.onnx", "gpt_loss.legacy.onnx", "rotary.dynamo.onnx"}) {
    SCOPED_TRACE(name);
    const Graph forward = golden(name);
    expect_same_logits(forward, std::count_if(forward.nodes().begin(), forward.nodes().end(),
                                              [](const Node& n) { return n.op == "attention"; }));
  }
}

/// The reason why keys and values cannot be kept.
std::string why_not(const Graph& forward) {
  std::string why;
  EXPECT_FALSE(cached_step(forward, find_tokens(forward), 1, rules(), &why));
  return why;
}

/// Heads of keys that serve several of queries are kept once.
TEST(TokenSteps, KeepEachHeadOnce) {
  GptOptions o;
  o.layers = 1, o.hidden = 32, o.heads = 4, o.kv_heads = 2, o.context = 12, o.vocab = 40;
  const Graph forward = written(o);
  std::string why;
  const auto step = cached_step(forward, find_tokens(forward), 1, rules(), &why);
  ASSERT_TRUE(step) << why;
  for (ValueId id : step->with_role(Role::state)) {
    EXPECT_EQ(step->type(id), (TensorType{DType::f32, {12, 1, 2, 8}}));
    EXPECT_TRUE(step->zeroed_each_step.count(id));
  }
}

/// Rows are written where they belong, and no others are moved.
TEST(TokenSteps, WriteKeysInPlace) {
  GptOptions o;
  o.layers = 1, o.hidden = 32, o.context = 12, o.vocab = 40;
  const Graph forward = written(o);
  std::string why;
  const Steps steps({*cached_step(forward, find_tokens(forward), 1, rules(), &why)});
  int writes = 0;
  for (const Step& step : steps.program(0).steps) {
    EXPECT_NE(step.node.op, "identity") << step.node.name;
    if (step.node.op != "scatter_nd") continue;
    EXPECT_EQ(step.in[0], step.out[0]);
    ++writes;
  }
  EXPECT_EQ(writes, 2);
}

/// Computed whole, for one position at a time, and beyond the last mixing of tokens for that alone.
TEST(TokenSteps, OfTheWholeContext) {
  GptOptions o;
  o.layers = 2, o.hidden = 32, o.context = 12, o.vocab = 40;
  for (const Graph& forward : {written(o), golden("loss_nano.dynamo.onnx")}) {
    const TokenModel model = find_tokens(forward);
    const auto want = logits_of(forward, model, model.logits[0]);
    const Graph step = whole_step(forward, model, rules());
    Steps whole({step});
    for (int64_t t = 0; t < model.context; ++t)
      expect_row(whole.run(0, sequence(model), t), want[static_cast<size_t>(t)], str("token ", t));
    const NodeId maker = step.value(step.outputs[0]).producer;
    EXPECT_EQ(element_count(step.type(step.node(maker).inputs[0]).shape), model.vocabulary);
  }
  EXPECT_EQ(why_not(golden("loss_nano.dynamo.onnx")), "node 'node_cumsum' (cumsum) mixes tokens");
}

Graph hand_made(const std::function<ValueId(Graph&, ValueId)>& mix) {
  Graph g;
  const ValueId tokens = g.add_input("ids", {DType::i64, {1, 8}}, Role::batch);
  Source drawn;
  drawn.kind = Source::Kind::normal;
  drawn.b = 1;
  drawn.stream = "table";
  const ValueId table =
      g.add_persistent("table", {DType::f32, {10, 4}}, Role::parameter, std::move(drawn));
  const ValueId x = mix(g, g.add("gather", {table, tokens}, {{"axis", int64_t{0}}}));
  g.outputs = {g.add("matmul", {x, table}, {{"equation", std::string("btc,vc->btv")}}, "head")};
  return g;
}

/// x [1, 8, 4] attends to itself.
ValueId attends(Graph& g, ValueId x, int64_t causal) {
  const ValueId heads = g.add("reshape", {x}, {{"shape", Shape{1, 1, 8, 4}}});
  const ValueId y =
      g.add_node("attention", {heads, heads, heads},
                 {{"scale", 0.5}, {"causal", causal}, {"has_mask", int64_t{0}}}, "attends")[0];
  return g.add("reshape", {y}, {{"shape", Shape{1, 8, 4}}});
}

TEST(TokenSteps, RefuseWhatMixesTokens) {
  expect_same_logits(hand_made([](Graph& g, ValueId x) { return attends(g, x, 1); }), 1);
  EXPECT_EQ(why_not(hand_made([](Graph& g, ValueId x) { return attends(g, x, 0); })),
            "attention 'attends' is not causal: tokens see later ones");
  EXPECT_EQ(why_not(hand_made([](Graph& g, ValueId x) {
              const ValueId sum =
                  g.add("reduce_sum", {x}, {{"axes", Shape{1}}, {"keepdims", int64_t{1}}}, "sum");
              return g.add("add", {x, sum});
            })),
            "node 'sum' (reduce_sum) mixes tokens");
  // By its last token alone, and yet for all of them.
  EXPECT_EQ(
      why_not(hand_made([](Graph& g, ValueId x) {
        return g.add(
            "slice", {x},
            {{"starts", Shape{0, 7, 0}}, {"ends", Shape{1, -1, 4}}, {"steps", Shape{1, -1, 1}}},
            "turned");
      })),
      "node 'turned' (slice) mixes tokens");
}

/// Logits are looked for behind what only moves them, as a loss that wants another order does.
TEST(TokenSteps, FindLogitsBehindWhatMovesThem) {
  Graph g;
  const ValueId tokens = g.add_input("tokens", {DType::i64, {2, 8}}, Role::batch);
  const ValueId table = g.add_input("table", {DType::f32, {16, 16}}, Role::parameter);
  const ValueId logits = g.add("gather", {table, tokens}, {{"axis", int64_t{0}}}, "logits");
  const ValueId turned = g.add("transpose", {logits}, {{"perm", Shape{1, 0, 2}}}, "turned");
  g.outputs = {g.add("log_softmax", {turned}, {{"axis", int64_t{2}}}, "y")};
  const std::vector<ValueId> found = find_tokens(g).logits;
  EXPECT_NE(std::find(found.begin(), found.end(), logits), found.end());
}

TEST(TokenSteps, WantTokens) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {2, 8}}, Role::batch);
  g.outputs = {g.add("relu", {x}, {}, "y")};
  try {
    find_tokens(g);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("takes no tokens"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("'%y' f32[2, 8]"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace shardrun
