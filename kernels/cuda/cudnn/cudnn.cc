// cuDNN's graphs by way of its frontend, and the choice among their plans.
#include "kernels/cuda/cudnn/cudnn.h"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>

#include "base/round_up.h"
#include "device/cuda/cuda.h"
#include "device/cuda/library.h"
#include "kernels/cuda/cudnn/cudnn_resample.h"
#include "kernels/cuda/measure.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // where the frontend finds cuDNN
}

namespace shardrun::cuda {
namespace {

void open_libraries() {
  static std::once_flag opened;
  std::call_once(opened, [] {
    cuda_runtime().handle();  // by name, the frontend finds what is open already
    fe::cudnn_dlhandle = cudnn().handle();
  });
}

/// A thread's handle on a GPU: handles serve one thread at a time. Never destroyed, since what uses
/// it may outlive main.
cudnnHandle_t handle_here() {
  open_libraries();
  static thread_local std::map<int, cudnnHandle_t> handles;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  cudnnHandle_t& handle = handles[device];
  if (handle == nullptr) {
    const cudnnStatus_t status = SR_VENDOR(cudnn(), cudnnCreate)(&handle);
    SR_REQUIRE(status == CUDNN_STATUS_SUCCESS, device,
               "cudnnCreate: ", SR_VENDOR(cudnn(), cudnnGetErrorString)(status));
  }
  return handle;
}

/// u8 as signed bytes: what cuDNN reads as indices.
fe::DataType_t type_of(DType dtype) {
  return dtype == DType::bf16  ? fe::DataType_t::BFLOAT16
         : dtype == DType::u8  ? fe::DataType_t::INT8
         : dtype == DType::i32 ? fe::DataType_t::INT32
                               : fe::DataType_t::FLOAT;
}

/// The tensor that run() is given at `place`.
Tensor input(FrontendGraph& graph, int64_t place, const Shape& dims, const Shape& strides,
             DType dtype) {
  return graph.tensor(Tensor_attributes()
                          .set_name(str("t", place))
                          .set_uid(place + 1)
                          .set_dim(dims)
                          .set_stride(strides)
                          .set_data_type(type_of(dtype)));
}
void output(const Tensor& tensor, int64_t place, const Shape& dims, const Shape& strides,
            DType dtype) {
  tensor->set_output(true).set_uid(place + 1).set_dim(dims).set_stride(strides).set_data_type(
      type_of(dtype));
}

class Graph final : public CudnnGraph {
 public:
  struct Setup {
    std::string key;
    int64_t workspace = 0;
    size_t candidates = 1;                      // that are measured
    std::vector<fe::HeurMode_t> modes;          // where plans are asked for, in this order
    std::vector<fe::NumericalNote_t> unwanted;  // plans that say so of themselves are left out
    std::function<void(FrontendGraph&)> build;
    std::optional<size_t> only = std::nullopt;  // of the candidates this, or the last there is
  };
  explicit Graph(Setup setup) : setup_(std::move(setup)) {}

  bool prepare(std::string* why) override {
    if (graph_) return true;
    std::vector<int64_t> plans;
    std::unique_ptr<FrontendGraph> graph;
    try {
      const cudnnHandle_t handle = handle_here();
      graph = with_candidates(handle, nullptr, why);
      if (!graph) return false;
      for (int64_t i = 0; i < graph->get_execution_plan_count() && plans.size() < setup_.candidates;
           ++i) {
        if (graph->build_plan_at_index(handle, i).is_bad()) continue;
        int64_t bytes = 0;
        if (graph->get_workspace_size_plan_at_index(i, bytes).is_bad() || bytes > setup_.workspace)
          continue;
        plans.push_back(i);
      }
    } catch (const std::exception& e) {  // what the frontend throws where a library is missing
      *why = e.what();
      return false;
    }
    if (plans.empty()) {
      *why = str("no plan fits ", setup_.workspace, " bytes");
      return false;
    }
    graph_ = std::move(graph);
    plans_ = std::move(plans);
    return true;
  }

  bool has_plan_for(const std::string& gpu, std::string* why) const override {
    try {
      open_libraries();
      std::vector<uint8_t> text(gpu.begin(), gpu.end());
      text.push_back(0);
      const auto device = std::make_shared<fe::DeviceProperties>();
      if (const fe::error_t status = device->deserialize(text); status.is_bad()) {
        *why = status.err_msg;
        return false;
      }
      return with_candidates(nullptr, device, why) != nullptr;
    } catch (const std::exception& e) {
      *why = e.what();
      return false;
    }
  }

  void run(std::span<void* const> tensors, void* workspace, void* on) override {
    const auto stream = static_cast<cudaStream_t>(on);
    const cudnnHandle_t handle = handle_here();
    const cudnnStatus_t status = SR_VENDOR(cudnn(), cudnnSetStream)(handle, stream);
    SR_REQUIRE(status == CUDNN_STATUS_SUCCESS, device,
               "cudnnSetStream: ", SR_VENDOR(cudnn(), cudnnGetErrorString)(status));
    if (!chosen_) choose(handle, tensors, workspace, stream);
    const fe::error_t done = execute(handle, tensors, workspace, plans_[plan_]);
    launched(stream, kLibraryLaunches);
    SR_REQUIRE(done.is_good(), device, "cuDNN's ", setup_.key, ": ", done.err_msg);
  }

 private:
  /// With the plans that cuDNN offers to the handle's GPU, or to the one described. Null, with the
  /// reason in *why, if there are none.
  std::unique_ptr<FrontendGraph> with_candidates(
      cudnnHandle_t handle, const std::shared_ptr<const fe::DeviceProperties>& gpu,
      std::string* why) const {
    auto graph = std::make_unique<FrontendGraph>();
    graph->set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (gpu) graph->set_device_properties(gpu);
    setup_.build(*graph);
    const auto good = [&](const fe::error_t& status) {
      if (status.is_bad()) *why = status.err_msg;
      return status.is_good();
    };
    if (!good(graph->validate()) || !good(graph->build_operation_graph(handle)) ||
        !good(graph->create_execution_plans(setup_.modes)))
      return nullptr;
    graph->deselect_numeric_notes(setup_.unwanted);
    graph->deselect_workspace_greater_than(setup_.workspace);
    if (!good(graph->check_support())) return nullptr;
    return graph;
  }

  fe::error_t execute(cudnnHandle_t handle, std::span<void* const> tensors, void* workspace,
                      int64_t plan) const {
    std::unordered_map<int64_t, void*> by_uid;
    for (size_t i = 0; i < tensors.size(); ++i)
      by_uid.emplace(static_cast<int64_t>(i) + 1, tensors[i]);
    return graph_->execute_plan_at_index(handle, by_uid, workspace, plan);
  }

  /// Of several plans the fastest, or the one that was before.
  void choose(cudnnHandle_t handle, std::span<void* const> tensors, void* workspace,
              cudaStream_t stream) {
    if (plans_.size() == 1 || setup_.only) {
      plan_ = std::min(setup_.only.value_or(0), plans_.size() - 1);
      chosen_ = true;
      return;
    }
    std::vector<std::string> names(plans_.size());
    for (size_t i = 0; i < plans_.size(); ++i) {
      if (graph_->get_plan_name_at_index(plans_[i], names[i]).is_bad()) names[i] = str("plan ", i);
    }
    const auto time = [&](size_t i) {
      return measure(stream, setup_.key,
                     [&] { return execute(handle, tensors, workspace, plans_[i]).is_good(); });
    };
    // While nothing can be measured: the likeliest.
    const auto plan = fastest(tuned_graphs(), setup_.key, names, !is_recorded(stream), time);
    if (!plan) return;
    plan_ = *plan;
    chosen_ = true;
  }

  Setup setup_;
  std::unique_ptr<FrontendGraph> graph_;
  std::vector<int64_t> plans_;  // indices of those that can run
  size_t plan_ = 0;
  bool chosen_ = false;
};

const char* name_of(CudnnConvolution::Pass pass) {
  return pass == CudnnConvolution::Pass::forward ? "convolution"
         : pass == CudnnConvolution::Pass::data  ? "convolution for data"
                                                 : "convolution for weights";
}

}  // namespace

std::string CudnnConvolution::key() const {
  return str(name_of(pass), " ", dtype, tf32 ? " tf32" : "", " x ", to_string(x),
             to_string(x_strides), " w ", to_string(w), to_string(w_strides), " y ", to_string(y),
             to_string(y_strides), " pads ", to_string(low), to_string(high), " strides ",
             to_string(strides), " dilations ", to_string(dilations));
}

std::string CudnnPool::key() const {
  std::string text = str(max ? "max" : "mean", gradient ? " pool's gradient " : " pool ", dtype);
  if (max) text += str(" which ", which);
  return text + str(" x ", to_string(x), " y ", to_string(y), " kernel ", to_string(kernel),
                    " strides ", to_string(strides), " pads ", to_string(low), to_string(high));
}

std::string CudnnBatchNorm::key() const {
  return str("batch norm", gradient ? "'s gradient " : " ", dtype, " x ", to_string(x),
             residual ? " + residual" : "", relu ? " relu" : "");
}

Autotune& tuned_graphs() {
  return tuned_here(str("cuDNN ", SR_VENDOR(cudnn(), cudnnGetVersion)()));
}

/// Engines keep copies in other layouts, and parts of sums.
int64_t CudnnConvolution::workspace_bytes() const {
  constexpr int64_t kMost = 256 << 20, kLeast = 16 << 20;
  const int64_t all = 2 * 4 * (element_count(x) + element_count(w) + element_count(y));
  return std::min(kMost, kLeast + round_up(all, 256));
}

std::string CudnnAttention::key() const {
  return str(gradient ? "attention's gradient" : "attention", " heads ", heads, " queries ",
             queries, " keys ", keys, " widths ", width, ",", value_width, causal ? " causal" : "");
}

/// The gradient that repeats bit for bit keeps the gradients of scores, and sums for dq.
int64_t CudnnAttention::workspace_bytes() const {
  constexpr int64_t kLeast = 8 << 20;
  const int64_t t = round_up(queries, 128), s = round_up(keys, 128);
  const int64_t rows = heads * (t + s) * (width + value_width + 16) * 4;
  return kLeast + (gradient ? heads * t * s * 2 + rows : 0);
}

std::unique_ptr<CudnnGraph> make_cudnn_graph(const CudnnConvolution& c,
                                             std::optional<size_t> plan) {
  const auto build = [c](FrontendGraph& graph) {
    const auto with = [&](auto attributes) {
      return attributes.set_pre_padding(c.low)
          .set_post_padding(c.high)
          .set_stride(c.strides)
          .set_dilation(c.dilations);
    };
    const auto in = [&](int64_t place, const Shape& dims, const Shape& strides) {
      return input(graph, place, dims, strides, c.dtype);
    };
    switch (c.pass) {
      case CudnnConvolution::Pass::forward: {
        const Tensor x = in(0, c.x, c.x_strides), w = in(1, c.w, c.w_strides);
        output(graph.conv_fprop(x, w, with(fe::graph::Conv_fprop_attributes())), 2, c.y,
               c.y_strides, c.dtype);
        break;
      }
      case CudnnConvolution::Pass::data: {
        const Tensor dy = in(0, c.y, c.y_strides), w = in(1, c.w, c.w_strides);
        output(graph.conv_dgrad(dy, w, with(fe::graph::Conv_dgrad_attributes())), 2, c.x,
               c.x_strides, c.dtype);
        break;
      }
      case CudnnConvolution::Pass::weights: {
        const Tensor x = in(0, c.x, c.x_strides), dy = in(1, c.y, c.y_strides);
        output(graph.conv_wgrad(dy, x, with(fe::graph::Conv_wgrad_attributes())), 2, c.w,
               c.w_strides, c.dtype);
        break;
      }
    }
  };
  std::vector<fe::NumericalNote_t> unwanted = {fe::NumericalNote_t::NONDETERMINISTIC,
                                               fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION};
  if (c.dtype == DType::f32 && !c.tf32) {
    unwanted.push_back(fe::NumericalNote_t::TENSOR_CORE);
    unwanted.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
  }
  return std::make_unique<Graph>(Graph::Setup{c.key(),
                                              c.workspace_bytes(),
                                              kConvolutionPlans,
                                              {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK},
                                              unwanted,
                                              build,
                                              plan});
}

std::unique_ptr<CudnnGraph> make_cudnn_graph(const CudnnAttention& a) {
  const auto build = [a](FrontendGraph& graph) {
    // Heads as a batch.
    const auto dims = [&](int64_t rows, int64_t cols) { return Shape{a.heads, 1, rows, cols}; };
    const auto strides = [&](int64_t rows, int64_t cols) {
      return Shape{rows * cols, rows * cols, cols, 1};
    };
    const auto in = [&](int64_t place, int64_t rows, int64_t cols, DType dtype) {
      return input(graph, place, dims(rows, cols), strides(rows, cols), dtype);
    };
    const auto out = [&](const Tensor& tensor, int64_t place, int64_t rows, int64_t cols,
                         DType dtype) {
      output(tensor, place, dims(rows, cols), strides(rows, cols), dtype);
    };
    const auto scale = static_cast<float>(a.scale);
    const Tensor q = in(0, a.queries, a.width, DType::bf16),
                 k = in(1, a.keys, a.width, DType::bf16),
                 v = in(2, a.keys, a.value_width, DType::bf16);
    if (!a.gradient) {
      auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_attn_scale(scale);
      attributes.set_generate_stats(true).set_causal_mask(a.causal);
      const auto [y, lse] = graph.sdpa(q, k, v, attributes);
      out(y, 3, a.queries, a.value_width, DType::bf16);
      out(lse, 4, a.queries, 1, DType::f32);
      return;
    }
    // There the frontend copies lengths of keys from its own stack to the GPU, which a recorded
    // step would do again when they are gone (run_auxiliary_kernels of its graph_interface.h).
    SR_REQUIRE(a.keys % 128 == 0 || fe::detail::get_backend_version() > 91500, unsupported,
               "before cuDNN 9.15.1, gradients want keys in multiples of 128, not ", a.keys);
    const Tensor y = in(3, a.queries, a.value_width, DType::bf16),
                 dy = in(4, a.queries, a.value_width, DType::bf16),
                 lse = in(5, a.queries, 1, DType::f32);
    auto attributes =
        fe::graph::SDPA_backward_attributes().set_name("attention_grad").set_attn_scale(scale);
    attributes.set_causal_mask(a.causal).set_deterministic_algorithm(true);
    const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, y, dy, lse, attributes);
    out(dq, 6, a.queries, a.width, DType::bf16);
    out(dk, 7, a.keys, a.width, DType::bf16);
    out(dv, 8, a.keys, a.value_width, DType::bf16);
  };
  return std::make_unique<Graph>(
      Graph::Setup{a.key(), a.workspace_bytes(), 1, {fe::HeurMode_t::A}, {}, build});
}

namespace {

/// Of dims [N, C, …] whose channels are last in memory.
Shape channels_last_strides(const Shape& dims) {
  Shape strides(dims.size(), 1);
  int64_t step = dims[1];
  for (size_t d = dims.size(); d-- > 2;) strides[d] = step, step *= dims[d];
  strides[0] = step;
  return strides;
}

Tensor image(FrontendGraph& graph, int64_t place, const Shape& dims, DType dtype) {
  return input(graph, place, dims, channels_last_strides(dims), dtype);
}
void image_output(const Tensor& tensor, int64_t place, const Shape& dims, DType dtype) {
  output(tensor, place, dims, channels_last_strides(dims), dtype);
}

Tensor pointwise(FrontendGraph& graph, fe::PointwiseMode_t mode, const Tensor& a, const Tensor& b) {
  return graph.pointwise(a, b, fe::graph::Pointwise_attributes().set_mode(mode));
}

/// Engines that are compiled at run time, which takes a while: the likeliest alone.
std::unique_ptr<CudnnGraph> likeliest(const std::string& key,
                                      std::function<void(FrontendGraph&)> build) {
  return std::make_unique<Graph>(Graph::Setup{key,
                                              0,
                                              1,
                                              {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK},
                                              {fe::NumericalNote_t::NONDETERMINISTIC},
                                              std::move(build)});
}

}  // namespace

std::unique_ptr<CudnnGraph> make_cudnn_graph(const CudnnPool& p) {
  return likeliest(p.key(), [p](FrontendGraph& graph) {
    const Shape &from = p.gradient ? p.y : p.x, &to = p.gradient ? p.x : p.y;
    const Tensor in = image(graph, 0, from, p.dtype);
    int64_t place = 1;
    Tensor out;
    if (p.gradient) {
      const Tensor which = p.max ? image(graph, place++, p.y, p.which) : nullptr;
      out = graph.resample_backward(p, in, which, channels_last_strides(to));
    } else {
      SR_REQUIRE(!p.max, internal, "maxima by cuDNN");
      out = graph.resample(in, fe::graph::Resample_attributes()
                                   .set_resampling_mode(mode_of(p))
                                   .set_padding_mode(padding_of(p))
                                   .set_window(p.kernel)
                                   .set_stride(p.strides)
                                   .set_pre_padding(p.low)
                                   .set_post_padding(p.high)
                                   .set_generate_index(false))[0];
    }
    if (!p.max) {
      const auto offsets = static_cast<float>(element_count(p.kernel));
      out->set_dim(to).set_stride(channels_last_strides(to));
      out = pointwise(graph, fe::PointwiseMode_t::MUL, out, graph.tensor(offsets));
    }
    image_output(out, place, to, p.dtype);
  });
}

std::unique_ptr<CudnnGraph> make_cudnn_graph(const CudnnBatchNorm& n) {
  return likeliest(n.key(), [n](FrontendGraph& graph) {
    using Mode = fe::PointwiseMode_t;
    int64_t place = 0;
    const auto next_image = [&] { return image(graph, place++, n.x, n.dtype); };
    const auto next_channels = [&] {
      Shape dims(n.x.size(), 1);
      dims[1] = n.x[1];
      return image(graph, place++, dims, DType::f32);
    };
    // Whole images first, as cuDNN wants them.
    const auto of = [&](Mode mode, const Tensor& a, const Tensor& b) {
      return pointwise(graph, mode, a, b);
    };
    if (!n.gradient) {
      const Tensor x = next_image(), mean = next_channels(), slope = next_channels(),
                   bias = next_channels();
      Tensor y = of(Mode::ADD, of(Mode::MUL, of(Mode::SUB, x, mean), slope), bias);
      if (n.residual) y = of(Mode::ADD, y, next_image());
      if (n.relu) {
        y = graph.pointwise(y, fe::graph::Pointwise_attributes().set_mode(Mode::RELU_FWD));
      }
      image_output(y, place, n.x, n.dtype);
      return;
    }
    const Tensor dy = next_image(), x = next_image(), mean = next_channels(),
                 slope = next_channels(), offset = next_channels(), tilt = next_channels();
    const Tensor centred = of(Mode::SUB, x, mean);
    Tensor g = dy;
    if (n.relu) {
      const Tensor line = of(Mode::ADD, of(Mode::MUL, centred, slope), next_channels());
      g = of(Mode::RELU_BWD, dy, line);
    }
    const Tensor rest = of(Mode::SUB, of(Mode::SUB, g, offset), of(Mode::MUL, centred, tilt));
    image_output(of(Mode::MUL, rest, slope), place, n.x, n.dtype);
  });
}

}  // namespace shardrun::cuda
