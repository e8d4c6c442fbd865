// Printable names: names of a file as they may be shown.
#pragma once

#include "onnx-ml.pb.h"

namespace shardrun::importer {

/// Replaces every name in `model` (of values, nodes, operators, domains, symbolic dims) that a
/// terminal would act on by printable(name), wherever it stands. Names with a NUL stay, to be
/// refused.
void make_names_printable(::onnx::ModelProto& model);

}  // namespace shardrun::importer
