// A model file's metadata_props, read without the rest of the file.
#pragma once

#include <map>
#include <string>

namespace shardrun {

/// Keys and values, of equal keys the last. Empty for what is no ONNX file: import says what is
/// wrong with it. Throws invalid_input if the file cannot be opened.
std::map<std::string, std::string> read_onnx_metadata(const std::string& path);

}  // namespace shardrun
