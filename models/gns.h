// Graph network simulators (Sanchez-Gonzalez et al., 2020) as plain ONNX files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shardrun {

struct GnsOptions {
  int64_t steps = 4;                         // of message passing
  int64_t features = 16, edge_features = 4;  // of each node and edge, as they come in
  int64_t hidden = 64, latent = 64;          // of the MLPs' layers, and of what they make
  int64_t mlp_layers = 2;                    // hidden layers of each MLP
  int64_t outputs = 3;                       // of each node
  bool globals = false;                      // also a state of the whole graph
  std::optional<int64_t> nodes, edges;       // absent: the symbolic dims 'nodes', 'edges'
  bool weights = true;  // false: each weight is described, so that each rank makes its own shard
  uint64_t seed = 0;
  std::string recipe;  // flags of `shardrun train` that the file carries; "": the loss alone
};

/// toast: TOAST's GNS, 24 steps with globals, 2048 nodes and 8192 edges. Throws invalid_input with
/// the names there are.
GnsOptions gns_preset(const std::string& name);

/// Writes inputs features f32 [nodes, features], edge_features f32 [edges, edge_features] and
/// edge_index i64 [2, edges], each column a source and a target, and output predictions f32 [nodes,
/// outputs], to be learnt by mean squared error.
///
/// An MLP has `mlp_layers` layers of `hidden` with relu, one of `latent`, and a layer norm. One
/// encodes the nodes, one the edges. A step adds to them
///   edge e from s to t   MLP(e, v_s, v_t)
///   node v               MLP(v, sum of the edges that come in)
/// all edges first, and the last MLP, without a norm, makes the outputs of each node. With
/// `globals` it is jraph's GraphNetwork (Battaglia et al., 2018): there is a u, encoded from the
/// mean of the nodes' features, which every MLP behind the encoders sees. Nodes see the sum of the
/// edges that go out as well, and u gets MLP(u, mean of edges, mean of nodes) added.
///
/// Weights are He's, N(0, 2 / in), those of an MLP's last layer N(0, 1 / in); biases 0, norms 1.
/// Returns the number of parameters. Throws invalid_input for sizes that do not fit or a file that
/// cannot be written.
int64_t write_gns(const GnsOptions& options, const std::string& path);

}  // namespace shardrun
