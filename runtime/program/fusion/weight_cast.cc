// Products that round a weight as they pack it.
#include <set>
#include <vector>

#include "graph/op_def.h"
#include "program/fusion/rewrites.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

/// Rows of a product: of what it multiplies with operand `i`.
int64_t rows_of_other(const Program& program, const Step& product, size_t i) {
  const auto flops =
      node_flops(product.node,
                 std::vector{type_of(program, product.in[0]), type_of(program, product.in[1])}, {});
  const auto elements = static_cast<double>(element_count(type_of(program, product.in[i]).shape));
  return elements == 0 ? 0 : static_cast<int64_t>(flops / 2 / elements);
}

/// The products that read a weight's cast then read the weight.
void read_weight(Program& program, const Uses& uses, const TakesStep& takes,
                 const std::set<BufferId>& weights, size_t s, std::set<size_t>& gone) {
  const Step& cast = program.steps[s];
  if (!is_kernel(cast, "cast") || weights.count(cast.in[0]) == 0) return;
  const BufferId weight = cast.in[0], narrow = cast.out[0];
  if (type_of(program, weight).dtype != DType::f32 ||
      type_of(program, narrow).dtype != DType::bf16 || !uses.passing(narrow)) {
    return;
  }
  const auto operand = [&](const Step& step) { return step.in[0] == narrow ? size_t{0} : 1; };
  for (size_t r : uses.readers(narrow)) {
    const Step& product = program.steps[r];
    if (!is_kernel(product, "matmul") || product.phase != cast.phase ||
        product.in[0] == product.in[1] ||
        type_of(program, product.in[1 - operand(product)]).dtype != DType::bf16 ||
        rows_of_other(program, product, operand(product)) < kManyRows ||
        uses.written_between(weight, s, r)) {
      return;
    }
    std::vector<TensorType> in = types_of(program, product.in);
    in[operand(product)] = type_of(program, weight);
    if (takes && !takes(product.node, in, types_of(program, product.out))) return;
  }
  for (size_t r : uses.readers(narrow)) {
    Step& product = program.steps[r];
    product.in[operand(product)] = weight;
    product.node.inputs = product.in;
  }
  gone.insert(s);
}

}  // namespace

void fuse_weight_casts(Program& program, const TakesStep& takes) {
  const std::set<BufferId> weights = buffers_of(program, Role::parameter);
  rewrite_steps(program, [&](const Uses& uses, size_t s, std::set<size_t>& gone) {
    read_weight(program, uses, takes, weights, s, gone);
  });
}

}  // namespace shardrun
