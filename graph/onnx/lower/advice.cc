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
      {{"::"},
       {"operators of com.microsoft are made after the export: give the file that "
        "torch.onnx.export wrote, not an optimised one",
        "of a domain of your own: register_op in shardrun/op.h adds one, with its gradient, and "
        "--ops a library of them (docs/ops.md)",
        "or write it in the module with operators that are imported (docs/operators.md)"}},
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
      {{"Unique"},
       {"how large its result is depends on data: of n known values (x[:, None] == "
        "torch.arange(n)).sum(0) counts each",
        "Embedding(max_norm=m) has it: scale the weight in forward() instead, by (m / "
        "w.norm(dim=1, keepdim=True)).clamp(max=1)",
        "or leave it out: what the loss does not read is not computed (--loss-output names the "
        "loss)"}},
      {{"Bitwise", "BitShift"},
       {"of integers: x % 2**k keeps the last k bits, x // 2**k drops them, x * 2**k shifts to the "
        "left",
        "of booleans: x.bool() & y.bool() is And, which is imported",
        "or compute it before the export, as an input of its own"}},
      {{"NonMaxSuppression"},
       {"how large its result is depends on data: train without it, and apply it after `shardrun "
        "run`",
        "a loss of detections compares all candidates, each with a weight of 0 or 1",
        "of a fixed number of candidates, torch.topk picks the best"}},
      {{"Loop", "Scan"},
       {"only turns that are known at export are written out: count with range(n), of a number "
        "or of .shape",
        "a count that depends on data: take the most turns, each x = torch.where(turn < n, "
        "step(x), x)",
        "of a model that generates, export forward(); `shardrun sample` takes the turns"}},
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

/// For an operator of rows that a mask picks.
const std::vector<Advice>& row_advices() {
  constexpr std::string_view kWeighted =
      "else compute all rows and weight them: (mask * x).sum() / mask.sum()";
  static const std::vector<Advice> all = {
      {{"TopK", "Sort", "Max", "Min", "Softmax"},
       {"give it all rows, with torch.where(mask, x, -1e30), or 1e30 of a minimum, in place of "
        "x[mask]",
        "a count that depends on the mask, such as a quarter of the rows, has to be a number",
        kWeighted}},
      {{"MatMul", "Gemm", "Einsum"},
       {"of scores of pairs: compute them of all rows, and put -1e30 where either is masked before "
        "the softmax",
        "a sum over the rows: (mask[:, None] * x).T @ y",
        "of a mixture of experts: each takes a fixed number of tokens (docs/onnx.md, 'Mixtures of "
        "experts')"}},
      {{"Normalization"},
       {"LayerNorm and RMSNorm are of each row: give them all rows, and pick afterwards",
        "of the rows' own mean and variance: m = (mask * x).sum(0) / mask.sum(), and so on",
        "or give the model batches without rows that do not count"}},
      {{},
       {"of a loss: mark targets that do not count by -100, and give the loss all rows "
        "(ignore_index=-100)",
        "of a mixture of experts: each takes a fixed number of tokens (docs/onnx.md, 'Mixtures of "
        "experts'); in transformers set_experts_implementation(\"batched_mm\")",
        "else compute all rows and weight them: (mask * x).sum() / mask.sum(); of a graph, edges "
        "come with --data npz:FILE, whose arrays are one batch and so constants"}}};
  return all;
}

std::string lines_for(const std::vector<Advice>& advices, const std::string& op) {
  const auto fits = [&](const Advice& advice) {
    return advice.parts.empty() ||
           std::any_of(advice.parts.begin(), advice.parts.end(),
                       [&](std::string_view part) { return op.find(part) != std::string::npos; });
  };
  const Advice& advice = *std::find_if(advices.begin(), advices.end(), fits);
  std::string out;
  for (const std::string_view line : advice.lines) out.append("\n  - ").append(line);
  return out;
}

}  // namespace

std::string advice_for(const std::string& op) { return lines_for(advices(), op); }

std::string advice_for_rows(const std::string& op) { return lines_for(row_advices(), op); }

std::string advice_for_size() {
  return "\n  - of bincount(x, minlength=n) and unique(): (x[:, None] == torch.arange(n)).sum(0) "
         "counts n known values"
         "\n  - of repeat_interleave(x, counts): number the rows before the export; take x[rows]"
         "\n  - other sizes: take them from .shape, or write the number";
}

}  // namespace shardrun::importer
