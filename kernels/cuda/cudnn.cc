// cuDNN's graphs by way of its frontend, and the choice among their plans.
#include "kernels/cuda/cudnn.h"

#include <cudnn_frontend.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>

#include "device/cuda/cuda.h"
#include "device/cuda/library.h"
#include "kernels/cuda/autotune.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // where the frontend finds cuDNN
}

namespace shardrun::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

/// A thread's handle on a GPU: handles serve one thread at a time. Never destroyed, since what uses
/// it may outlive main.
cudnnHandle_t handle_here() {
  static std::once_flag opened;
  std::call_once(opened, [] {
    cuda_runtime().handle();  // by name, the frontend finds what is open already
    fe::cudnn_dlhandle = cudnn().handle();
  });
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

fe::DataType_t type_of(DType dtype) {
  return dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::FLOAT;
}

/// The tensor that run() is handed at `place`.
Tensor input(fe::graph::Graph& graph, int64_t place, const Shape& dims, const Shape& strides,
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
    int64_t candidates = 1;                     // that are measured
    std::vector<fe::HeurMode_t> modes;          // where plans are asked for, in this order
    std::vector<fe::NumericalNote_t> unwanted;  // plans that say so of themselves are left out
    std::function<void(fe::graph::Graph&)> build;
  };
  explicit Graph(Setup setup) : setup_(std::move(setup)) {}

  bool prepare(std::string* why) override {
    if (graph_) return true;
    auto graph = std::make_unique<fe::graph::Graph>();
    graph->set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    try {
      const cudnnHandle_t handle = handle_here();
      setup_.build(*graph);
      const auto good = [&](fe::error_t status) {
        if (status.is_bad()) *why = status.get_message();
        return status.is_good();
      };
      if (!good(graph->validate()) || !good(graph->build_operation_graph(handle)) ||
          !good(graph->create_execution_plans(setup_.modes)))
        return false;
      graph->deselect_numeric_notes(setup_.unwanted);
      graph->deselect_workspace_greater_than(setup_.workspace);
      if (!good(graph->check_support(handle))) return false;
      for (int64_t i = 0; i < graph->get_execution_plan_count() &&
                          static_cast<int64_t>(plans_.size()) < setup_.candidates;
           ++i) {
        if (graph->build_plan_at_index(handle, i).is_bad()) continue;
        int64_t bytes = 0;
        if (graph->get_workspace_size_plan_at_index(i, bytes).is_bad() || bytes > setup_.workspace)
          continue;
        plans_.push_back(i);
      }
    } catch (const std::exception& e) {  // what the frontend throws where a library is missing
      *why = e.what();
      return false;
    }
    if (plans_.empty()) {
      *why = str("no plan fits ", setup_.workspace, " bytes");
      return false;
    }
    graph_ = std::move(graph);
    return true;
  }

  void run(std::span<void* const> tensors, void* workspace, void* on) override {
    const auto stream = static_cast<cudaStream_t>(on);
    const cudnnHandle_t handle = handle_here();
    const cudnnStatus_t status = SR_VENDOR(cudnn(), cudnnSetStream)(handle, stream);
    SR_REQUIRE(status == CUDNN_STATUS_SUCCESS, device,
               "cudnnSetStream: ", SR_VENDOR(cudnn(), cudnnGetErrorString)(status));
    if (!chosen_) choose(handle, tensors, workspace, stream);
    execute(handle, tensors, workspace, plans_[plan_]);
  }

 private:
  void execute(cudnnHandle_t handle, std::span<void* const> tensors, void* workspace,
               int64_t plan) const {
    std::unordered_map<int64_t, void*> by_uid;
    for (size_t i = 0; i < tensors.size(); ++i)
      by_uid.emplace(static_cast<int64_t>(i) + 1, tensors[i]);
    fe::error_t status = graph_->execute_plan_at_index(handle, by_uid, workspace, plan);
    SR_REQUIRE(status.is_good(), device, "cuDNN's ", setup_.key, ": ", status.get_message());
  }

  /// Of several plans the fastest, or the one that was before.
  void choose(cudnnHandle_t handle, std::span<void* const> tensors, void* workspace,
              cudaStream_t stream) {
    if (plans_.size() == 1) {
      chosen_ = true;
      return;
    }
    std::vector<std::string> names(plans_.size());
    for (size_t i = 0; i < plans_.size(); ++i) {
      if (graph_->get_plan_name_at_index(plans_[i], names[i]).is_bad()) names[i] = str("plan ", i);
    }
    const auto place = [&](const std::string& name) {
      return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    };
    Autotune& tuned = tuned_here(str("cuDNN ", SR_VENDOR(cudnn(), cudnnGetVersion)()));
    if (const auto kept = tuned.find(setup_.key); kept && place(*kept) < names.size()) {
      plan_ = place(*kept);
      chosen_ = true;
      return;
    }
    cudaStreamCaptureStatus recording{};
    check(cudaStreamIsCapturing(stream, &recording), "cudaStreamIsCapturing");
    if (recording != cudaStreamCaptureStatusNone) return;  // nothing can be measured: the likeliest
    constexpr int kRuns = 3;
    cudaEvent_t events[2] = {};
    for (cudaEvent_t& event : events) check(cudaEventCreate(&event), "cudaEventCreate");
    const Event begin(events[0]), end(events[1]);
    float least = -1;
    for (size_t i = 0; i < plans_.size(); ++i) {
      execute(handle, tensors, workspace, plans_[i]);
      check(cudaEventRecord(begin.get(), stream), "cudaEventRecord");
      for (int run = 0; run < kRuns; ++run) execute(handle, tensors, workspace, plans_[i]);
      check(cudaEventRecord(end.get(), stream), "cudaEventRecord");
      check(cudaEventSynchronize(end.get()), setup_.key);
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "cudaEventElapsedTime");
      if (least < 0 || milliseconds < least) least = milliseconds, plan_ = i;
    }
    const size_t kept = place(tuned.keep(setup_.key, names[plan_]));
    if (kept < names.size()) plan_ = kept;
    chosen_ = true;
  }

  Setup setup_;
  std::unique_ptr<fe::graph::Graph> graph_;
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
  return str(name_of(pass), " ", dtype, "->", weights_dtype, tf32 ? " tf32" : "", " x ",
             to_string(x), to_string(x_strides), " w ", to_string(w), to_string(w_strides), " y ",
             to_string(y), to_string(y_strides), " pads ", to_string(low), to_string(high),
             " strides ", to_string(strides), " dilations ", to_string(dilations));
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

std::unique_ptr<CudnnGraph> make_cudnn_graph(const CudnnConvolution& c) {
  const auto build = [c](fe::graph::Graph& graph) {
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
               c.w_strides, c.weights_dtype);
        break;
      }
    }
  };
  constexpr int64_t kCandidates = 6;
  std::vector<fe::NumericalNote_t> unwanted = {fe::NumericalNote_t::NONDETERMINISTIC,
                                               fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION};
  if (c.dtype == DType::f32 && !c.tf32) {
    unwanted.push_back(fe::NumericalNote_t::TENSOR_CORE);
    unwanted.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
  }
  return std::make_unique<Graph>(Graph::Setup{c.key(),
                                              c.workspace_bytes(),
                                              kCandidates,
                                              {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK},
                                              unwanted,
                                              build});
}

std::unique_ptr<CudnnGraph> make_cudnn_graph(const CudnnAttention& a) {
  const auto build = [a](fe::graph::Graph& graph) {
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

}  // namespace shardrun::cuda
