// Advice by kind of operator; the last kind is any other.
#include "graph/onnx/lower/advice.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace shardrun::importer {
namespace {

struct Advice {
  std::vector<std::string_view> parts;  // of the operator's name; none: any name
  std::array<std::string_view, 3> lines;
};

const std::vector<Advice>& advices() {
  static const std::vector<Advice> all = {
      {{"uantize", "QLinear", "Integer"},
       {"quantised models do not train here: export the float model, before convert() or "
        "quantize()",
        "for training with simulated quantisation, export FakeQuantize modules as clamp(round(x / "
        "s)) "
        "* s with a straight-through gradient",
        "quantise what `shardrun export` writes, for inference"}},
      {{"Sequence", "Optional"},
       {"sequences are imported where their length is constant: return tensors, not lists of them",
        "torch.stack or torch.cat a list before it leaves the loop that makes it",
        "an optional input is left out of the example arguments, or always given"}},
      {{"NonMaxSuppression", "Unique"},
       {"how large its result is depends on data: train without it, and apply it after `shardrun "
        "run`",
        "a loss of detections compares all candidates, each with a weight of 0 or 1",
        "of a fixed number of candidates, torch.topk picks the best"}},
      {{"String", "Regex", "TfIdf", "LabelEncoder"},
       {"text is made into numbers before the model: leave the tokenizer out of the export",
        "give tokens as integers (--data tokens:FILE, or npz:FILE)",
        "onnx.utils.extract_model cuts the model after that node"}},
      {{},
       {"write it in the module with operators that are imported, before the export "
        "(docs/operators.md)",
        "or register it as an op of your own, with its gradient, and load it with --ops "
        "(docs/ops.md)",
        "or leave it out: what the loss does not read is not computed (--loss-output names the "
        "loss)"}}};
  return all;
}

}  // namespace

std::string advice_for(const std::string& op) {
  const auto fits = [&](const Advice& advice) {
    return advice.parts.empty() ||
           std::any_of(advice.parts.begin(), advice.parts.end(),
                       [&](std::string_view part) { return op.find(part) != std::string::npos; });
  };
  const Advice& advice = *std::find_if(advices().begin(), advices().end(), fits);
  std::string out;
  for (const std::string_view line : advice.lines) out.append("\n  - ").append(line);
  return out;
}

}  // namespace shardrun::importer
