// Arithmetic: the floating-point operations of a training step, by op.
#pragma once

#include <map>
#include <string>

#include "model.h"

namespace shardrun {

/// Floating-point operations of the whole step, on all ranks together, by op.
std::map<std::string, double> arithmetic(const Model::Impl& model);

}  // namespace shardrun
