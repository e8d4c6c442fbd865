// One kernel of element-wise steps, and the loop over rows.
#include "exec/fused_kernel.h"

#include <algorithm>
#include <map>

#include "kernels/element_chain.h"

namespace shardrun {
namespace {

FusedKernel by_elements(const Program& program, const FusedSteps& fused,
                        std::span<const BoundStep> steps) {
  FusedKernel out;
  ElementChain chain;
  std::map<BufferId, int> places;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = program.steps[fused.first + i];
    ElementChain::Call call{step.node, {}, 0};
    for (size_t k = 0; k < step.in.size(); ++k) {
      const auto [it, fresh] = places.emplace(step.in[k], static_cast<int>(chain.values.size()));
      if (fresh) {
        chain.values.push_back(steps[i].in[k].type);
        chain.reads.push_back(it->second);
        out.in.push_back(steps[i].in[k]);
      }
      call.in.push_back(it->second);
    }
    call.out = static_cast<int>(chain.values.size());
    chain.values.push_back(steps[i].out[0].type);
    places[step.out[0]] = call.out;
    if (std::count(fused.unwritten.begin(), fused.unwritten.end(), step.out[0]) == 0) {
      chain.writes.push_back(call.out);
      out.out.push_back(steps[i].out[0]);
    }
    chain.calls.push_back(std::move(call));
  }
  out.kernel = steps[0].kernel->fuse(chain);
  return out;
}

FusedKernel by_rows(const Program& program, const FusedSteps& fused,
                    std::span<const BoundStep> steps) {
  const Step& first = program.steps[fused.first];
  const TensorType& whole =
      type_of(program, first.rows == RowWise::operand ? first.in[0] : first.out[0]);
  const int64_t rows = element_count(whole.shape) / whole.shape.back(), tile = fused.rows_at_once;
  FusedKernel out;
  out.kernel.run = [rows, tile,
                    steps = std::vector(steps.begin(), steps.end())](const KernelArgs&) {
    const int64_t tiles = (rows + tile - 1) / tile;
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t begin = t * tile, end = std::min(begin + tile, rows);
      for (const BoundStep& step : steps)
        step.kernel->run_rows(KernelArgs{step.in, step.out, nullptr}, begin, end);
    }
  };
  return out;
}

}  // namespace

FusedKernel fused_kernel(const Program& program, const FusedSteps& fused,
                         std::span<const BoundStep> steps) {
  const bool elements = fused.kind == FusedSteps::Kind::elements;
  for (const BoundStep& step : steps) {
    SR_REQUIRE(step.kernel != nullptr &&
                   (elements ? step.kernel->fuse != nullptr : step.kernel->run_rows != nullptr),
               internal, "the program fuses ", fused.size, " steps from '",
               program.steps[fused.first].node.name, "' on, which its kernels cannot do");
  }
  return elements ? by_elements(program, fused, steps) : by_rows(program, fused, steps);
}

}  // namespace shardrun
