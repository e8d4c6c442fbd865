// Batches that a program gives from its own memory.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "exec/data/data.h"
#include "shardrun/trainer.h"

namespace shardrun {

/// Throws invalid_input, naming `what` and the place, where a float is NaN.
void check_numbers(const void* data, const TensorType& type, const std::string& what);

/// A source that has one step's micro-batches at a time, or one batch of validation; before the
/// first, and for targets that were left out, the ignored label or zeros.
class GivenBatches final : public DataSource {
 public:
  /// `fields`: of one micro-batch, of which a step has `micro_batches`.
  GivenBatches(std::vector<BatchField> fields, int64_t micro_batches)
      : fields_(std::move(fields)), micro_batches_(micro_batches) {}
  const std::vector<BatchField>& fields() const { return fields_; }
  /// Throws invalid_input with the names that there are.
  const BatchField& field(const std::string& name) const;

  /// From now on these are what is read, until drop(): micro-batches `first` and on of training, or
  /// batch 0 of validation. `part`: which box of a field this process reads; null: all. Looks at
  /// every element, and throws invalid_input naming the array, the element and the value: an input
  /// without an array, an array without an input, a shape that is neither whole nor the part, a
  /// type that does not convert, an integer out of bounds, a float that is NaN.
  void give(const Trainer::Batch& batch, Split split, int64_t first, bool targets_needed,
            const std::function<Box(const std::string&)>& part);
  void drop() { given_.clear(); }

  void read(int64_t batch, Split split, const BatchField& field, const Box& box,
            void* out) const override;
  int64_t batches(Split split) const override { return split == Split::validation ? 1 : 0; }
  std::string describe() const override { return "batches from the program's memory"; }

 private:
  struct Given {
    Tensor copy;  // where the caller's elements had to be converted
    const void* data = nullptr;
    Box box;  // of the first micro-batch; the others are behind it along dim 0
  };
  Given look_at(const ArrayView& array, const BatchField& field, int64_t count,
                const Box* part) const;

  const std::vector<BatchField> fields_;
  const int64_t micro_batches_;
  std::map<std::string, Given> given_;
  int64_t first_ = 0;
};

}  // namespace shardrun
