// Manifest: what a checkpoint holds, where, and with which checksums. The one small file that says
// that a checkpoint is whole.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "exec/checkpoint/layout.h"

namespace shardrun {

struct Manifest {
  static constexpr int kVersion = 1;
  static constexpr const char* kFile = "manifest.json";

  struct File {
    std::string name;
    int64_t bytes = 0, header_bytes = 0;
    uint32_t header_crc32c = 0;
  };
  struct Piece {
    Box box;  // in the model file's coordinates
    size_t file = 0;
    int64_t offset = 0, bytes = 0;  // in that file
    uint32_t crc32c = 0;
  };
  struct Tensor {
    KeptValue value;
    std::vector<Piece> pieces;  // disjoint, and all of it
  };

  int64_t step = 0;  // updates done
  std::string mesh;  // under which it was written, for people: nothing depends on it
  /// What else the run goes on from. Its writer's alone; an object.
  nlohmann::json run = nlohmann::json::object();
  std::vector<File> files;
  std::vector<Tensor> tensors;

  const Tensor* find(std::string_view name) const;  // null: none
  int64_t bytes() const;                            // of all tensors
};

/// One tensor a line. The first line is the checksum of all behind it.
std::string to_text(const Manifest& manifest);
/// Throws invalid_input, with `origin` in front, unless this is what to_text made: a changed byte,
/// a field that is missing or of another type, another version, pieces that overlap, leave elements
/// out, or lie outside of their tensor or file.
Manifest parse_manifest(const std::string& text, const std::string& origin);

/// Throws invalid_input naming the first value that differs, with both types, unless the checkpoint
/// holds exactly these values (`all`), or at least these.
enum class Holds { all, at_least };
void check_holds(const Manifest& manifest, const std::vector<KeptValue>& values, Holds holds,
                 const std::string& origin);

}  // namespace shardrun
