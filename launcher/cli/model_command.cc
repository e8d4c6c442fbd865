// shardrun model: writes one of the models that it knows as ONNX.
#include <cstdio>
#include <memory>

#include "command.h"

namespace shardrun::cli {
namespace {

template <class Model>
CLI::App* add_model(CLI::App& app, const char* name, const char* what, Model& o,
                    const char* presets, std::string& output) {
  CLI::App* command = app.add_subcommand(name, what);
  command->add_option("--preset", o.preset, std::string(presets) + "; other flags go over it");
  command->add_flag("!--no-weights", o.weights,
                    "Describe the initialisers; each rank makes its own shard");
  command
      ->add_option("--seed", o.seed, "Of the stored weights; described ones follow train's --seed")
      ->capture_default_str();
  command->add_option("-o,--output", output, "The ONNX file to write")->required();
  return command;
}

template <class Model>
void add_recipe(CLI::App& command, Model& o) {
  command.add_option("--recipe", o.recipe,
                     "Flags of 'shardrun train' that the file carries, in one string");
}

/// A flag and its contrary; neither leaves the preset's choice.
void add_choice(CLI::App& command, const char* flags, std::optional<bool>& value,
                const char* help) {
  command.add_flag_function(
      flags, [&value](int64_t count) { value = count > 0; }, help);
}

class ModelCommand {
 public:
  /// Adds the models as subcommands.
  void add_model_options(CLI::App& app);
  /// Writes the model that was asked for, and says how many parameters it has.
  void run() const;

 private:
  void add_gpt(CLI::App& app);
  void add_gat(CLI::App& app);
  void add_wide_resnet(CLI::App& app);
  void add_gns(CLI::App& app);
  void add_unet(CLI::App& app);
  int64_t write() const;

  CLI::App *gpt_command_, *gat_command_, *wide_resnet_command_, *gns_command_, *unet_command_;
  GptModel gpt_;
  GatModel gat_;
  WideResNetModel wide_resnet_;
  GnsModel gns_;
  UNetModel unet_;
  bool dense_ = false, sparse_ = false;
  std::string output_;
};

void ModelCommand::add_model_options(CLI::App& app) {
  app.require_subcommand(1);
  add_gpt(app);
  add_gat(app);
  add_wide_resnet(app);
  add_gns(app);
  add_unet(app);
}

void ModelCommand::add_gpt(CLI::App& app) {
  gpt_command_ = add_model(
      app, "gpt", "A language model like GPT-2, LLaMA or Gemma", gpt_,
      "tiny, gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1558m, llama-8b, itx, t2b, t7b, metadist-1, -2, "
      "-4, -8 (MetaDist's Table 2)",
      output_);
  gpt_command_->add_option("--layers", gpt_.layers);
  gpt_command_->add_option("--hidden", gpt_.hidden);
  gpt_command_->add_option("--heads", gpt_.heads);
  gpt_command_->add_option("--vocab", gpt_.vocab);
  gpt_command_->add_option("--context", gpt_.context);
  gpt_command_->add_option("--batch", gpt_.batch,
                           "A fixed batch (default: the symbolic dim 'batch')");
  gpt_command_->add_option("--kv-heads", gpt_.kv_heads,
                           "Key and value heads, fewer than --heads share them (default: as "
                           "--heads)");
  gpt_command_->add_option("--head-width", gpt_.head_width, "(default: hidden / heads)");
  gpt_command_->add_option("--mlp-width", gpt_.mlp_width, "(default: 4 x hidden)");
  gpt_command_->add_option("--experts", gpt_.experts,
                           "A mixture of so many MLPs in each block (default: one MLP)");
  gpt_command_->add_option("--top-k", gpt_.top_k, "Experts that a token is sent to (default: 2)");
  gpt_command_->add_option(
      "--capacity", gpt_.capacity,
      "Tokens of a sample that an expert takes, times an even split; those beyond "
      "it skip the expert (default: 1.25)");
  gpt_command_->add_option("--norm", gpt_.norm, "layer or rms (default: layer)");
  gpt_command_->add_option("--mlp", gpt_.mlp, "gelu, swiglu or geglu (default: gelu)");
  gpt_command_->add_option("--positions", gpt_.positions, "learned or rotary (default: learned)");
  add_choice(*gpt_command_, "--biases,!--no-biases", gpt_.biases,
             "Biases of linear layers and norms (default: yes)");
  add_choice(*gpt_command_, "--tied,!--untied", gpt_.tied,
             "The head is the embedding (default: yes)");
  gpt_command_->add_option("--dropout", gpt_.dropout)->capture_default_str();
}

void ModelCommand::add_gat(CLI::App& app) {
  gat_command_ = add_model(
      app, "gat", "A graph attention network", gat_,
      "cora (with its paper's recipe), metadist-1, -2, -4, -8 (MetaDist's Table 4)", output_);
  gat_command_->add_flag("--dense", dense_, "Take an adjacency matrix [nodes, nodes]");
  gat_command_->add_flag("--sparse", sparse_,
                         "Take an edge list [2, edges] (the default of most presets)");
  gat_command_->add_option("--layers", gat_.layers);
  gat_command_->add_option("--features", gat_.features, "Of each node");
  gat_command_->add_option("--hidden", gat_.hidden, "Features of each head");
  gat_command_->add_option("--classes", gat_.classes);
  gat_command_->add_option("--heads", gat_.heads, "Of each layer but the last, concatenated");
  gat_command_->add_option("--output-heads", gat_.output_heads, "Of the last layer, averaged");
  gat_command_->add_option("--nodes", gat_.nodes, "Fixed (default: the symbolic dim 'nodes')");
  gat_command_->add_option("--edges", gat_.edges, "Fixed (default: the symbolic dim 'edges')");
  gat_command_->add_option("--dropout", gat_.dropout, "Of each layer's input");
  gat_command_->add_option("--attention-dropout", gat_.attention_dropout,
                           "Of the attention coefficients");
  gat_command_->add_option("--negative-slope", gat_.negative_slope, "LeakyReLU's (0.2)");
  add_recipe(*gat_command_, gat_);
}

void ModelCommand::add_wide_resnet(CLI::App& app) {
  wide_resnet_command_ = add_model(
      app, "wide-resnet", "A wide residual network", wide_resnet_,
      "wrn-16-4, wrn-28-10, wrn-40-2 … (CIFAR, with their paper's recipe), wrn-50-2, wrn-101-2, "
      "resnet-18 to resnet-152, metadist-1, -2, -4, -8 (MetaDist's Table 3)",
      output_);
  wide_resnet_command_->add_option("--family", wide_resnet_.family,
                                   "imagenet (torchvision's, the default) or cifar");
  wide_resnet_command_->add_option("--layers", wide_resnet_.layers);
  wide_resnet_command_->add_option(
      "--width", wide_resnet_.width,
      "imagenet: channels of the first stage's 3x3 convolutions; cifar: the widening factor");
  wide_resnet_command_->add_option("--channels", wide_resnet_.channels, "Of the images");
  wide_resnet_command_->add_option("--image", wide_resnet_.image, "Height and width");
  wide_resnet_command_->add_option("--classes", wide_resnet_.classes);
  wide_resnet_command_->add_option("--batch", wide_resnet_.batch,
                                   "A fixed batch (default: the symbolic dim 'batch')");
  wide_resnet_command_->add_option("--dropout", wide_resnet_.dropout,
                                   "cifar: between a block's convolutions");
  add_recipe(*wide_resnet_command_, wide_resnet_);
}

void ModelCommand::add_gns(CLI::App& app) {
  gns_command_ = add_model(app, "gns", "A graph network simulator", gns_,
                           "toast (TOAST's: 24 steps, 2048 nodes, 8192 edges)", output_);
  gns_command_->add_option("--steps", gns_.steps, "Of message passing");
  gns_command_->add_option("--features", gns_.features, "Of each node, as they come in");
  gns_command_->add_option("--edge-features", gns_.edge_features, "Of each edge");
  gns_command_->add_option("--hidden", gns_.hidden, "Width of the MLPs' hidden layers");
  gns_command_->add_option("--latent", gns_.latent, "Width of what the MLPs make");
  gns_command_->add_option("--mlp-layers", gns_.mlp_layers, "Hidden layers of each MLP");
  gns_command_->add_option("--outputs", gns_.outputs, "Of each node");
  gns_command_->add_option("--nodes", gns_.nodes, "Fixed (default: the symbolic dim 'nodes')");
  gns_command_->add_option("--edges", gns_.edges, "Fixed (default: the symbolic dim 'edges')");
  add_choice(*gns_command_, "--globals,!--no-globals", gns_.globals,
             "A state of the whole graph, as jraph's GraphNetwork has it (default: no)");
  add_recipe(*gns_command_, gns_);
}

void ModelCommand::add_unet(CLI::App& app) {
  unet_command_ =
      add_model(app, "unet", "A U-Net of residual blocks with attention, for images", unet_,
                "toast (TOAST's: 9 blocks down, 12 up, 3.6 billion parameters)", output_);
  unet_command_->add_option("--width", unet_.width,
                            "Channels of the first level; each further one has twice as many");
  unet_command_->add_option("--levels", unet_.levels, "Each is half as high and wide");
  unet_command_->add_option("--blocks", unet_.blocks,
                            "Of each level on the way down; one more on the way up");
  unet_command_->add_option("--heads", unet_.heads, "Of the attention at the bottom");
  unet_command_->add_option("--groups", unet_.groups, "Of the group norms");
  unet_command_->add_option("--channels", unet_.channels, "Of the images");
  unet_command_->add_option("--image", unet_.image, "Height and width");
  unet_command_->add_option("--batch", unet_.batch,
                            "A fixed batch (default: the symbolic dim 'batch')");
  add_recipe(*unet_command_, unet_);
}

int64_t ModelCommand::write() const {
  if (gpt_command_->parsed()) return write_gpt(gpt_, output_);
  if (wide_resnet_command_->parsed()) return write_wide_resnet(wide_resnet_, output_);
  if (gns_command_->parsed()) return write_gns(gns_, output_);
  if (unet_command_->parsed()) return write_unet(unet_, output_);
  if (dense_ && sparse_)
    throw Failure(Failure::Kind::call, "--dense and --sparse: give one of the two");
  GatModel gat = gat_;
  if (dense_ || sparse_) gat.dense = dense_;
  return write_gat(gat, output_);
}

void ModelCommand::run() const {
  const auto parameters = static_cast<long long>(write());
  std::printf("%s: %lld parameters\n", output_.c_str(), parameters);
}

}  // namespace

Command model_command() {
  const auto model = std::make_shared<ModelCommand>();
  return {.name = "model",
          .help = "Write a model as ONNX",
          .add_options = [model](CLI::App& app, Arguments&) { model->add_model_options(app); },
          .run_alone =
              [model](Arguments&) {
                model->run();
                return 0;
              }};
}

}  // namespace shardrun::cli
