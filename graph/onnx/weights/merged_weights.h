// Merged weights: two that an exporter made one, and one that it made two or gave two names.
#pragma once

#include "graph/onnx/weights/deciding.h"

namespace shardrun::importer {

/// Identity(l1.bias) -> l2.bias of equal numbers was two biases before the export. Where the file
/// lists all names of tensors, it is a clone().
void split_identities(Deciding& d);

/// One vector of equal numbers that feeds several nodes of an optimised export; from TensorFlow of
/// any rank, and an LSTM's biases have ones and zeros. Running statistics belong to one layer each,
/// so that of them nothing has to be asked.
void refuse_or_split_merged(Deciding& d);

/// What an exporter gave dims of 1, [C, 1, 1], is the vector [C] that the module has, which weight
/// decay leaves alone. `reached`: what the gradient of the loss reaches.
void unfold_vectors(Deciding& d, std::set<std::string>& reached);

/// Ties a copy of a weight, perhaps transposed, to the weight. Throws invalid_input where several
/// initialisers were computed from one weight and share numbers of it.
void find_ties(Deciding& d);

}  // namespace shardrun::importer
