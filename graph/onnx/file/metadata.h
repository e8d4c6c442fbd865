// A model file's metadata_props, read without the rest of the file.
#pragma once

#include <map>
#include <string>

namespace shardrun {

/// Keys and values, of equal keys the last; without entries of more than a MiB. Empty for what is
/// no ONNX file: import says what is wrong with it. Throws invalid_input if the file cannot be
/// opened, or if an entry of ours ('shardrun.…') is that long.
std::map<std::string, std::string> read_onnx_metadata(const std::string& path);

}  // namespace shardrun
