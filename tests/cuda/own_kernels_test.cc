// The bodies of the GPU's own kernels, run by teams of the host, against the reference.
#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/cuda/attention_cases.h"
#include "tests/cuda/host/own_on_host.h"
#include "tests/cuda/many_cases.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/update_cases.h"

namespace shardrun {
namespace {

constexpr uint64_t kSeed = 20261121;

/// The cases of an op, those of its samples' own sizes also with integers and booleans for f32.
std::vector<Case> cases_with_integers(const OpDef& op) {
  std::vector<Case> all = cases_of(op);
  for (const OpDef::Sample& sample : op.samples) {
    const auto own = resized(op, sample, [](int64_t d) { return d; });
    if (!own) continue;
    for (DType dtype : {DType::i64, DType::i32, DType::boolean}) {
      if (auto c = with_dtype(*own, dtype)) all.push_back(*c);
    }
  }
  return all;
}

/// Every case of every op that `kernels` have; results in operands' memory where OpDef allows it.
void check_all(const KernelList& kernels, double most_elements) {
  std::mt19937_64 rng(kSeed);
  std::cout << "seed " << kSeed << "\n";
  std::set<std::string> exercised;
  for (const KernelImpl& impl : kernels) {
    const OpDef& op = op_def(impl.op);
    for (const Case& c : cases_with_integers(op)) {
      double elements = 0;
      for (const TensorType& t : c.in) elements += static_cast<double>(element_count(t.shape));
      if (elements > most_elements || (impl.refuses && impl.refuses({c.node, c.in, c.out})))
        continue;
      SCOPED_TRACE(describe(c));
      bool bf16 = false;
      for (const auto& types : {c.in, c.out}) {
        for (const TensorType& t : types) bf16 = bf16 || t.dtype == DType::bf16;
      }
      const std::vector<Tensor> in = random_operands(c, rng);
      const std::vector<Tensor> want = run_reference(c.node, in);
      const std::vector<Tensor> got = run_impl(impl, c, in);
      for (size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE("result " + std::to_string(i));
        expect_close(got[i], want[i], bf16 ? 2e-2 : 1e-4);
      }
      for (const auto& [result, operand] : op.in_place) {
        const auto r = static_cast<size_t>(result), o = static_cast<size_t>(operand);
        if (r >= c.out.size() || o >= c.in.size() || c.out[r] != c.in[o]) continue;
        SCOPED_TRACE(str("result ", r, " in place of operand ", o));
        std::vector<TensorView> from, to;
        std::vector<Tensor> own;
        for (const Tensor& t : in)
          own.push_back(convert(t, t.dtype())), from.push_back(own.back().view());
        for (const TensorType& t : c.out) own.emplace_back(t), to.push_back(own.back().view());
        to[r].data = from[o].data;
        const PreparedKernel kernel = impl.prepare({c.node, c.in, c.out});
        std::vector<int64_t> memory(static_cast<size_t>(kernel.workspace_bytes / 8 + 1));
        KernelArgs args{from, to, memory.data()};
        const std::vector<char> kept = kept_by(kernel, args);
        args.kept = kept.data();
        kernel.run(args);
        const auto bytes = static_cast<size_t>(byte_size(c.out[r]));
        EXPECT_TRUE(bytes == 0 || std::memcmp(to[r].data, got[r].data(), bytes) == 0);
      }
      exercised.insert(impl.op + " " + impl.name);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  for (const KernelImpl& impl : kernels)
    EXPECT_TRUE(exercised.count(impl.op + " " + impl.name))
        << impl.op << " " << impl.name << " was never run";
}

TEST(OwnKernels, AgreeWithTheReference) { check_all(own_kernels<cuda::OnHost<1>>(), 2e5); }

TEST(OwnKernels, AgreeWithTheReferenceInTeams) { check_all(own_kernels<cuda::OnHost<3>>(), 300); }

/// Folds that are cut into parts: of long rows, of tall columns, of few parts and of many.
TEST(OwnKernels, FoldInParts) {
  std::mt19937_64 rng(kSeed + 1);
  struct Fold {
    Shape shape;
    std::vector<int64_t> axes;
  };
  for (const Fold& fold : std::vector<Fold>{{{3000, 8}, {0}},
                                            {{3000, 7}, {0}},
                                            {{2, 40000}, {1}},
                                            {{400001}, {0}},
                                            {{5, 300, 6, 49}, {0, 2, 3}},
                                            {{70, 3, 1001}, {0, 2}},
                                            {{40, 3, 50, 5}, {0, 2}},
                                            {{7, 33, 2}, {1}}}) {
    for (const KernelImpl& impl : cuda::reduce_kernels_on<cuda::OnHost<1>>()) {
      if (impl.name != "cuda:fold" && impl.name != "cuda:pieces") continue;
      for (DType dtype : {DType::f32, DType::bf16}) {
        Case c;
        c.node.op = impl.op;
        c.in = {{dtype, fold.shape}};
        if (impl.op != "reduce_sum_squares")
          c.node.attrs = {{"axes", fold.axes}, {"keepdims", int64_t{0}}};
        c.out = infer_types(c.node, c.in);
        SCOPED_TRACE(describe(c));
        std::vector<Tensor> in = random_operands(c, rng);
        const std::vector<Tensor> want = run_reference(c.node, in);
        expect_close(run_impl(impl, c, in)[0], want[0], dtype == DType::bf16 ? 2e-2 : 1e-4);
        // A NaN in the middle reaches its result alone.
        if (dtype != DType::f32) continue;
        in[0].as<float>()[in[0].count() / 2] = NAN;
        expect_close(run_impl(impl, c, in)[0], run_reference(c.node, in)[0], 1e-4);
      }
    }
  }
}

/// A row that is not trained is read like every other.
TEST(OwnKernels, TakeGroupsOfRows) { expect_same_of_groups(own_kernels<cuda::OnHost<3>>(), kSeed); }

TEST(OwnKernels, GatherTakesAnEmbeddingWithPadding) {
  std::mt19937_64 rng(kSeed + 5);
  Case c;
  c.node.op = "gather";
  c.node.attrs = {{"axis", int64_t{0}}, {"padding", int64_t{1}}};
  c.in = {{DType::f32, {5, 8}}, {DType::i64, {7}}};
  c.out = infer_types(c.node, c.in);
  for (const KernelImpl& impl : cuda::indexing_kernels_on<cuda::OnHost<1>>()) {
    if (impl.op != c.node.op) continue;
    ASSERT_EQ(impl.refuses({c.node, c.in, c.out}), std::nullopt);
    const std::vector<Tensor> in = random_operands(c, rng);
    expect_close(run_impl(impl, c, in)[0], run_reference(c.node, in)[0], 0);
  }
}

/// Channels that a thread does together, with NaN among them; the gradient of overlapping windows.
TEST(OwnKernels, PoolsTakeChannelsTogether) {
  std::mt19937_64 rng(kSeed + 4);
  const auto ints = [](int64_t a, int64_t b) { return std::vector<int64_t>{a, b}; };
  for (const KernelImpl& impl : cuda::pool_kernels_on<cuda::OnHost<1>>()) {
    for (const int64_t channels : {16, 20, 3}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const bool grad = impl.op.ends_with("_grad"), max = impl.op.starts_with("max");
        Case c;
        c.node.op = impl.op;
        c.node.attrs = {{"kernel", ints(3, 2)},
                        {"strides", ints(2, 1)},
                        {"dilations", ints(1, 2)},
                        {"pads_low", ints(1, 0)},
                        {"channels_last", int64_t{1}}};
        if (grad) {
          c.node.attrs.set("size", ints(7, 6));
          c.in = {{dtype, {2, 4, 4, channels}}};
          if (max) c.in.push_back({DType::u8, c.in[0].shape});
        } else {
          c.node.attrs.set("pads_high", ints(1, 0));
          c.in = {{dtype, {2, 7, 6, channels}}};
        }
        c.out = infer_types(c.node, c.in);
        ASSERT_FALSE(impl.refuses({c.node, c.in, c.out}).has_value());
        SCOPED_TRACE(describe(c));
        std::vector<Tensor> in = random_operands(c, rng);
        if (!grad) {
          const float nan = NAN;
          convert(&nan, DType::f32, in[0].as<char>() + 37 * size_of(dtype), dtype, 1);
        }
        const std::vector<Tensor> want = run_reference(c.node, in), got = run_impl(impl, c, in);
        for (size_t i = 0; i < want.size(); ++i)
          expect_close(got[i], want[i], dtype == DType::bf16 ? 2e-2 : 1e-4);
      }
    }
  }
}

/// By one launch.
TEST(OwnKernels, UpdatesOfManyAreThoseOfEach) {
  std::mt19937_64 rng(kSeed + 2);
  using On = cuda::OnHost<1>;
  for (const KernelImpl& impl : cuda::optimizer_kernels_on<On>()) {
    const Case many = update_of_many(impl.op);
    ASSERT_FALSE(impl.refuses({many.node, many.in, many.out}).has_value());
    const std::vector<Tensor> in = random_operands(many, rng);
    On::launches.clear();
    const std::vector<Tensor> got = run_impl(impl, many, in);
    EXPECT_EQ(On::launches, (std::vector<std::string>{"update"}));
    const UpdateForm form = UpdateForm::of(many.node, in.size());
    for (size_t p = 0; p < form.count; ++p) {
      Case one;
      one.node.op = impl.op;
      one.node.attrs = op_def(impl.op).samples[0].attrs;
      one.node.attrs.set("weight_decay", form.decay[p]);
      if (form.copy[p]) one.node.attrs.set("copy", std::string("bf16"));
      std::vector<Tensor> own;
      for (size_t i = 0; i < 2 + form.moments; ++i) own.push_back(in[form.operand(p, i)]);
      for (size_t i : {form.lr(), form.step(), form.clip_scale()}) own.push_back(in[i]);
      for (const Tensor& t : own) one.in.push_back(t.type());
      one.out = infer_types(one.node, one.in);
      const std::vector<Tensor> want = run_impl(impl, one, own);
      const auto expect_same = [&](const Tensor& a, const Tensor& b) {
        const auto bytes = static_cast<size_t>(byte_size(b.type()));
        EXPECT_TRUE(bytes == 0 || std::memcmp(a.data(), b.data(), bytes) == 0)
            << impl.op << " of parameter " << p;
      };
      for (size_t i = 0; i < 1 + form.moments; ++i) expect_same(got[form.result(p, i)], want[i]);
      if (form.copy[p]) expect_same(got[*form.copy[p]], want.back());
    }
  }
}

TEST(OwnKernels, UpdatesLetInNothingThatIsNotFinite) {
  for (const char* op : {"adamw", "sgd"})
    expect_nothing_not_finite_gets_in(cuda::optimizer_kernels_on<cuda::OnHost<1>>(), op);
}

TEST(OwnKernels, SumsTheSquaresOfMany) {
  std::mt19937_64 rng(kSeed + 3);
  const Case c = squares_of_many();
  const std::vector<Tensor> in = random_operands(c, rng);
  using On = cuda::OnHost<1>;
  for (const KernelImpl& impl : cuda::reduce_kernels_on<On>()) {
    if (impl.op != c.node.op) continue;
    On::launches.clear();
    expect_close(run_impl(impl, c, in)[0], run_reference(c.node, in)[0], 1e-4);
    EXPECT_EQ(On::launches, (std::vector<std::string>{"squares", "squares"}));
  }
}

/// Those of libraries too: a kernel that no call of its tests gets to would be found on a GPU
/// alone.
TEST(CudaKernels, HaveCallsThatTheyAreHeldBy) {
  for (const KernelImpl& impl : cuda_kernels()) {
    if (!impl.op.empty()) accepted_cases(impl);
  }
}

}  // namespace
}  // namespace shardrun
