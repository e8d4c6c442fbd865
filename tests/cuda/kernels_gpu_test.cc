// Every kernel of the GPU against the reference, on every call that it accepts of every op's
// samples, larger ones and empty ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>

#include "device/cuda/cuda.h"
#include "kernels/cuda/cublas/evened.h"
#include "kernels/cuda/cublas/matmul_plan.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cudnn/cudnn.h"
#include "kernels/cuda/families.h"
#include "kernels/element_chain.h"
#include "tests/cuda/attention_cases.h"
#include "tests/cuda/many_cases.h"
#include "tests/cuda/pool_cases.h"
#include "tests/support/kernel_cases.h"

namespace shardrun {
namespace {

constexpr uint64_t kSeed = 20261123;

/// The GPU, or why there is none.
class Gpu {
 public:
  Gpu() {
    if (cuda::device_count(&why) > 0) device = cuda::open_device(0);
  }
  std::unique_ptr<cuda::CudaDevice> device;
  std::string why;
};

/// Some bytes of the GPU's memory between bytes of a pattern, which it must still have at the end.
class Guarded {
 public:
  /// `shift`: how far from a multiple of 256 bytes the memory begins.
  Guarded(Device& device, int64_t bytes, int64_t shift)
      : device_(device), bytes_(bytes), before_(kGuard + shift) {
    memory_ = device.allocate(before_ + bytes + kGuard);
    std::vector<char> garbage(static_cast<size_t>(before_ + bytes + kGuard), kPattern);
    device.copy_in(memory_.get(), garbage.data(), before_ + bytes + kGuard);
  }
  void* data() const { return bytes_ == 0 ? nullptr : memory_.get() + before_; }
  void expect_untouched() const {
    std::vector<char> all(static_cast<size_t>(before_ + bytes_ + kGuard));
    device_.copy_out(all.data(), memory_.get(), static_cast<int64_t>(all.size()));
    const auto is_pattern = [](char c) { return c == kPattern; };
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + before_, is_pattern)) << "wrote before it";
    EXPECT_TRUE(std::all_of(all.end() - kGuard, all.end(), is_pattern)) << "wrote behind it";
  }

 private:
  static constexpr int64_t kGuard = 512;
  static constexpr char kPattern = '\xff';
  Device& device_;
  int64_t bytes_, before_;
  std::shared_ptr<char> memory_;
};

/// `kernel`: prepared for the case. `in_place`: the {result, operand} that share memory.
std::vector<Tensor> run_on_gpu(cuda::CudaDevice& device, const PreparedKernel& kernel,
                               const Case& c, const std::vector<Tensor>& in, int64_t shift,
                               std::optional<std::pair<int, int>> in_place = std::nullopt) {
  std::vector<Guarded> memory;
  std::vector<TensorView> in_views, out_views;
  for (const Tensor& t : in) {
    memory.emplace_back(device, byte_size(t.type()), shift);
    device.copy_in(memory.back().data(), t.data(), byte_size(t.type()));
    in_views.push_back({memory.back().data(), t.type()});
  }
  for (const TensorType& t : c.out) {
    if (in_place && in_place->first == static_cast<int>(out_views.size())) {
      out_views.push_back(in_views[static_cast<size_t>(in_place->second)]);
      continue;
    }
    memory.emplace_back(device, byte_size(t), shift);
    out_views.push_back({memory.back().data(), t});
  }
  memory.emplace_back(device, kernel.workspace_bytes, 0);
  KernelArgs args{in_views, out_views, memory.back().data(), device.stream()};
  memory.emplace_back(device, kernel.kept_bytes, 0);
  device.copy_in(memory.back().data(), kept_by(kernel, args).data(), kernel.kept_bytes);
  args.kept = memory.back().data();
  kernel.run(args);
  device.synchronize();
  std::vector<Tensor> out;
  for (size_t i = 0; i < c.out.size(); ++i) {
    out.emplace_back(c.out[i]);
    device.copy_out(out.back().data(), out_views[i].data, byte_size(c.out[i]));
  }
  for (const Guarded& each : memory) each.expect_untouched();
  return out;
}

double tolerance_of(const Case& c) {
  for (const auto& types : {c.in, c.out}) {
    for (const TensorType& t : types) {
      if (t.dtype == DType::bf16) return 2e-2;
    }
  }
  return 1e-4;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const auto bytes = static_cast<size_t>(byte_size(a.type()));
  return bytes == 0 || std::memcmp(a.data(), b.data(), bytes) == 0;
}

/// All runs are of one kernel, as in training: libraries take a while to make their plans.
void check(cuda::CudaDevice& device, const KernelImpl& impl, const Case& c, std::mt19937_64& rng) {
  const std::vector<Tensor> in = operands_of(c, rng);
  const std::vector<Tensor> want = run_reference(c.node, in);
  const PreparedKernel kernel = impl.prepare({c.node, c.in, c.out});
  const std::vector<Tensor> got = run_on_gpu(device, kernel, c, in, 0);
  const std::vector<Tensor> again = run_on_gpu(device, kernel, c, in, 0);
  // As far from 16 bytes as an element allows: a view of other memory. cuDNN wants 16, and an
  // arena gives more.
  const std::vector<Tensor> unaligned =
      run_on_gpu(device, kernel, c, in, impl.name == "cuda:cudnn" ? 64 : 8);
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(str("result ", i));
    expect_close(got[i], want[i], tolerance_of(c));
    EXPECT_TRUE(same_bits(got[i], again[i])) << "differs from run to run";
    expect_close(unaligned[i], want[i], tolerance_of(c));
  }
  for (const auto& pair : op_def(c.node.op).in_place) {
    const auto result = static_cast<size_t>(pair.first), operand = static_cast<size_t>(pair.second);
    if (result >= c.out.size() || operand >= c.in.size() || c.out[result] != c.in[operand])
      continue;
    SCOPED_TRACE(str("result ", result, " in place of operand ", operand));
    const std::vector<Tensor> in_place = run_on_gpu(device, kernel, c, in, 0, pair);
    for (size_t i = 0; i < got.size(); ++i) {
      if (impl.name == "cuda:cudnn") {  // in place it is our own kernel's
        expect_close(in_place[i], want[i], tolerance_of(c));
      } else {
        EXPECT_TRUE(same_bits(got[i], in_place[i]));
      }
    }
  }
}

/// A test for each op, so that several processes can share them (GTEST_TOTAL_SHARDS), and one that
/// breaks the device leaves others theirs.
class CudaKernelsOf : public testing::TestWithParam<std::string> {};

TEST_P(CudaKernelsOf, AgreeWithTheReference) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  std::cout << "seed " << kSeed << " on " << gpu.device->name() << "\n";
  std::mt19937_64 rng(kSeed);
  for (const KernelImpl& impl : cuda_kernels()) {
    if (impl.op != GetParam()) continue;
    for (const Case& c : accepted_cases(impl)) {
      SCOPED_TRACE(str(impl.name, " ", describe(c)));
      check(*gpu.device, impl, c, rng);
      if (HasFatalFailure()) return;
    }
  }
}

/// Of all but the host's kernels, which are tested as such.
std::set<std::string> ops_of_the_gpu() {
  std::set<std::string> ops;
  for (const KernelImpl& impl : cuda_kernels()) ops.insert(impl.op);
  ops.erase("");
  return ops;
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaKernelsOf, testing::ValuesIn(ops_of_the_gpu()),
                         [](const auto& info) { return info.param; });

/// By the library itself, whatever is faster: a run may choose it for other shapes.
TEST(CudaKernels, EpiloguesGiveWhatTheReferenceDoes) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  cuda::CudaDevice& device = *gpu.device;
  std::mt19937_64 rng(kSeed + 3);
  int run = 0;
  for (const Case& c : cases_of(op_def("matmul_post"))) {
    std::string why;
    const auto plan = cuda::plan_matmul({c.node, c.in, c.out}, false, &why);
    if (!plan || plan->workspace_bytes() != plan->product_bytes) continue;
    SCOPED_TRACE(describe(c));
    const std::vector<Tensor> in = random_operands(c, rng);
    std::vector<std::shared_ptr<char>> memory = {device.allocate(plan->product_bytes)};
    std::vector<TensorView> in_views, out_views;
    for (const Tensor& t : in) {
      memory.push_back(device.allocate(byte_size(t.type())));
      device.copy_in(memory.back().get(), t.data(), byte_size(t.type()));
      in_views.push_back({memory.back().get(), t.type()});
    }
    for (const TensorType& t : c.out) {
      memory.push_back(device.allocate(byte_size(t)));
      out_views.push_back({memory.back().get(), t});
    }
    const KernelArgs args{in_views, out_views, memory[0].get(), device.stream()};
    const auto product = cuda::make_lt_product(*plan->product);
    const auto operands =
        plan->operands(args, in_views[0].data, in_views[1].data, out_views[0].data);
    if (!product->try_run(operands, args.workspace, args.stream)) {
      std::cout << "cuBLASLt has no " << plan->product->key() << "\n";
      continue;
    }
    ++run;
    const auto results = [&] {
      device.synchronize();
      std::vector<Tensor> out(c.out.begin(), c.out.end());
      for (size_t i = 0; i < out.size(); ++i)
        device.copy_out(out[i].data(), out_views[i].data, byte_size(c.out[i]));
      return out;
    };
    const std::vector<Tensor> want = run_reference(c.node, in), got = results();
    product->run(operands, args.workspace, args.stream);
    const std::vector<Tensor> again = results();
    for (size_t i = 0; i < want.size(); ++i) {
      SCOPED_TRACE(str("result ", i));
      expect_close(got[i], want[i], tolerance_of(c));
      EXPECT_TRUE(same_bits(got[i], again[i])) << "differs from run to run";
    }
  }
  EXPECT_GT(run, 0);
}

/// Runs cuDNN's, and again; false, with a word, where this GPU has no plan.
bool check_cudnns(cuda::CudaDevice& device, const KernelImpl& impl, const Case& c,
                  const std::vector<Tensor>& in, std::vector<Tensor>* got) {
  const PreparedKernel kernel = impl.prepare({c.node, c.in, c.out});
  try {
    *got = run_on_gpu(device, kernel, c, in, 0);
  } catch (const Error& e) {
    if (!std::string(e.what()).starts_with("cuDNN has no ")) throw;
    std::cout << e.what() << "\n";
    return false;
  }
  const std::vector<Tensor> again = run_on_gpu(device, kernel, c, in, 64);
  for (size_t i = 0; i < again.size(); ++i)
    EXPECT_TRUE(same_bits((*got)[i], again[i])) << "result " << i << " differs from run to run";
  return true;
}

/// The same against the reference.
bool cudnns_is_the_references(cuda::CudaDevice& device, const KernelImpl& impl, const Case& c,
                              const std::vector<Tensor>& in) {
  std::vector<Tensor> got;
  if (!check_cudnns(device, impl, c, in, &got)) return false;
  const std::vector<Tensor> want = run_reference(c.node, in);
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(str("result ", i));
    expect_close(got[i], want[i], tolerance_of(c));
  }
  return true;
}

/// Whichever is the fastest on another day.
TEST(CudaKernels, EachOfCudnnsPlansConvolvesAsTheReference) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  std::mt19937_64 rng(kSeed + 8);
  for (size_t plan = 0; plan < cuda::kConvolutionPlans; ++plan) {
    for (const KernelImpl& impl : cuda::conv_by_plan(plan)) {
      for (const Case& c : accepted_cases(impl)) {
        SCOPED_TRACE(str("plan ", plan, ": ", describe(c)));
        EXPECT_TRUE(cudnns_is_the_references(*gpu.device, impl, c, random_operands(c, rng)));
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// By cuDNN itself, whatever is faster.
TEST(CudaKernels, CudnnsImagesAreTheReferences) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  std::mt19937_64 rng(kSeed + 5);
  std::set<std::string> run;
  const KernelList kernels = cuda::images_by_cudnn();
  for (const KernelImpl& impl : kernels) {
    for (const Case& c : image_cases(impl)) {
      if (impl.refuses({c.node, c.in, c.out})) continue;
      SCOPED_TRACE(describe(c));
      if (cudnns_is_the_references(*gpu.device, impl, c, operands_of(c, rng))) run.insert(impl.op);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(run.size(), kernels.size()) << "some were never run";
}

/// Products may be faster at these sizes: then nothing else would see cuDNN's.
TEST(CudaKernels, CudnnsAttentionIsTheReferences) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  std::mt19937_64 rng(kSeed + 7);
  std::set<std::string> run;
  const KernelList kernels = cuda::attention_by_cudnn();
  for (const KernelImpl& impl : kernels) {
    for (const Case& c : more_attention(impl.op)) {
      ASSERT_EQ(impl.refuses({c.node, c.in, c.out}), std::nullopt) << describe(c);
      SCOPED_TRACE(describe(c));
      if (cudnns_is_the_references(*gpu.device, impl, c, attention_operands(c, rng)))
        run.insert(impl.op);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(run.size(), kernels.size()) << "some were never run";
}

/// Equal maxima: the first; NaN wins, and is found where one is.
TEST(CudaKernels, MaximaAreTheReferences) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  std::mt19937_64 rng(kSeed + 6);
  for (const KernelImpl& impl : cuda::pool_kernels()) {
    if (impl.op != "max_pool") continue;
    for (const Case& c : more_pools(impl.op)) {
      for (const bool has_nan : {false, true}) {
        SCOPED_TRACE(str(describe(c), has_nan ? " with NaN" : " with ties"));
        const std::vector<Tensor> in = {image_of_few(c.in[0], has_nan, rng)};
        const PreparedKernel kernel = impl.prepare({c.node, c.in, c.out});
        expect_maxima(c, in[0], run_on_gpu(*gpu.device, kernel, c, in, 0));
      }
    }
  }
}

/// In parts of a copy: x' dy, of which a line has 13 numbers, in two parts that add; and y = x w of
/// lines of 13 numbers.
TEST(CudaKernels, EvenedLinesGiveTheSameProduct) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  cuda::CudaDevice& device = *gpu.device;
  cuda::LtShape s;
  s.in = DType::bf16, s.rows = 16, s.cols = 13, s.depth = 300, s.transpose_b = true;
  s.a.ld = 16, s.b.ld = 13, s.d.ld = 16;
  cuda::LtShape made;
  made.in = made.out = DType::bf16, made.rows = 13, made.cols = 300, made.depth = 16;
  made.transpose_a = true;
  made.a.ld = made.b.ld = 16, made.d.ld = 13;
  std::mt19937_64 rng(kSeed + 4);
  for (const auto& [shape, equation, first, second] :
       std::vector<std::tuple<cuda::LtShape, std::string, Shape, Shape>>{
           {s, "tn,tk->nk", {300, 13}, {300, 16}}, {made, "tk,nk->tn", {300, 16}, {13, 16}}}) {
    SCOPED_TRACE(equation);
    const auto plan = cuda::evened(shape, 0, 1);
    ASSERT_TRUE(plan.has_value());
    ASSERT_EQ(plan->parts.size(), 2u);
    Case c;
    c.node.op = "matmul";
    c.node.attrs = {{"equation", equation}, {"out_dtype", std::string(to_string(shape.out))}};
    c.in = {{DType::bf16, first}, {DType::bf16, second}};
    c.out = infer_types(c.node, c.in);
    const std::vector<Tensor> in = random_operands(c, rng);
    std::vector<std::shared_ptr<char>> memory;
    for (const Tensor& t : in) {
      memory.push_back(device.allocate(byte_size(t.type())));
      device.copy_in(memory.back().get(), t.data(), byte_size(t.type()));
    }
    memory.push_back(device.allocate(byte_size(c.out[0])));
    memory.push_back(device.allocate(plan->workspace_bytes()));
    const cuda::EvenedProduct product(*plan);
    for (int run = 0; run < 2; ++run) {
      product.run({memory[1].get(), memory[0].get(), memory[2].get()}, memory[3].get(),
                  device.stream());
      device.synchronize();
      Tensor got(c.out[0]);
      device.copy_out(got.data(), memory[2].get(), byte_size(c.out[0]));
      expect_close(got, run_reference(c.node, in)[0], shape.out == DType::f32 ? 1e-4 : 2e-2);
    }
  }
}

/// By one launch, whatever their number.
TEST(CudaKernels, GoOverManyTensors) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  std::mt19937_64 rng(kSeed + 3);
  for (const Case& c : {update_of_many("adamw"), update_of_many("sgd"), squares_of_many()}) {
    SCOPED_TRACE(c.node.op);
    const auto impl =
        std::find_if(cuda_kernels().begin(), cuda_kernels().end(), [&](const KernelImpl& k) {
          return k.op == c.node.op && !k.refuses({c.node, c.in, c.out});
        });
    ASSERT_NE(impl, cuda_kernels().end());
    check(*gpu.device, *impl, c, rng);
  }
}

/// A label of no class, found by a kernel, also by one of recorded work.
TEST(CudaKernels, TellOfLabelsOutOfRange) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  cuda::CudaDevice& device = *gpu.device;
  const std::vector<TensorType> in = {{DType::bf16, {4, 10}}, {DType::i64, {4}}},
                                out = {{DType::f32, {4}}, {DType::f32, {4}}};
  Node node;
  node.op = "cross_entropy";
  const KernelList* lists[] = {&cuda_kernels()};
  const PreparedKernel kernel = select_kernel(lists, {node, in, out});
  std::vector<std::shared_ptr<char>> memory;
  std::vector<TensorView> views;
  for (const auto& types : {in, out}) {
    for (const TensorType& type : types) {
      memory.push_back(device.allocate(byte_size(type)));
      views.push_back({memory.back().get(), type});
    }
  }
  const std::span<const TensorView> all(views);
  const auto run = [&] {
    device.begins("rank 0: step 'loss'");
    kernel.run({all.first(2), all.subspan(2), nullptr, device.stream()});
    device.begins("");
  };
  const auto label = [&](int64_t value) {
    const int64_t labels[] = {1, 2, value, 3};
    device.copy_in(views[1].data, labels, sizeof labels);
  };
  float losses[4];
  const auto read = [&] { device.copy_out(losses, views[2].data, sizeof losses); };
  label(9);
  run();
  read();
  const auto recorded = device.record(run);
  ASSERT_NE(recorded, nullptr);
  for (const bool again : {false, true}) {
    label(10);
    again ? recorded->run() : run();
    try {
      read();
      FAIL() << "nothing was reported";
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "rank 0: step 'loss': label 10 of token 2 is outside [0, 10)");
    }
  }
  label(9);
  recorded->run();
  read();
  EXPECT_GT(losses[2], 0);
}

/// gelu(x + bias) in bf16, with both of them wanted: the bits of the two kernels one by one.
TEST(CudaKernels, JoinedCallsGiveTheBitsOfEach) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  cuda::CudaDevice& device = *gpu.device;
  const TensorType x{DType::bf16, {70, 40}}, bias{DType::bf16, {40}};
  const auto node = [](const char* op) {
    Node made;
    made.op = op;
    return made;
  };
  const KernelList* lists[] = {&cuda_kernels()};
  const std::vector<TensorType> both = {x, bias}, one = {x};
  const PreparedKernel add = select_kernel(lists, {node("add"), both, one});
  const PreparedKernel gelu = select_kernel(lists, {node("gelu"), one, one});
  ASSERT_NE(add.fuse, nullptr);
  ASSERT_EQ(add.fuse, gelu.fuse);
  const PreparedKernel joined = add.fuse(
      {{x, bias, x, x}, {{node("add"), {0, 1}, 2}, {node("gelu"), {2}, 3}}, {0, 1}, {2, 3}});
  std::mt19937_64 rng(kSeed + 2);
  const std::vector<Tensor> in = random_operands({node("add"), both, one}, rng);
  std::vector<std::shared_ptr<char>> memory;
  std::vector<TensorView> views;  // x, bias, then sum and y of one way and of the other
  for (const TensorType& type : {x, bias, x, x, x, x}) {
    memory.push_back(device.allocate(byte_size(type)));
    views.push_back({memory.back().get(), type});
  }
  for (size_t i = 0; i < 2; ++i)
    device.copy_in(views[i].data, in[i].data(), byte_size(in[i].type()));
  const std::span<const TensorView> all(views);
  add.run({all.subspan(0, 2), all.subspan(2, 1), nullptr, device.stream()});
  gelu.run({all.subspan(2, 1), all.subspan(3, 1), nullptr, device.stream()});
  joined.run({all.subspan(0, 2), all.subspan(4, 2), nullptr, device.stream()});
  for (size_t i = 2; i < 4; ++i) {
    Tensor apart(x), together(x);
    device.copy_out(apart.data(), views[i].data, byte_size(x));
    device.copy_out(together.data(), views[i + 2].data, byte_size(x));
    EXPECT_TRUE(same_bits(apart, together));
    EXPECT_NE(apart.at(5), 0);
  }
}

/// Boxes that are moved by 16 bytes and by less, and one that is a piece: copied and added as on
/// the host.
TEST(CudaKernels, BoxesAreTheHosts) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  struct Boxes {
    Box from, to, region;
    int64_t off;  // elements before the tensors
  };
  for (const Boxes& b : std::vector<Boxes>{
           {{{0, 6}, {0, 32}}, {{0, 6}, {0, 16}}, {{0, 6}, {0, 16}}, 0},
           {{{0, 6}, {0, 32}}, {{0, 6}, {0, 16}}, {{0, 6}, {0, 16}}, 1},
           {{{0, 6}, {0, 33}}, {{2, 3}, {1, 31}}, {{3, 2}, {5, 8}}, 0},
           {{{0, 3}, {0, 5}, {0, 7}}, {{0, 3}, {4, 1}, {0, 7}}, {{0, 3}, {4, 1}, {0, 7}}, 3},
           {{{0, 9}, {0, 16}}, {{4, 2}, {0, 16}}, {{4, 2}, {0, 16}}, 0}}) {
    for (DType dtype : {DType::f32, DType::bf16, DType::i64, DType::u8, DType::boolean}) {
      SCOPED_TRACE(str(dtype, " of ", to_string(box_shape(b.region)), " off by ", b.off));
      const auto some = [&](const Box& box, int64_t modulus) {
        std::vector<double> values(static_cast<size_t>(element_count(box_shape(box)) + b.off));
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = static_cast<double>(static_cast<int64_t>(i) % modulus);
        const Shape shape = {static_cast<int64_t>(values.size())};
        return convert(Tensor::from(shape, values, DType::f64), dtype);
      };
      const Tensor from = some(b.from, 89), to = some(b.to, 17);
      const auto bytes_of = [](const Tensor& t) { return byte_size(t.type()); };
      const auto at = [&](void* data) { return static_cast<char*>(data) + b.off * size_of(dtype); };
      for (bool adds : {false, true}) {
        const Tensor want = convert(to, dtype), got = convert(to, dtype);
        const auto source = gpu.device->allocate(bytes_of(from)),
                   target = gpu.device->allocate(bytes_of(to));
        gpu.device->copy_in(source.get(), from.data(), bytes_of(from));
        gpu.device->copy_in(target.get(), to.data(), bytes_of(to));
        const auto run = [&](Device& device, void* src, void* dst) {
          adds ? device.add_box(at(src), b.from, at(dst), b.to, b.region, dtype)
               : device.copy_box(at(src), b.from, at(dst), b.to, b.region, size_of(dtype));
        };
        run(host_device(), from.data(), want.data());
        run(*gpu.device, source.get(), target.get());
        gpu.device->copy_out(got.data(), target.get(), bytes_of(got));
        EXPECT_TRUE(same_bits(got, want)) << (adds ? "added" : "copied");
      }
    }
  }
}

/// Larger than the samples of its op: several tiles, not all of them whole.
TEST(CudaKernels, TransposesInTiles) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  std::mt19937_64 rng(kSeed + 2);
  for (const KernelImpl& impl : cuda_kernels()) {
    if (impl.op != "transpose" || impl.name != "cuda:copies") continue;
    for (DType dtype : {DType::f32, DType::bf16}) {
      Case c;
      c.node.op = impl.op;
      c.node.attrs = {{"perm", std::vector<int64_t>{2, 3, 0, 1}}};
      c.in = {{dtype, {3, 50, 5, 70}}};
      c.out = infer_types(c.node, c.in);
      const std::vector<Tensor> in = random_operands(c, rng);
      const std::vector<Tensor> want = run_reference(c.node, in);
      EXPECT_TRUE(same_bits(
          run_on_gpu(*gpu.device, impl.prepare({c.node, c.in, c.out}), c, in, 0)[0], want[0]))
          << dtype;
    }
  }
}

/// The last of the list takes what the others refuse, here all.
TEST(CudaKernels, AnyOpRunsByWayOfTheHost) {
  const Gpu gpu;
  if (!gpu.device) GTEST_SKIP() << gpu.why;
  std::mt19937_64 rng(kSeed + 1);
  const KernelImpl& impl = cuda_kernels().back();
  ASSERT_EQ(impl.name, "cuda:host");
  for (const char* op : {"add", "matmul", "cumsum", "split", "iota"}) {
    const Case c = cases_of(op_def(op)).front();
    SCOPED_TRACE(describe(c));
    const std::vector<Tensor> in = random_operands(c, rng);
    const std::vector<Tensor> want = run_reference(c.node, in);
    const std::vector<Tensor> got =
        run_on_gpu(*gpu.device, impl.prepare({c.node, c.in, c.out}), c, in, 0);
    for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], want[i], tolerance_of(c));
  }
}

}  // namespace
}  // namespace shardrun
