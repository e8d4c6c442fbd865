// Images with their channels last: the layout that convolutions take without a copy.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace shardrun {

/// Images [N, C, …spatial] become [N, …spatial, C] wherever convolutions and what lies between them
/// read and make them (window.h, ImageDims). Transposes stand where such a region begins and ends;
/// outputs keep their dims. Returns how many convolutions there are; without one nothing changes.
/// Example: conv, batch_norm, relu, mean over height and width, reshape to [N, C] gets one
/// transpose, of the batch that the convolution reads.
int put_channels_last(Graph& graph);

/// By value: dim d of it is dim perm[d] of the image as the model has it; empty for all other
/// values. Also of the training step that is made of the graph.
std::vector<std::vector<int64_t>> moved_channels(const Graph& graph);

}  // namespace shardrun
