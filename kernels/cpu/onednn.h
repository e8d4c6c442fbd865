// What the files that know oneDNN share: the engine, the thread count that scratch is made for, and
// primitives that run without making anything.
#pragma once

#include <omp.h>

#include <dnnl.hpp>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "base/shape.h"

namespace shardrun::cpu {

struct GemmPost;
/// Appends oneDNN's post-op for one of ours (gemm.cc); false if it has none that computes the same.
bool append(const GemmPost& post, const dnnl::memory::desc& operand, dnnl::post_ops& ops);

inline const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

inline dnnl::memory::data_type onednn_type(DType dtype) {
  return dtype == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

inline dnnl::memory::desc describe(const Shape& dims, const Shape& strides, DType dtype) {
  return dnnl::memory::desc(dims, onednn_type(dtype), strides);
}

/// Attributes of a primitive whose scratchpad the caller brings.
inline dnnl::primitive_attr caller_scratch() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

/// oneDNN lays out scratch for as many threads as the calling thread would use.
class ThreadCount {
 public:
  explicit ThreadCount(bool one) : one_(one), before_(omp_get_max_threads()) {
    if (one) omp_set_num_threads(1);
  }
  ~ThreadCount() {
    if (one_) omp_set_num_threads(before_);
  }

 private:
  bool one_;
  int before_;
};

/// A primitive with its stream and the memories of its arguments, made once: a run sets where they
/// lie, and of what is ours allocates nothing. For one thread at a time.
///
///   Execution product(matmul, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
///   product.run({a_data, b_data, c_data});
class Execution {
 public:
  Execution(dnnl::primitive primitive,
            const std::vector<std::pair<int, dnnl::memory::desc>>& arguments)
      : primitive_(std::move(primitive)), stream_(cpu_engine()) {
    for (const auto& [name, desc] : arguments) {
      memories_.push_back(dnnl::memory(desc, cpu_engine(), DNNL_MEMORY_NONE));
      arguments_.push_back({name, memories_.back().get()});
    }
  }

  /// `data`: of each argument, in their order.
  void run(std::initializer_list<const void*> data) const {
    run(std::span<const void* const>(data.begin(), data.size()));
  }
  void run(std::span<const void* const> data) const {
    auto memory = memories_.begin();
    for (const void* at : data) (memory++)->set_data_handle(const_cast<void*>(at));
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(primitive_.get(), stream_.get(), static_cast<int>(arguments_.size()),
                               arguments_.data()),
        "could not execute a primitive");
    dnnl::error::wrap_c_api(dnnl_stream_wait(stream_.get()), "could not wait for a primitive");
  }

 private:
  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

}  // namespace shardrun::cpu
