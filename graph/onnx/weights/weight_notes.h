// Weight notes: what the report says of weights once all is decided.
#pragma once

#include "graph/onnx/weights/deciding.h"

namespace shardrun::importer {

/// What the table of parameters has behind them: what looks like some, and what changes by itself.
void list_constants(Deciding& d, const std::set<std::string>& reached);

void note_single(Deciding& d);
void note_changed(Deciding& d);
void note_unsure(Deciding& d);

/// Parameters that do not learn, though nobody asked for that.
void list_unreached(Deciding& d, const std::set<std::string>& reached);
void note_regions(Deciding& d, const std::set<std::string>& reached);

/// The legacy exporter folds transposes into weights in evaluation mode only, and there drops
/// Dropout without a trace; both fold batch normalisations into convolutions when they optimise,
/// and so do TensorFlow and tf2onnx.
void note_folding(Deciding& d);

/// TensorFlow leaves out what adds zero: a fresh layer's bias.
void note_left_out(Deciding& d);

}  // namespace shardrun::importer
