// Hashes of a few blocks of each file, by which ranks see whether all read the same.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/onnx/onnx_file.h"

namespace shardrun {

/// A hash, in hexadecimal, of what the graph's parameters, constants and state begin as. Of each
/// tensor in a file it reads blocks of 4 KiB that are spread evenly, at most eight: whole files of
/// another training differ in nearly every block, and a model of any size takes no time. Throws
/// invalid_input where a file cannot be read.
std::string contents_hash(const Graph& graph);

/// A hash of a model's file: of all of it but for its large tensors, and of some blocks of these.
/// Throws invalid_input for what is no model.
std::string fingerprint_of(const OnnxFile& model);

/// The same of files, at most 64 blocks of each.
std::string blocks_hash(const std::vector<std::string>& files);

/// The same of the files that TrainOptions::data names, at most 64 blocks of each; of a folder of
/// its files, at most 64 that are spread evenly over their names, and how many they are. Files that
/// cannot be read have no say: who reads them tells why.
std::string contents_hash(const std::string& data);

}  // namespace shardrun
