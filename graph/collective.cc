// Printing Collectives, for people and tests.
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

}  // namespace shardrun
