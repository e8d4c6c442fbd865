// MetaDist's models by their presets, and small ones that grow as those do (its figure 8 and
// appendix A.2): a GPT by its layers, a WideResNet by its batch and, each second time that ranks
// double, its width instead, a graph attention network by its heads.
#include "bench/bench_models.h"

#include <algorithm>
#include <cmath>

#include "shardrun/shardrun.h"

namespace shardrun::cli {
namespace {

constexpr int kPaperRanks[] = {1, 2, 4, 8};

GptModel gpt(bool tiny, int ranks) {
  GptModel m;
  m.layers = (tiny ? 1 : 2) * ranks;
  m.hidden = tiny ? 64 : 512;
  m.heads = tiny ? 2 : 8;
  m.vocab = 256;
  m.context = tiny ? 32 : 128;
  m.batch = 8;
  return m;
}

/// Work goes by the batch and the width's square: 1 rank 8 x 5^2, 2 ranks 16 x 5^2, 4 ranks
/// 16 x 7^2, 8 ranks 32 x 7^2, 16 ranks 32 x 10^2.
WideResNetModel wide_resnet(bool tiny, int ranks) {
  const double wider = 1 << static_cast<int>(std::log2(ranks) / 2), one = tiny ? 1 : 5;
  WideResNetModel m;
  m.family = "cifar";
  m.layers = tiny ? 10 : 16;
  m.width = std::lround(one * std::sqrt(wider));
  m.image = tiny ? 16 : 32;
  m.classes = 10;
  const auto work = static_cast<double>(*m.width * *m.width) / (one * one);
  m.batch = 8 * ranks / std::lround(work);  // sqrt(2) of the tiny width is 1
  return m;
}

GatModel gat(bool tiny, int ranks) {
  GatModel m;
  m.dense = true;
  m.layers = 1;
  m.nodes = tiny ? 64 : 1024;
  m.features = m.hidden = m.classes = tiny ? 64 : 2048;
  m.heads = m.output_heads = ranks;
  return m;
}

template <class Model>
std::function<void(const std::string&)> writer(Model model,
                                               int64_t (*write)(const Model&, const std::string&)) {
  model.weights = false;
  return [model, write](const std::string& path) { write(model, path); };
}

std::string size_text(const GptModel& m) {
  return std::to_string(*m.layers) + (*m.layers == 1 ? " layer, hidden " : " layers, hidden ") +
         std::to_string(*m.hidden) + ", batch " + std::to_string(*m.batch) + " x " +
         std::to_string(*m.context) + " tokens";
}
std::string size_text(const WideResNetModel& m) {
  return "WRN-" + std::to_string(*m.layers) + "-" + std::to_string(*m.width) + ", batch " +
         std::to_string(*m.batch) + " of " + std::to_string(*m.image) + " x " +
         std::to_string(*m.image);
}
std::string size_text(const GatModel& m) {
  return std::to_string(*m.heads) + (*m.heads == 1 ? " head" : " heads") + " of " +
         std::to_string(*m.hidden) + ", " + std::to_string(*m.nodes) + " nodes";
}

template <class Model>
BenchModel made(Model model, bool paper, int ranks,
                int64_t (*write)(const Model&, const std::string&)) {
  BenchModel out;
  if (paper) {
    model = {};
    model.preset = "metadist-" + std::to_string(ranks);
  }
  out.size = paper ? "preset " + model.preset : size_text(model);
  out.write = writer(model, write);
  return out;
}

}  // namespace

std::vector<std::string> bench_models() { return {"gpt", "wide-resnet", "gat"}; }
std::vector<std::string> bench_scales() { return {"tiny", "small", "paper"}; }

BenchModel bench_model(const std::string& name, const std::string& scale, int ranks) {
  const bool paper = scale == "paper", tiny = scale == "tiny";
  if (paper && std::count(std::begin(kPaperRanks), std::end(kPaperRanks), ranks) == 0) {
    throw Failure(Failure::Kind::call, "--ranks " + std::to_string(ranks) +
                                           ": the paper has models for 1, 2, 4 and 8 ranks; take "
                                           "--scale small for others");
  }
  if (name == "gpt") return made(gpt(tiny, ranks), paper, ranks, write_gpt);
  BenchModel out = name == "gat" ? made(gat(tiny, ranks), paper, ranks, write_gat)
                                 : made(wide_resnet(tiny, ranks), paper, ranks, write_wide_resnet);
  out.train = {"--loss", "cross-entropy"};
  return out;
}

}  // namespace shardrun::cli
