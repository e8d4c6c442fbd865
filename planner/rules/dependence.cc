// Dependence: runs with one row changed, and windows fitted to what they show.
#include "planner/rules/dependence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/at.h"

namespace shardrun {
namespace {

constexpr int64_t kMostStride = 32;

/// Marks, for each dim, the rows in which two tensors of one type differ.
void mark_differences(const Tensor& a, const Tensor& b, std::vector<std::vector<bool>>& rows) {
  const Shape& shape = a.shape();
  const int64_t element = size_of(a.dtype()), inner = shape.empty() ? 1 : shape.back();
  const auto run = static_cast<size_t>(inner * element), width = static_cast<size_t>(element);
  const int64_t runs = inner == 0 ? 0 : a.count() / inner;
  const char *x = static_cast<const char*>(a.data()), *y = static_cast<const char*>(b.data());
  for (int64_t r = 0; r < runs; ++r, x += run, y += run) {
    if (std::memcmp(x, y, run) == 0) continue;
    int64_t outer = r;
    for (size_t d = shape.size(); d-- > 1;) {
      rows[d - 1][static_cast<size_t>(outer % shape[d - 1])] = true;
      outer /= shape[d - 1];
    }
    if (shape.empty()) continue;
    std::vector<bool>& last = rows.back();
    for (size_t i = 0; i < last.size(); ++i) {
      if (!last[i] && std::memcmp(x + i * width, y + i * width, width) != 0) last[i] = true;
    }
  }
}

/// What the ends of windows say of b, where an end is floor((p v + b) / q).
struct Bounds {
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  void at_least(int64_t x) { least = std::max(least, x); }
  void at_most(int64_t x) { most = std::min(most, x); }
  bool is_possible() const { return least <= most; }
};

}  // namespace

Relation Relation::transposed() const {
  Relation out(to_, from_);
  for (int64_t t = 0; t < to_; ++t) {
    for (int64_t f = 0; f < from_; ++f) {
      if (at(f, t)) out.set(t, f);
    }
  }
  return out;
}

bool Relation::is_full() const {
  return std::all_of(bits_.begin(), bits_.end(), [](bool bit) { return bit; });
}
bool Relation::is_empty() const {
  return std::none_of(bits_.begin(), bits_.end(), [](bool bit) { return bit; });
}

std::optional<HaloWindow> fit_window(std::span<const Relation> relations) {
  struct Ends {
    int64_t row, low, high, count;
  };
  std::vector<Ends> ends;
  int64_t most = 0;
  for (const Relation& relation : relations) {
    for (int64_t t = 0; t < relation.to(); ++t) {
      Ends e{t, -1, -1, 0};
      for (int64_t f = 0; f < relation.from(); ++f) {
        if (!relation.at(f, t)) continue;
        if (e.low < 0) e.low = f;
        e.high = f;
        ++e.count;
      }
      if (e.count > 0) ends.push_back(e);  // else it goes with padding, or falls between strides
      most = std::max(most, e.count);
    }
  }
  const auto whole = [&](const Ends& e) { return e.count == most; };
  if (std::count_if(ends.begin(), ends.end(), whole) < 2) return std::nullopt;
  std::optional<HaloWindow> found;
  const auto attempt = [&](int64_t p, int64_t q) {
    Bounds low, high;
    for (const Ends& e : ends) {
      low.at_most(q * (e.low + 1) - 1 - p * e.row);
      high.at_least(q * e.high - p * e.row);
      if (!whole(e)) continue;
      low.at_least(q * e.low - p * e.row);
      high.at_most(q * (e.high + 1) - 1 - p * e.row);
    }
    if (!low.is_possible() || !high.is_possible()) return true;
    if (found) return false;  // several strides would do
    found = HaloWindow{p, q, low.most, high.least};
    return true;
  };
  for (int64_t stride = 1; stride <= kMostStride; ++stride) {
    if (!attempt(stride, 1) || (stride > 1 && !attempt(1, stride))) return std::nullopt;
  }
  return found;
}

int64_t Dependence::extent(size_t trial, const NodeDim& dim) const {
  const SmallNode& small = trials_.small(trial);
  return (dim.result ? small.out : small.in)[at(dim.index)].shape[at(dim.dim)];
}

const std::vector<Tensor>& Dependence::others(size_t trial, size_t data) {
  std::vector<Tensor>& found = others_[{trial, data}];
  if (found.empty()) found = trials_.other_operands(trial, data);
  return found;
}

std::vector<Tensor> Dependence::with_row(size_t trial, size_t data, std::vector<Tensor> operands,
                                         const NodeDim& dim, int64_t row) {
  Tensor& whole = operands[at(dim.index)];
  const Box all = full_box(whole.shape());
  Box slab = all;
  slab[at(dim.dim)] = {row, 1};
  Tensor copy = cut_tensor(whole, all);
  copy_box(others(trial, data)[at(dim.index)].data(), all, copy.data(), all, slab,
           size_of(whole.dtype()));
  whole = copy;
  return operands;
}

Dependence::Results Dependence::run_changed(size_t trial, size_t data, const NodeDim& dim,
                                            int64_t row) {
  return trials_.run_whole(trial, with_row(trial, data, trials_.operands(trial, data), dim, row));
}

const Dependence::Results& Dependence::changed(size_t trial, const NodeDim& dim, int64_t row) {
  const auto key = std::make_tuple(trial, dim, row);
  auto it = changed_.find(key);
  if (it == changed_.end())
    it = changed_.emplace(key, run_changed(trial, kMeeting, dim, row)).first;
  return it->second;
}

const Dependence::Touched& Dependence::touched(size_t trial, const NodeDim& dim, int64_t row) {
  Touched& found = touched_[{trial, dim, row}];
  if (!found.empty()) return found;
  for (const TensorType& type : trials_.small(trial).out) {
    found.emplace_back();
    for (int64_t size : type.shape) found.back().emplace_back(static_cast<size_t>(size), false);
  }
  for (size_t data = 0; data < kKinds; ++data) {
    Results other;
    if (data != kMeeting) other = run_changed(trial, data, dim, row);
    const Results& now = data == kMeeting ? changed(trial, dim, row) : other;
    for (size_t r = 0; r < now.size(); ++r)
      mark_differences(trials_.results(trial, data)[r], now[r], found[r]);
  }
  return found;
}

bool Dependence::touches_some(const NodeDim& operand, const NodeDim& result) {
  for (size_t trial = 0; trial < trials_.count(); ++trial) {
    const int64_t rows = extent(trial, operand), out = extent(trial, result);
    if (rows < 2 || out < 2) continue;
    // How many results the row changes.
    const auto reach = [&](int64_t row) {
      const auto& marks = touched(trial, operand, row)[at(result.index)][at(result.dim)];
      return std::count(marks.begin(), marks.end(), true);
    };
    // From either end on until a row counts: a stride or cropping may leave some out.
    for (const bool from_end : {false, true}) {
      int64_t count = 0;
      for (int64_t i = 0; i < rows && count == 0; ++i) count = reach(from_end ? rows - 1 - i : i);
      if (count > 0 && count < out) return true;
    }
  }
  return false;
}

Relation Dependence::influence(size_t trial, const NodeDim& operand, const NodeDim& result) {
  Relation relation(extent(trial, operand), extent(trial, result));
  for (int64_t row = 0; row < relation.from(); ++row) {
    const auto& marks = touched(trial, operand, row)[at(result.index)][at(result.dim)];
    for (int64_t t = 0; t < relation.to(); ++t) {
      if (marks[static_cast<size_t>(t)]) relation.set(row, t);
    }
  }
  return relation;
}

std::vector<Relation> Dependence::influence(const NodeDim& operand, const NodeDim& result) {
  std::vector<Relation> relations;
  for (size_t trial = 0; trial < trials_.count(); ++trial)
    relations.push_back(influence(trial, operand, result));
  return relations;
}

bool Dependence::add_up(size_t trial, const Results& together,
                        std::span<const Results* const> alone) const {
  const Results& none = trials_.results(trial, kMeeting);
  for (size_t r = 0; r < together.size(); ++r) {
    if (!is_float(together[r].dtype())) continue;
    // together - none is the sum of the changes alone: w - x - y + z = 0 of two.
    const Tensor w = convert(together[r], DType::f64), z = convert(none[r], DType::f64);
    const int64_t count = w.count();
    const double *pw = w.as<double>(), *pz = z.as<double>();
    std::vector<double> rest(pw, pw + count), scale(static_cast<size_t>(count));
    const auto others = static_cast<double>(alone.size()) - 1;
    for (size_t i = 0; i < rest.size(); ++i) {
      rest[i] += others * pz[i];
      scale[i] = std::abs(pw[i]) + others * std::abs(pz[i]);
    }
    for (const Results* one : alone) {
      const Tensor x = convert((*one)[r], DType::f64);
      const double* px = x.as<double>();
      for (size_t i = 0; i < rest.size(); ++i) {
        rest[i] -= px[i];
        scale[i] += std::abs(px[i]);
      }
    }
    for (size_t i = 0; i < rest.size(); ++i) {
      if (std::abs(rest[i]) > 1e-9 * scale[i]) return false;
    }
  }
  return true;
}

bool Dependence::meet(size_t trial, const NodeDim& a, int64_t row_a, const NodeDim& b,
                      int64_t row_b) {
  const std::vector<Tensor> operands =
      with_row(trial, kMeeting,
               with_row(trial, kMeeting, trials_.operands(trial, kMeeting), a, row_a), b, row_b);
  const Results* alone[] = {&changed(trial, a, row_a), &changed(trial, b, row_b)};
  return !add_up(trial, trials_.run_whole(trial, operands), alone);
}

const Dependence::Results& Dependence::replaced(size_t trial, size_t operand) {
  Results& found = replaced_[{trial, operand}];
  if (found.empty()) {
    std::vector<Tensor> operands = trials_.operands(trial, kMeeting);
    operands[operand] = others(trial, kMeeting)[operand];
    found = trials_.run_whole(trial, operands);
  }
  return found;
}

bool Dependence::some_meet(size_t trial) {
  const auto [it, fresh] = some_meet_.try_emplace(trial, false);
  if (!fresh) return it->second;
  std::vector<const Results*> alone;
  for (size_t i = 0; i < trials_.operands(trial, kMeeting).size(); ++i)
    alone.push_back(&replaced(trial, i));
  it->second = !add_up(trial, trials_.run_whole(trial, others(trial, kMeeting)), alone);
  return it->second;
}

bool Dependence::meet(size_t trial, size_t a, size_t b) {
  if (trials_.operands(trial, kMeeting).size() > kFew && !some_meet(trial)) return false;
  const auto [it, fresh] = meet_.try_emplace({trial, std::min(a, b), std::max(a, b)}, false);
  if (fresh) {
    const std::vector<Tensor>& other = others(trial, kMeeting);
    std::vector<Tensor> both = trials_.operands(trial, kMeeting);
    both[a] = other[a];
    both[b] = other[b];
    const Results* alone[] = {&replaced(trial, a), &replaced(trial, b)};
    it->second = !add_up(trial, trials_.run_whole(trial, both), alone);
  }
  return it->second;
}

std::vector<Relation> Dependence::interaction(const NodeDim& a, const NodeDim& b) {
  if (const auto known = interactions_.find({b, a}); known != interactions_.end()) {
    std::vector<Relation> turned;
    for (const Relation& relation : known->second) turned.push_back(relation.transposed());
    return turned;
  }
  const auto [it, fresh] = interactions_.try_emplace({a, b});
  if (fresh) it->second = find_interaction(a, b);
  return it->second;
}

std::vector<Relation> Dependence::find_interaction(const NodeDim& a, const NodeDim& b) {
  std::vector<Relation> relations;
  bool any = false;
  for (size_t trial = 0; trial < trials_.count() && !any; ++trial)
    any = meet(trial, at(a.index), at(b.index));
  for (size_t trial = 0; trial < trials_.count() && any; ++trial) {
    Relation relation(extent(trial, a), extent(trial, b));
    const int64_t last_a = relation.from() - 1, last_b = relation.to() - 1;
    if (trial == 0 && meet(trial, a, 0, b, last_b) && meet(trial, a, last_a, b, 0)) return {};
    for (int64_t row_a = 0; row_a <= last_a; ++row_a) {
      for (int64_t row_b = 0; row_b <= last_b; ++row_b) {
        if (meet(trial, a, row_a, b, row_b)) relation.set(row_a, row_b);
      }
    }
    relations.push_back(std::move(relation));
  }
  return relations;
}

}  // namespace shardrun
