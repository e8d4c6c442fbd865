// Training steps whose convolutions end with what follows them, or read weights laid out before:
// which steps are so, and the losses of the same step as it was.
#include <gtest/gtest.h>

#include <cmath>

#include "exec/executor.h"
#include "graph/passes/channels_last.h"
#include "graph/rearranged.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/processor.h"
#include "kernels/fused_call.h"
#include "models/onnx_writer.h"
#include "models/wide_resnet.h"
#include "program/compile.h"
#include "program/ops/pack.h"
#include "program/ops/post.h"
#include "tests/exec/random_plan.h"
#include "tests/planner/gpt_step.h"
#include "tests/support/memory_check.h"

namespace shardrun {
namespace {

constexpr int kSteps = 3;

const std::vector<const KernelList*>& lists() {
  static const std::vector<const KernelList*> all = {&cpu_kernels(), &reference_kernels()};
  return all;
}

/// By kernels of the CPU alone.
bool takes(const Node& node, const std::vector<TensorType>& in,
           const std::vector<TensorType>& out) {
  return select_kernel(lists(), {node, in, out}).impl != "reference";
}

bool takes_nothing(const Node&, const std::vector<TensorType>&, const std::vector<TensorType>&) {
  return false;
}

/// conv, bias and relu three times, as a converter leaves them that folds norms into convolutions.
void write_biased(const std::string& path) {
  OnnxWriter w("biased", {.weights = false});
  w.input("images", 1, {"4", "3", "16", "16"});
  std::string x = "images";
  int64_t channels = 3;
  for (const int64_t stride : {1, 1, 2}) {
    w.prefix = str("block", channels, stride, ".");
    x = w.node("Relu", {w.node("Conv",
                               {x, w.normal(w.prefix + "weight", {64, channels, 3, 3}, 0.1),
                                w.uniform(w.prefix + "bias", {64}, 0.5)},
                               {{"kernel_shape", std::vector<int64_t>{3, 3}},
                                {"strides", std::vector<int64_t>{stride, stride}},
                                {"pads", std::vector<int64_t>{1, 1, 1, 1}}})});
    channels = 64;
  }
  w.prefix = "";
  const std::string pooled = w.node("Flatten", {w.node("GlobalAveragePool", {x})});
  w.output(w.node("MatMul", {pooled, w.normal("fc.weight", {64, 10}, 0.1)}, {}, "logits"), 1,
           {"4", "10"});
  w.write(path);
}

void write_residual(const std::string& path) {
  WideResNetOptions o;
  o.family = WideResNetOptions::Family::cifar;
  o.layers = 10, o.width = 4, o.image = 16, o.classes = 10, o.batch = 4;
  o.weights = false;
  write_wide_resnet(o, path);
}

struct Outcome {
  std::map<std::string, int> fused;  // by op and what is behind it
  std::vector<double> losses;
  std::set<std::string> packed;  // kernels of steps that read or write packed weights
};

Outcome train(void (*write)(const std::string& path), bool bf16, bool fuse, int accumulate = 1,
              bool keep = false) {
  const Graph graph = test::written_step(write, LossKind::cross_entropy,
                                         {.kind = OptimizerKind::sgd, .accumulate = accumulate},
                                         bf16, [](Graph& g) { put_channels_last(g); });
  const auto world = make_local_communicators(1);
  Plan plan = test::replicated_plan(graph, Mesh());
  plan.keep_casts = plan.keep_packed = keep;
  const BackendTraits traits{
      .takes = fuse ? TakesStep(takes) : takes_nothing,
      .runs_alike = [](const KernelCall& more,
                       const KernelCall& alone) { return runs_alike(lists(), more, alone); },
      .packed_weights = packed_weights,
      .needs = StepNeeds(lists())};
  Program program = compile(graph, plan, Cluster{}, 0, traits);
  Outcome out;
  for (const Step& step : program.steps) {
    if (step.node.op.starts_with("conv") && has_post_ops(step.node.op))
      ++out.fused[step.node.op + ": " + step.node.attrs.s("post")];
  }
  check_memory(program);
  const int64_t predicted = program.arena_bytes;
  Executor executor(std::move(program), lists(), *world[0], 1);
  EXPECT_EQ(executor.allocated_bytes(), predicted);
  for (int step = 1; step <= kSteps; ++step) {
    executor.set_scalar(kLearningRate, 0.005);
    executor.set_scalar(kStep, step);
    executor.begin_step();
    for (int micro = 0; micro < accumulate; ++micro) {
      for (const Binding& b : executor.program().bindings) {
        if (b.role != Role::batch) continue;
        const TensorView view = executor.view(b);
        Tensor values(TensorType{DType::f64, view.type.shape});
        for (int64_t i = 0; i < values.count(); ++i)
          values.as<double>()[i] = b.name == "images"
                                       ? std::sin(0.37 * static_cast<double>(i + step))
                                       : static_cast<double>(i % 10);
        convert(values.data(), DType::f64, view.data, view.type.dtype, values.count());
      }
      executor.run_micro();
    }
    executor.run_update();
    out.losses.push_back(executor.metric("loss"));
  }
  for (size_t s = 0; s < executor.program().steps.size(); ++s) {
    const Step& step = executor.program().steps[s];
    if (rearranged_operands(step.node) > 0 || is_packed_update(step.node.op))
      out.packed.insert(str(step.node.op, " ", executor.implementation(s)));
  }
  return out;
}

void expect_same_losses(const Outcome& got, const Outcome& want, double tolerance) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << "step " << i + 1;
  EXPECT_NE(want.losses.front(), want.losses.back());
}

TEST(FusedConvolutions, TakeBiasAndActivation) {
  for (const bool bf16 : {false, true}) {
    SCOPED_TRACE(bf16 ? "bf16" : "f32");
    const Outcome fused = train(write_biased, bf16, true), apart = train(write_biased, bf16, false);
    EXPECT_TRUE(apart.fused.empty());
    // oneDNN, which the first and the strided one go through, has no relu that keeps a NaN.
    const std::map<std::string, int> want = {{"conv_post: add relu", 1}, {"conv_post: add", 2}};
    if (!bf16 && kLanesFitRegisters) {  // tiles take the relu
      EXPECT_EQ(fused.fused, want);
    }
    expect_same_losses(fused, apart, bf16 ? 4e-3 : 1e-6);
  }
}

TEST(FusedConvolutions, TakeResiduals) {
  for (const bool bf16 : {false, true}) {
    SCOPED_TRACE(bf16 ? "bf16" : "f32");
    const Outcome fused = train(write_residual, bf16, true),
                  apart = train(write_residual, bf16, false);
    // oneDNN's gradients end with nothing.
    if (!bf16 && kLanesFitRegisters) {
      EXPECT_EQ(fused.fused, (std::map<std::string, int>{{"conv_post: add", 3}}));
    }
    expect_same_losses(fused, apart, bf16 ? 4e-3 : 1e-6);
  }
}

/// Bit for bit, over micro-batches and updates.
TEST(KeptWeights, GiveTheSameLosses) {
  for (const bool bf16 : {false, true}) {
    for (const int accumulate : {1, 2}) {
      const bool fuse = accumulate == 1;
      SCOPED_TRACE(str(bf16 ? "bf16, " : "f32, ", accumulate));
      const Outcome kept = train(write_residual, bf16, fuse, accumulate, true),
                    apart = train(write_residual, bf16, fuse, accumulate);
      EXPECT_EQ(kept.losses, apart.losses);
      EXPECT_TRUE(apart.packed.empty());
      // Which layouts there are of bf16 depends on the processor.
      if (bf16 && (!cpu::multiplies_bf16() || cpu::has_matrix_units())) continue;
      EXPECT_TRUE(kept.packed.count("conv cpu:onednn"));
      EXPECT_TRUE(kept.packed.count("conv_data_grad cpu:onednn"));
      EXPECT_EQ(kept.packed.count("sgd_packed cpu:fused"), bf16 ? 1u : 0u);
    }
  }
}

}  // namespace
}  // namespace shardrun
