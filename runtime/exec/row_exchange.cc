// Who names which rows, and the rows there and back.
#include "exec/row_exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "collectives/reduce.h"
#include "exec/collective_step.h"

namespace shardrun {
namespace {

int64_t sum_of_all(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

struct RowExchange::Workspace {
  std::span<int64_t> sent, received;  // elements, per member; row_add: where a member's rows stand
  std::span<const void*> terms;       // row_add: of one row
  std::span<int64_t> places;          // row_route: of each row of the dim, where it lies here
  int64_t* named_rows = nullptr;      // row_route: counted from their owners' first
  char* rows = nullptr;               // those that others name
  int64_t bytes = 0;
};

RowExchange::Workspace RowExchange::parts(void* workspace) const {
  Workspace w;
  const auto take = [&](int64_t bytes) {
    char* at = workspace == nullptr ? nullptr : static_cast<char*>(workspace) + w.bytes;
    w.bytes += round_up_64(bytes);
    return at;
  };
  const auto integers = [&](int64_t count) {
    auto* at = reinterpret_cast<int64_t*>(take(count * static_cast<int64_t>(sizeof(int64_t))));
    return std::span<int64_t>(at, at == nullptr ? 0 : static_cast<size_t>(count));
  };
  const auto members = static_cast<int64_t>(owned_.size());
  w.sent = integers(members);
  w.received = integers(members);
  if (kind_ == Collective::Kind::row_route) {
    int64_t rows = 0;
    for (const Range& range : owned_) rows = std::max(rows, range.end());
    w.places = integers(rows);
    w.named_rows = integers(bounds_.most_named).data();
    return w;
  }
  if (kind_ == Collective::Kind::row_add) {
    auto* at =
        reinterpret_cast<const void**>(take(members * static_cast<int64_t>(sizeof(const void*))));
    w.terms = {at, at == nullptr ? 0 : owned_.size()};
  }
  w.rows = take(bounds_.most_owned * row_elements_ * size_of(dtype_));
  return w;
}

struct RowExchange::Routing {
  std::span<int64_t> named, owned;  // rows, per member
  int64_t* owned_rows = nullptr;    // by member, counted from this rank's first
};

RowExchange::Routing RowExchange::routing(const TensorView& view) const {
  auto* at = view.as<int64_t>();
  const size_t members = owned_.size();
  return {{at, members}, {at + members, members}, at + 2 * members};
}

RowExchange::RowExchange(const Collective& c, DType dtype, size_t me)
    : kind_(c.kind), dtype_(dtype), op_(c.op), me_(me), bounds_(std::get<RowBounds>(c.payload)) {
  const auto dim = static_cast<size_t>(c.dim);
  const std::vector<Box>& shards = kind_ == Collective::Kind::row_add ? c.out_boxes : c.in_boxes;
  for (const Box& box : shards) owned_.push_back(box[dim]);
  for (size_t d = 0; d < shards[me].size(); ++d) {
    SR_REQUIRE(d >= dim || shards[me][d].size == 1, internal, to_string(kind_), ": dim ", d,
               " lies before the rows' and has ", shards[me][d].size, " elements, wanted 1");
    if (d > dim) row_elements_ *= shards[me][d].size;
  }
  bytes_ = parts(nullptr).bytes;
}

void RowExchange::check(int64_t rows, int64_t most, const char* what) const {
  SR_REQUIRE(rows <= most, invalid_input, what, " ", rows, " rows, the plan allows for ", most,
             ": it was made for other numbers, or for edges in another order; plan with the data "
             "that are trained on");
}

void RowExchange::run(std::span<const TensorView> in, std::span<const TensorView> out,
                      void* workspace, Communicator& group) const {
  const Workspace w = parts(workspace);
  if (kind_ == Collective::Kind::row_route) return route(in[0], out[0], routing(out[1]), w, group);
  const Routing r = routing(in[1]);
  const auto* from = static_cast<const char*>(in[0].data);
  auto* to = static_cast<char*>(out[0].data);
  const bool fetches = kind_ == Collective::Kind::row_fetch;
  for (size_t j = 0; j < owned_.size(); ++j) {
    w.sent[j] = (fetches ? r.owned : r.named)[j] * row_elements_;
    w.received[j] = (fetches ? r.named : r.owned)[j] * row_elements_;
  }
  if (fetches) {
    fetch(from, to, r, w, group);
  } else {
    add(from, to, r, w, group);
  }
}

void RowExchange::route(const TensorView& numbers, const TensorView& renumbered, const Routing& r,
                        const Workspace& w, Communicator& group) const {
  constexpr int64_t kAway = -1, kNamed = -2;
  const Range own = owned_[me_];
  std::fill(w.places.begin(), w.places.end(), kAway);
  std::iota(w.places.begin() + own.begin, w.places.begin() + own.end(), int64_t{0});
  const auto place_of = [&](int64_t number) -> int64_t* {  // null: it names nothing
    const bool inside = number >= 0 && number < static_cast<int64_t>(w.places.size());
    return inside ? &w.places[static_cast<size_t>(number)] : nullptr;
  };
  const auto with_type = [&](const auto& f) {
    if (numbers.type.dtype == DType::i32) {
      f(numbers.as<int32_t>(), renumbered.as<int32_t>());
    } else {
      f(numbers.as<int64_t>(), renumbered.as<int64_t>());
    }
  };
  with_type([&](const auto* number, auto*) {
    for (int64_t i = 0; i < numbers.count(); ++i) {
      int64_t* place = place_of(number[i]);
      if (place != nullptr && *place == kAway) *place = kNamed;
    }
  });
  int64_t named = 0;
  for (size_t j = 0; j < owned_.size(); ++j) {
    const int64_t before = named;
    for (int64_t row = owned_[j].begin; row < owned_[j].end(); ++row) {
      int64_t& place = w.places[static_cast<size_t>(row)];
      if (place != kNamed) continue;
      place = own.size + named;
      if (named < bounds_.most_named) w.named_rows[named] = row - owned_[j].begin;
      ++named;
    }
    r.named[j] = named - before;
  }
  check(named, bounds_.most_named, "the numbers of this rank name, of other ranks,");
  with_type([&](const auto* number, auto* to) {
    for (int64_t i = 0; i < numbers.count(); ++i) {
      const int64_t* place = place_of(number[i]);
      to[i] = static_cast<std::remove_reference_t<decltype(to[0])>>(place ? *place : kAway);
    }
  });
  std::fill(r.owned.begin(), r.owned.end(), 0);
  if (bounds_.most_named == 0) return;  // on all ranks: there is nothing to tell
  std::fill(w.sent.begin(), w.sent.end(), 1);
  group.all_to_all(r.named.data(), w.sent, r.owned.data(), w.sent, DType::i64);
  check(sum_of_all(r.owned), bounds_.most_owned, "the numbers of other ranks name, of this rank,");
  group.all_to_all(w.named_rows, r.named, r.owned_rows, r.owned, DType::i64);
}

void RowExchange::fetch(const char* in, char* out, const Routing& r, const Workspace& w,
                        Communicator& group) const {
  const int64_t bytes = row_elements_ * size_of(dtype_), own = owned_[me_].size * bytes;
  if (own > 0) std::memcpy(out, in, static_cast<size_t>(own));
  const int64_t rows = sum_of_all(r.owned);
  for (int64_t i = 0; i < rows && bytes > 0; ++i)
    std::memcpy(w.rows + i * bytes, in + r.owned_rows[i] * bytes, static_cast<size_t>(bytes));
  group.all_to_all(w.rows, w.sent, out + own, w.received, dtype_);
}

void RowExchange::add(const char* in, char* out, const Routing& r, const Workspace& w,
                      Communicator& group) const {
  const int64_t bytes = row_elements_ * size_of(dtype_), own = owned_[me_].size;
  group.all_to_all(in + own * bytes, w.sent, w.rows, w.received, dtype_);
  if (bytes == 0) return;
  // Per member, which of all rows that came is its next one, and where its rows end.
  const std::span<int64_t> next = w.sent, end = w.received;
  int64_t sum = 0;
  for (size_t j = 0; j < owned_.size(); ++j) {
    next[j] = sum;
    end[j] = sum += r.owned[j];
  }
  for (int64_t row = 0; row < own; ++row) {
    size_t terms = 0;
    for (size_t j = 0; j < owned_.size(); ++j) {
      if (j == me_) {
        w.terms[terms++] = in + row * bytes;
      } else if (next[j] < end[j] && r.owned_rows[next[j]] == row) {
        w.terms[terms++] = w.rows + next[j]++ * bytes;
      }
    }
    if (terms == 1) {
      std::memcpy(out + row * bytes, w.terms[0], static_cast<size_t>(bytes));
    } else {
      reduce_in_rank_order(w.terms.first(terms), out + row * bytes, row_elements_, dtype_,
                           reduction_of(op_));
    }
  }
}

}  // namespace shardrun
