// Lowering of shape arithmetic and data movement: Reshape to Pad, and sequences of known length.
#include <algorithm>
#include <numeric>

#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

using Ints = std::vector<int64_t>;

void shape(NodeContext& c) {
  const Ints& dims = c.b.shape(c.in(0));
  const int64_t rank = c.b.rank(c.in(0));
  auto bound = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank); };
  const int64_t start = bound(c.attr_i("start", 0)), end = bound(c.attr_i("end", rank));
  c.out(c.b.ints(start < end ? Ints(dims.begin() + start, dims.begin() + end) : Ints{}));
}

void size(NodeContext& c) {
  c.out(c.b.constant(Tensor::scalar_i64(element_count(c.b.shape(c.in(0))))));
}

void reshape(NodeContext& c) {
  const V x = c.in(0);
  Ints to = c.ints(1, "shape");
  const bool allow_zero = c.attr_i("allowzero", 0) != 0;
  int64_t known = 1;
  auto open = to.end();
  for (auto it = to.begin(); it != to.end(); ++it) {
    if (*it == 0 && !allow_zero) {
      const auto d = it - to.begin();
      SR_REQUIRE(d < c.b.rank(x), invalid_input, "shape copies dim ", d, ", but the input is ",
                 c.b.type(x));
      *it = c.b.shape(x)[static_cast<size_t>(d)];
    }
    SR_REQUIRE(*it >= -1, invalid_input, "shape ", to_string(to), " has a negative dim");
    if (*it != -1) {
      SR_REQUIRE(!__builtin_mul_overflow(known, *it, &known), invalid_input, "shape ",
                 to_string(to), " is beyond any tensor");
      continue;
    }
    SR_REQUIRE(open == to.end(), invalid_input, "shape ", to_string(to), " has two dims of -1");
    open = it;
  }
  const int64_t count = element_count(c.b.shape(x));
  if (open != to.end()) {
    SR_REQUIRE(known > 0 && count % known == 0, invalid_input, "cannot make shape ", to_string(to),
               " of ", c.b.type(x));
    *open = count / known;
  }
  SR_REQUIRE(element_count(to) == count, invalid_input, "cannot make shape ", to_string(to), " of ",
             c.b.type(x), " (", count, " elements)");
  c.out(c.b.reshape(x, to));
}

void flatten(NodeContext& c) {
  const Ints& dims = c.b.shape(c.in(0));
  const auto rank = static_cast<int64_t>(dims.size());
  int64_t axis = c.attr_i("axis", 1);
  SR_REQUIRE(axis >= -rank && axis <= rank, invalid_input, "axis ", axis,
             " is outside a tensor of rank ", rank);
  if (axis < 0) axis += rank;
  const int64_t rows = element_count(Ints(dims.begin(), dims.begin() + axis));
  c.out(c.b.reshape(c.in(0), {rows, element_count(Ints(dims.begin() + axis, dims.end()))}));
}

/// Axes are an attribute up to opset 12, an input from 13.
Ints axes_of(NodeContext& c) { return c.has(1) ? c.ints(1, "axes") : c.attr_ints("axes"); }

void squeeze(NodeContext& c) {
  const Ints& dims = c.b.shape(c.in(0));
  Ints axes = NodeContext::axes(axes_of(c), c.b.rank(c.in(0)));
  if (!c.has(1) && !c.has_attr("axes")) {
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] == 1) axes.push_back(static_cast<int64_t>(d));
    }
  }
  Ints to;
  for (size_t d = 0; d < dims.size(); ++d) {
    const bool drop = std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(d));
    SR_REQUIRE(!drop || dims[d] == 1, invalid_input, "dim ", d, " of ", c.b.type(c.in(0)),
               " is not 1");
    if (!drop) to.push_back(dims[d]);
  }
  c.out(c.b.reshape(c.in(0), to));
}

void unsqueeze(NodeContext& c) {
  Ints axes = axes_of(c);
  axes = NodeContext::axes(axes, c.b.rank(c.in(0)) + static_cast<int64_t>(axes.size()));
  Ints to = c.b.shape(c.in(0));
  for (int64_t axis : axes) to.insert(to.begin() + axis, 1);
  c.out(c.b.reshape(c.in(0), to));
}

void transpose(NodeContext& c) {
  const int64_t rank = c.b.rank(c.in(0));
  Ints perm = c.attr_ints("perm");
  if (perm.empty()) {
    perm.resize(static_cast<size_t>(rank));
    std::iota(perm.rbegin(), perm.rend(), 0);
  }
  const Ints sorted = NodeContext::axes(perm, rank);
  SR_REQUIRE(static_cast<int64_t>(sorted.size()) == rank, invalid_input, "perm ", to_string(perm),
             " does not permute rank ", rank);
  for (int64_t& p : perm) p = NodeContext::axis(p, rank);
  c.out(c.b.transpose(c.in(0), perm));
}

void expand(NodeContext& c) {
  const Ints wanted = c.ints(1, "shape");
  for (int64_t dim : wanted)
    SR_REQUIRE(dim >= 0, invalid_input, "shape ", to_string(wanted), " has a negative dim");
  c.out(c.b.expand(c.in(0), broadcast(c.b.shape(c.in(0)), wanted)));
}

void tile(NodeContext& c) {
  const Ints repeats = c.ints(1, "repeats");
  for (int64_t n : repeats) {
    SR_REQUIRE(n >= 0 && n < (int64_t{1} << 48), invalid_input, "repeats are ", to_string(repeats));
  }
  SR_REQUIRE(static_cast<int64_t>(repeats.size()) == c.b.rank(c.in(0)), invalid_input, "has ",
             repeats.size(), " repeats for ", c.b.type(c.in(0)));
  c.out(c.b.add("tile", {c.in(0)}, {{"repeats", repeats}}));
}

void concat(NodeContext& c) {
  SR_REQUIRE(c.has_attr("axis"), invalid_input, "attribute 'axis' is missing");
  c.out(c.b.concat(c.inputs(), NodeContext::axis(c.attr_i("axis", 0), c.b.rank(c.in(0)))));
}

/// Starts and ends are clamped; `ends` becomes start + count * step, so that both are exact:
/// size 5, start 10, end -9, step -2 is 4, 2, 0: start 4, end -2.
void slice(NodeContext& c) {
  const V x = c.in(0);
  const Ints& dims = c.b.shape(x);
  const Ints in_starts = c.ints(1, "starts"), in_ends = c.ints(2, "ends");
  Ints axes(in_starts.size()), in_steps(in_starts.size(), 1);
  std::iota(axes.begin(), axes.end(), 0);
  if (c.has(3)) axes = c.ints(3, "axes");
  if (c.has(4)) in_steps = c.ints(4, "steps");
  SR_REQUIRE(in_ends.size() == in_starts.size() && axes.size() == in_starts.size() &&
                 in_steps.size() == in_starts.size(),
             invalid_input, "starts, ends, axes and steps differ in length: ", in_starts.size(),
             ", ", in_ends.size(), ", ", axes.size(), " and ", in_steps.size());
  NodeContext::axes(axes, c.b.rank(x));
  Ints starts(dims.size(), 0), ends = dims, steps(dims.size(), 1);
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto d = static_cast<size_t>(NodeContext::axis(axes[i], c.b.rank(x)));
    const int64_t n = dims[d], step = in_steps[i];
    SR_REQUIRE(step != 0, invalid_input, "step of axis ", d, " is 0");
    auto clamp = [&](int64_t at, int64_t low, int64_t high) {
      return std::clamp(at < 0 ? std::max(at + n, int64_t{-1}) : at, low, high);
    };
    const int64_t start = step > 0 ? clamp(in_starts[i], 0, n) : clamp(in_starts[i], 0, n - 1);
    const int64_t end = step > 0 ? clamp(in_ends[i], 0, n) : clamp(in_ends[i], -1, n - 1);
    int64_t count = 0;
    if (step > 0 && end > start) count = 1 + (end - start - 1) / step;
    if (step < 0 && start > end) count = 1 + (end - start + 1) / step;
    starts[d] = count == 0 ? 0 : start;
    steps[d] = count == 0 ? 1 : count == 1 ? (step > 0 ? 1 : -1) : step;
    ends[d] = starts[d] + count * steps[d];
  }
  const bool whole = starts == Ints(dims.size(), 0) && ends == dims &&
                     std::all_of(steps.begin(), steps.end(), [](int64_t s) { return s == 1; });
  if (whole) return c.out(x);
  c.out(c.b.add("slice", {x}, {{"starts", starts}, {"ends", ends}, {"steps", steps}}));
}

/// Sizes beyond this make no tensor; below it their sums and products with a shape's dims are
/// exact.
constexpr int64_t kLargest = int64_t{1} << 48;

void check_sizes(const Ints& sizes, const char* what) {
  for (int64_t size : sizes) {
    SR_REQUIRE(size > -kLargest && size < kLargest, invalid_input, what, " of ", size,
               " is beyond any tensor");
  }
}

/// ceil(n / parts) each, the last smaller (Split-18's num_outputs; equal before).
Ints even_sizes(int64_t n, int64_t parts) {
  Ints sizes;
  const int64_t each = (n + parts - 1) / parts;
  for (int64_t i = 0; i < parts; ++i) sizes.push_back(std::clamp<int64_t>(n - i * each, 0, each));
  return sizes;
}

void split_values(NodeContext& c, V x, int64_t axis, const Ints& sizes, std::vector<V>& out) {
  const int64_t n = c.b.shape(x)[static_cast<size_t>(axis)];
  SR_REQUIRE(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == n &&
                 std::all_of(sizes.begin(), sizes.end(), [](int64_t s) { return s >= 0; }),
             invalid_input, "sizes ", to_string(sizes), " do not add up to dim ", axis, " of ",
             c.b.type(x));
  out = sizes.size() == 1 ? std::vector<V>{x}
                          : c.b.add_n("split", {x}, {{"axis", axis}, {"sizes", sizes}});
}

void split(NodeContext& c) {
  const V x = c.in(0);
  const int64_t axis = NodeContext::axis(c.attr_i("axis", 0), c.b.rank(x));
  const auto outputs = static_cast<int64_t>(c.output_count());
  Ints sizes = c.attr_ints("split");
  const int64_t parts = c.attr_i("num_outputs", outputs);
  SR_REQUIRE(parts == outputs, invalid_input, "num_outputs is ", parts, ", the node has ", outputs,
             " outputs");
  if (c.has(1)) sizes = c.ints(1, "split");
  check_sizes(sizes, "a split");
  if (sizes.empty()) sizes = even_sizes(c.b.shape(x)[static_cast<size_t>(axis)], parts);
  SR_REQUIRE(static_cast<int64_t>(sizes.size()) == outputs, invalid_input, "splits into ",
             sizes.size(), " of ", outputs, " outputs");
  std::vector<V> pieces;
  split_values(c, x, axis, sizes, pieces);
  for (size_t i = 0; i < pieces.size(); ++i) c.out(i, pieces[i]);
}

/// Of a sequence, each of them a value.
void check_parts(NodeContext& c, int64_t parts) {
  constexpr int64_t kPartBytes = 500;
  c.b.budget.check(kPartBytes * parts, "its parts");
}

/// The dynamo exporter writes torch.split as SplitToSequence and SequenceAt of constants.
void split_to_sequence(NodeContext& c) {
  const V x = c.in(0);
  const int64_t axis = NodeContext::axis(c.attr_i("axis", 0), c.b.rank(x));
  const int64_t n = c.b.shape(x)[static_cast<size_t>(axis)];
  const bool keep = c.attr_i("keepdims", 1) != 0 || c.has(1);
  Ints sizes;
  if (!c.has(1)) {
    check_parts(c, n);
    sizes.assign(static_cast<size_t>(n), 1);
  } else {
    const Tensor& given = c.known(1, "split");
    sizes = c.ints(1, "split");
    check_sizes(sizes, "a split");
    if (given.shape().empty()) {
      const int64_t each = sizes[0];
      SR_REQUIRE(each > 0, invalid_input, "split is ", each, ", wanted a positive size");
      check_parts(c, n / each);
      sizes.clear();
      for (int64_t at = 0; at < n; at += each) sizes.push_back(std::min(each, n - at));
    }
  }
  std::vector<V> pieces;
  split_values(c, x, axis, sizes, pieces);
  if (!keep) {
    for (V& piece : pieces) {
      Shape to = c.b.shape(piece);
      to.erase(to.begin() + axis);
      piece = c.b.reshape(piece, to);
    }
  }
  c.out(c.b.sequence(std::move(pieces)));
}

const std::vector<V>& sequence_in(NodeContext& c) {
  const std::vector<V>* items = c.b.items(c.in(0));
  SR_REQUIRE(items != nullptr, invalid_input, "input 0 is not a sequence");
  return *items;
}

void sequence_at(NodeContext& c) {
  const std::vector<V>& items = sequence_in(c);
  const Tensor& at = c.known(1, "position");
  SR_REQUIRE(at.count() == 1, invalid_input, "position is not a scalar");
  c.out(items[static_cast<size_t>(
      NodeContext::axis(at.int_at(0), static_cast<int64_t>(items.size())))]);
}

void sequence_construct(NodeContext& c) { c.out(c.b.sequence(c.inputs())); }

void sequence_empty(NodeContext& c) {
  c.ignore("dtype");
  c.out(c.b.sequence({}));
}

/// In front of the tensor at `position`; without one, or with how many there are, behind all.
void sequence_insert(NodeContext& c) {
  std::vector<V> items = sequence_in(c);
  const auto count = static_cast<int64_t>(items.size());
  int64_t at = count;
  if (c.has(2)) {
    const Tensor& position = c.known(2, "position");
    SR_REQUIRE(position.count() == 1, invalid_input, "position is not a scalar");
    if (position.int_at(0) != count) at = NodeContext::axis(position.int_at(0), count);
  }
  items.insert(items.begin() + at, c.in(1));
  c.out(c.b.sequence(std::move(items)));
}

void sequence_length(NodeContext& c) {
  c.out(c.b.constant(Tensor::scalar_i64(static_cast<int64_t>(sequence_in(c).size()))));
}

/// The body, written out for each item of a sequence. Further inputs are sequences of as many, or
/// tensors that all items share. The newer exporter writes torch.hstack and its kin so.
void sequence_map(NodeContext& c) {
  const std::string name = c.b.node_name;
  const auto* body = c.find("body");
  SR_REQUIRE(body != nullptr, invalid_input, "has no body");
  const size_t turns = sequence_in(c).size();
  std::vector<std::vector<V>> results(c.output_count());
  for (size_t turn = 0; turn < turns; ++turn) {
    std::vector<V> in;
    for (size_t i = 0; i < c.input_count(); ++i) {
      const std::vector<V>* items = c.b.items(c.in(i));
      SR_REQUIRE(items == nullptr || items->size() == turns, invalid_input, "input ", i, " has ",
                 items->size(), " items, input 0 has ", turns);
      in.push_back(items == nullptr ? c.in(i) : (*items)[turn]);
    }
    const std::vector<V> out = c.lower_subgraph(body->g(), in, str(c.stream, "#", turn, "/"), {});
    SR_REQUIRE(out.size() == results.size(), invalid_input, "body has ", out.size(),
               " outputs, the node ", results.size());
    for (size_t i = 0; i < out.size(); ++i) results[i].push_back(out[i]);
  }
  c.b.node_name = name;
  for (size_t i = 0; i < results.size(); ++i) c.out(i, c.b.sequence(std::move(results[i])));
}

void concat_from_sequence(NodeContext& c) {
  std::vector<V> items = sequence_in(c);
  SR_REQUIRE(!items.empty(), invalid_input, "the sequence is empty");
  const bool fresh = c.attr_i("new_axis", 0) != 0;
  const int64_t axis = NodeContext::axis(c.attr_i("axis", 0), c.b.rank(items[0]) + fresh);
  if (fresh) {
    for (V& item : items) item = c.b.unsqueeze(item, axis);
  }
  c.out(c.b.concat(items, axis));
}

/// wrap: the tail comes before, the head behind: [1 2 3] padded by 1 and 2 is [3 1 2 3 1 2].
V wrap(NodeContext& c, V x, const Ints& before, const Ints& after) {
  for (size_t d = 0; d < before.size(); ++d) {
    const int64_t n = c.b.shape(x)[d];
    SR_REQUIRE(before[d] <= n && after[d] <= n, unsupported, "wraps dim ", d, " of ", n,
               " more than once");
    const auto axis = static_cast<int64_t>(d);
    std::vector<V> parts;
    if (before[d] > 0) parts.push_back(c.b.slice(x, axis, n - before[d], n));
    parts.push_back(x);
    if (after[d] > 0) parts.push_back(c.b.slice(x, axis, 0, after[d]));
    x = c.b.concat(parts, axis);
  }
  return x;
}

void pad(NodeContext& c) {
  V x = c.in(0);
  const auto rank = static_cast<size_t>(c.b.rank(x));
  const Ints pads = c.ints(1, "pads");
  Ints axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  if (c.has(3)) axes = c.ints(3, "axes");
  check_sizes(pads, "a pad");
  SR_REQUIRE(pads.size() == 2 * axes.size(), invalid_input, "has ", pads.size(), " pads for ",
             axes.size(), " axes");
  NodeContext::axes(axes, c.b.rank(x));
  double value = 0;
  if (c.has(2)) {
    const Tensor& given = c.known(2, "constant_value");
    SR_REQUIRE(given.count() == 1, invalid_input, "constant_value is not a scalar");
    value = given.at(0);
  }
  Ints before(rank, 0), after(rank, 0), starts(rank, 0), ends = c.b.shape(x), steps(rank, 1);
  bool cut = false;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto d = static_cast<size_t>(NodeContext::axis(axes[i], c.b.rank(x)));
    const int64_t low = pads[i], high = pads[axes.size() + i], n = c.b.shape(x)[d];
    before[d] = std::max<int64_t>(low, 0);
    after[d] = std::max<int64_t>(high, 0);
    // A negative pad cuts. Either alone is looked at first: the sum of both may not be a number.
    SR_REQUIRE(
        low >= -n && high >= -n && -std::min<int64_t>(low, 0) <= n + std::min<int64_t>(high, 0),
        invalid_input, "pads ", low, " and ", high, " cut more than dim ", d, " of ", c.b.type(x));
    starts[d] = -std::min<int64_t>(low, 0);
    ends[d] += std::min<int64_t>(high, 0);
    cut = cut || starts[d] > 0 || ends[d] < c.b.shape(x)[d];
  }
  if (cut) x = c.b.add("slice", {x}, {{"starts", starts}, {"ends", ends}, {"steps", steps}});
  const std::string mode = c.attr_s("mode", "constant");
  if (mode == "wrap") return c.out(wrap(c, x, before, after));
  if (mode != "constant" && mode != "reflect" && mode != "edge") {
    c.refuse_attr("mode", "supported are constant, reflect, edge and wrap");
  }
  const bool nothing =
      std::all_of(before.begin(), before.end(), [](int64_t p) { return p == 0; }) &&
      std::all_of(after.begin(), after.end(), [](int64_t p) { return p == 0; });
  if (nothing) return c.out(x);
  const DType dtype = c.b.dtype(x);
  if (dtype == DType::boolean) x = c.b.cast(x, DType::i32);
  c.out(c.b.cast(
      c.b.add("pad", {x}, {{"before", before}, {"after", after}, {"mode", mode}, {"value", value}}),
      dtype));
}

void trilu(NodeContext& c) {
  int64_t k = 0;
  if (c.has(1)) {
    const Ints given = c.ints(1, "k");
    SR_REQUIRE(given.size() == 1, invalid_input, "k is not a scalar");
    k = std::clamp(given[0], -kLargest, kLargest);  // all or nothing is kept long before
  }
  const DType dtype = c.b.dtype(c.in(0));
  const V x = dtype == DType::boolean ? c.b.cast(c.in(0), DType::i32) : c.in(0);
  c.out(c.b.cast(c.b.add("trilu", {x}, {{"upper", c.attr_i("upper", 1)}, {"k", k}}), dtype));
}

/// Blocks of channels to space: DCR [N, b, b, C, H, W], CRD [N, C, b, b, H, W].
void depth_to_space(NodeContext& c) {
  const Ints s = c.b.shape(c.in(0));
  const int64_t n = c.attr_i("blocksize", 1);
  const std::string mode = c.attr_s("mode", "DCR");
  SR_REQUIRE(s.size() == 4 && n > 0 && n < (int64_t{1} << 24) && s[1] % (n * n) == 0, invalid_input,
             "cannot spread ", c.b.type(c.in(0)));
  const int64_t channels = s[1] / (n * n);
  const bool dcr = mode == "DCR";
  V x = c.b.reshape(c.in(0), dcr ? Ints{s[0], n, n, channels, s[2], s[3]}
                                 : Ints{s[0], channels, n, n, s[2], s[3]});
  x = c.b.transpose(x, dcr ? Ints{0, 3, 4, 1, 5, 2} : Ints{0, 1, 4, 2, 5, 3});
  c.out(c.b.reshape(x, {s[0], channels, s[2] * n, s[3] * n}));
}

/// [N, C, H / b, b, W / b, b]: the places in a block in front of the channels, or (CRD, from opset
/// 28 on) behind them.
void space_to_depth(NodeContext& c) {
  const Ints s = c.b.shape(c.in(0));
  const int64_t n = c.attr_i("blocksize", 0);
  SR_REQUIRE(s.size() == 4 && n > 0 && n < (int64_t{1} << 24) && s[2] % n == 0 && s[3] % n == 0,
             invalid_input, "cannot take blocks of ", n, " out of ", c.b.type(c.in(0)));
  V x = c.b.reshape(c.in(0), {s[0], s[1], s[2] / n, n, s[3] / n, n});
  const std::string mode = c.attr_s("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") c.refuse_attr("mode", "there are DCR and CRD");
  x = c.b.transpose(x, mode == "DCR" ? Ints{0, 3, 5, 1, 2, 4} : Ints{0, 1, 3, 5, 2, 4});
  c.out(c.b.reshape(x, {s[0], s[1] * n * n, s[2] / n, s[3] / n}));
}

/// The middle of each dim, or the dim in the middle of zeros.
void centre_crop_pad(NodeContext& c) {
  V x = c.in(0);
  const int64_t rank = c.b.rank(x);
  const Ints sizes = c.ints(1, "shape");
  Ints axes = c.attr_ints("axes");
  if (axes.empty()) {
    axes.resize(static_cast<size_t>(rank));
    std::iota(axes.begin(), axes.end(), 0);
  }
  SR_REQUIRE(sizes.size() == axes.size(), invalid_input, "has ", sizes.size(), " sizes for ",
             axes.size(), " axes");
  check_sizes(sizes, "a size");
  NodeContext::axes(axes, rank);
  Ints before(static_cast<size_t>(rank), 0), after = before;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = NodeContext::axis(axes[i], rank);
    const auto d = static_cast<size_t>(axis);
    const int64_t more = sizes[i] - c.b.shape(x)[d];
    SR_REQUIRE(sizes[i] >= 0, invalid_input, "shape asks for ", sizes[i], " along dim ", axis);
    if (more < 0) x = c.b.slice(x, axis, -more / 2, -more / 2 + sizes[i]);
    before[d] = std::max<int64_t>(more, 0) / 2;
    after[d] = std::max<int64_t>(more, 0) - before[d];
  }
  if (before == after && *std::max_element(before.begin(), before.end()) == 0) return c.out(x);
  const DType dtype = c.b.dtype(x);
  if (dtype == DType::boolean) x = c.b.cast(x, DType::i32);
  c.out(c.b.cast(c.b.add("pad", {x},
                         {{"before", before},
                          {"after", after},
                          {"mode", std::string("constant")},
                          {"value", 0.0}}),
                 dtype));
}

constexpr Lowering kShapeLowerings[] = {{"SpaceToDepth", 1, space_to_depth},
                                        {"CenterCropPad", 18, centre_crop_pad},
                                        {"Shape", 1, shape},
                                        {"Size", 1, size},
                                        {"Reshape", 5, reshape},
                                        {"Flatten", 9, flatten},
                                        {"Squeeze", 1, squeeze},
                                        {"Unsqueeze", 1, unsqueeze},
                                        {"Transpose", 1, transpose},
                                        {"Expand", 8, expand},
                                        {"Tile", 6, tile},
                                        {"Concat", 4, concat},
                                        {"Slice", 10, slice},
                                        {"Split", 2, split},
                                        {"SplitToSequence", 11, split_to_sequence},
                                        {"SequenceAt", 11, sequence_at},
                                        {"SequenceConstruct", 11, sequence_construct},
                                        {"SequenceEmpty", 11, sequence_empty},
                                        {"SequenceInsert", 11, sequence_insert},
                                        {"SequenceLength", 11, sequence_length},
                                        {"SequenceMap", 17, sequence_map},
                                        {"ConcatFromSequence", 11, concat_from_sequence},
                                        {"Pad", 11, pad},
                                        {"Trilu", 14, trilu},
                                        {"DepthToSpace", 11, depth_to_space}};

}  // namespace

std::span<const Lowering> shape_lowerings() { return kShapeLowerings; }

}  // namespace shardrun::importer
