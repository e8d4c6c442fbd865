#include "checkpoint/trained_numbers.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/runs.h"

namespace shardrun {

TrainedNumbers::TrainedNumbers(const Checkpoint& checkpoint, const WeightMap& map,
                               const std::map<std::string, Source>& given, uint64_t seed)
    : checkpoint_(checkpoint), map_(map), given_(given), seed_(seed) {}

bool TrainedNumbers::differs(const std::string& value) const {
  return in_checkpoint(value) != nullptr || given_.count(value) > 0;
}

std::optional<TensorType> TrainedNumbers::type_outside_map(const std::string& name) const {
  if (const Manifest::Tensor* trained = in_checkpoint(name)) return trained->value.type;
  const auto given = given_.find(name);
  if (given == given_.end() || given->second.kind != Source::Kind::file) return std::nullopt;
  return TensorType{given->second.dtype, given->second.shape};
}

TensorType TrainedNumbers::type_of(const std::string& value) const {
  const auto own = map_.values.find(value);
  if (in_checkpoint(value) == nullptr && own != map_.values.end()) return own->second.type;
  return *type_outside_map(value);
}

void TrainedNumbers::read(const std::string& value, const Box& box, void* out) const {
  if (in_checkpoint(value) != nullptr) return checkpoint_.read(value, box, out);
  const auto given = given_.find(value);
  read_source(given != given_.end() ? given->second : map_.values.at(value).source, type_of(value),
              box, seed_, out);
}

/// The elements of a tensor that one run of a value holds.
class TrainedNumbers::RunReader {
 public:
  RunReader(const TrainedNumbers& numbers, ValueRun run, Shape shape)
      : numbers_(numbers),
        run_(std::move(run)),
        shape_(std::move(shape)),
        type_(numbers.type_of(run_.value)),
        width_(size_of(type_.dtype)) {}

  /// Puts those of elements [first, first + count) of the tensor that are the run's to `out`.
  void read(int64_t first, int64_t count, char* out) {
    const int64_t begin = std::max(first, run_.tensor_first),
                  end = std::min(first + count, run_.tensor_first + run_.count);
    if (begin >= end) return;
    out += (begin - first) * width_;
    if (run_.transposed) return copy_transposed(begin, end, out);
    for (const Box& box :
         boxes_of_run(type_.shape, run_.first + begin - run_.tensor_first, end - begin)) {
      numbers_.read(run_.value, box, out);
      out += element_count(box_shape(box)) * width_;
    }
  }

 private:
  void copy_transposed(int64_t begin, int64_t end, char* out) {
    const int64_t columns = shape_[1];
    while (begin < end) {
      const int64_t row = begin / columns;
      if (row < rows_.begin || row >= rows_.end()) read_rows(row);
      const int64_t at = begin - rows_.begin * columns,
                    some = std::min(end - begin, rows_.size * columns - at);
      std::memcpy(out, turned_.data() + at * width_, static_cast<size_t>(some * width_));
      begin += some;
      out += some * width_;
    }
  }

  /// Rows are columns of the value: a read of a few of them goes over nearly all of its bytes.
  void read_rows(int64_t first) {
    constexpr int64_t kBytes = int64_t{16} << 20;
    const int64_t columns = shape_[1];
    rows_ = {first, std::clamp<int64_t>(kBytes / (columns * width_), 1, shape_[0] - first)};
    const auto bytes = static_cast<size_t>(rows_.size * columns * width_);
    std::vector<char> read(bytes);
    numbers_.read(run_.value, {{0, columns}, rows_}, read.data());
    turned_.resize(bytes);
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t row = 0; row < rows_.size; ++row) {
        std::memcpy(turned_.data() + (row * columns + column) * width_,
                    read.data() + (column * rows_.size + row) * width_,
                    static_cast<size_t>(width_));
      }
    }
  }

  const TrainedNumbers& numbers_;
  const ValueRun run_;
  const Shape shape_;
  const TensorType type_;  // of the value
  const int64_t width_;
  Range rows_;                // of the transposed tensor, in…
  std::vector<char> turned_;  // …its order
};

importer::Numbers TrainedNumbers::of(const std::vector<ValueRun>& runs, const Shape& shape) const {
  const auto readers = std::make_shared<std::vector<RunReader>>();
  for (const ValueRun& run : runs) readers->emplace_back(*this, run, shape);
  return {{type_of(runs[0].value).dtype, shape},
          [readers](int64_t first, int64_t count, void* out) {
            for (RunReader& reader : *readers) reader.read(first, count, static_cast<char*>(out));
          }};
}

}  // namespace shardrun
