// Measured curves as a part of a cluster file.
#pragma once

#include "planner/cost/json_fields.h"
#include "planner/cost/measured.h"

namespace shardrun {

/// {"kernels": [{"ranks": 1, "threads": 2,
///    "grids": [{"op": "matmul", "variant": "nn", "dtype": "f32",
///               "first": [8, 32], "second": [8], "third": [8], "seconds": [1e-6, 2e-6]}],
///    "ops": [{"op": "add", "variant": "", "dtype": "f32", "by": "bytes",
///             "sizes": [4096], "seconds": [1e-6]}]}],
///  "collectives": [{"backend": "threads", "ranks": 2, "group": 2, "kind": "all_gather",
///                   "sizes": [256], "seconds": [1e-6]}]}
Measured read_measured(Fields fields);
Json measured_json(const Measured& measured);

}  // namespace shardrun
