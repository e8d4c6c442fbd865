// Cutting values, and OpenMP.
#include "exec/read_pieces.h"

#include <algorithm>
#include <exception>

#include "base/error.h"

namespace shardrun {

/// Random numbers take long enough to make them on all threads, some rows each.
void add_pieces(const Binding& b, const TensorView& shard, char* to,
                std::vector<ValuePiece>& pieces) {
  if (b.source.kind != Source::Kind::normal || b.box.empty()) {
    pieces.push_back({&b, b.box, to});
    return;
  }
  constexpr int64_t kElements = int64_t{1} << 18;
  const Range all = b.box[0];
  const int64_t row = shard.count() / all.size, rows = std::max<int64_t>(1, kElements / row);
  for (int64_t first = 0; first < all.size; first += rows) {
    ValuePiece piece{&b, b.box, to + first * row * size_of(shard.type.dtype)};
    piece.box[0] = {all.begin + first, std::min(rows, all.size - first)};
    pieces.push_back(std::move(piece));
  }
}

void read_pieces(const std::vector<ValuePiece>& pieces, uint64_t seed) {
  std::exception_ptr failure;
  size_t failed = pieces.size();
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Binding& b = *pieces[i].binding;
    std::exception_ptr mine;
    try {
      read_source(b.source, b.global, pieces[i].box, seed, pieces[i].to);
    } catch (const Error& e) {
      mine = std::make_exception_ptr(e.with_context(str("'", b.name, "'")));
    } catch (...) {
      mine = std::current_exception();
    }
    if (!mine) continue;
#pragma omp critical
    if (i < failed) failed = i, failure = mine;
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace shardrun
