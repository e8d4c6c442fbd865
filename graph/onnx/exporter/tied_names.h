// Other names of a tensor: a module that uses another's weight has a name for it, too.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/onnx/flatten.h"

namespace shardrun::importer {

/// The file's name of a tensor by its others: of a BERT whose head has the embedding's weight,
/// "bert.embeddings.word_embeddings.weight" -> "cls.predictions.decoder.weight". PyTorch keeps one
/// of the names and, of each step, the module that runs it, which has called the weight its own.
/// The newer exporter also lists all names that there are, so that only those count; in files of
/// the older one this is a guess.
std::map<std::string, std::string> tied_names(const ModelFile& model,
                                              const std::vector<FlatNode>& nodes);

}  // namespace shardrun::importer
