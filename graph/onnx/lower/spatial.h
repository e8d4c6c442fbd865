// Spatial: the window attributes that ONNX's convolutions and pools share.
#pragma once

#include "graph/onnx/lower/lowering.h"
#include "graph/ops/window.h"

namespace shardrun::importer {

/// kernel_shape, strides, dilations, pads and auto_pad of a node with an operand of these sizes, as
/// explicit windows: auto_pad resolved, one per spatial dim. `kernel`: from the weights; empty for
/// a pool, whose attribute must then be there. Throws invalid_input for lengths and values that do
/// not fit.
std::vector<Window> read_windows(NodeContext& c, const Shape& spatial, Shape kernel);

/// The attributes of an internal op with these windows: strides, dilations, pads_low and, for
/// forward ops, pads_high.
Attrs window_attrs(const std::vector<Window>& windows, bool with_high);
Shape kernel_of(const std::vector<Window>& windows);

/// Dims from 2 on.
Shape spatial_of(const Shape& shape);
/// Throws invalid_input unless x is floating with at least one spatial dim.
void require_image(NodeContext& c, V x);

}  // namespace shardrun::importer
