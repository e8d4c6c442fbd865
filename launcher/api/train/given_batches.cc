// Looking at arrays before any rank reads them.
#include "train/given_batches.h"

#include <cmath>
#include <type_traits>

#include "elements.h"

namespace shardrun {
namespace {

/// `count` boxes behind one another along dim 0.
Shape behind_one_another(Shape shape, int64_t count) {
  if (!shape.empty()) shape[0] *= count;
  return shape;
}

std::string place_of(int64_t element, const Shape& shape) {
  Shape at(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    at[d] = element % shape[d];
    element /= shape[d];
  }
  return to_string(at);
}

std::string shown(const Box& box) {
  std::string out;
  for (const Range& range : box) out += str(out.empty() ? "" : ", ", range.begin, ":", range.end());
  return "[" + out + "]";
}

template <class T>
void check_number(T value, int64_t at, const Shape& shape, const std::string& what) {
  SR_REQUIRE(!std::isnan(static_cast<double>(value)), invalid_input, what, " ", place_of(at, shape),
             " is not a number");
}

/// Only what the model's file allows reaches a kernel.
template <class T>
void check_elements(const T* values, const Shape& shape, const BatchField& field) {
  const auto columns = static_cast<int64_t>(field.column_bounds.size());
  const std::string what = str("batch: '", field.name, "'");
  for (int64_t i = 0; i < element_count(shape); ++i) {
    if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, bfloat16>) {
      check_number(values[i], i, shape, what);
    } else {
      const auto value = static_cast<int64_t>(values[i]);
      if (field.role == BatchField::Role::target && field.ignore == value) continue;
      const int64_t own = columns > 0 ? field.column_bounds[static_cast<size_t>(i % columns)] : 0;
      const int64_t bound = own > 0 ? own : field.bound;
      SR_REQUIRE(bound == 0 || (value >= 0 && value < bound), invalid_input, what, " ",
                 place_of(i, shape), " is ", value, ", wanted 0 to ", bound - 1);
    }
  }
}

}  // namespace

void check_numbers(const void* data, const TensorType& type, const std::string& what) {
  if (!is_float(type.dtype)) return;
  dispatch(type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < element_count(type.shape); ++i)
      check_number(static_cast<const T*>(data)[i], i, type.shape, what);
  });
}

const BatchField& GivenBatches::field(const std::string& name) const {
  std::string names;
  for (const BatchField& field : fields_) {
    if (field.name == name) return field;
    names += str(names.empty() ? "'" : ", '", field.name, "'");
  }
  fail(ErrorKind::invalid_input, "batch: the model has no input '", name, "'; it has ", names);
}

GivenBatches::Given GivenBatches::look_at(const ArrayView& array, const BatchField& field,
                                          int64_t count, const Box* part) const {
  const DType from = element_dtype(array.info.type), to = field.type.dtype;
  const bool fits = from == to || (is_float(from) && is_float(to)) ||
                    (to == DType::i64 && from == DType::i32) ||
                    (to == DType::i32 && from == DType::i64);
  SR_REQUIRE(fits, invalid_input, "batch: '", field.name, "' is of ", from, ", the model's of ",
             to);
  Given out;
  out.box = full_box(field.type.shape);
  const Shape whole = behind_one_another(field.type.shape, count);
  if (array.info.shape != whole) {
    const Shape own = part != nullptr ? behind_one_another(box_shape(*part), count) : Shape();
    SR_REQUIRE(part != nullptr && array.info.shape == own, invalid_input, "batch: '", field.name,
               "' is ", to_string(array.info.shape), ", wanted ", to_string(whole),
               part != nullptr ? str(", or this rank's shard ", to_string(own)) : "",
               count > 1 ? str(", of ", count, " micro-batches") : "");
    out.box = *part;
  }
  SR_REQUIRE(array.data != nullptr || element_count(array.info.shape) == 0, invalid_input,
             "batch: '", field.name, "' has no data");
  dispatch(from, [&](auto tag) {
    using T = typename decltype(tag)::type;
    check_elements(static_cast<const T*>(array.data), array.info.shape, field);
  });
  out.data = array.data;
  if (from != to) {
    out.copy = Tensor({to, array.info.shape});
    convert(array.data, from, out.copy.data(), to, out.copy.count());
    out.data = out.copy.data();
  }
  return out;
}

void GivenBatches::give(const Trainer::Batch& batch, Split split, int64_t first,
                        bool targets_needed, const std::function<Box(const std::string&)>& part) {
  const int64_t count = split == Split::training ? micro_batches_ : 1;
  for (const auto& [name, array] : batch) field(name);  // throws for one that is not
  std::map<std::string, Given> given;
  for (const BatchField& field : fields_) {
    const auto array = batch.find(field.name);
    if (array == batch.end()) {
      const bool target = field.role == BatchField::Role::target;
      SR_REQUIRE(target && !targets_needed, invalid_input, "batch: the model's input '", field.name,
                 "' ", field.type, " has no array");
      continue;
    }
    const std::optional<Box> own = part ? std::optional(part(field.name)) : std::nullopt;
    given.emplace(field.name, look_at(array->second, field, count, own ? &*own : nullptr));
  }
  given_ = std::move(given);
  first_ = first;
}

void GivenBatches::read(int64_t batch, Split split, const BatchField& field, const Box& box,
                        void* out) const {
  if (is_empty(box)) return;
  const int64_t width = size_of(field.type.dtype);
  const auto it = given_.find(field.name);
  if (it == given_.end()) {
    Tensor none({field.type.dtype, box_shape(box)});
    if (field.role == BatchField::Role::target && field.ignore && !is_float(field.type.dtype)) {
      const Tensor ignored = Tensor::scalar_i64(*field.ignore);
      for (int64_t i = 0; i < none.count(); ++i)
        convert(ignored.data(), DType::i64, none.as<char>() + i * width, field.type.dtype, 1);
    }
    if (none.count() > 0) std::memcpy(out, none.data(), static_cast<size_t>(none.count() * width));
    return;
  }
  const Given& given = it->second;
  SR_REQUIRE(intersect(given.box, box) == box, invalid_input, "batch: '", field.name,
             "' is this rank's shard ", shown(given.box), ", and it reads ", shown(box),
             " here; give it whole");
  const int64_t micro = split == Split::training ? batch - first_ : 0;
  const int64_t bytes = micro * element_count(box_shape(given.box)) * width;
  copy_box(static_cast<const char*>(given.data) + bytes, given.box, out, box, box, width);
}

}  // namespace shardrun
