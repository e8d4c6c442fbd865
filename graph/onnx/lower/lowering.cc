// What a lowering function asks of its node, and the table of all operators.
#include "graph/onnx/lower/lowering.h"

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "graph/onnx/lower/advice.h"

namespace shardrun::importer {

const FxCall* NodeContext::call() const {
  if (!std::exchange(call_is_read_, true)) call_ = fx_call_of(proto);
  return call_ ? &*call_ : nullptr;
}

const FxCall* NodeContext::call_of(const std::string& target) const {
  const FxCall* noted = call();
  return noted != nullptr && noted->target == target ? noted : nullptr;
}

bool NodeContext::has(size_t i) const {
  used_inputs_.insert(i);
  return i < inputs_.size() && inputs_[i] != kNone;
}

const std::vector<V>& NodeContext::inputs() const {
  for (size_t i = 0; i < inputs_.size(); ++i) in(i);
  return inputs_;
}

std::vector<int64_t> NodeContext::ints(size_t i, const char* what) const {
  const Tensor& tensor = known(i, what);
  SR_REQUIRE(!is_float(tensor.dtype()), invalid_input, "input ", i, " (", what, ") is ",
             tensor.type(), ", wanted integers");
  return tensor.to_ints();
}

V NodeContext::in(size_t i) const {
  SR_REQUIRE(has(i), invalid_input, "input ", i, " is missing (", inputs_.size(), " given)");
  return inputs_[i];
}

const Tensor& NodeContext::known(size_t i, const char* what) const {
  const Tensor* tensor = b.known(in(i));
  SR_REQUIRE(tensor != nullptr, unsupported, "input ", i, " (", what, ") '",
             proto.input(static_cast<int>(i)),
             "' depends on data; it must be a constant once symbolic dims are bound",
             advice_for_size());
  return *tensor;
}

const ::onnx::AttributeProto* NodeContext::find(const char* name) const {
  used_.insert(name);
  for (const auto& attribute : proto.attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

namespace {

void check_kind(const ::onnx::AttributeProto& attribute,
                ::onnx::AttributeProto::AttributeType wanted) {
  SR_REQUIRE(attribute.type() == wanted, invalid_input, "attribute '", attribute.name(),
             "' is of type ", attribute.type(), ", wanted ", wanted,
             " (AttributeProto.AttributeType)");
}

}  // namespace

int64_t NodeContext::attr_i(const char* name, int64_t otherwise) const {
  const auto* attribute = find(name);
  if (attribute == nullptr) return otherwise;
  check_kind(*attribute, ::onnx::AttributeProto::INT);
  return attribute->i();
}

double NodeContext::attr_f(const char* name, double otherwise) const {
  const auto* attribute = find(name);
  if (attribute == nullptr) return otherwise;
  check_kind(*attribute, ::onnx::AttributeProto::FLOAT);
  return static_cast<double>(attribute->f());
}

std::string NodeContext::attr_s(const char* name, const std::string& otherwise) const {
  const auto* attribute = find(name);
  if (attribute == nullptr) return otherwise;
  check_kind(*attribute, ::onnx::AttributeProto::STRING);
  return printable(attribute->s());
}

std::vector<int64_t> NodeContext::attr_ints(const char* name) const {
  const auto* attribute = find(name);
  if (attribute == nullptr) return {};
  check_kind(*attribute, ::onnx::AttributeProto::INTS);
  return {attribute->ints().begin(), attribute->ints().end()};
}

std::vector<float> NodeContext::attr_floats(const char* name) const {
  const auto* attribute = find(name);
  if (attribute == nullptr) return {};
  check_kind(*attribute, ::onnx::AttributeProto::FLOATS);
  return {attribute->floats().begin(), attribute->floats().end()};
}

void NodeContext::refuse_attr(const char* name, const std::string& advice) const {
  const auto* attribute = find(name);
  std::string value;
  if (attribute != nullptr && attribute->type() == ::onnx::AttributeProto::STRING)
    value = "='" + printable(attribute->s()) + "'";
  if (attribute != nullptr && attribute->type() == ::onnx::AttributeProto::INT)
    value = str("=", attribute->i());
  if (attribute != nullptr && attribute->type() == ::onnx::AttributeProto::FLOAT)
    value = str("=", attribute->f());
  fail(ErrorKind::unsupported, "attribute ", name, value, " is not supported; ", advice,
       advice_for(op()));
}

void NodeContext::check_inputs_used() const {
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i] != kNone && used_inputs_.count(i) == 0) refuse_input(i);
}

void NodeContext::refuse_input(size_t i) const {
  fail(ErrorKind::invalid_input, "input ", i, " '", proto.input(static_cast<int>(i)),
       "' is one too many for this operator in opset ", opset);
}

void NodeContext::check_attributes_used() const {
  for (const auto& attribute : proto.attribute()) {
    SR_REQUIRE(used_.count(attribute.name()) > 0, unsupported, "attribute '", attribute.name(),
               "' is not one of this operator's in opset ", opset, " that import knows");
  }
}

int64_t NodeContext::axis(int64_t axis, int64_t rank) {
  SR_REQUIRE(axis >= -rank && axis < rank, invalid_input, "axis ", axis,
             " is outside a tensor of rank ", rank);
  return axis < 0 ? axis + rank : axis;
}

std::vector<int64_t> NodeContext::axes(std::vector<int64_t> axes, int64_t rank) {
  for (int64_t& a : axes) a = axis(a, rank);
  std::sort(axes.begin(), axes.end());
  const auto twice = std::adjacent_find(axes.begin(), axes.end());
  SR_REQUIRE(twice == axes.end(), invalid_input, "axis ", *twice, " is named twice");
  return axes;
}

void NodeContext::out(size_t i, V v) {
  if (outputs_.size() <= i) outputs_.resize(i + 1, kNone);
  outputs_[i] = v;
}

namespace {

using Table = std::map<std::string, Lowering>;

const Table& table() {
  static const Table all = [] {
    Table merged;
    for (const auto& family :
         {elementwise_lowerings(), reduce_lowerings(), shape_lowerings(), index_lowerings(),
          matmul_lowerings(), conv_lowerings(), pool_lowerings(), batch_norm_lowerings(),
          nn_lowerings(), loss_lowerings(), recurrent_lowerings(), attention_lowerings(),
          constant_lowerings(), random_lowerings(), grid_lowerings(), signal_lowerings()}) {
      for (const Lowering& lowering : family) merged.emplace(lowering.op, lowering);
    }
    return merged;
  }();
  return all;
}

}  // namespace

const Lowering* find_lowering(const std::string& op) {
  auto it = table().find(op);
  return it == table().end() ? nullptr : &it->second;
}

}  // namespace shardrun::importer

std::vector<std::string> shardrun::supported_onnx_operators() {
  std::vector<std::string> out;
  for (const auto& [op, lowering] : importer::table()) out.push_back(op);
  return out;
}
