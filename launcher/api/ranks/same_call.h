// Checks that the ranks of one job make the same calls with the same arguments.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ranks/world.h"

namespace shardrun {

/// Compares what this rank was given with what rank 0 was, field by field: another learning rate on
/// one rank would go into its weights alone, another number of steps would leave the others
/// waiting. Throws the same Failure(call) on every rank, with the lowest rank that differs and the
/// field:
///
///   train: rank 1 has lr 0.01, rank 0 has 0.001; give every rank the same
///
/// `given` is an object. Collective.
void require_same(Communicator& ranks, const std::string& call, const nlohmann::json& given);
/// The same of a World's processes; threads of one process are given the same.
void require_same(World& world, const std::string& call, const nlohmann::json& given);

}  // namespace shardrun
