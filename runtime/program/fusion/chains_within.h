// The chains of each kind within runs of neighbouring steps.
#pragma once

#include <span>
#include <vector>

#include "graph/program.h"
#include "program/fusion/places.h"

namespace shardrun {

/// Within runs of element-wise steps of one shape and phase.
std::vector<FusedSteps> element_chains_within(const Program& program, const Places& places,
                                              std::span<const FusedSteps> runs);

/// Within runs of row-wise steps (Step::rows) of one phase. In a placed Program only those that
/// pay: rows that fit into cache, and more in all than do.
std::vector<FusedSteps> row_chains_within(const Program& program, const Places& places,
                                          std::span<const FusedSteps> runs);

/// Rows that the step goes through; 0: none.
int64_t rows_of(const Program& program, const Step& step);

}  // namespace shardrun
