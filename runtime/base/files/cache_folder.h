// Cache folder: where what can be made again is kept from run to run.
#pragma once

#include <string>

namespace shardrun {

/// $SHARDRUN_CACHE, else $XDG_CACHE_HOME/shardrun, else ~/.cache/shardrun; empty where there is no
/// home, and where SHARDRUN_CACHE is "off". It need not exist yet.
std::string cache_folder();

/// The file's bytes; empty if it cannot be read.
std::string read_cached(const std::string& path);
/// Writes the file as a whole or not at all: readers see the old bytes or the new ones. Makes its
/// folder. Nobody else may write the file. A cache that cannot be written (a full disk, a folder of
/// another user) is none: no error.
void write_cached(const std::string& path, const std::string& bytes);

}  // namespace shardrun
