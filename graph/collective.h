// Collective: how a value goes from one layout over ranks to another, and a table of its kinds.
//
// The table alone says what a kind is: planning, printing, explaining and checking read it. A new
// kind takes an enumerator and a row here, code that makes it (planner/reshard for a resharding,
// graph/node_exchanges for an exchange of a node), and its algorithm in exec/collective_step.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "graph/mesh.h"
#include "graph/sharding.h"

namespace shardrun {

struct CollectiveTraits;

/// block_exchange: per member the global ranges of `dim` that its tensor is stacked of.
using MemberBlocks = std::vector<std::vector<Range>>;

/// Of rows that change ranks by number (graph/node_plan.h, Rows): how many rows of others a rank
/// names at most, and how many of its own others name.
struct RowBounds {
  int64_t most_named = 0, most_owned = 0;
};

/// Collectives and local data movement between shardings. `in` and `out` boxes are this rank's
/// shard of the value before and after; peers' boxes follow from the mesh.
struct Collective {
  enum class Kind {
    all_gather,      // dim `dim` cut over the group -> whole; may be dims before it as well
    reduce_scatter,  // partial -> dim `dim` cut over the group
    all_reduce,      // partial -> replicated
    all_to_all,      // cut along `dim` -> cut along `to_dim`
    slice,           // local: replicated -> cut along `dim` (no communication)
    keep_first,  // local: replicated -> partial: all but the group's first rank take the identity
    halo_exchange,   // shards -> the windows that a node reads; any box to any box
    halo_add,        // windows that a node made -> shards; a row that several made is their sum
    block_exchange,  // blocks along `dim` that a node made -> shards
    row_route,       // numbers -> numbers of a rank's own and named rows; who gets which rows
    row_fetch,       // shards of `dim` -> a rank's own and named rows
    row_add,         // what a node made of its own and named rows -> shards of `dim`
  };
  Kind kind = Kind::all_gather;
  std::vector<int> axes;       // of the mesh, over which the group spreads
  std::vector<int64_t> group;  // global ranks, in the order of their shards (Mesh::group of axes);
                               // this rank is among them
  int dim = 0;
  int to_dim = 0;
  ReduceOp op = ReduceOp::sum;
  std::vector<Box> in_boxes;  // per group member, global coordinates
  std::vector<Box> out_boxes;
  /// What only some kinds have: MemberBlocks for block_exchange, RowBounds for the three of rows.
  /// row_route has two results: the numbers, and a routing of routing_size integers, the second
  /// operand of row_fetch and row_add. Its boxes are of one dim, the rows that each member owns.
  std::variant<std::monostate, MemberBlocks, RowBounds> payload;

  constexpr const CollectiveTraits& traits() const;
};

/// A row of the table.
struct CollectiveTraits {
  /// A resharding stands anywhere between steps. An exchange belongs to a node: before it, to fetch
  /// what it takes, or after it, to bring what it made into the value's shards.
  enum class Place { free, before_node, after_node };
  /// Which formula of planner/cost gives its seconds. Of the first three, cluster files hold
  /// measurements.
  enum class Price {
    ring,        // once around a ring: (n - 1) / n of the whole sent by each rank
    all_reduce,  // twice around a ring, or up and down a tree
    pairwise,    // (n - 1) / n of a rank's own shard, to each of the others its piece
    copy,        // within a rank
    exchange,    // by the boxes of a node's plan: exchange_seconds
    route,       // by the numbers of a node's plan: route_seconds
  };
  enum class Side { before, after };
  /// The dim along which the members' pieces of a tensor lie: Collective::dim or to_dim.
  enum class Along { none, dim, to_dim };
  /// What a rank gives to the others of its group (bytes_sent).
  enum class Sends {
    nothing,
    shard,       // what it holds, to each of them
    twice,       // a reduce_scatter's pieces and an all_gather's shards
    pieces,      // to each what lies in its result: pieces_of
    numbers,     // of rows, at most RowBounds::most_named, and to each how many
    owned_rows,  // at most RowBounds::most_owned
    named_rows,  // at most RowBounds::most_named
  };
  /// What of a Collective is printed besides its axes and payload.
  enum Field : unsigned { has_dim = 1, has_to_dim = 2, has_op = 4, has_windows = 8 };

  Collective::Kind kind = Collective::Kind::all_gather;
  std::string_view name;
  Price price = Price::ring;
  Side sized = Side::before;  // the bytes that `price` goes by: a rank's shard on this side
  Place place = Place::free;
  Sends sends = Sends::nothing;
  bool local = false;       // moves no data between ranks: nobody waits for anybody
  bool reduces = false;     // combines what several ranks made of an element
  bool by_rows = false;     // moves rows that numbers name, known when the step runs
  bool in_place = false;    // the result may lie where the operand did
  bool replicates = false;  // a resharding whose result is the same on all of the group
  /// Pieces of the operand to pack, and of the result to unpack, where they are not dense in it.
  Along packs = Along::none, unpacks = Along::none;
  unsigned fields = 0;

  /// Does it belong to a node, rather than reshard a value?
  constexpr bool is_exchange() const { return place != Place::free; }
  constexpr bool is_measured() const {
    return price == Price::ring || price == Price::all_reduce || price == Price::pairwise;
  }
  constexpr bool has(Field field) const { return (fields & field) != 0; }
};

/// By Collective::Kind.
inline constexpr auto kCollectives = [] {
  using K = Collective::Kind;
  using T = CollectiveTraits;
  using P = T::Price;
  using S = T::Sends;
  constexpr auto after = T::Side::after;
  constexpr auto before_node = T::Place::before_node, after_node = T::Place::after_node;
  return std::to_array<T>({
      {.kind = K::all_gather,
       .name = "all_gather",
       .price = P::ring,
       .sized = after,
       .sends = S::shard,
       .replicates = true,
       .unpacks = T::Along::dim,
       .fields = T::has_dim},
      {.kind = K::reduce_scatter,
       .name = "reduce_scatter",
       .price = P::ring,
       .sends = S::pieces,
       .reduces = true,
       .packs = T::Along::dim,
       .fields = T::has_dim | T::has_op},
      {.kind = K::all_reduce,
       .name = "all_reduce",
       .price = P::all_reduce,
       .sends = S::twice,
       .reduces = true,
       .in_place = true,
       .replicates = true,
       .fields = T::has_op},
      {.kind = K::all_to_all,
       .name = "all_to_all",
       .price = P::pairwise,
       .sends = S::pieces,
       .packs = T::Along::to_dim,
       .unpacks = T::Along::dim,
       .fields = T::has_dim | T::has_to_dim},
      {.kind = K::slice,
       .name = "slice",
       .price = P::copy,
       .sized = after,
       .local = true,
       .fields = T::has_dim},
      {.kind = K::keep_first,
       .name = "keep_first",
       .price = P::copy,
       .local = true,
       .in_place = true,
       .fields = T::has_op},
      {.kind = K::halo_exchange,
       .name = "halo_exchange",
       .price = P::exchange,
       .place = before_node,
       .sends = S::pieces,
       .fields = T::has_windows},
      {.kind = K::halo_add,
       .name = "halo_add",
       .price = P::exchange,
       .place = after_node,
       .sends = S::pieces,
       .reduces = true,
       .fields = T::has_windows},
      {.kind = K::block_exchange,
       .name = "block_exchange",
       .price = P::exchange,
       .place = after_node,
       .sends = S::pieces,
       .fields = T::has_dim},
      {.kind = K::row_route,
       .name = "row_route",
       .price = P::route,
       .place = before_node,
       .sends = S::numbers,
       .by_rows = true,
       .fields = T::has_dim},
      {.kind = K::row_fetch,
       .name = "row_fetch",
       .price = P::exchange,
       .place = before_node,
       .sends = S::owned_rows,
       .by_rows = true,
       .fields = T::has_dim},
      {.kind = K::row_add,
       .name = "row_add",
       .price = P::exchange,
       .place = after_node,
       .sends = S::named_rows,
       .reduces = true,
       .by_rows = true,
       .fields = T::has_dim | T::has_op},
  });
}();

constexpr const CollectiveTraits& traits_of(Collective::Kind kind) {
  return kCollectives[static_cast<size_t>(kind)];
}
constexpr const CollectiveTraits& Collective::traits() const { return traits_of(kind); }

static_assert(
    [] {
      for (size_t i = 0; i < kCollectives.size(); ++i) {
        if (kCollectives[i].kind != static_cast<Collective::Kind>(i)) return false;
      }
      return kCollectives.size() == static_cast<size_t>(Collective::Kind::row_add) + 1;
    }(),
    "kCollectives has a row for each kind, in their order");

inline std::string_view to_string(Collective::Kind kind) { return traits_of(kind).name; }
/// "[0:4, 2:8]": begin and end in each dim.
std::string box_text(const Box& box);
/// "all_gather{axes=x,y dim=0}": of an exchange of windows the boxes of `rank`, one of the group.
std::string to_string(const Collective& collective, const Mesh& mesh, int64_t rank);
/// Elements of a routing: how many rows of each member this rank names, how many of this rank's
/// each member names, and which these are, counted from this rank's first.
int64_t routing_size(const Collective& row_route);

/// The place of `rank` in the group. Throws internal if it is not there, or boxes are missing.
size_t place_in_group(const Collective& collective, int64_t rank);
/// A part of one member's operand that is part of another's result.
struct CollectivePiece {
  Box region;  // global
  Box local;   // the operand's box, as far as this piece is concerned (blocks have one each)
};
/// What member `from` holds of what member `to` gets.
std::vector<CollectivePiece> pieces_of(const Collective& collective, size_t from, size_t to);
/// What `rank`, one of the group, gives to the others, in bytes, each piece once for every rank
/// that needs it; an all_reduce counts as a reduce_scatter and an all_gather. Of rows that change
/// ranks by number, the most that the plan allows. `dtype`: of operand 0.
int64_t bytes_sent(const Collective& collective, DType dtype, int64_t rank);

}  // namespace shardrun
