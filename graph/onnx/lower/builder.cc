// Builder: node by node constant folding, and the few multi-node idioms that lowerings share.
#include "graph/onnx/lower/builder.h"

#include <algorithm>

#include "graph/onnx/lower/advice.h"
#include "graph/op_def.h"

namespace shardrun::importer {

namespace {

constexpr int64_t kTensorBytes = 250;  // of a constant, besides its numbers
constexpr int64_t kResultBytes = 400;  // of a value of the Graph

/// What a node of the Graph takes, besides its name.
int64_t bytes_of_node(const Node& node, size_t inputs) {
  constexpr int64_t kNode = 550, kOperand = 8;
  int64_t bytes = kNode + static_cast<int64_t>(inputs) * kOperand;
  for (const auto& [name, attr] : node.attrs.all()) {
    if (const auto* ints = std::get_if<std::vector<int64_t>>(&attr))
      bytes += static_cast<int64_t>(ints->size() * sizeof(int64_t));
    if (const auto* text = std::get_if<std::string>(&attr))
      bytes += static_cast<int64_t>(text->size());
  }
  return bytes;
}

}  // namespace

V Builder::push(Entry entry) {
  entry.items.shrink_to_fit();
  int64_t bytes = static_cast<int64_t>(sizeof(Entry) + 2 * entry.items.size() * sizeof(V));
  if (entry.is_constant) bytes += kTensorBytes + byte_size(entry.type);
  budget.take(bytes, entry.is_constant ? "its constants" : "its values");
  for (V item : entry.items) entries_[static_cast<size_t>(item)].in_sequence = true;
  entries_.push_back(std::move(entry));
  return static_cast<V>(entries_.size()) - 1;
}

V Builder::value(ValueId id) {
  auto [it, fresh] = of_id_.try_emplace(id, kNone);
  if (fresh) it->second = push({graph.type(id), {}, false, id, {}, false});
  return it->second;
}

V Builder::constant(Tensor tensor) {
  const TensorType type = tensor.type();
  return push({type, std::move(tensor), true, kNoValue, {}, false});
}

V Builder::scalar(double value, DType dtype) {
  Tensor tensor({dtype, {}});
  convert(&value, DType::f64, tensor.data(), dtype, 1);
  return constant(std::move(tensor));
}

V Builder::sequence(std::vector<V> items) {
  return push({{}, {}, false, kNoValue, std::move(items), true});
}

V Builder::picked(const Picked& rows) {
  return push({{}, {}, false, kNoValue, {}, false, false, rows});
}

void Builder::refuse_rows(V v, const std::string& what) const {
  fail(ErrorKind::unsupported, "an operand has as many rows as the mask of '",
       picks[static_cast<size_t>(at(v).rows->pick)].name, "' picks, which depends on data, and ",
       what, " is not of each row alone, nor a sum or mean of them", advice_for_rows(what));
}

const Picked* Builder::rows(V v) const { return at(v).rows ? &*at(v).rows : nullptr; }

const TensorType& Builder::type(V v) const {
  SR_REQUIRE(!at(v).is_sequence, unsupported,
             "a sequence of tensors is used where a tensor is wanted");
  if (at(v).rows) refuse_rows(v, "this operator");
  return at(v).type;
}

const Tensor* Builder::known(V v) const { return at(v).is_constant ? &at(v).tensor : nullptr; }
const std::vector<V>* Builder::items(V v) const {
  return at(v).is_sequence ? &at(v).items : nullptr;
}

ValueId Builder::id(V v) {
  type(v);
  Entry& entry = entries_[static_cast<size_t>(v)];
  if (entry.id == kNoValue) entry.id = graph.add_constant(str("constant_", v), entry.tensor);
  return entry.id;
}

void Builder::forget(V v) {
  Entry& entry = entries_[static_cast<size_t>(v)];
  if (!entry.is_constant || entry.id != kNoValue || entry.in_sequence || !entry.tensor) return;
  budget.give_back(byte_size(entry.type));
  entry.tensor = Tensor();
}

/// Large results need not be folded: shapes do not depend on them.
bool Builder::may_fold(const Node& node, std::span<const TensorType> in) {
  const std::vector<TensorType> out = infer_types(node, in);
  int64_t largest = 0, bytes = 0;
  double operations = node_flops(node, in, out);
  for (const TensorType& type : out) {
    largest = std::max(largest, element_count(type.shape));
    if (largest > kFoldLimit) return false;
    bytes += byte_size(type);
    operations += static_cast<double>(element_count(type.shape));
  }
  for (const TensorType& type : in) operations += static_cast<double>(element_count(type.shape));
  if (largest > kSmall && !budget.holds(kCopies * bytes)) return false;
  if (budget.spend(operations)) return true;
  SR_REQUIRE(largest > kSmall, unsupported, "the arithmetic on its constants takes ", operations,
             " operations, more than the import of a file may; export it with them computed");
  return false;
}

std::vector<V> Builder::add_n(const std::string& op, const std::vector<V>& inputs, Attrs attrs) {
  bool foldable = options.evaluate != nullptr;
  std::vector<TensorType> types;
  for (V v : inputs) {
    types.push_back(type(v));
    foldable = foldable && known(v) != nullptr;
  }
  if (foldable) {
    const Node node{op, node_name, attrs, {}, {}, Phase::micro};
    if (may_fold(node, types)) {
      std::vector<Tensor> in;
      for (V v : inputs) in.push_back(*known(v));
      std::vector<V> out;
      for (Tensor& tensor : options.evaluate(node, in)) out.push_back(constant(std::move(tensor)));
      return out;
    }
  }
  budget.take(bytes_of_node({op, node_name, attrs, {}, {}, Phase::micro}, inputs.size()),
              "its nodes");
  std::vector<ValueId> ids;
  for (V v : inputs) ids.push_back(id(v));
  std::vector<V> out;
  const std::vector<ValueId> results =
      graph.add_node(op, std::move(ids), std::move(attrs), node_name);
  budget.take(kResultBytes * static_cast<int64_t>(results.size()), "its nodes");
  for (ValueId result : results) {
    const Shape& shape = graph.type(result).shape;
    element_count(shape);  // refuses sizes beyond counting here, where the node is known
    SR_REQUIRE(shape.size() <= kHighestRank, unsupported, "a result has ", shape.size(),
               " dims, wanted at most ", kHighestRank);
    out.push_back(value(result));
  }
  return out;
}

V Builder::add(const std::string& op, const std::vector<V>& inputs, Attrs attrs) {
  const std::vector<V> out = add_n(op, inputs, std::move(attrs));
  SR_REQUIRE(out.size() == 1, internal, "op ", op, " has ", out.size(), " results, wanted 1");
  return out[0];
}

V Builder::cast(V v, DType to) {
  return dtype(v) == to ? v : add("cast", {v}, {{"to", std::string(to_string(to))}});
}

V Builder::reshape(V v, const Shape& to) {
  return shape(v) == to ? v : add("reshape", {v}, {{"shape", to}});
}

V Builder::transpose(V v, const std::vector<int64_t>& perm) {
  return std::is_sorted(perm.begin(), perm.end()) ? v : add("transpose", {v}, {{"perm", perm}});
}

V Builder::expand(V v, const Shape& to) {
  return shape(v) == to ? v : add("expand", {v}, {{"shape", to}});
}

V Builder::slice(V v, int64_t axis, int64_t begin, int64_t end) {
  std::vector<int64_t> starts(shape(v).size(), 0), ends = shape(v), steps(shape(v).size(), 1);
  starts[static_cast<size_t>(axis)] = begin;
  ends[static_cast<size_t>(axis)] = end;
  if (begin == 0 && ends == shape(v)) return v;
  return add("slice", {v}, {{"starts", starts}, {"ends", ends}, {"steps", steps}});
}

V Builder::unsqueeze(V v, int64_t axis) {
  Shape to = shape(v);
  to.insert(to.begin() + axis, 1);
  return reshape(v, to);
}

V Builder::concat(const std::vector<V>& parts, int64_t axis) {
  return parts.size() == 1 ? parts[0] : add("concat", parts, {{"axis", axis}});
}

V Builder::fill(double value, DType dtype, const Shape& shape) {
  return add("fill", {},
             {{"shape", shape}, {"dtype", std::string(to_string(dtype))}, {"value", value}});
}

V Builder::iota(int64_t count, int64_t start, int64_t step) {
  return add("iota", {},
             {{"shape", Shape{count}},
              {"dtype", std::string(to_string(DType::i64))},
              {"axis", int64_t{0}},
              {"start", start},
              {"step", step}});
}

V Builder::sum(V v, std::vector<int64_t> axes, bool keepdims) {
  if (axes.empty()) return v;
  std::sort(axes.begin(), axes.end());
  return add("reduce_sum", {v}, {{"axes", axes}, {"keepdims", int64_t{keepdims}}});
}

V Builder::mean(V v, std::vector<int64_t> axes, bool keepdims) {
  int64_t n = 1;
  for (int64_t axis : axes) n *= shape(v)[static_cast<size_t>(axis)];
  const V total = sum(v, std::move(axes), keepdims);
  return is_float(dtype(v)) ? with("mul", total, 1.0 / static_cast<double>(n))
                            : with("div", total, static_cast<double>(n));
}

Shape broadcast(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    SR_REQUIRE(x == y || x == 1 || y == 1, invalid_input, "shapes ", to_string(a), " and ",
               to_string(b), " do not broadcast: ", x, " against ", y);
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

V Builder::matmul(V a, V b) {
  SR_REQUIRE(rank(a) > 0 && rank(b) > 0, invalid_input,
             "a matrix product of a scalar: operands are ", type(a), " and ", type(b));
  SR_REQUIRE(rank(a) <= 20 && rank(b) <= 20, unsupported, "a matrix product of rank over 20");
  SR_REQUIRE(dtype(a) == dtype(b), invalid_input, "operands are ", type(a), " and ", type(b));
  // Batch dims are lettered from the right, a, b, c …; m, k, n are the matrix's.
  //   [8, 1, 3, 4] x [5, 4, 6]: a's size-1 dim goes (reshape to [8, 3, 4]): "bmk,akn->bamn"
  const size_t batch_a = static_cast<size_t>(std::max<int64_t>(rank(a) - 2, 0));
  const size_t batch_b = static_cast<size_t>(std::max<int64_t>(rank(b) - 2, 0));
  const int64_t k_a = shape(a).back();
  const int64_t k_b = rank(b) == 1 ? shape(b)[0] : shape(b)[shape(b).size() - 2];
  SR_REQUIRE(k_a == k_b, invalid_input, "contraction sizes differ: A", to_string(shape(a)), " has ",
             k_a, ", B", to_string(shape(b)), " has ", k_b);
  std::string in_a, in_b, out;
  Shape shape_a, shape_b;
  const size_t batch = std::max(batch_a, batch_b);
  for (size_t i = batch; i-- > 0;) {  // i counts from the innermost batch dim
    const char letter = static_cast<char>(i < 10 ? 'a' + i : 'o' + (i - 10));
    const int64_t x = i < batch_a ? shape(a)[batch_a - 1 - i] : -1;
    const int64_t y = i < batch_b ? shape(b)[batch_b - 1 - i] : -1;
    SR_REQUIRE(x == y || x <= 1 || y <= 1, invalid_input, "batch dims do not broadcast: A",
               to_string(shape(a)), ", B", to_string(shape(b)));
    const bool has_a = x >= 0 && !(x == 1 && y >= 0 && y != 1);
    const bool has_b = y >= 0 && !(y == 1 && x >= 0 && x != 1);
    if (has_a) in_a += letter, shape_a.push_back(x);
    if (has_b) in_b += letter, shape_b.push_back(y);
    out += letter;
  }
  if (rank(a) > 1) in_a += 'm', out += 'm', shape_a.push_back(shape(a)[shape(a).size() - 2]);
  in_a += 'k', shape_a.push_back(k_a);
  in_b += 'k', shape_b.push_back(k_b);
  if (rank(b) > 1) in_b += 'n', out += 'n', shape_b.push_back(shape(b).back());
  return add("matmul", {reshape(a, shape_a), reshape(b, shape_b)},
             {{"equation", in_a + "," + in_b + "->" + out}});
}

}  // namespace shardrun::importer
