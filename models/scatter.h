// Sums and maxima over segments, written as ONNX has them: rows that go into rows.
#pragma once

#include <string>

#include "models/onnx_writer.h"

namespace shardrun {

/// `value` in the shape of `x`.
std::string filled_like(OnnxWriter& w, const std::string& x, double value);

/// Row e of `updates` [edges, …], of rank `rank`, goes into row rows[e] of `data` [nodes, …], by
/// ScatterElements with this reduction: add, max. `rows` is i64 [edges].
std::string scatter_rows(OnnxWriter& w, const std::string& data, const std::string& rows,
                         const std::string& updates, int64_t rank, const std::string& reduction);

}  // namespace shardrun
