// What the reference kernels of the dense families share: operands as f64 copies, results rounded
// once on storing. One code path for every dtype, at the price of a copy.
#pragma once

#include <functional>
#include <vector>

#include "kernels/kernel.h"
#include "program/ops/weight_layout.h"

namespace shardrun::reference {

using Doubles = std::vector<double>;

Doubles load(const TensorView& view);
void store(const Doubles& values, const TensorView& view);  // values.size() == view.count()
/// `to`: of layout.type().
void lay_out(const TensorView& from, const WeightLayout& layout, const TensorView& to);

/// A kernel that never refuses and needs no workspace.
KernelImpl plain(std::string op, std::function<void(const Node&, const KernelArgs&)> run);

}  // namespace shardrun::reference
