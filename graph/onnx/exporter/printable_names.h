// Printable names: names of a file as they may be shown.
#pragma once

#include "onnx-ml.pb.h"

namespace shardrun::importer {

/// Replaces every name in `model` (of values, nodes, operators, domains, symbolic dims, device
/// configurations) that a terminal would act on by printable(name), wherever it stands. Throws
/// invalid_input: a name with a byte of 0, at which what is said of it would end.
void make_names_printable(::onnx::ModelProto& model);

}  // namespace shardrun::importer
