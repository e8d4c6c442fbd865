// write_gpt: the public face of models/gpt.h.
#include "models/gpt.h"

#include "shardrun/shardrun.h"
#include "world.h"

namespace shardrun {

void write_gpt(const GptModel& model, const std::string& path) {
  at_boundary([&] {
    GptOptions options = model.preset.empty() ? GptOptions{} : gpt_preset(model.preset);
    if (model.layers) options.layers = *model.layers;
    if (model.hidden) options.hidden = *model.hidden;
    if (model.heads) options.heads = *model.heads;
    if (model.vocab) options.vocab = *model.vocab;
    if (model.context) options.context = *model.context;
    if (model.batch) options.batch = *model.batch;
    if (model.kv_heads) options.kv_heads = *model.kv_heads;
    if (model.head_width) options.head_width = *model.head_width;
    if (model.mlp_width) options.mlp_width = *model.mlp_width;
    if (model.norm) options.norm = *model.norm;
    if (model.mlp) options.mlp = *model.mlp;
    if (model.positions) options.positions = *model.positions;
    if (model.biases) options.biases = *model.biases;
    if (model.tied) options.tied = *model.tied;
    options.dropout = model.dropout;
    options.weights = model.weights;
    options.seed = model.seed;
    write_gpt(options, path);
  });
}

std::string version() { return SHARDRUN_VERSION; }

}  // namespace shardrun
