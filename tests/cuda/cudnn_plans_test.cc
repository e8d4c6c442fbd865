// That cuDNN has plans for what it is given, asked for GPUs that are not there: nothing else does a
// convolution on a GPU, and pools and batch norms that cuDNN has not are ours.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <iostream>

#include "device/cuda/library.h"
#include "kernels/cuda/cudnn/conv_plan.h"
#include "kernels/cuda/cudnn/flash_attention.h"
#include "kernels/cuda/cudnn/image_plan.h"
#include "tests/cuda/attention_cases.h"
#include "tests/cuda/pool_cases.h"

namespace shardrun {
namespace {

/// As cuDNN describes GPUs itself, in the names that it gives where one is missing.
std::string described(const char* name, int capability, int processors, int64_t shared,
                      int64_t l2) {
  return str(R"({"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], )",
             R"("maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "warpSize": 32, )",
             R"("regsPerBlock": 65536, "maxRegistersPerSM": 65536, )",
             R"("maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024, )",
             R"("smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "pciDeviceId": 0, )",
             R"("maxCtasPerSM": 32, "driverVer": 13000, "cudaDeviceId": 0, "isTccDriver": 0, )",
             R"("totalGlobalMem": 85899345920, "supportCoopLaunch": 1, "deviceName": ")", name,
             R"(", "deviceVer": )", capability, R"(, "multiProcessorCount": )", processors,
             R"(, "maxSharedMemoryPerBlockOptin": )", shared, R"(, "l2CacheSize": )", l2, "}");
}

class CudnnPlans : public testing::Test {
 protected:
  /// cuDNN looks for the driver's library by name: CUDA's stub of it will do. Of the runtime its
  /// frontend takes what is open already.
  void SetUp() override {
    ASSERT_NE(dlopen(SHARDRUN_STAND_IN_CUDART, RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
    try {
      const auto version = reinterpret_cast<size_t (*)()>(cuda::cudnn().find("cudnnGetVersion"))();
      if (version < 90800)
        GTEST_SKIP() << "cuDNN " << version << " is asked for GPUs that are here";
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr &&
        dlopen(SHARDRUN_CUDA_STUB, RTLD_NOW | RTLD_GLOBAL) == nullptr)
      GTEST_SKIP() << dlerror();
  }

  using Plans = std::map<std::string, cuda::ConvPlan>;
  static void add(const Case& c, Plans& plans) {
    std::string why;
    const auto plan = cuda::plan_conv({c.node, c.in, c.out}, false, &why);
    if (plan && !plan->zero) plans.emplace(plan->convolution.key(), *plan);
  }
  void expect_all(const Plans& plans) const {
    for (const auto& [name, gpu] : gpus_) {
      for (const auto& [key, plan] : plans) {
        std::string why;
        EXPECT_TRUE(make_cudnn_graph(plan.convolution)->has_plan_for(gpu, &why))
            << name << ": " << key << ": " << why;
      }
    }
    std::cout << plans.size() << " convolutions on each of " << gpus_.size() << " GPUs\n";
  }

  const std::map<std::string, std::string> gpus_ = {
      {"A100", described("NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040)},
      {"H100", described("NVIDIA H100 80GB HBM3", 900, 132, 232448, 52428800)}};
};

TEST_F(CudnnPlans, AreThereForConvolutions) {
  Plans plans;
  for (const char* op : {"conv", "conv_data_grad", "conv_weight_grad"}) {
    for (const Case& c : cases_of(op_def(op))) add(c, plans);
  }
  EXPECT_GT(plans.size(), 50u);
  expect_all(plans);
}

/// WRN-50-2 with 256 images of 224 x 224 in bf16, forward and backward.
TEST_F(CudnnPlans, AreThereForTheModelOfTheComparison) {
  Plans plans;
  const auto add_layer = [&](int64_t in, int64_t out, int64_t size, int64_t kernel,
                             int64_t stride) {
    const auto twice = [](int64_t n) { return std::vector<int64_t>{n, n}; };
    const int64_t pad = kernel / 2, made = size / stride;
    const TensorType x{DType::bf16, {256, size, size, in}},
        w{DType::bf16, {out, in, kernel, kernel}}, y{DType::bf16, {256, made, made, out}};
    Case c;
    c.node.attrs = {{"strides", twice(stride)},
                    {"dilations", twice(1)},
                    {"pads_low", twice(pad)},
                    {"channels_last", int64_t{1}}};
    const auto add_pass = [&](const char* op, const char* sizes, int64_t n,
                              std::vector<TensorType> operands) {
      Case pass = c;
      pass.node.op = op;
      pass.node.attrs.set(sizes, twice(n));
      if (std::string(op) == "conv_weight_grad")
        pass.node.attrs.set("out_dtype", std::string("f32"));
      pass.in = std::move(operands);
      pass.out = infer_types(pass.node, pass.in);
      add(pass, plans);
    };
    add_pass("conv", "pads_high", pad, {x, w});
    add_pass("conv_data_grad", "size", size, {y, w});
    add_pass("conv_weight_grad", "kernel", kernel, {x, y});
  };
  add_layer(3, 64, 224, 7, 2);
  int64_t in = 64, size = 56;
  for (int64_t width = 128; width <= 1024; width *= 2) {
    const int64_t stride = width == 128 ? 1 : 2, out = 2 * width;
    add_layer(in, width, size, 1, 1);
    add_layer(width, width, size, 3, stride);
    add_layer(in, out, size, 1, stride);
    size /= stride, in = out;
    add_layer(width, out, size, 1, 1);
    add_layer(out, width, size, 1, 1);
    add_layer(width, width, size, 3, 1);
  }
  EXPECT_GT(plans.size(), 60u);
  expect_all(plans);
}

TEST_F(CudnnPlans, AreThereForPoolsAndBatchNorms) {
  std::map<std::string, std::unique_ptr<cuda::CudnnGraph>> graphs;
  const auto add = [&](const auto& plan) {
    if (plan) graphs.emplace(plan->key(), make_cudnn_graph(*plan));
  };
  std::string why;
  for (const char* op : {"max_pool_grad", "sum_pool", "sum_pool_grad"}) {
    for (const Case& c : cases_of(op_def(op))) add(cuda::plan_pool({c.node, c.in, c.out}, &why));
    for (const Case& c : more_pools(op)) add(cuda::plan_pool({c.node, c.in, c.out}, &why));
  }
  for (const char* op : {"batch_norm", "batch_norm_grad"}) {
    for (const Case& c : cases_of(op_def(op)))
      add(cuda::plan_batch_norm({c.node, c.in, c.out}, &why));
  }
  ASSERT_GT(graphs.size(), 50u);
  for (const auto& [name, gpu] : gpus_) {
    for (const auto& [key, graph] : graphs) {
      why.clear();
      EXPECT_TRUE(graph->has_plan_for(gpu, &why)) << name << ": " << key << ": " << why;
    }
  }
  std::cout << graphs.size() << " calls on each of " << gpus_.size() << " GPUs\n";
}

/// Those of the tests, and GPT-2's: 124M with 32 samples and 1558M with 12.
TEST_F(CudnnPlans, AreThereForAttention) {
  std::map<std::string, cuda::CudnnAttention> calls;
  for (const char* op : {"attention", "attention_grad"}) {
    std::vector<Case> cases = more_attention(op);
    for (const auto& [batch, heads] : {std::pair{32, 12}, std::pair{12, 25}}) {
      Case c = cases.front();
      for (TensorType& t : c.in) t.shape[0] = batch, t.shape[1] = heads, t.shape[2] = 1024;
      c.out = infer_types(c.node, c.in);
      cases.push_back(std::move(c));
    }
    for (const Case& c : cases) {
      const KernelCall call{c.node, c.in, c.out};
      ASSERT_EQ(cuda::refuse_flash_attention(call), std::nullopt) << describe(c);
      const cuda::CudnnAttention a = cuda::flash_attention_of(call);
      calls.emplace(a.key(), a);
    }
  }
  EXPECT_GT(calls.size(), 10u);
  for (const auto& [key, a] : calls) {
    std::string why;
    EXPECT_TRUE(make_cudnn_graph(a)->has_plan_for(gpus_.at("H100"), &why)) << key << ": " << why;
  }
  std::cout << calls.size() << " calls on an H100\n";
}

TEST_F(CudnnPlans, AreMissingWhereCudnnSaysSo) {
  std::string why;
  const Case c = more_pools("sum_pool").front();
  cuda::CudnnPool pool = *cuda::plan_pool({c.node, c.in, c.out}, &why);
  EXPECT_TRUE(make_cudnn_graph(pool)->has_plan_for(gpus_.at("H100"), &why)) << why;
  EXPECT_FALSE(make_cudnn_graph(pool)->has_plan_for("{}", &why));
  pool.y[2] += 1;  // a row that its windows do not make
  why.clear();
  EXPECT_FALSE(make_cudnn_graph(pool)->has_plan_for(gpus_.at("H100"), &why));
  EXPECT_NE(why, "");
}

}  // namespace
}  // namespace shardrun
