// The public face of the model builders.
#include "choices.h"
#include "models/gat.h"
#include "models/gns.h"
#include "models/gpt.h"
#include "models/unet.h"
#include "models/wide_resnet.h"
#include "ranks/world.h"
#include "recipe.h"
#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

template <class T, class U>
void take(T& option, const std::optional<U>& given) {
  if (given) option = *given;
}

/// What every model with a recipe has.
template <class Options, class Model>
void take_common(Options& options, const Model& model) {
  if (model.recipe) parse_recipe(*model.recipe, "--recipe");
  take(options.recipe, model.recipe);
  options.weights = model.weights;
  options.seed = model.seed;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> read_recipe(const OnnxModel& model) {
  return at_boundary([&] { return recipe_of(model.file()); });
}

int64_t write_gpt(const GptModel& model, const std::string& path) {
  return at_boundary([&] {
    GptOptions options = model.preset.empty() ? GptOptions{} : gpt_preset(model.preset);
    take(options.layers, model.layers);
    take(options.hidden, model.hidden);
    take(options.heads, model.heads);
    take(options.vocab, model.vocab);
    take(options.context, model.context);
    take(options.batch, model.batch);
    take(options.kv_heads, model.kv_heads);
    take(options.head_width, model.head_width);
    take(options.mlp_width, model.mlp_width);
    take(options.experts, model.experts);
    SR_REQUIRE(options.experts || !(model.top_k || model.capacity), invalid_input,
               "top-k and capacity are those of a mixture; give its number of experts");
    take(options.top_k, model.top_k);
    take(options.capacity, model.capacity);
    if (model.norm) options.norm = parse_choice("norm", kGptNorms, *model.norm);
    if (model.mlp) options.mlp = parse_choice("mlp", kGptMlps, *model.mlp);
    if (model.positions)
      options.positions = parse_choice("positions", kGptPositions, *model.positions);
    take(options.biases, model.biases);
    take(options.tied, model.tied);
    options.dropout = model.dropout;
    options.weights = model.weights;
    options.seed = model.seed;
    return write_gpt(options, path);
  });
}

int64_t write_gat(const GatModel& model, const std::string& path) {
  return at_boundary([&] {
    GatOptions options = model.preset.empty() ? GatOptions{} : gat_preset(model.preset);
    if (model.dense && *model.dense && !model.edges) options.edges.reset();
    take(options.dense, model.dense);
    take(options.layers, model.layers);
    take(options.features, model.features);
    take(options.hidden, model.hidden);
    take(options.classes, model.classes);
    take(options.heads, model.heads);
    take(options.output_heads, model.output_heads);
    take(options.nodes, model.nodes);
    take(options.edges, model.edges);
    take(options.dropout, model.dropout);
    take(options.attention_dropout, model.attention_dropout);
    take(options.negative_slope, model.negative_slope);
    take_common(options, model);
    return write_gat(options, path);
  });
}

int64_t write_wide_resnet(const WideResNetModel& model, const std::string& path) {
  return at_boundary([&] {
    WideResNetOptions options =
        model.preset.empty() ? WideResNetOptions{} : wide_resnet_preset(model.preset);
    if (model.family) options.family = parse_choice("family", kFamilies, *model.family);
    take(options.layers, model.layers);
    take(options.width, model.width);
    take(options.channels, model.channels);
    take(options.image, model.image);
    take(options.classes, model.classes);
    take(options.batch, model.batch);
    take(options.dropout, model.dropout);
    take_common(options, model);
    return write_wide_resnet(options, path);
  });
}

int64_t write_gns(const GnsModel& model, const std::string& path) {
  return at_boundary([&] {
    GnsOptions options = model.preset.empty() ? GnsOptions{} : gns_preset(model.preset);
    take(options.steps, model.steps);
    take(options.features, model.features);
    take(options.edge_features, model.edge_features);
    take(options.hidden, model.hidden);
    take(options.latent, model.latent);
    take(options.mlp_layers, model.mlp_layers);
    take(options.outputs, model.outputs);
    take(options.nodes, model.nodes);
    take(options.edges, model.edges);
    take(options.globals, model.globals);
    take_common(options, model);
    return write_gns(options, path);
  });
}

int64_t write_unet(const UNetModel& model, const std::string& path) {
  return at_boundary([&] {
    UNetOptions options = model.preset.empty() ? UNetOptions{} : unet_preset(model.preset);
    take(options.width, model.width);
    take(options.levels, model.levels);
    take(options.blocks, model.blocks);
    take(options.heads, model.heads);
    take(options.groups, model.groups);
    take(options.channels, model.channels);
    take(options.image, model.image);
    take(options.batch, model.batch);
    take_common(options, model);
    return write_unet(options, path);
  });
}

}  // namespace shardrun
