// Which sample is for training, validation or test, and which one stands where in a batch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "exec/data/data.h"

namespace shardrun {

/// The samples of each split.
class SampleSplit {
 public:
  /// Three parts that follow each other.
  SampleSplit(int64_t training, int64_t validation, int64_t test);
  /// Any samples, in the order given.
  explicit SampleSplit(std::array<std::vector<int64_t>, 3> samples);

  int64_t size(Split split) const { return sizes_[index(split)]; }
  int64_t sample(Split split, int64_t i) const;

 private:
  static size_t index(Split split) { return static_cast<size_t>(split); }
  std::array<int64_t, 3> sizes_{}, begins_{};
  std::array<std::vector<int64_t>, 3> lists_;  // empty: from begins_ on
};

/// What to say behind the sizes of the parts: a test is of the best validation's weights.
std::string without_validation(int64_t validation, int64_t test);

/// Batches of `batch` samples. Training takes the samples in a shuffled order, another one each
/// epoch, without end. The other splits are seen in order: with `pad` each sample once, the last
/// batch padded; else in whole batches that are spread evenly, as they are where a split has more
/// than options.max_validation_batches (validation alone is limited so).
class SampleOrder {
 public:
  SampleOrder(SampleSplit split, int64_t batch, bool pad, const DataOptions& options);

  struct Pick {
    int64_t sample;
    bool padding;  // beyond the split's end: `sample` is one that was seen already
  };
  Pick pick(Split split, int64_t batch, int64_t row) const;
  int64_t batch() const { return batch_; }  // samples
  int64_t batches(Split split) const { return batches_[static_cast<size_t>(split)]; }
  const SampleSplit& split() const { return split_; }

 private:
  SampleSplit split_;
  int64_t batch_;
  uint64_t seed_;
  std::array<int64_t, 3> batches_{};
  std::array<bool, 3> spread_{};
};

}  // namespace shardrun
