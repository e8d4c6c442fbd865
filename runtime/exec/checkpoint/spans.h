// Spans: the runs of elements of a box that lie one after the other in a dense tensor around it.
#pragma once

#include <algorithm>

#include "base/shape.h"

namespace shardrun {

/// In which runs the elements of box `inner` lie in a dense tensor that holds `outer`, in the same
/// coordinates and around it: [0:4, 2:5] in [0:4, 0:9] in four of 3, [1:4, 0:9] in one of 27.
class Spans {
 public:
  Spans(const Box& inner, const Box& outer)
      : inner_(inner), outer_(outer), strides_(row_major_strides(box_shape(outer))) {
    dims_ = inner.size();
    for (bool whole = true; dims_ > 0 && whole; --dims_) {
      run_ *= inner[dims_ - 1].size;
      whole = inner[dims_ - 1].size == outer[dims_ - 1].size;
    }
  }

  int64_t run() const { return run_; }  // elements of each
  /// Calls f(at, count) for `inner`'s elements [first, first + count), in order: `at` counts
  /// elements of the tensor.
  template <class F>
  void each(int64_t first, int64_t count, const F& f) const {
    while (count > 0) {
      const int64_t some = std::min(count, run_ - first % run_);
      f(place(first), some);
      first += some;
      count -= some;
    }
  }
  /// Where `inner`'s element `index` is in the tensor.
  int64_t place(int64_t index) const {
    int64_t rest = index / run_, at = index % run_;
    for (size_t d = inner_.size(); d-- > 0;) {
      int64_t from = inner_[d].begin - outer_[d].begin;
      if (d < dims_) {
        from += rest % inner_[d].size;
        rest /= inner_[d].size;
      }
      at += from * strides_[d];
    }
    return at;
  }

 private:
  Box inner_, outer_;
  Shape strides_;
  size_t dims_ = 0;  // those whose indices tell runs apart
  int64_t run_ = 1;
};

}  // namespace shardrun
