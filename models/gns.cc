// GNS (Sanchez-Gonzalez et al., "Learning to Simulate Complex Physics with Graph Networks", 2020)
// node by node.
#include "models/gns.h"

#include <cmath>

#include "models/onnx_writer.h"
#include "models/presets.h"
#include "models/scatter.h"

namespace shardrun {
namespace {

// TOAST gives the steps, the layers and the sizes, and 875 M parameters: those of graph networks
// with globals, which jraph's are.
GnsOptions toast_gns() {
  GnsOptions o;
  o.steps = 24;
  o.hidden = 1024;
  o.latent = 2048;
  o.mlp_layers = 3;
  o.globals = true;
  o.nodes = 2048;
  o.edges = 8192;
  return o;
}

Presets<GnsOptions> gns_sizes() { return {{"toast", toast_gns()}}; }

class GnsWriter {
 public:
  explicit GnsWriter(const GnsOptions& options)
      : o_(options), w_("gns", {.weights = options.weights, .seed = options.seed}) {}

  int64_t write(const std::string& path) {
    const std::string nodes = o_.nodes ? std::to_string(*o_.nodes) : "nodes";
    const std::string edges = o_.edges ? std::to_string(*o_.edges) : "edges";
    w_.input("features", kFloat, {nodes, std::to_string(o_.features)});
    w_.input("edge_features", kFloat, {edges, std::to_string(o_.edge_features)});
    w_.input("edge_index", kInt64, {"2", edges});
    source_ = w_.node("Gather", {"edge_index", w_.integer(0)}, {{"axis", int64_t{0}}});
    target_ = w_.node("Gather", {"edge_index", w_.integer(1)}, {{"axis", int64_t{0}}});
    v_ = mlp("encoder.nodes.", "features", o_.features);
    e_ = mlp("encoder.edges.", "edge_features", o_.edge_features);
    if (o_.globals) u_ = mlp("encoder.globals.", mean("features"), o_.features);
    for (int64_t step = 0; step < o_.steps; ++step) pass(str("steps.", step, "."));
    decode();
    w_.output("predictions", kFloat, {nodes, std::to_string(o_.outputs)});
    w_.metadata("shardrun.train", o_.recipe.empty() ? kRegressionRecipe : o_.recipe);
    w_.write(path);
    return w_.parameter_count();
  }

 private:
  std::string linear(const std::string& x, const std::string& name, int64_t in, int64_t out,
                     double gain) {
    const std::string at = w_.prefix + name;
    const std::string weight =
        w_.normal(at + ".weight", {in, out}, std::sqrt(gain / static_cast<double>(in)));
    return w_.node("Add", {w_.node("MatMul", {x, weight}), w_.filled(at + ".bias", {out}, 0)});
  }

  /// `x` [rows, in] -> [rows, hidden]
  std::string hidden_layers(std::string x, int64_t in) {
    for (int64_t l = 0; l < o_.mlp_layers; ++l, in = o_.hidden)
      x = w_.node("Relu", {linear(x, str("layers.", l), in, o_.hidden, 2)});
    return x;
  }

  /// `x` [rows, in] -> [rows, latent]
  std::string mlp(const std::string& prefix, const std::string& x, int64_t in) {
    w_.prefix = prefix;
    const std::string made =
        linear(hidden_layers(x, in), str("layers.", o_.mlp_layers), o_.hidden, o_.latent, 1);
    return w_.node("LayerNormalization",
                   {made, w_.filled(prefix + "norm.weight", {o_.latent}, 1),
                    w_.filled(prefix + "norm.bias", {o_.latent}, 0)},
                   {{"axis", int64_t{-1}}, {"epsilon", 1e-5}});
  }

  /// The same of several [rows, latent] side by side.
  std::string mlp_of(const std::string& prefix, const std::vector<std::string>& parts) {
    w_.prefix = prefix;
    return mlp(prefix, concatenated(parts), std::ssize(parts) * o_.latent);
  }

  std::string concatenated(const std::vector<std::string>& parts) {
    return w_.node("Concat", parts, {{"axis", int64_t{1}}});
  }

  /// [rows, columns] -> [1, columns]
  std::string mean(const std::string& x) {
    return w_.node("ReduceMean", {x, w_.ints({0})}, {{"keepdims", int64_t{1}}});
  }

  /// u for each row of `x`.
  std::string globals_of(const std::string& x) {
    return w_.node("Expand", {u_, w_.node("Shape", {x})});
  }

  /// The sum of the edges of each node, which is their target or source.
  std::string sum_of_edges(const std::string& rows) {
    return scatter_rows(w_, filled_like(w_, v_, 0), rows, e_, 2, "add");
  }

  void add_to(std::string& state, const std::string& change) {
    state = w_.node("Add", {state, change});
  }

  void pass(const std::string& prefix) {
    w_.prefix = prefix;
    std::vector<std::string> of_edges = {e_, w_.node("Gather", {v_, source_}),
                                         w_.node("Gather", {v_, target_})};
    if (o_.globals) of_edges.push_back(globals_of(e_));
    add_to(e_, mlp_of(prefix + "edges.", of_edges));
    std::vector<std::string> of_nodes = {v_, sum_of_edges(target_)};
    if (o_.globals) {
      of_nodes.push_back(sum_of_edges(source_));
      of_nodes.push_back(globals_of(v_));
    }
    add_to(v_, mlp_of(prefix + "nodes.", of_nodes));
    if (o_.globals) add_to(u_, mlp_of(prefix + "globals.", {u_, mean(e_), mean(v_)}));
  }

  void decode() {
    w_.prefix = "decoder.";
    const std::string x = o_.globals ? concatenated({v_, globals_of(v_)}) : v_;
    const std::string made = linear(hidden_layers(x, (o_.globals ? 2 : 1) * o_.latent),
                                    str("layers.", o_.mlp_layers), o_.hidden, o_.outputs, 1);
    w_.prefix = "";
    w_.node("Identity", {made}, {}, "predictions");
  }

  GnsOptions o_;
  OnnxWriter w_;
  std::string source_, target_;  // [edges]
  std::string v_, e_, u_;        // [nodes, latent], [edges, latent], [1, latent]
};

}  // namespace

GnsOptions gns_preset(const std::string& name) { return preset_named(gns_sizes(), name); }

int64_t write_gns(const GnsOptions& options, const std::string& path) {
  for (int64_t size : {options.steps, options.features, options.edge_features, options.hidden,
                       options.latent, options.mlp_layers, options.outputs,
                       options.nodes.value_or(1), options.edges.value_or(1)}) {
    SR_REQUIRE(size >= 1, invalid_input,
               "steps, features, edge-features, hidden, latent, mlp-layers, outputs, nodes and "
               "edges must be at least 1, got ",
               size);
  }
  return GnsWriter(options).write(path);
}

}  // namespace shardrun
