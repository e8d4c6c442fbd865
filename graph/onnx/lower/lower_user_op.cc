// A node of a user's op: attributes and operands go to its shape rule and kernel as they are.
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

Attr attr_of(const ::onnx::AttributeProto& attribute) {
  using Proto = ::onnx::AttributeProto;
  switch (attribute.type()) {
    case Proto::INT: return int64_t{attribute.i()};
    case Proto::FLOAT: return static_cast<double>(attribute.f());
    case Proto::STRING: return attribute.s();
    case Proto::INTS: return std::vector<int64_t>(attribute.ints().begin(), attribute.ints().end());
    case Proto::FLOATS:
      return std::vector<double>(attribute.floats().begin(), attribute.floats().end());
    default:
      fail(ErrorKind::unsupported, "attribute '", attribute.name(), "' is of type ",
           Proto::AttributeType_Name(attribute.type()),
           ", and an op of one's own has numbers, texts and lists of numbers; make it an input");
  }
}

}  // namespace

void lower_user_op(NodeContext& c) {
  Attrs attrs;
  for (const auto& attribute : c.proto.attribute()) attrs.set(attribute.name(), attr_of(attribute));
  size_t count = c.input_count();
  while (count > 0 && !c.has(count - 1)) --count;  // optional operands that are left out at the end
  std::vector<V> inputs;
  for (size_t i = 0; i < count; ++i) inputs.push_back(c.in(i));
  const std::vector<V> results = c.b.add_n(c.op(), inputs, std::move(attrs));
  SR_REQUIRE(c.output_count() <= results.size(), invalid_input, "has ", c.output_count(),
             " outputs, the op's shape rule gives ", results.size());
  for (size_t r = 0; r < results.size(); ++r) c.out(r, results[r]);
}

}  // namespace shardrun::importer
