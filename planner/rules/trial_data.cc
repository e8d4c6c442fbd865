// The data that ShardCombine runs on: small shapes, random operands, random summands, comparison.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "planner/rules/trial.h"

namespace shardrun {
namespace {

using Data = Evidence::Data;

// Sizes that leave no shard of 2 or 3 empty (4 over 3 is 2, 2, 0), most of them uneven. 6 divides
// evenly.
constexpr int64_t kSizes[2][5] = {{5, 3, 7, 8, 10}, {6, 7, 5, 3, 9}};
// Where many operands make much of those: a concatenation of twenty tensors.
constexpr int64_t kManySizes[2][5] = {{5, 7, 3, 4, 6}, {6, 5, 4, 3, 7}};
// Where those make too much: a patch of 16 x 16 that steps by 16 wants images of 48 at least.
constexpr int64_t kLeastSizes[2][5] = {{3, 5, 4, 7, 6}, {5, 3, 7, 4, 8}};
// Where a run takes long: in the order of how many dims have a size.
constexpr int64_t kLeanSizes[2][5] = {{3, 5, 6, 7, 8}, {5, 3, 7, 6, 9}};
constexpr int64_t kWindowCounts[2] = {3, 5};
constexpr double kLongRun = 1 << 18;        // work() of one
constexpr int64_t kTinySize = 4;            // when small sizes are refused, dims up to this stay,
constexpr int64_t kKeptSize = 16;           // and then dims up to this
constexpr int64_t kManyElements = 1 << 13;  // of all operands and results of one trial
constexpr int64_t kMostElements = 1 << 16;  // no trial has more

/// Random operands, and the parts that a value is split into.
struct DrawSettings {
  // Magnitudes.
  double least = 0.25, span = 2.5;  // of floating numbers: from the one, by at most the other
  int64_t whole = 5, grid = 3;      // of whole numbers, and of Data::grid: 1 to that
  double decades = 8;               // of Data::spread: half of them above 1
  double beyond = 2;                // times the largest attribute: Data::wide
  double largest = 1e6;             // attribute that counts
  // Parts.
  double step = 0.25;                        // of the whole at least, and at most 1 more
  double whole_steps = 4;                    // of whole numbers: 1 to that
  double least_part = 0.1, span_part = 0.8;  // of equal parts, where all have one sign
  // Seeds of calls, so that they differ.
  uint64_t operand_seed = 101, part_seed = 211, part_stream = 0x5b17;
};
constexpr DrawSettings kDraw;

int64_t small_size(const int64_t (&sizes)[2][5], int set, size_t index) {
  constexpr size_t kCount = std::size(kSizes[0]);
  return index < kCount ? sizes[set][index] : static_cast<int64_t>(index - kCount) + 11;
}

/// Uniform numbers by SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators",
/// OOPSLA 2014), because summands of many tensors take millions of them.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : state_(mixed(seed) ^ mixed(~stream)) {}
  double uniform() { return as_uniform(bits()); }
  int64_t below(int64_t n) { return as_below(bits(), n); }
  bool coin() { return uniform() < 0.5; }
  /// A number and a choice of four, of one call.
  std::pair<double, int> uniform_and_quarter() {
    const uint64_t drawn = bits();
    return {as_uniform(drawn), static_cast<int>(drawn & 3u)};
  }

 private:
  static double as_uniform(uint64_t drawn) {
    return (static_cast<double>(drawn >> 32) + 0.5) * 0x1p-32;
  }
  static int64_t as_below(uint64_t drawn, int64_t n) {
    return std::min<int64_t>(n - 1,
                             static_cast<int64_t>(as_uniform(drawn) * static_cast<double>(n)));
  }
  uint64_t bits() { return mixed(state_ += 0x9E3779B97F4A7C15); }
  static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }
  uint64_t state_;
};

template <class F>
void fill_with(Tensor& t, F&& next) {
  const int64_t n = t.count();
  dispatch(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* p = t.as<T>();
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (std::is_same_v<T, bfloat16>) {
        p[i] = bfloat16(static_cast<float>(next()));
      } else {
        p[i] = static_cast<T>(next());
      }
    }
  });
}

double largest_number(const Attrs& attrs) {
  double most = 1;
  for (const auto& [name, attr] : attrs.all()) {
    if (const double* f = std::get_if<double>(&attr)) most = std::max(most, std::abs(*f));
  }
  return std::min(most, kDraw.largest);
}

double draw(Random& random, Data kind, bool whole, double wide) {
  const double magnitude =
      whole || kind == Data::grid
          ? static_cast<double>(1 + random.below(whole ? kDraw.whole : kDraw.grid))
          : kDraw.least + kDraw.span * random.uniform();
  switch (kind) {
    case Data::zeros: return 0;
    case Data::positive: return magnitude;
    case Data::negative: return -magnitude;
    case Data::wide: return (random.coin() ? 1 : -1) * magnitude * (whole ? 1 : wide);
    case Data::spread:
      return (random.coin() ? 1 : -1) *
             (whole ? magnitude : std::pow(10.0, kDraw.decades * (random.uniform() - 0.5)));
    case Data::mixed:
    case Data::grid: break;
  }
  return (random.coin() ? 1 : -1) * magnitude;
}

Attrs f64_attrs(const Attrs& attrs) {
  Attrs out = attrs;
  for (const auto& [name, attr] : attrs.all()) {
    const std::string* text = std::get_if<std::string>(&attr);
    if (text != nullptr && *text == "f32") out.set(name, std::string("f64"));
  }
  return out;
}

/// The types with each size replaced by `size(i)`, i counting different sizes in order of
/// appearance.
template <class F>
std::vector<TensorType> with_sizes(std::span<const TensorType> in, F&& size) {
  std::map<int64_t, int64_t> known = {{0, 0}, {1, 1}};
  std::vector<TensorType> out(in.begin(), in.end());
  size_t count = 0;
  for (TensorType& t : out) {
    for (int64_t& d : t.shape) {
      auto [it, fresh] = known.emplace(d, 0);
      if (fresh) it->second = size(d, count++);
      d = it->second;
    }
  }
  return out;
}

/// The sizes of `original`, each made as small as the op's shape rule takes it with the others as
/// they are by then; sizes that only go down together are divided by a common factor. Different
/// sizes stay different. `set` varies the small sizes.
std::vector<TensorType> shrink_each(const OpDef& def, const Node& node,
                                    std::span<const TensorType> original, int set) {
  constexpr int64_t kCandidates[2][8] = {{5, 7, 3, 6, 4, 8, 10, 12}, {6, 9, 4, 7, 8, 10, 12, 16}};
  std::map<int64_t, int64_t> now;
  for (const TensorType& t : original) {
    for (int64_t d : t.shape) now.emplace(d, d);
  }
  const auto types = [&] {
    std::vector<TensorType> out(original.begin(), original.end());
    for (TensorType& t : out) {
      for (int64_t& d : t.shape) d = now.at(d);
    }
    return out;
  };
  const auto taken = [&] {  // different sizes are different, and the shape rule agrees
    std::set<int64_t> distinct;
    for (const auto& [from, to] : now) distinct.insert(to);
    if (distinct.size() < now.size()) return false;
    try {
      def.infer(node, types());
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  for (auto& [from, to] : now) {
    for (int64_t candidate : kCandidates[set]) {
      if (candidate >= from) continue;
      to = candidate;
      if (taken()) break;
      to = from;
    }
  }
  int64_t common = 0;
  for (const auto& [from, to] : now) {
    if (from == to && from > 1) common = std::gcd(common, from);
  }
  const std::map<int64_t, int64_t> one_by_one = now;
  for (int64_t factor = common; factor > 1; --factor) {
    if (common % factor != 0) continue;
    for (auto& [from, to] : now) to = from == to && from > 1 ? from / factor : to;
    const bool small = std::all_of(now.begin(), now.end(),
                                   [](const auto& s) { return s.first <= 1 || s.second > 1; });
    if (small && taken()) break;
    now = one_by_one;
  }
  return types();
}

/// Of all operands and results.
int64_t elements(const SmallNode& small) {
  int64_t n = 0;
  for (const TensorType& t : small.in) n += element_count(t.shape);
  for (const TensorType& t : small.out) n += element_count(t.shape);
  return n;
}

/// Roughly what a run, with what is done about its data, takes: in floating-point operations.
double work(const OpDef& def, const SmallNode& small) {
  constexpr double kPerElement = 32;
  const double flops = def.flops ? def.flops(small.node, small.in, small.out) : 0;
  return flops + kPerElement * static_cast<double>(elements(small));
}

/// kLeanSizes for each size of a node but 0 and 1. A size that no dim of `small` has as it was
/// `proposed` is counted apart: the op's hook has made it as large as it must be, as it does with
/// images. Three windows are proposed for it in one set and five in the other.
std::map<int64_t, int64_t> lean_sizes(const SmallNode& whole, std::span<const TensorType> proposed,
                                      const SmallNode& small, int set) {
  struct Use {
    int64_t size;
    int dims;
    bool is_kept;
  };
  std::vector<Use> uses;
  const auto use_of = [&](int64_t size) {
    return std::find_if(uses.begin(), uses.end(), [&](const Use& u) { return u.size == size; });
  };
  for (size_t i = 0; i < whole.in.size(); ++i) {
    for (size_t d = 0; d < whole.in[i].shape.size(); ++d) {
      const int64_t size = whole.in[i].shape[d];
      if (size > 1 && use_of(size) == uses.end()) uses.push_back({size, 0, false});
      if (size > 1 && small.in[i].shape[d] == proposed[i].shape[d]) use_of(size)->is_kept = true;
    }
  }
  for (const auto* types : {&whole.in, &whole.out}) {
    for (const TensorType& t : *types) {
      for (int64_t size : t.shape) {
        if (const auto use = use_of(size); use != uses.end()) ++use->dims;
      }
    }
  }
  std::stable_sort(uses.begin(), uses.end(),
                   [](const Use& a, const Use& b) { return a.dims > b.dims; });
  std::map<int64_t, int64_t> sizes;
  size_t kept = 0, others = static_cast<size_t>(set);
  for (const Use& use : uses)
    sizes[use.size] =
        use.is_kept ? small_size(kLeanSizes, set, kept++) : kWindowCounts[others++ % 2];
  return sizes;
}

/// What `make` makes of each set's sizes, or of fewer where these make too much. Where a run of any
/// takes long, all sets are lean: of three windows and five the latter tell the stride.
template <class Make>
std::vector<std::optional<SmallNode>> sized_nodes(const OpDef& def, const SmallNode& whole,
                                                  const std::vector<int>& sets, const Make& make) {
  std::vector<std::optional<SmallNode>> first, nodes, lean;
  const auto types = [&](const int64_t(&sizes)[2][5], int set) {
    return with_sizes(whole.in, [&](int64_t, size_t i) { return small_size(sizes, set, i); });
  };
  double all = 0, most = 0, all_lean = 0;
  for (int set : sets) {
    first.push_back(make(types(kSizes, set)));
    nodes.push_back(first.back());
    std::optional<SmallNode>& small = nodes.back();
    if (!small) continue;
    if (elements(*small) > kManyElements) {
      std::optional<SmallNode> fewer = make(types(kManySizes, set));
      if (fewer && elements(*fewer) < elements(*small)) small = std::move(fewer);
    }
    all += work(def, *small);
    most = std::max(most, work(def, *small));
  }
  if (most <= kLongRun) return nodes;
  for (size_t i = 0; i < sets.size(); ++i) {
    if (!first[i]) return nodes;
    const std::map<int64_t, int64_t> sizes =
        lean_sizes(whole, types(kSizes, sets[i]), *first[i], sets[i]);
    lean.push_back(make(with_sizes(whole.in, [&](int64_t d, size_t) { return sizes.at(d); })));
    if (!lean.back()) return nodes;
    all_lean += work(def, *lean.back());
  }
  return all_lean < all ? lean : nodes;
}

}  // namespace

bool is_long_run(const OpDef& def, const SmallNode& small) { return work(def, small) > kLongRun; }

std::vector<SmallNode> small_nodes(const Node& node, std::span<const TensorType> in,
                                   const std::vector<int>& size_sets, bool as_f64) {
  const OpDef& def = op_def(node.op);
  std::vector<TensorType> original(in.begin(), in.end());
  Node base = node;
  base.inputs.clear();
  base.outputs.clear();
  if (as_f64) {
    for (TensorType& t : original) t.dtype = is_float(t.dtype) ? DType::f64 : t.dtype;
    base.attrs = f64_attrs(node.attrs);
  }
  std::vector<SmallNode> found;
  // Nothing for sizes that this op does not take: others are tried.
  const auto make = [&](std::vector<TensorType> types) -> std::optional<SmallNode> {
    SmallNode small{base, std::move(types), {}};
    try {
      if (def.shrink != nullptr && small.in != original)
        small.node.attrs = def.shrink(base, original, small.in);
      // An op without operands shrinks through its attributes alone.
      if (def.shrink != nullptr && original.empty())
        small.node.attrs = def.shrink(base, original, small.in);
      small.out = def.infer(small.node, small.in);
    } catch (const std::exception&) {
      return std::nullopt;
    }
    return small;
  };
  const auto keep = [&](std::optional<SmallNode> small) {
    if (!small || elements(*small) > kMostElements) return;
    const bool known = std::any_of(found.begin(), found.end(), [&](const SmallNode& s) {
      return s.in == small->in && s.node.attrs == small->node.attrs;
    });
    if (!known) found.push_back(std::move(*small));
  };
  const auto add = [&](std::vector<TensorType> types) { keep(make(std::move(types))); };
  SmallNode whole{base, original, {}};
  try {
    whole.out = def.infer(base, original);
  } catch (const std::exception&) {  // results in f64 may be none of the op's
  }
  for (auto& small : sized_nodes(def, whole, size_sets, make)) keep(std::move(small));
  for (int set : size_sets) {
    if (found.size() >= size_sets.size()) break;
    add(with_sizes(original, [&](int64_t d, size_t i) {
      return d <= kTinySize ? d : small_size(kSizes, set, i);
    }));
  }
  for (int set : size_sets) {
    if (found.size() >= size_sets.size()) break;
    add(with_sizes(original, [&](int64_t d, size_t i) {
      return d <= kTinySize ? d : small_size(kLeastSizes, set, i);
    }));
  }
  if (def.foreign && found.size() < size_sets.size()) {
    for (int set : size_sets) add(shrink_each(def, base, original, set));
  }
  if (found.size() < size_sets.size()) {
    add(with_sizes(original, [&](int64_t d, size_t i) {
      return d <= kKeptSize ? d : kKeptSize + 1 + static_cast<int64_t>(i);
    }));
  }
  if (found.size() < size_sets.size()) add(original);
  return found;
}

std::vector<Tensor> random_operands(const Node& node, std::span<const TensorType> in, Data kind,
                                    uint64_t seed) {
  const OpDef& def = op_def(node.op);
  const double wide = kDraw.beyond * largest_number(node.attrs);
  std::vector<Tensor> out;
  for (size_t i = 0; i < in.size(); ++i) {
    Random random(seed * kDraw.operand_seed + static_cast<uint64_t>(kind), i);
    const std::optional<int64_t> bound =
        def.index_bound == nullptr ? std::nullopt : def.index_bound(node, in, i);
    Tensor t(in[i]);
    if (in[i].dtype == DType::boolean) {
      fill_with(t, [&] { return random.coin(); });
    } else if (bound.has_value()) {
      fill_with(t, [&] { return *bound > 0 ? random.below(*bound) : 0; });
    } else {
      const Data k = in[i].dtype == DType::u8 && kind != Data::zeros ? Data::positive : kind;
      fill_with(t, [&] {
        return draw(random, k, !is_float(t.dtype()) || t.dtype() != DType::f64, wide);
      });
    }
    out.push_back(std::move(t));
  }
  if (def.settle != nullptr) def.settle(node, out);
  return out;
}

std::vector<Tensor> split_value(const Tensor& whole, ReduceOp op, int64_t parts, Data kind,
                                uint64_t seed) {
  Random random(seed * kDraw.part_seed + static_cast<uint64_t>(op), kDraw.part_stream);
  const bool floating = is_float(whole.dtype());
  const int64_t n = whole.count();
  const auto as_f64 = [](const Tensor& t) {
    return t.dtype() == DType::f64 ? t : convert(t, DType::f64);
  };
  const Tensor true_values = as_f64(whole);
  std::vector<Tensor> out;
  std::vector<double*> values;
  for (int64_t p = 0; p < parts; ++p) {
    out.emplace_back(TensorType{DType::f64, whole.shape()});
    values.push_back(out.back().as<double>());
  }
  const size_t others = values.size() - 1;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    const double truth = true_values.as<double>()[i];
    const size_t owner = static_cast<size_t>(random.below(parts));
    // Integers stay whole and not zero (a kernel may divide by them).
    const double unit = floating ? std::max(1.0, std::abs(truth)) : 1;
    const auto step = [&](double uniform) {
      return floating ? (kDraw.step + uniform) * unit : std::floor(1 + kDraw.whole_steps * uniform);
    };
    // The other parts in order. Which they are is random, so no branch depends on it.
    const auto other = [&](size_t k) { return k + (k >= owner ? 1 : 0); };
    if (op == ReduceOp::prod) {  // powers of two, so that their product is exact
      double left = truth;
      for (size_t k = 0; k < others; ++k) {
        const double size = random.coin() ? 2 : 0.5;
        const double factor = floating ? (random.coin() ? size : -size) : 1;
        values[other(k)][i] = factor;
        left /= factor;
      }
      values[owner][i] = left;
      continue;
    }
    if (op != ReduceOp::sum) {
      const int sign = op == ReduceOp::max ? -1 : 1;
      const auto nonzero = [&](double v) { return !floating && v == 0 ? v + sign : v; };
      values[owner][i] = nonzero(truth);
      for (size_t k = 0; k < others; ++k) {
        const auto [uniform, quarter] = random.uniform_and_quarter();
        // Now and then the identity, which is what a rank holds that has nothing to say: from it
        // 0 * x makes NaN, and x - y does.
        const double v = floating && quarter == 0 ? sign * std::numeric_limits<double>::infinity()
                                                  : truth + sign * step(uniform);
        values[other(k)][i] = nonzero(v);
      }
      continue;
    }
    if (kind == Data::zeros) continue;
    double left = truth;
    const bool one_sign = floating && (kind == Data::positive || kind == Data::negative);
    for (size_t k = 0; k < others; ++k) {
      const auto [uniform, quarter] = random.uniform_and_quarter();
      const double v = one_sign ? truth * (kDraw.least_part + kDraw.span_part * uniform) /
                                      static_cast<double>(parts)
                                : (quarter < 2 ? 1 : -1) * step(uniform);
      values[other(k)][i] = v;
      left -= v;
    }
    if (!floating && left == 0) {  // 3 = 3 + 0: move one over
      const size_t last = owner == 0 ? values.size() - 1 : 0;
      const double move = values[last][i] == 1 ? -1 : 1;
      values[last][i] -= move;
      left += move;
    }
    values[owner][i] = left;
  }
  if (whole.dtype() != DType::f64) {
    for (Tensor& part : out) part = convert(part, whole.dtype());
  }
  return out;
}

Tensor cut_tensor(const Tensor& whole, const Box& box) {
  Tensor out({whole.dtype(), box_shape(box)});
  if (out.count() > 0) {
    copy_box(whole.data(), full_box(whole.shape()), out.data(), box, box, size_of(whole.dtype()));
  }
  return out;
}

bool same_values(const Tensor& a, const Tensor& b, double tolerance, const Tensor* scale) {
  if (a.type() != b.type()) return false;
  const int64_t n = a.count();
  if (!is_float(a.dtype())) {
    return n == 0 ||
           std::memcmp(a.data(), b.data(), static_cast<size_t>(n * size_of(a.dtype()))) == 0;
  }
  Tensor fa, fb, fs;
  const auto as_f64 = [](const Tensor& t, Tensor& converted) {
    if (t.dtype() != DType::f64) converted = convert(t, DType::f64);
    return (converted ? converted : t).as<double>();
  };
  const double *pa = as_f64(a, fa), *pb = as_f64(b, fb),
               *ps = scale == nullptr ? nullptr : as_f64(*scale, fs);
  double most = 0;  // a sum that cancels is exact only relative to its terms
  for (int64_t i = 0; i < n; ++i) {
    if (std::isfinite(pb[i])) most = std::max(most, std::abs(pb[i]));
  }
  for (int64_t i = 0; i < n; ++i) {
    const double x = pa[i], y = pb[i];
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    if (!std::isfinite(x) || !std::isfinite(y)) return false;
    double relative = std::abs(y);
    if (ps != nullptr) relative = std::max(relative, ps[i]);
    if (std::abs(x - y) > tolerance * relative + 1e-3 * tolerance * most) return false;
  }
  return true;
}

Tensor reduce_tensors(std::span<const Tensor> parts, ReduceOp op) {
  const int64_t n = parts[0].count();
  Tensor sum({DType::f64, parts[0].shape()});
  double* acc = sum.as<double>();
  for (size_t p = 0; p < parts.size(); ++p) {
    const Tensor part = parts[p].dtype() == DType::f64 ? parts[p] : convert(parts[p], DType::f64);
    const double* v = part.as<double>();
    for (int64_t i = 0; i < n; ++i) {
      if (p == 0) {
        acc[i] = v[i];
      } else if (op == ReduceOp::sum) {
        acc[i] += v[i];
      } else if (op == ReduceOp::prod) {
        acc[i] *= v[i];
      } else if (std::isnan(acc[i]) || std::isnan(v[i])) {
        acc[i] = std::numeric_limits<double>::quiet_NaN();
      } else {
        acc[i] = op == ReduceOp::max ? std::max(acc[i], v[i]) : std::min(acc[i], v[i]);
      }
    }
  }
  return parts[0].dtype() == DType::f64 ? sum : convert(sum, parts[0].dtype());
}

}  // namespace shardrun
