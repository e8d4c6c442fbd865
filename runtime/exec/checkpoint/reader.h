// Checkpoint: one that is whole, read back into any Program of the same model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "collectives/communicator.h"
#include "exec/checkpoint/manifest.h"
#include "exec/executor.h"

namespace shardrun {

class Checkpoint {
 public:
  /// Reads the manifest, and looks whether its files are there and as long as it says. Throws
  /// invalid_input with the file that is missing, damaged or of another version.
  static Checkpoint open(const std::string& path);

  const std::string& path() const { return path_; }  // of its folder
  const Manifest& manifest() const { return manifest_; }

  struct Done {
    int64_t bytes = 0;  // that this rank has read
    double seconds = 0;
  };
  /// Fills this rank's shards of all parameters and state. Each rank reads only the bytes that its
  /// shards consist of (runs that are less than a page apart with what is between), and all
  /// together check every checksum. Throws the same on every rank if one could not read or a
  /// checksum is wrong. `in_use`: the shards hold what must not be lost then, so everything is read
  /// and checked before the first of them changes, and read again. Collective.
  Done restore(Executor& into, Communicator& host, bool in_use = false) const;

  /// Reads everything, or the tensors that `which` says, and throws invalid_input with the file and
  /// the tensor whose bytes are not those that were written. Not collective.
  void verify(const std::function<bool(const std::string&)>& which = nullptr) const;

  /// Reads `box` of a tensor, in the model file's coordinates, dense to `out`, without checking its
  /// bytes. Throws invalid_input if there is none of this name, or a file is too short.
  void read(const std::string& tensor, const Box& box, void* out) const;

 private:
  Checkpoint(std::string path, Manifest manifest)
      : path_(std::move(path)), manifest_(std::move(manifest)) {}
  std::string path_;
  Manifest manifest_;
};

/// The newest checkpoint of the folder before `step` in which nothing is missing or changed, every
/// byte looked at; "" if there is none.
std::string newest_whole_before(const std::string& folder, int64_t step);

}  // namespace shardrun
