// Batch inputs of a Graph, and the data that fills them.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "exec/data/data.h"
#include "graph/graph.h"
#include "shardrun/shardrun.h"

namespace shardrun {

/// The values of role batch, with their bounds and roles as the Graph uses them.
std::vector<BatchField> batch_fields(const Graph& graph);
/// The same with options.target_shift.
std::vector<BatchField> batch_fields(const Graph& graph, const TrainOptions& options);

/// options.data, or synthetic batches; seed and validation fraction are the options'. Throws
/// invalid_input if the data do not fit the Graph.
std::unique_ptr<DataSource> open_batches(const Graph& graph, const TrainOptions& options);

/// What is wrong with the targets of a model of tokens: they are what it reads, or they are shifted
/// twice, by the data and by the model. Looks at the first training batch. Empty if nothing is.
std::string note_on_labels(const Graph& graph, const TrainOptions& options, const DataSource& data);

/// What ranks read, for require_same: the same where their copies lie in different places.
nlohmann::json data_of_rank(const DataSource& data, const TrainOptions& options);

}  // namespace shardrun
