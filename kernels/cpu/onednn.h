// What the files that know oneDNN share: the engine, and the thread count that scratch is made for.
#pragma once

#include <omp.h>

#include <dnnl.hpp>

#include "base/shape.h"

namespace shardrun::cpu {

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

}  // namespace shardrun::cpu
