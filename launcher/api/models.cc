// The public face of the model builders.
#include "models/gat.h"
#include "models/gpt.h"
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

}  // namespace

void write_gpt(const GptModel& model, const std::string& path) {
  at_boundary([&] {
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
    take(options.norm, model.norm);
    take(options.mlp, model.mlp);
    take(options.positions, model.positions);
    take(options.biases, model.biases);
    take(options.tied, model.tied);
    options.dropout = model.dropout;
    options.weights = model.weights;
    options.seed = model.seed;
    write_gpt(options, path);
  });
}

void write_gat(const GatModel& model, const std::string& path) {
  at_boundary([&] {
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
    if (model.recipe) parse_recipe(*model.recipe, "--recipe");
    take(options.recipe, model.recipe);
    options.weights = model.weights;
    options.seed = model.seed;
    write_gat(options, path);
  });
}

void write_wide_resnet(const WideResNetModel& model, const std::string& path) {
  at_boundary([&] {
    WideResNetOptions options =
        model.preset.empty() ? WideResNetOptions{} : wide_resnet_preset(model.preset);
    if (model.family) {
      using Family = WideResNetOptions::Family;
      SR_REQUIRE(*model.family == "imagenet" || *model.family == "cifar", invalid_input, "family '",
                 *model.family, "' is not one of imagenet, cifar");
      options.family = *model.family == "cifar" ? Family::cifar : Family::imagenet;
    }
    take(options.layers, model.layers);
    take(options.width, model.width);
    take(options.channels, model.channels);
    take(options.image, model.image);
    take(options.classes, model.classes);
    take(options.batch, model.batch);
    take(options.dropout, model.dropout);
    if (model.recipe) parse_recipe(*model.recipe, "--recipe");
    take(options.recipe, model.recipe);
    options.weights = model.weights;
    options.seed = model.seed;
    write_wide_resnet(options, path);
  });
}

}  // namespace shardrun
