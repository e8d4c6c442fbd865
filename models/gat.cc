// GAT (Veličković et al., "Graph Attention Networks", 2018) node by node.
#include "models/gat.h"

#include <cmath>
#include <limits>

#include "models/onnx_writer.h"
#include "models/presets.h"
#include "models/scatter.h"

namespace shardrun {
namespace {

using Ints = std::vector<int64_t>;

// Section 3.3 of the paper: patience of 100 epochs over validation loss and accuracy.
constexpr const char* kCoraRecipe =
    "--loss cross-entropy --optimizer adam --lr 0.005 --weight-decay 5e-4 --decay-all "
    "--normalise rows --steps 2000 --eval-every 1 --patience 100";

GatOptions cora() {
  GatOptions o;
  o.features = 1433;
  o.classes = 7;
  o.nodes = 2708;
  o.edges = 13264;
  o.dropout = o.attention_dropout = 0.6;
  o.recipe = kCoraRecipe;
  return o;
}

GatOptions metadist(int64_t heads) {
  GatOptions o;
  o.layers = 1;
  o.features = o.hidden = o.classes = 24576;
  o.heads = o.output_heads = heads;
  o.nodes = 1024;
  o.dense = true;
  return o;
}

Presets<GatOptions> gat_sizes() {
  return {{"cora", cora()},
          {"metadist-1", metadist(1)},
          {"metadist-2", metadist(2)},
          {"metadist-4", metadist(4)},
          {"metadist-8", metadist(8)}};
}

class GatWriter {
 public:
  explicit GatWriter(const GatOptions& options)
      : o_(options), w_("gat", {.weights = options.weights, .seed = options.seed}) {}

  int64_t write(const std::string& path) {
    const std::string nodes = o_.nodes ? std::to_string(*o_.nodes) : "nodes";
    w_.input("features", kFloat, {nodes, std::to_string(o_.features)});
    if (o_.dense) {
      w_.input("adjacency", kBool, {nodes, nodes});
    } else {
      w_.input("edge_index", kInt64, {"2", o_.edges ? std::to_string(*o_.edges) : "edges"});
      source_ = w_.node("Gather", {"edge_index", w_.integer(0)}, {{"axis", int64_t{0}}});
      target_ = w_.node("Gather", {"edge_index", w_.integer(1)}, {{"axis", int64_t{0}}});
    }
    std::string x = "features";
    int64_t in = o_.features;
    for (int64_t l = 0; l < o_.layers; ++l) {
      const bool last = l + 1 == o_.layers;
      w_.prefix = str("layers.", l, ".");
      x = layer(x, in, last);
      in = o_.heads * o_.hidden;
    }
    w_.output(x, kFloat, {nodes, std::to_string(o_.classes)});
    w_.metadata("shardrun.train", o_.recipe.empty() ? kLossRecipe : o_.recipe);
    w_.write(path);
    return w_.parameter_count();
  }

 private:
  std::string drop(const std::string& x, double ratio) {
    return ratio == 0 ? x : w_.node("Dropout", {x, w_.scalar(ratio), w_.boolean(true)});
  }

  std::string unsqueeze(const std::string& x, int64_t axis) {
    return w_.node("Unsqueeze", {x, w_.ints({axis})});
  }

  /// `x` [nodes, in] -> [nodes, heads * hidden], or the logits [nodes, classes].
  std::string layer(const std::string& x, int64_t in, bool last) {
    const int64_t heads = last ? o_.output_heads : o_.heads, out = last ? o_.classes : o_.hidden;
    const double in_d = static_cast<double>(in), out_d = static_cast<double>(out);
    // As in the authors' code each head has a W and two vectors of its own.
    const std::string weight =
        w_.uniform(w_.prefix + "weight", {in, heads * out}, std::sqrt(6 / (in_d + out_d)));
    const double bound = std::sqrt(6 / (out_d + 1));
    const std::string a_source = w_.uniform(w_.prefix + "att_source", {1, heads, out}, bound);
    const std::string a_target = w_.uniform(w_.prefix + "att_target", {1, heads, out}, bound);
    const std::string bias = w_.filled(w_.prefix + "bias", {last ? out : heads * out}, 0);

    std::string z = w_.node("MatMul", {drop(x, o_.dropout), weight});
    z = w_.node("Reshape", {z, w_.ints({0, heads, out})});
    const std::string s_source = score(z, a_source), s_target = score(z, a_target);
    std::string y = o_.dense ? dense(z, s_source, s_target) : sparse(z, s_source, s_target);
    if (last) {
      y = heads == 1 ? w_.node("Reshape", {y, w_.ints({0, out})})
                     : w_.node("ReduceMean", {y, w_.ints({1})}, {{"keepdims", int64_t{0}}});
      w_.prefix = "";
      return w_.node("Add", {y, bias}, {}, "logits");
    }
    y = w_.node("Reshape", {y, w_.ints({0, heads * out})});
    return w_.node("Elu", {w_.node("Add", {y, bias})});
  }

  /// a z of every node and head: [nodes, heads].
  std::string score(const std::string& z, const std::string& a) {
    return w_.node("ReduceSum", {w_.node("Mul", {z, a}), w_.ints({2})}, {{"keepdims", int64_t{0}}});
  }

  std::string activated(const std::string& scores) {
    return w_.node("LeakyRelu", {scores}, {{"alpha", o_.negative_slope}});
  }

  /// Everything is [edges, heads] until the messages are summed to [nodes, heads, out].
  std::string sparse(const std::string& z, const std::string& s_source,
                     const std::string& s_target) {
    const std::string e = activated(w_.node(
        "Add", {w_.node("Gather", {s_source, source_}), w_.node("Gather", {s_target, target_})}));
    // Softmax over the edges of one target, kept from overflow by the largest score.
    const std::string lowest = filled_like(w_, s_target, std::numeric_limits<float>::lowest());
    const std::string most = scatter_rows(w_, lowest, target_, e, 2, "max");
    const std::string w = w_.node("Exp", {w_.node("Sub", {e, w_.node("Gather", {most, target_})})});
    const std::string total = scatter_rows(w_, filled_like(w_, s_target, 0), target_, w, 2, "add");
    std::string alpha = w_.node("Div", {w, w_.node("Gather", {total, target_})});
    alpha = unsqueeze(drop(alpha, o_.attention_dropout), 2);
    const std::string messages = w_.node("Mul", {w_.node("Gather", {z, source_}), alpha});
    return scatter_rows(w_, filled_like(w_, z, 0), target_, messages, 3, "add");
  }

  /// Coefficients are [heads, nodes, nodes].
  std::string dense(const std::string& z, const std::string& s_source,
                    const std::string& s_target) {
    const std::string rows = w_.node("Transpose", {s_target}, {{"perm", Ints{1, 0}}});
    const std::string columns = w_.node("Transpose", {s_source}, {{"perm", Ints{1, 0}}});
    const std::string e = activated(w_.node("Add", {unsqueeze(rows, 2), unsqueeze(columns, 1)}));
    // A finite score for strangers: a row of nothing but -inf has no softmax.
    std::string alpha = w_.node("Where", {"adjacency", e, w_.scalar(kStranger)});
    alpha = w_.node("Softmax", {alpha}, {{"axis", int64_t{-1}}});
    alpha = drop(w_.node("Where", {"adjacency", alpha, w_.scalar(0)}), o_.attention_dropout);
    const std::string by_head = w_.node("Transpose", {z}, {{"perm", Ints{1, 0, 2}}});
    return w_.node("Transpose", {w_.node("MatMul", {alpha, by_head})}, {{"perm", Ints{1, 0, 2}}});
  }

  static constexpr double kStranger = -1e9;

  GatOptions o_;
  OnnxWriter w_;
  std::string source_, target_;  // [edges]
};

}  // namespace

GatOptions gat_preset(const std::string& name) { return preset_named(gat_sizes(), name); }

int64_t write_gat(const GatOptions& options, const std::string& path) {
  for (int64_t size :
       {options.layers, options.features, options.hidden, options.classes, options.heads,
        options.output_heads, options.nodes.value_or(1), options.edges.value_or(1)}) {
    SR_REQUIRE(size >= 1, invalid_input,
               "layers, features, hidden, classes, heads, output heads, nodes and edges must be at "
               "least 1, got ",
               size);
  }
  SR_REQUIRE(!options.dense || !options.edges, invalid_input,
             "a dense model has no edges to count, got ", options.edges.value_or(0));
  for (double ratio : {options.dropout, options.attention_dropout}) {
    SR_REQUIRE(ratio >= 0 && ratio < 1, invalid_input, "dropout is ", ratio,
               ", wanted at least 0 and below 1");
  }
  return GatWriter(options).write(path);
}

}  // namespace shardrun
