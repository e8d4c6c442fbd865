// What pools and batch norms hand to cuDNN, done by plain loops in cuDNN's terms, against the
// reference; and the choice between cuDNN and our own kernels.
#include "kernels/cuda/cudnn/cudnn_image.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/cuda/host/on_host.h"
#include "tests/cuda/pool_cases.h"
#include "tests/support/kernel_cases.h"

namespace shardrun {
namespace {

using cuda::CudnnBatchNorm;
using cuda::CudnnPool;
using Ints = std::vector<int64_t>;
constexpr uint64_t kSeed = 20261122;

/// An image [N, C, …], channels last in memory.
template <class T>
struct Image {
  T* data;
  Shape dims;
  T& at(const Shape& index) const {
    int64_t i = index[0];
    for (size_t d = 2; d < dims.size(); ++d) i = i * dims[d] + index[d];
    return data[i * dims[1] + index[1]];
  }
};

template <class F>
void each_index(const Shape& dims, F&& f) {
  for (int64_t i = 0; i < element_count(dims); ++i) {
    Shape index(dims.size());
    int64_t rest = i;
    for (size_t d = dims.size(); d-- > 0;) index[d] = rest % dims[d], rest /= dims[d];
    f(index);
  }
}

template <class T, class W>
void pool_by_loops(const CudnnPool& p, std::span<void* const> tensors) {
  const auto rounded = [](T& to, double value) { cuda::assign(to, static_cast<float>(value)); };
  const Image<T> x{static_cast<T*>(tensors[p.gradient ? tensors.size() - 1 : 0]), p.x},
      y{static_cast<T*>(tensors[p.gradient ? 0 : 1]), p.y};
  const Image<W> which{p.max ? static_cast<W*>(tensors[1]) : nullptr, p.y};
  const auto offsets = static_cast<double>(element_count(p.kernel));
  std::map<Shape, double> dx;
  each_index(p.y, [&](const Shape& to) {
    double sum = 0;
    int64_t offset = 0;
    each_index(p.kernel, [&](const Shape& k) {
      Shape from = to;
      bool inside = true;
      for (size_t d = 0; d < k.size(); ++d) {
        from[d + 2] = to[d + 2] * p.strides[d] + k[d] - p.low[d];
        inside = inside && from[d + 2] >= 0 && from[d + 2] < p.x[d + 2];
      }
      if (inside && p.gradient) {
        const double dy = cuda::as_float(y.at(to));
        if (!p.max) dx[from] += dy / offsets;
        if (p.max && static_cast<int64_t>(which.at(to)) == offset) dx[from] += dy;
      } else if (inside) {
        sum += cuda::as_float(x.at(from));
      }
      ++offset;
    });
    if (p.gradient) return;
    rounded(y.at(to), sum / offsets * offsets);
  });
  if (!p.gradient) return;
  each_index(p.x, [&](const Shape& at) { rounded(x.at(at), dx[at] * (p.max ? 1 : offsets)); });
}

template <class T>
void norm_by_loops(const CudnnBatchNorm& n, std::span<void* const> tensors) {
  size_t next = 0;
  const auto image = [&] { return Image<T>{static_cast<T*>(tensors[next++]), n.x}; };
  const auto channels = [&] { return static_cast<const float*>(tensors[next++]); };
  if (!n.gradient) {
    const Image<T> x = image();
    const float *mean = channels(), *slope = channels(), *bias = channels();
    const Image<T> residual = n.residual ? image() : x, y = image();
    each_index(n.x, [&](const Shape& at) {
      const auto c = static_cast<size_t>(at[1]);
      float value = (cuda::as_float(x.at(at)) - mean[c]) * slope[c] + bias[c];
      if (n.residual) value += cuda::as_float(residual.at(at));
      cuda::assign(y.at(at), n.relu && value < 0 ? 0 : value);
    });
    return;
  }
  const Image<T> dy = image(), x = image();
  const float *mean = channels(), *slope = channels(), *offset = channels(), *tilt = channels(),
              *bias = n.relu ? channels() : nullptr;
  const Image<T> dx = image();
  each_index(n.x, [&](const Shape& at) {
    const auto c = static_cast<size_t>(at[1]);
    const float centred = cuda::as_float(x.at(at)) - mean[c];
    const bool through = !n.relu || centred * slope[c] + bias[c] > 0;
    const float g = through ? cuda::as_float(dy.at(at)) : 0;
    cuda::assign(dx.at(at), (g - offset[c] - centred * tilt[c]) * slope[c]);
  });
}

/// Where these kernels run in these tests, and what the tests say of it.
struct Here : cuda::OnHost<1> {
  static inline bool has_plans, may_be_measured, cudnn_fails, own_fails, broken;
  static inline float cudnn_takes, own_takes;
  static inline int cudnn_runs, measured;
  static inline std::unique_ptr<cuda::Autotune> known;
  static void reset() {
    has_plans = may_be_measured = true;
    cudnn_fails = own_fails = broken = false;
    cudnn_takes = 1, own_takes = 2;
    cudnn_runs = measured = 0;
    known = std::make_unique<cuda::Autotune>("", "a GPU");
  }

  template <class Call>
  struct Graph : cuda::CudnnGraph {
    explicit Graph(const Call& of) : call(of) {}
    bool prepare(std::string* why) override {
      *why = "none here";
      return has_plans;
    }
    bool has_plan_for(const std::string&, std::string*) const override { return has_plans; }
    void run(std::span<void* const> tensors, void*, void*) override {
      SR_REQUIRE(!cudnn_fails, device, "cuDNN's engine fails");
      ++cudnn_runs;
      cuda::with_element(call.dtype, [&](auto element) {
        using T = decltype(element);
        if constexpr (std::is_same_v<Call, CudnnBatchNorm>) {
          norm_by_loops<T>(call, tensors);
        } else if (call.which == DType::u8) {
          pool_by_loops<T, uint8_t>(call, tensors);
        } else {
          pool_by_loops<T, int32_t>(call, tensors);
        }
      });
    }
    Call call;
  };
  template <class Call>
  static std::unique_ptr<cuda::CudnnGraph> graph(const Call& call) {
    return std::make_unique<Graph<Call>>(call);
  }
  static cuda::Autotune* tuned() { return known.get(); }
  static bool may_measure(const KernelArgs&) { return may_be_measured; }
  template <class Once>
  static float time(const KernelArgs&, const std::string&, const Once& once) {
    ++measured;
    const auto take = [&] {
      const int before = cudnn_runs;
      once();
      return cudnn_runs > before ? cudnn_takes : own_takes;
    };
    return cuda::time_if_it_runs(take, [] { SR_REQUIRE(!broken, device, "the GPU is gone"); });
  }
  template <class Body>
  static void each(const KernelArgs& args, int64_t count, const Body& body, const char* name) {
    SR_REQUIRE(!own_fails, device, "our own fails");
    OnHost<1>::each(args, count, body, name);
  }
};

KernelList kernels(bool always) {
  KernelList all = cuda::cudnn_pool_kernels_on<Here>(always);
  for (KernelImpl& impl : cuda::cudnn_batch_norm_kernels_on<Here>(always))
    all.push_back(std::move(impl));
  return all;
}

KernelImpl kernel_of(const KernelList& list, const std::string& op) {
  for (const KernelImpl& impl : list) {
    if (impl.op == op) return impl;
  }
  throw Error(ErrorKind::internal, op);
}

Case pool(const char* op, Shape x, Attrs attrs) {
  Case c;
  c.node.op = op, c.node.name = "node";
  c.node.attrs = std::move(attrs);
  c.in = {{DType::f32, std::move(x)}};
  c.out = infer_types(c.node, c.in);
  return c;
}

/// Its gradient.
Case max_pool_grad(const Case& pool) {
  const Shape& x = pool.in[0].shape;
  Case c = pool;
  c.node.op = "max_pool_grad";
  c.node.attrs = Attrs();
  for (const auto& [name, value] : pool.node.attrs.all()) {
    if (name != "pads_high") c.node.attrs.set(name, value);
  }
  c.node.attrs.set("size", Shape(x.begin() + 1, x.end() - 1));
  c.in = pool.out;
  c.out = infer_types(c.node, c.in);
  return c;
}

/// 3 x 2 windows by steps of 2 and 1, with uneven pads, over two images of 7 x 6 in so many
/// channels.
Case uneven_pool(const char* op, int64_t channels) {
  return pool(op, {2, 7, 6, channels},
              {{"kernel", Ints{3, 2}},
               {"strides", Ints{2, 1}},
               {"dilations", Ints{1, 1}},
               {"pads_low", Ints{1, 0}},
               {"pads_high", Ints{2, 1}},
               {"channels_last", int64_t{1}}});
}

TEST(CudnnImages, DoWhatTheReferenceDoes) {
  Here::reset();
  std::mt19937_64 rng(kSeed);
  std::set<std::string> exercised;
  for (const KernelImpl& impl : kernels(true)) {
    for (const Case& c : image_cases(impl)) {
      if (impl.refuses({c.node, c.in, c.out}) || node_flops(c.node, c.in, c.out) > 2e5) continue;
      SCOPED_TRACE(describe(c));
      const std::vector<Tensor> in = operands_of(c, rng), want = run_reference(c.node, in),
                                got = run_impl(impl, c, in);
      for (size_t i = 0; i < want.size(); ++i) {
        SCOPED_TRACE(str("result ", i));
        expect_close(got[i], want[i], c.in[0].dtype == DType::bf16 ? 2e-2 : 1e-4);
      }
      exercised.insert(impl.op);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(exercised, (std::set<std::string>{"max_pool_grad", "sum_pool", "sum_pool_grad",
                                              "batch_norm", "batch_norm_grad"}));
}

/// cuDNN's lose NaN.
TEST(CudnnImages, LeaveMaximaToOurOwn) {
  for (const KernelImpl& impl : kernels(true)) EXPECT_NE(impl.op, "max_pool");
  std::mt19937_64 rng(kSeed + 1);
  const KernelImpl impl = kernel_of(cuda::pool_kernels_on<cuda::OnHost<1>>(), "max_pool");
  for (const Case& c : more_pools("max_pool")) {
    for (const bool has_nan : {false, true}) {
      SCOPED_TRACE(str(describe(c), has_nan ? " with NaN" : " with ties"));
      const std::vector<Tensor> in = {image_of_few(c.in[0], has_nan, rng)};
      expect_maxima(c, in[0], run_impl(impl, c, in));
    }
  }
}

TEST(CudnnImages, ArePlannedByTheirShape) {
  std::string why;
  const Case c = max_pool_grad(uneven_pool("max_pool", 13));
  const auto p = cuda::plan_pool({c.node, c.in, c.out}, &why);
  ASSERT_TRUE(p.has_value()) << why;
  EXPECT_EQ(p->key(),
            "max pool's gradient f32 which u8 x [2, 13, 7, 6] y [2, 13, 4, 6] kernel [3, 2] "
            "strides [2, 1] pads [1, 0][1, 1]");
  const Case line = pool("sum_pool", {5, 3, 9, 4},
                         {{"kernel", Ints{3}},
                          {"strides", Ints{2}},
                          {"dilations", Ints{1}},
                          {"pads_low", Ints{1}},
                          {"pads_high", Ints{0}},
                          {"channels_last", int64_t{1}}});
  const auto flat = cuda::plan_pool({line.node, line.in, line.out}, &why);
  ASSERT_TRUE(flat.has_value()) << why;
  EXPECT_EQ(flat->key(),
            "mean pool f32 x [15, 4, 1, 9] y [15, 4, 1, 4] kernel [1, 3] strides [1, 2] "
            "pads [0, 1][0, 0]");
}

TEST(CudnnImages, AreRefusedInWords) {
  const KernelList list = kernels(true);
  const auto reason = [&](const Case& c) {
    return kernel_of(list, c.node.op).refuses({c.node, c.in, c.out}).value_or("");
  };
  const auto with = [&](const char* name, const Ints& value) {
    Case c = uneven_pool("sum_pool", 8);
    c.node.attrs.set(name, value);
    c.out = infer_types(c.node, c.in);
    return c;
  };
  EXPECT_EQ(reason(uneven_pool("sum_pool", 8)), "");
  EXPECT_EQ(reason(with("dilations", {2, 1})), "has no dilation");
  EXPECT_EQ(reason(with("pads_low", {-1, 0})), "does not cut the image");
  EXPECT_EQ(reason(with("pads_low", {3, 0})), "has no window of padding alone");
  EXPECT_EQ(reason(with("pads_high", {2, 2})), "has no window of padding alone");
  Case first = uneven_pool("sum_pool", 8);
  first.node.attrs.set("channels_last", int64_t{0});
  first.out = infer_types(first.node, first.in);
  EXPECT_EQ(reason(first), "pools images whose channels are last");
  Case wide = pool("max_pool", {1, 20, 20, 8},
                   {{"kernel", Ints{13, 10}},
                    {"strides", Ints{1, 1}},
                    {"dilations", Ints{1, 1}},
                    {"pads_low", Ints{0, 0}},
                    {"pads_high", Ints{0, 0}},
                    {"channels_last", int64_t{1}}});
  EXPECT_EQ(reason(max_pool_grad(wide)), "reads bytes of indices below 128");
  const char* const many = "counts less than 2^31 elements of a tensor";
  const auto of_images = [&](const char* op, int64_t images) {
    return pool(op, {images, 1 << 12, 1 << 12, 8},
                {{"kernel", Ints{2, 2}},
                 {"strides", Ints{2, 2}},
                 {"dilations", Ints{1, 1}},
                 {"pads_low", Ints{0, 0}},
                 {"pads_high", Ints{0, 0}},
                 {"channels_last", int64_t{1}}});
  };
  EXPECT_EQ(reason(of_images("sum_pool", 15)), "");
  EXPECT_EQ(reason(of_images("sum_pool", 16)), many);
  Case norm;
  norm.node.op = "batch_norm";
  norm.node.attrs = {{"eps", 1e-5}, {"channels_last", int64_t{1}}};
  for (int64_t images : {15, 16}) {
    norm.in = {{DType::f32, {images, 1 << 12, 1 << 12, 8}}};
    norm.in.resize(5, {DType::f32, {8}});
    norm.out = {norm.in[0]};
    EXPECT_EQ(reason(norm), images == 16 ? many : "");
  }
  wide.node.attrs.set("kernel", Ints{16, 16});  // of 4 bytes
  wide.out = infer_types(wide.node, wide.in);
  EXPECT_EQ(reason(max_pool_grad(wide)), "");
  std::set<std::string> reasons;
  for (const char* op : {"batch_norm", "batch_norm_grad"}) {
    for (const Case& c : cases_of(op_def(op))) reasons.insert(reason(c));
  }
  EXPECT_TRUE(reasons.count("normalises images whose channels are last"));
  EXPECT_TRUE(reasons.count(""));
}

/// Runs the kernel twice, and says by whom.
std::string runs_by(const PreparedKernel& kernel, const Case& c, bool in_place = false) {
  std::mt19937_64 rng(kSeed);
  const std::vector<Tensor> in = random_operands(c, rng), want = run_reference(c.node, in);
  std::vector<Tensor> out(c.out.begin(), c.out.end());
  std::vector<char> memory(static_cast<size_t>(kernel.workspace_bytes));
  std::string by;
  for (int run = 0; run < 2; ++run) {
    std::vector<Tensor> own;
    std::vector<TensorView> from, to;
    for (const Tensor& t : in)
      own.push_back(convert(t, t.dtype())), from.push_back(own.back().view());
    for (const Tensor& t : out) to.push_back(t.view());
    if (in_place) to[0].data = from[0].data;
    const int cudnn = Here::cudnn_runs, measured = Here::measured;
    kernel.run({from, to, memory.data()});
    Tensor got(c.out[0]);
    std::memcpy(got.data(), to[0].data, static_cast<size_t>(byte_size(c.out[0])));
    expect_close(got, want[0], 1e-4);
    by += Here::measured > measured ? "measures " : "";
    by += Here::cudnn_runs - cudnn > (Here::measured > measured ? 1 : 0) ? "cuDNN " : "own ";
  }
  return by;
}

TEST(CudnnImages, AreDoneByWhoeverIsFaster) {
  Here::reset();
  const Case c = uneven_pool("sum_pool", 8);
  const KernelCall call{c.node, c.in, c.out};
  const auto prepared = [&] { return kernel_of(kernels(false), "sum_pool").prepare(call); };
  EXPECT_EQ(runs_by(prepared(), c), "measures cuDNN cuDNN ");
  EXPECT_EQ(runs_by(prepared(), c), "cuDNN cuDNN ");  // it was kept
  Here::has_plans = false;                            // as by another version
  EXPECT_EQ(runs_by(prepared(), c), "own own ");
  Here::reset();
  Here::own_takes = 0.5;
  EXPECT_EQ(runs_by(prepared(), c), "measures own own ");
  EXPECT_EQ(runs_by(prepared(), c), "own own ");
  Here::reset();
  Here::has_plans = false;
  EXPECT_EQ(runs_by(prepared(), c), "measures own own ");
  Here::reset();
  Here::may_be_measured = false;  // as while a step is recorded
  EXPECT_EQ(runs_by(prepared(), c), "own own ");
  Here::may_be_measured = true;
  EXPECT_EQ(runs_by(prepared(), c), "measures cuDNN cuDNN ");  // nothing was kept before
  Here::reset();
  Here::known = nullptr;  // no cuDNN
  EXPECT_EQ(runs_by(prepared(), c), "own own ");
}

TEST(CudnnImages, AreDoneByWhoeverCanRun) {
  Here::reset();
  const Case c = uneven_pool("sum_pool", 8);
  const KernelCall call{c.node, c.in, c.out};
  const auto prepared = [&] { return kernel_of(kernels(false), "sum_pool").prepare(call); };
  Here::cudnn_fails = true;  // its plan is made, and does not run
  EXPECT_EQ(runs_by(prepared(), c), "measures own own ");
  Here::reset();
  Here::own_fails = true, Here::own_takes = 0.5;
  EXPECT_EQ(runs_by(prepared(), c), "measures cuDNN cuDNN ");
  const auto error = [&]() -> std::string {
    try {
      return runs_by(prepared(), c);
    } catch (const Error& e) {
      return e.what();
    }
  };
  Here::reset();
  Here::cudnn_fails = Here::own_fails = true;
  EXPECT_EQ(error(), "our own fails");
  Here::own_fails = false, Here::broken = true;  // cuDNN's failure was no refusal
  EXPECT_EQ(error(), "the GPU is gone");
}

TEST(CudnnImages, AreOursInPlace) {
  Here::reset();
  for (const Case& c : cases_of(op_def("batch_norm"))) {
    const KernelImpl impl = kernel_of(kernels(false), "batch_norm");
    if (impl.refuses({c.node, c.in, c.out}) || c.in[0].dtype != DType::f32) continue;
    const PreparedKernel kernel = impl.prepare({c.node, c.in, c.out});
    EXPECT_EQ(runs_by(kernel, c, true), "own own ");
    EXPECT_EQ(runs_by(kernel, c), "measures cuDNN cuDNN ");
    EXPECT_EQ(runs_by(kernel, c, true), "own own ");
    return;
  }
  FAIL() << "no case";
}

/// Of the GPU's list: cuDNN's come first, and what they need is known before a GPU is seen.
TEST(CudnnImages, ComeBeforeOurOwn) {
  for (const char* op :
       {"max_pool_grad", "sum_pool", "sum_pool_grad", "batch_norm", "batch_norm_grad"}) {
    int64_t least = -1;
    for (const Case& c : cases_of(op_def(op))) {
      const KernelCall call{c.node, c.in, c.out};
      const KernelImpl impl = kernel_of(cuda_kernels(), op);
      EXPECT_EQ(impl.name, "cuda:cudnn");
      if (impl.refuses(call)) continue;
      const int64_t lines = !std::string(op).starts_with("batch_norm") ? 0
                            : std::string(op).ends_with("_grad")       ? 3
                                                                       : 1;
      const int64_t line = (c.in.back().shape.back() * 4 + 255) / 256 * 256;
      // And where to begin on 256 bytes (kernels/cuda/cublas/even_workspace.h).
      const int64_t bytes = lines > 0 ? lines * line + 256 : 0;
      EXPECT_EQ(impl.prepare(call).workspace_bytes, bytes) << describe(c);
      least = std::max(least, lines * line);
    }
    EXPECT_GE(least, 0) << op << " is never planned";
  }
}

}  // namespace
}  // namespace shardrun
