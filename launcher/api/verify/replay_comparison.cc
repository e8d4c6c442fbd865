// How far values may be off, and the elements that are.
#include "verify/replay_comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/philox.h"
#include "ranks/lockstep.h"

namespace shardrun {
namespace {

using Reader = double (*)(const void*, int64_t);

Reader reader_of(DType dtype) {
  return dispatch(dtype, [](auto tag) -> Reader {
    using T = typename decltype(tag)::type;
    return [](const void* data, int64_t i) {
      return static_cast<double>(static_cast<const T*>(data)[i]);
    };
  });
}

/// By what a value of this type is blurred, relatively; 0: it is left alone.
double blur_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return 0x1p-20;
    case DType::f64: return 0x1p-49;
    case DType::bf16: return 0x1p-8;
    default: return 0;
  }
}

/// A sum of more terms may differ by more.
constexpr double kTermsForTolerance = 0x1p16;

double reduce(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::sum: return a + b;
    case ReduceOp::prod: return a * b;
    case ReduceOp::max: return std::max(a, b);
    case ReduceOp::min: break;
  }
  return std::min(a, b);
}

/// Visits the elements of a box in row-major order: f(index in the box, index in the whole).
template <class F>
void for_box(const Box& box, const Shape& whole, F&& f) {
  if (is_empty(box)) return;
  const Shape strides = row_major_strides(whole);
  Shape at(box.size(), 0);
  const int64_t count = element_count(box_shape(box));
  for (int64_t local = 0; local < count; ++local) {
    int64_t global = 0;
    for (size_t d = 0; d < box.size(); ++d) global += (box[d].begin + at[d]) * strides[d];
    if (!f(local, global)) return;
    for (size_t d = box.size(); d-- > 0;) {
      if (++at[d] < box[d].size) break;
      at[d] = 0;
    }
  }
}

std::vector<int64_t> coordinates_of(int64_t index, const Shape& shape) {
  std::vector<int64_t> at(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    at[d] = index % shape[d];
    index /= shape[d];
  }
  return at;
}

/// Gives a group the reference's value. Of partial sums the first takes the correction: of 1.25
/// and 2.5, where 3.7501 is wanted, 1.2501 and 2.5 remain. Terms so large that none can take it
/// (16777217 and -16777216, where 0.3 is wanted) become equal parts.
void correct(const Sharding& sharding, const Box& box, const std::vector<int64_t>& group,
             const std::vector<TensorView>& shards, const TensorView& wanted) {
  const DType dtype = wanted.type.dtype;
  const TensorView& first = shards[static_cast<size_t>(group[0])];
  if (sharding.partial.empty()) {
    copy_box(wanted.data, full_box(wanted.type.shape), first.data, box, box, size_of(dtype));
  } else if (is_float(dtype) && std::all_of(sharding.partial.begin(), sharding.partial.end(),
                                            [](const auto& p) { return p.op == ReduceOp::sum; })) {
    const Reader read = reader_of(dtype);
    dispatch_float(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for_box(box, wanted.type.shape, [&](int64_t local, int64_t global) {
        const double want = read(wanted.data, global);
        const auto take_rest = [&] {  // gives what remains wrong
          double others = 0;
          for (size_t m = 1; m < group.size(); ++m)
            others += read(shards[static_cast<size_t>(group[m])].data, local);
          first.as<T>()[local] = static_cast<T>(want - others);
          return std::abs(want - others - read(first.data, local));
        };
        if (take_rest() > blur_of(dtype) * std::abs(want)) {
          for (int64_t member : group) {
            shards[static_cast<size_t>(member)].as<T>()[local] =
                static_cast<T>(want / static_cast<double>(group.size()));
          }
          take_rest();
        }
        return true;
      });
    });
  }
}

/// The group's values in row-major order of the partial axes, combined axis by axis.
double combine(std::vector<double>& terms, const Sharding& sharding, const Mesh& mesh) {
  size_t count = terms.size();
  for (size_t p = sharding.partial.size(); p-- > 0;) {
    const auto size = static_cast<size_t>(mesh.axis_size(sharding.partial[p].axis));
    count /= size;
    for (size_t i = 0; i < count; ++i) {
      double sum = terms[i * size];
      for (size_t k = 1; k < size; ++k)
        sum = reduce(sharding.partial[p].op, sum, terms[i * size + k]);
      terms[i] = sum;
    }
  }
  return terms[0];
}

}  // namespace

void blur(const TensorView& view, const std::string& name) {
  const double by = blur_of(view.type.dtype);
  if (by == 0) return;
  const RandomStream random{0, hash_name(name.data(), name.size()), 0};
  dispatch_float(view.type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* data = view.as<T>();
    for (int64_t i = 0; i < view.count(); ++i) {
      double u = 2.0 * random.uniform(static_cast<uint64_t>(i)) - 1.0;
      if (view.type.dtype == DType::bf16) u = std::copysign(1.0, u);
      data[i] = static_cast<T>(static_cast<double>(data[i]) * (1.0 + by * u));
    }
  });
}

void Comparison::begin(const ReplayAct& act, bool training) {
  act_ = &act;
  training_ = training;
  scales_.clear();  // what persists is equal by now
}

Replay Comparison::result() const {
  Replay out = result_;
  out.values = static_cast<int64_t>(values_.size());
  return out;
}

void Comparison::learn_scale(ValueId value, const TensorView& wanted, const TensorView& blurred,
                             double terms) {
  const Reader read = reader_of(wanted.type.dtype);
  const double blur = blur_of(wanted.type.dtype);
  double most = 0, noise = 0;
  for (int64_t i = 0; i < wanted.count(); ++i) {
    const double x = read(wanted.data, i), difference = std::abs(read(blurred.data, i) - x);
    if (std::isfinite(x)) most = std::max(most, std::abs(x));
    if (std::isfinite(difference)) noise = std::max(noise, difference);
  }
  Scale& scale = scales_[value];
  scale.tolerance = tolerance_;
  if (blur == 0) {  // whole numbers, exact unless the shadow shows that rounding decides them
    scale.scale = noise / tolerance_;
  } else {
    if (wanted.type.dtype != DType::f32) scale.tolerance *= blur / blur_of(DType::f32);
    scale.tolerance *= std::max(1.0, terms / kTermsForTolerance);
    scale.tolerance = std::min(scale.tolerance, 0x1p-4);
    scale.scale = std::max(most, noise / blur);
  }
  const Scale learnt = scale;
  for (const auto& [held, next] :
       act_->graph.updates) {  // what it replaces holds it from the next micro-batch on
    if (next == value) scales_[held] = learnt;
  }
  if (wanted.count() > 0)
    std::memcpy(blurred.data, wanted.data, static_cast<size_t>(byte_size(wanted.type)));
}

void Comparison::compare(ValueId value, const Sharding& sharding,
                         const std::vector<TensorView>& shards, const TensorView& wanted,
                         const std::string& where) {
  std::vector<Box> boxes;
  for (int64_t rank = 0; rank < act_->plan.mesh.size(); ++rank)
    boxes.push_back(
        local_box(wanted.type.shape, sharding, act_->plan.mesh, act_->plan.mesh.coordinates(rank)));
  compare(value, sharding, boxes, shards, wanted, where);
}

void Comparison::compare(ValueId value, const Sharding& sharding, const std::vector<Box>& boxes,
                         const std::vector<TensorView>& shards, const TensorView& wanted,
                         const std::string& where) {
  values_.emplace(!training_, act_->graph.value(value).name);
  ++result_.comparisons;
  if (wanted.count() == 0) return;
  const Reader read = reader_of(wanted.type.dtype);
  // A held value that no node has made yet is copied, so it is equal.
  const Scale scale = scales_.count(value) ? scales_.at(value) : Scale();
  std::vector<int> axes;
  for (const auto& p : sharding.partial) axes.push_back(p.axis);
  for (int64_t rank = 0; rank < act_->plan.mesh.size(); ++rank) {
    const std::vector<int64_t> group = act_->plan.mesh.group(rank, axes);
    if (group.front() != rank) continue;
    const Box& box = boxes[static_cast<size_t>(rank)];
    for (int64_t member : group) {
      SR_REQUIRE(shards[static_cast<size_t>(member)].type.shape == box_shape(box), internal,
                 "replay: '", act_->graph.value(value).name, "' on rank ", member, " is ",
                 shards[static_cast<size_t>(member)].type, ", the plan says ",
                 to_string(sharding, act_->plan.mesh));
    }
    std::vector<double> terms(group.size());
    for_box(box, wanted.type.shape, [&](int64_t local, int64_t global) {
      for (size_t m = 0; m < group.size(); ++m)
        terms[m] = read(shards[static_cast<size_t>(group[m])].data, local);
      const double got = combine(terms, sharding, act_->plan.mesh),
                   want = read(wanted.data, global);
      const double difference = std::abs(got - want);
      if (got == want || (std::isnan(got) && std::isnan(want))) return true;
      if (difference <= scale.allowed()) {
        result_.largest = std::max(result_.largest, difference / scale.scale);
        return true;
      }
      result_.mismatch = Mismatch{act_->graph.value(value).name,
                                  where,
                                  to_string(sharding, act_->plan.mesh),
                                  group,
                                  coordinates_of(global, wanted.type.shape),
                                  got,
                                  want,
                                  scale.allowed(),
                                  training_};
      return false;
    });
    if (result_.mismatch) throw Stopped();
    correct(sharding, box, group, shards, wanted);
  }
}

}  // namespace shardrun
