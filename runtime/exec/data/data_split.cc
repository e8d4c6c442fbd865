// Splits and orders of samples.
#include "exec/data/data_split.h"

#include <algorithm>

#include "exec/data/data_internal.h"

namespace shardrun {

SampleSplit::SampleSplit(int64_t training, int64_t validation, int64_t test)
    : sizes_{training, validation, test}, begins_{0, training, training + validation} {}

SampleSplit::SampleSplit(std::array<std::vector<int64_t>, 3> samples) : lists_(std::move(samples)) {
  for (size_t i = 0; i < lists_.size(); ++i) sizes_[i] = static_cast<int64_t>(lists_[i].size());
}

int64_t SampleSplit::sample(Split split, int64_t i) const {
  const size_t s = index(split);
  return lists_[s].empty() ? begins_[s] + i : lists_[s][static_cast<size_t>(i)];
}

std::string without_validation(int64_t validation, int64_t test) {
  if (validation > 0) return "";
  return test > 0 ? " (without a validation the test part is not evaluated)" : " (no validation)";
}

SampleOrder::SampleOrder(SampleSplit split, int64_t batch, bool pad, const DataOptions& options)
    : split_(std::move(split)), batch_(std::max<int64_t>(1, batch)), seed_(options.seed) {
  for (Split held : {Split::validation, Split::test}) {
    const auto i = static_cast<size_t>(held);
    const int64_t size = split_.size(held);
    if (size == 0) continue;
    const int64_t whole = pad ? (size + batch_ - 1) / batch_ : std::max<int64_t>(1, size / batch_);
    const int64_t most =
        held == Split::test ? whole : std::max<int64_t>(1, options.max_validation_batches);
    batches_[i] = std::min(whole, most);
    spread_[i] = !pad || batches_[i] < whole;
  }
}

SampleOrder::Pick SampleOrder::pick(Split split, int64_t batch, int64_t row) const {
  const int64_t size = split_.size(split), position = batch * batch_ + row;
  if (split == Split::training) {
    const Permutation order(size, seed_, data_stream("order"),
                            static_cast<uint64_t>(position / size));
    return {split_.sample(split, order(position % size)), false};
  }
  const auto s = static_cast<size_t>(split);
  if (spread_[s]) {
    return {split_.sample(split, position * size / (batches_[s] * batch_)), false};
  }
  return {split_.sample(split, position % size), position >= size};
}

}  // namespace shardrun
