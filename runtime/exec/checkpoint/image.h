// Image: the bytes of a rank's file of a checkpoint, as they follow from what its arena holds.
#pragma once

#include "base/tensor.h"
#include "exec/checkpoint/layout.h"
#include "exec/executor.h"

namespace shardrun {

class Image {
 public:
  /// `of` must outlive it, and holds still while bytes are asked for.
  Image(const Executor& of, RankFile file) : of_(of), file_(std::move(file)) {}

  const RankFile& file() const { return file_; }
  const Program& program() const { return of_.program(); }
  int64_t bytes() const { return file_.bytes; }
  /// Is the arena the host's? Then several threads may copy at once.
  bool on_host() const { return of_.device().is_host(); }
  /// Writes bytes [begin, end) of the file to `out`.
  void copy(int64_t begin, int64_t end, char* out);

 private:
  const Piece& piece_at(int64_t begin) const;
  void copy_piece(const Piece& piece, int64_t begin, int64_t end, char* out);
  const char* copy_of(const Binding& binding);

  const Executor& of_;
  RankFile file_;
  BufferId held_ = -1;  // the buffer that copy_ is a copy of, where the arena is a device's
  Tensor copy_;
};

}  // namespace shardrun
