// One batch that is read whole each step: a graph, say. Masks choose which of its targets count.
#include <algorithm>
#include <numeric>

#include "base/tensor.h"
#include "exec/data/data_internal.h"
#include "exec/data/data_readers.h"
#include "exec/data/data_sources.h"

namespace shardrun {
namespace {

constexpr int64_t kLarge = 1 << 16;  // elements worth more threads than one

class WholeSource : public DataSource {
 public:
  WholeSource(ArrayData data, std::vector<BatchField> fields, const DataOptions& options)
      : spec_(data.spec), masked_(data.masks.has_value()) {
    SR_REQUIRE(!changes_images(options), invalid_input, "--data ", spec_,
               ": augment and normalise are for batches of samples (rows, for matrices)");
    check_transforms(spec_, fields, options);
    for (size_t i = 0; i < fields.size(); ++i) add(data, i, fields[i], options);
    if (options.sort_edges) sort_edges();
    if (masked_) place_masks(*data.masks);
  }

  void read(int64_t, Split split, const BatchField& field, const Box& box,
            void* out) const override {
    if (is_empty(box)) return;
    const Part& part = part_of(field);
    if (part.samples.empty()) return read_adjacency(field, box, static_cast<char*>(out));
    if (!part.columns.empty()) return read_columns(part, box, static_cast<char*>(out));
    if (part.scalar) return part.reader->read({}, {}, out);
    const std::span inner = std::span(box).subspan(1);
    const int64_t elements = count_in(inner), width = size_of(field.type.dtype);
    const bool hidden = masked_ && field.role == BatchField::Role::target;
    // Integers can be out of range, which throws.
    const bool large = is_float(field.type.dtype) && elements * box[0].size > kLarge;
#pragma omp parallel for schedule(static) if (large)
    for (int64_t row = box[0].begin; row < box[0].begin + box[0].size; ++row) {
      char* to = static_cast<char*>(out) + (row - box[0].begin) * elements * width;
      if (hidden && splits_[static_cast<size_t>(split)][static_cast<size_t>(row)] == 0) {
        for (int64_t i = 0; i < elements; ++i)
          store_integer(to, field.type.dtype, i, *field.ignore);
      } else {
        part.reader->read({part.stored_row(row), split, 0}, inner, to);
      }
    }
  }

  std::string origin(int64_t /*batch*/, Split /*split*/, const BatchField& field,
                     int64_t row) const override {
    const Part& part = part_of(field);
    if (part.samples.empty()) return "";
    const auto [array, at] = part.samples.find(part.stored_row(row));
    return str(array->name, ", row ", at);
  }

  int64_t batches(Split split) const override {
    return split != Split::training && sizes_[static_cast<size_t>(split)] > 0 ? 1 : 0;
  }

  bool same_each_step() const override { return true; }

  std::string describe() const override {
    if (!masked_) return str(spec_, ": one batch, the same each step");
    return str(spec_, ": one batch, the same each step; ", sizes_[0], " targets to train, ",
               sizes_[1], " to validate, ", sizes_[2], " to test",
               without_validation(sizes_[1], sizes_[2]));
  }

 private:
  struct Part {
    BatchField field;
    Samples samples;  // empty: the adjacency that follows from edges_
    std::unique_ptr<SampleReader> reader;
    bool scalar = false;
    std::vector<int64_t> columns;  // an edge list in another order
    std::vector<int64_t> rows;     // what belongs to the edges, likewise
    int64_t stored_row(int64_t row) const {
      return rows.empty() ? row : rows[static_cast<size_t>(row)];
    }
  };

  const Part& part_of(const BatchField& field) const {
    const auto found = std::find_if(parts_.begin(), parts_.end(),
                                    [&](const Part& p) { return p.field.name == field.name; });
    SR_REQUIRE(found != parts_.end(), internal, "batch input '", field.name, "' was not opened");
    return *found;
  }

  void add(const ArrayData& data, size_t i, const BatchField& field, const DataOptions& options) {
    Part part{field, data.arrays[i], nullptr, field.type.shape.empty(), {}, {}};
    if (part.samples.empty()) {
      list_edges(*data.edges, field);
    } else if (takes_rows(field) && normalises_rows(options)) {
      part.reader = row_reader(part.samples, field);
    } else {
      part.reader = plain_reader(part.samples, field);
    }
    if (part.reader && !is_float(field.type.dtype) && !part.scalar) check_values(part);
    parts_.push_back(std::move(part));
  }

  static void check_values(const Part& part) {
    const TensorType& type = part.field.type;
    Box inner = full_box(type.shape);
    inner.erase(inner.begin());
    Tensor row({type.dtype, box_shape(inner)});
    int64_t before = 0;
    for (int64_t r = 0; r < part.samples.count(); ++r) {
      part.reader->read({r, Split::training, 0}, inner, row.data());
      if (!part.field.ascends || row.count() != 1) continue;
      const int64_t value = row.int_at(0);
      SR_REQUIRE(r == 0 ? value == 0 : value >= before, invalid_input, part.samples.first().name,
                 ": value ", value, " at position ", r,
                 r == 0 ? "" : str(" is below ", before, " before it"), "; the input '",
                 part.field.name, "' says where bags begin: 0 first, and none below another");
      before = value;
    }
  }

  void sort_edges() {
    for (Part& part : parts_) {
      if (part.samples.empty() || !is_edge_list(part.field)) continue;
      SR_REQUIRE(edge_order_.empty(), invalid_input, "--data ", spec_,
                 ": two inputs look like edge lists [2, edges]; their order is not changed "
                 "together: leave --sort-edges out");
      edge_order_ = order_of_targets(part.samples.first());
      part.columns = edge_order_;
    }
    SR_REQUIRE(!edge_order_.empty(), invalid_input, "--data ", spec_,
               ": sort-edges wants an integer input [2, edges]; the model has none");
    const auto edges = static_cast<int64_t>(edge_order_.size());
    for (Part& part : parts_) {  // a row for each edge: its attributes
      const Shape& shape = part.field.type.shape;
      const bool of_edges = !shape.empty() && shape[0] == edges && part.columns.empty() &&
                            belongs_to_edges(part.field.name);
      if (of_edges) part.rows = edge_order_;
    }
  }

  void read_columns(const Part& part, const Box& box, char* to) const {
    const StoredArray& array = part.samples.first();
    const int64_t edges = array.shape[1], width = size_of(part.field.type.dtype);
    for (int64_t row = box[0].begin; row < box[0].begin + box[0].size; ++row) {
      for (int64_t e = box[1].begin; e < box[1].begin + box[1].size; ++e) {
        const int64_t at = part.columns[static_cast<size_t>(e)];
        load_elements(array, array.sample(row) + at * array.element_bytes(), row * edges + at, 1,
                      part.field, to);
        to += width;
      }
    }
  }

  /// Sources by target.
  void list_edges(const StoredArray& edges, const BatchField& field) {
    const Shape& shape = field.type.shape;
    SR_REQUIRE(shape.size() == 2 && shape[0] == shape[1], invalid_input, edges.name,
               ": wanted for the model's input '", field.name, "', which is ", field.type,
               "; wanted [nodes, nodes]");
    const int64_t count = edges.shape[1];
    BatchField index;
    index.name = field.name;
    index.type = {DType::i64, {count}};
    index.bound = shape[0];
    std::vector<int64_t> sources(static_cast<size_t>(count)), targets(sources.size());
    load_elements(edges, edges.sample(0), 0, count, index, sources.data());
    load_elements(edges, edges.sample(1), count, count, index, targets.data());
    neighbours_.resize(static_cast<size_t>(shape[0]));
    for (size_t e = 0; e < targets.size(); ++e)
      neighbours_[static_cast<size_t>(targets[e])].push_back(sources[e]);
  }

  void read_adjacency(const BatchField& field, const Box& box, char* out) const {
    const int64_t columns = box[1].size, width = size_of(field.type.dtype);
    std::fill_n(out, element_count(box_shape(box)) * width, '\0');
    for (int64_t row = 0; row < box[0].size; ++row) {
      for (int64_t source : neighbours_[static_cast<size_t>(box[0].begin + row)]) {
        const int64_t column = source - box[1].begin;
        if (column < 0 || column >= columns) continue;
        dispatch(field.type.dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          reinterpret_cast<T*>(out)[row * columns + column] = T(1);
        });
      }
    }
  }

  void place_masks(const std::array<std::vector<int64_t>, 3>& masks) {
    int64_t rows = -1;
    for (const Part& part : parts_) {
      const BatchField& field = part.field;
      if (field.role != BatchField::Role::target) continue;
      SR_REQUIRE(!is_float(field.type.dtype) && field.ignore.has_value() && !part.scalar,
                 invalid_input, "--data ", spec_, ": masks leave targets out, but the model's '",
                 field.name, "' (", field.type,
                 ") has no label for that; let the loss be --loss cross-entropy, or one with an "
                 "ignore_index");
      rows = field.type.shape[0];
    }
    SR_REQUIRE(rows >= 0, invalid_input, "--data ", spec_,
               ": has masks, but the model has no targets for them; name a loss with --loss");
    for (size_t s = 0; s < masks.size(); ++s) {
      splits_[s].assign(static_cast<size_t>(rows), 0);
      sizes_[s] = static_cast<int64_t>(masks[s].size());
      for (int64_t row : masks[s]) splits_[s][static_cast<size_t>(row)] = 1;
    }
  }

  std::string spec_;
  bool masked_;
  std::vector<Part> parts_;
  std::vector<std::vector<int64_t>> neighbours_;  // of each target, for an adjacency
  std::vector<int64_t> edge_order_;
  std::array<std::vector<char>, 3> splits_;  // per row: does its target count?
  std::array<int64_t, 3> sizes_{};
};

}  // namespace

std::vector<int64_t> order_of_targets(const StoredArray& edges) {
  const int64_t count = edges.shape[1];
  BatchField wide;
  wide.type = {DType::i64, {count}};
  std::vector<int64_t> targets(static_cast<size_t>(count)), order(targets.size());
  load_elements(edges, edges.sample(1), count, count, wide, targets.data());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return targets[static_cast<size_t>(a)] < targets[static_cast<size_t>(b)];
  });
  return order;
}

bool belongs_to_edges(const std::string& input) { return input.rfind("edge", 0) == 0; }

bool is_edge_list(const BatchField& field) {
  const Shape& shape = field.type.shape;
  return field.role == BatchField::Role::input && !is_float(field.type.dtype) &&
         shape.size() == 2 && shape[0] == 2;
}

std::unique_ptr<DataSource> make_whole_source(ArrayData data, std::vector<BatchField> fields,
                                              const DataOptions& options) {
  return std::make_unique<WholeSource>(std::move(data), std::move(fields), options);
}

}  // namespace shardrun
