// Inputs that go with the tokens, and the step with its kept keys.
#include "inference/token_step.h"

#include <algorithm>

#include "exec/data/data_internal.h"
#include "graph/onnx/import.h"
#include "planner/rules/rule_file.h"
#include "planner/token_steps.h"

namespace shardrun {

std::map<std::string, Tensor> constant_inputs(const OnnxFile& model, const ModelOptions& options) {
  std::map<std::string, Tensor> out;
  for (const DeclaredInput& input : model.declared_inputs()) {
    const bool mask = input.name == "attention_mask", types = input.name == "token_type_ids";
    if (input.dims.size() != 2 || (!mask && !types && input.name != "position_ids")) continue;
    Shape shape;
    for (const DeclaredInput::Dim& dim : input.dims) {
      const auto bound = options.dims.find(dim.symbol);
      shape.push_back(dim.symbol.empty()            ? dim.size
                      : bound == options.dims.end() ? 0
                                                    : bound->second);
    }
    if (element_count(shape) == 0) continue;  // import says what is not bound
    std::vector<int64_t> values;
    for (int64_t i = 0; i < element_count(shape); ++i)
      values.push_back(mask ? 1 : types ? 0 : i % shape[1]);
    out.emplace(input.name, Tensor::from(shape, values, DType::i64));
  }
  return out;
}

Graph token_step(const Graph& forward) {
  RuleCache rules(rule_file_path(), RuleCache::Keep::read_only);  // every rank's
  std::string why;
  std::optional<Graph> step = cached_step(forward, find_tokens(forward), 1, rules, &why);
  SR_REQUIRE(step, invalid_input,
             "a step that takes one token keeps keys and values, which cannot be done: ", why);
  return std::move(*step);
}

std::optional<int64_t> last_position(const Graph& step) {
  std::optional<int64_t> last;
  if (step.find(kPosition) == kNoValue) return last;
  for (const ValueId kept : step.zeroed_each_step) {
    const int64_t rows = step.type(kept).shape[0];
    last = std::min(last.value_or(rows - 1), rows - 1);
  }
  return last;
}

}  // namespace shardrun
