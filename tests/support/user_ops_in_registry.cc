// Linked into a test that loops over the registry: it meets users' ops there too.
#include <gtest/gtest.h>

#include "tests/support/user_ops.h"
#include "user_op/user_op.h"

namespace shardrun::test {
namespace {

std::vector<OpDef::Sample> samples(const std::string& name) {
  const auto f32 = [](Shape shape) { return TensorType{DType::f32, std::move(shape)}; };
  if (name == "acme::Swish") return {{{f32({4, 6})}, {{"beta", 1.5}}}, {{f32({3, 5, 7})}}};
  if (name == "acme::Affine")
    return {{{f32({4, 6}), f32({6, 5}), f32({5})}}, {{f32({2, 3, 5}), f32({5, 7}), f32({7})}}};
  if (name == "acme::Affine_grad")
    return {{{f32({4, 6}), f32({6, 5}), f32({5}), f32({4, 5}), f32({4, 5})}}};
  if (name == "acme::RowMax") return {{{f32({4, 6})}}};
  if (name == "acme::Lookup") return {{{f32({9, 4}), {DType::i64, {5, 6}}}}};
  if (name == "acme::Clamp10") return {{{f32({4, 6})}, {}, -20, 20}};
  if (name == "acme::Halves") return {{{f32({5, 8})}}};
  return {};
}

class WithUserOps : public testing::Environment {
 public:
  void SetUp() override {
    for (const UserOp& op : user_ops()) {
      // One without a gradient would have none for no reason that the tests know.
      if (const auto calls = samples(op.name); !calls.empty()) add_user_op(op, calls);
    }
  }
};

const testing::Environment* const kEnvironment = testing::AddGlobalTestEnvironment(new WithUserOps);

}  // namespace
}  // namespace shardrun::test
