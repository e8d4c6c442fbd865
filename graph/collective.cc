// What Collectives move, and how they are printed.
#include "graph/collective.h"

#include <algorithm>

#include "base/error.h"

namespace shardrun {

std::string box_text(const Box& box) {
  std::string out = "[";
  for (size_t d = 0; d < box.size(); ++d) {
    out += (d ? ", " : "") + std::to_string(box[d].begin) + ":" + std::to_string(box[d].end());
  }
  return out + "]";
}

namespace {

/// "1"; of an all_gather that brings several dims together "0,1".
std::string dims_text(const Collective& c) {
  std::string out;
  int count = 0;
  for (size_t d = 0; c.kind == Collective::Kind::all_gather && d < c.in_boxes.at(0).size(); ++d) {
    bool cut = false;
    for (size_t m = 0; m < c.group.size(); ++m) cut = cut || c.in_boxes[m][d] != c.out_boxes[m][d];
    if (cut) out += str(count++ > 0 ? "," : "", d);
  }
  return count > 1 ? out : str(c.dim);
}

/// Elements of one row of those that change ranks by number.
int64_t row_elements(const Collective& c, size_t me) {
  const Box& shard = (c.kind == Collective::Kind::row_add ? c.out_boxes : c.in_boxes)[me];
  int64_t elements = 1;
  for (size_t d = static_cast<size_t>(c.dim) + 1; d < shard.size(); ++d) elements *= shard[d].size;
  return elements;
}

}  // namespace

std::string to_string(const Collective& c, const Mesh& mesh, int64_t rank) {
  const CollectiveTraits& traits = c.traits();
  std::string out = str(traits.name, "{axes=");
  for (size_t i = 0; i < c.axes.size(); ++i)
    out += (i ? "," : "") + mesh.axes()[static_cast<size_t>(c.axes[i])].name;
  if (traits.has(CollectiveTraits::has_windows)) {
    const auto me =
        static_cast<size_t>(std::find(c.group.begin(), c.group.end(), rank) - c.group.begin());
    out += str(" ", box_text(c.in_boxes.at(me)), " -> ", box_text(c.out_boxes.at(me)));
  }
  if (traits.has(CollectiveTraits::has_dim)) out += str(" dim=", dims_text(c));
  if (traits.has(CollectiveTraits::has_to_dim)) out += str(" to_dim=", c.to_dim);
  if (traits.has(CollectiveTraits::has_op)) out += str(" op=", to_string(c.op));
  if (const auto* rows = std::get_if<RowBounds>(&c.payload))
    out += str(" most_named=", rows->most_named, " most_owned=", rows->most_owned);
  return out + "}";
}

int64_t routing_size(const Collective& c) {
  return 2 * static_cast<int64_t>(c.group.size()) + std::get<RowBounds>(c.payload).most_owned;
}

size_t place_in_group(const Collective& c, int64_t rank) {
  const auto found = std::find(c.group.begin(), c.group.end(), rank);
  SR_REQUIRE(found != c.group.end(), internal, to_string(c.kind), ": rank ", rank,
             " is not in its group");
  SR_REQUIRE(c.in_boxes.size() == c.group.size() && c.out_boxes.size() == c.group.size(), internal,
             to_string(c.kind), ": a group of ", c.group.size(), " has ", c.in_boxes.size(),
             " in and ", c.out_boxes.size(), " out boxes");
  return static_cast<size_t>(found - c.group.begin());
}

std::vector<CollectivePiece> pieces_of(const Collective& c, size_t from, size_t to) {
  std::vector<CollectivePiece> out;
  const auto add = [&](const Box& held, const Box& local) {
    const Box region = intersect(held, c.out_boxes[to]);
    if (!is_empty(region)) out.push_back({region, local});
  };
  if (c.kind != Collective::Kind::block_exchange) {
    add(c.in_boxes[from], c.in_boxes[from]);
    return out;
  }
  // Block [g, g + n) of the dim that starts at local row l: as if the tensor began at g - l.
  int64_t row = 0;
  const auto d = static_cast<size_t>(c.dim);
  for (const Range& block : std::get<MemberBlocks>(c.payload)[from]) {
    Box held = c.in_boxes[from], local = c.in_boxes[from];
    held[d] = block;
    local[d].begin = block.begin - row;
    add(held, local);
    row += block.size;
  }
  return out;
}

int64_t bytes_sent(const Collective& c, DType dtype, int64_t rank) {
  using Sends = CollectiveTraits::Sends;
  const size_t me = place_in_group(c, rank);
  const auto ranks = static_cast<int64_t>(c.group.size());
  const int64_t held = element_count(box_shape(c.in_boxes[me]));
  const auto rows = [&](int64_t RowBounds::*most) { return std::get<RowBounds>(c.payload).*most; };
  int64_t elements = 0;
  switch (c.traits().sends) {
    case Sends::nothing: break;
    case Sends::shard: elements = (ranks - 1) * held; break;
    case Sends::twice: elements = 2 * (ranks - 1) * held / ranks; break;
    case Sends::pieces:
      for (size_t to = 0; to < c.group.size(); ++to) {
        if (to == me) continue;
        for (const CollectivePiece& piece : pieces_of(c, me, to))
          elements += element_count(box_shape(piece.region));
      }
      break;
    case Sends::numbers: {
      const int64_t named = rows(&RowBounds::most_named);
      return named == 0 ? 0 : (ranks - 1 + named) * size_of(DType::i64);
    }
    case Sends::owned_rows: elements = rows(&RowBounds::most_owned) * row_elements(c, me); break;
    case Sends::named_rows: elements = rows(&RowBounds::most_named) * row_elements(c, me); break;
  }
  return elements * size_of(dtype);
}

}  // namespace shardrun
