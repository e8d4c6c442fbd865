// Graph attention networks (Veličković et al., 2018) as plain ONNX files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shardrun {

struct GatOptions {
  int64_t layers = 2;
  int64_t features = 32, hidden = 8, classes = 4;  // hidden: of each head
  int64_t heads = 8;                               // of every layer but the last: concatenated
  int64_t output_heads = 1;                        // of the last layer: averaged
  bool dense = false;                              // an adjacency matrix instead of an edge list
  std::optional<int64_t> nodes, edges;             // absent: the symbolic dims 'nodes' and 'edges'
  double dropout = 0;                              // of each layer's input
  double attention_dropout = 0;                    // of the attention coefficients
  double negative_slope = 0.2;                     // of LeakyReLU in the scores
  bool weights = true;  // false: each weight is described, so that each rank makes its own shard
  uint64_t seed = 0;
  std::string recipe;  // flags of `shardrun train` that the file carries; "": the loss alone
};

/// cora: the two-layer transductive model of the paper with its recipe, sparse, sizes of Cora.
/// metadist-1, -2, -4, -8: Table 4 of MetaDist (its one layer, dense). Throws invalid_input with
/// the names there are.
GatOptions gat_preset(const std::string& name);

/// Writes input features f32 [nodes, features], output logits f32 [nodes, classes], and
///   sparse  edge_index i64 [2, edges]: each column a source and a target
///   dense   adjacency bool [nodes, nodes]: [i, j] says that i attends to j
/// A layer has the weights W [in, heads * out], the two halves of the score's vector [1, heads,
/// out], and a bias. With z = x W, node i gives neighbour j the score leaky_relu(a_target z_i +
/// a_source z_j); the softmax of the scores over i's neighbours weighs the z_j. A node without
/// neighbours gets the bias alone. Hidden layers end in ELU. Weights are Glorot-uniform as in the
/// authors' code, biases 0. Returns the number of parameters. Throws invalid_input for sizes that
/// do not fit or a file that cannot be written.
int64_t write_gat(const GatOptions& options, const std::string& path);

}  // namespace shardrun
