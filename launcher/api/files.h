// Checks of the files that a call reads and writes, made before it takes long.
#pragma once

#include <vector>

#include "shardrun/shardrun.h"

namespace shardrun {

/// check_outputs of one process. Throws invalid_input.
void check_files(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

}  // namespace shardrun
