// Hashes of what is made and read, and their comparison in two rounds: one digest for each set of
// mesh axes, and only where these differ every hash.
#include "exec/checks/replica_check.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/crc32c.h"

namespace shardrun {
namespace {

constexpr int64_t kBefore = -1;  // the maker of what was there before the step

/// What every rank has, by rank.
std::vector<std::vector<int64_t>> gather(Communicator& host, const std::vector<int64_t>& mine) {
  const auto ranks = static_cast<size_t>(host.size());
  const auto own = static_cast<int64_t>(mine.size());
  std::vector<int64_t> counts(ranks);
  host.all_gather(&own, counts.data(), std::vector<int64_t>(ranks, 1), DType::i64);
  size_t total = 0;
  for (const int64_t count : counts) total += static_cast<size_t>(count);
  std::vector<int64_t> all(total);
  host.all_gather(mine.data(), all.data(), counts, DType::i64);
  std::vector<std::vector<int64_t>> out;
  auto at = all.begin();
  for (const int64_t count : counts) {
    out.emplace_back(at, at + count);
    at += count;
  }
  return out;
}

/// The text that rank `root` has.
std::string text_of(Communicator& host, int root, const std::string& mine) {
  auto bytes = static_cast<int64_t>(mine.size());
  host.broadcast(&bytes, sizeof bytes, root);
  std::string text = mine;
  text.resize(static_cast<size_t>(bytes));
  host.broadcast(text.data(), bytes, root);
  return text;
}

std::string name_in_job(const Communicator& host, int64_t rank) {
  const Members& members = host.members();
  return members.job ? members.job->name(members.ranks[static_cast<size_t>(rank)])
                     : str("rank ", rank);
}

/// "rank 0, rank 2 and rank 3".
std::string list(const Communicator& host, const std::vector<int64_t>& ranks) {
  std::string out;
  for (size_t i = 0; i < ranks.size(); ++i)
    out += str(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", name_in_job(host, ranks[i]));
  return out;
}

std::vector<int> axes_in(uint64_t bits) {
  std::vector<int> out;
  for (int axis = 0; axis < 64; ++axis) {
    if (bits >> axis & 1) out.push_back(axis);
  }
  return out;
}

std::string name_of(const Step& step) {
  if (step.kind == Step::Kind::kernel) return str(step.node.op, " '", step.node.name, "'");
  return str(to_string(step.collective->kind), " of '", step.source, "'");
}

/// Who of them has another hash than most; all, where no hash is that of more than half.
std::string odd_ones(const Communicator& host, const std::vector<int64_t>& ranks,
                     const std::vector<int64_t>& hashes) {
  std::map<int64_t, std::vector<int64_t>> by_hash;
  for (size_t i = 0; i < ranks.size(); ++i) by_hash[hashes[i]].push_back(ranks[i]);
  const auto most = std::max_element(
      by_hash.begin(), by_hash.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (2 * most->second.size() <= ranks.size())
    return str("differs between ", list(host, ranks), ", which should hold the same");
  std::vector<int64_t> odd;
  for (const auto& [hash, holders] : by_hash) {
    if (hash != most->first) odd.insert(odd.end(), holders.begin(), holders.end());
  }
  std::sort(odd.begin(), odd.end());
  return str("is another one on ", list(host, odd), " than on ", list(host, most->second),
             ", which should hold the same");
}

}  // namespace

ReplicaCheck::ReplicaCheck(Executor& executor, const Plan& plan)
    : executor_(executor), program_(executor.program()) {
  SR_REQUIRE(executor.device().is_host(), unsupported, "replicas on ", executor.device().name(),
             " cannot be checked, only in the memory of CPU ranks");
  SR_REQUIRE(program_.mesh.axis_count() <= 64, unsupported, "replicas on a mesh of ",
             program_.mesh.axis_count(), " axes cannot be checked, at most 64");
  find_axes(plan);
  find_last_reads();
}

ReplicaCheck::~ReplicaCheck() { executor_.on_step(nullptr); }

ReplicaCheck::AxisSet ReplicaCheck::replicated(const Sharding& sharding) const {
  AxisSet out = 0;
  for (int axis = 0; axis < program_.mesh.axis_count(); ++axis) {
    if (program_.mesh.axis_size(axis) > 1) out |= AxisSet{1} << axis;
  }
  for (const Axes& dim : sharding.dims) {
    for (const int axis : dim) out &= ~(AxisSet{1} << axis);
  }
  for (const Sharding::Partial& partial : sharding.partial) out &= ~(AxisSet{1} << partial.axis);
  return out;
}

/// Of a resharded copy. What an exchange makes for one node is not known to be the same anywhere.
ReplicaCheck::AxisSet ReplicaCheck::after_collective(const Collective& collective,
                                                     AxisSet in) const {
  if (collective.traits().is_exchange()) return 0;
  AxisSet over = 0;
  for (const int axis : collective.axes) {
    if (program_.mesh.axis_size(axis) > 1) over |= AxisSet{1} << axis;
  }
  return collective.traits().replicates ? in | over : in & ~over;
}

/// A buffer of a value's name lies as the plan says. Copies are followed from there.
void ReplicaCheck::find_axes(const Plan& plan) {
  axes_.assign(program_.buffers.size(), 0);
  const auto buffer = [&](BufferId b) -> const Buffer& {
    return program_.buffers[static_cast<size_t>(b)];
  };
  const auto axes = [&](BufferId b) -> AxisSet& { return axes_[static_cast<size_t>(b)]; };
  std::map<int64_t, AxisSet> kept;  // by offset: what the update makes anew, it makes in place
  for (const Binding& binding : program_.bindings) {
    axes(binding.buffer) = replicated(binding.sharding);
    if (!is_persistent(binding.role) || byte_size(buffer(binding.buffer).type) == 0) continue;
    kept[buffer(binding.buffer).offset] = axes(binding.buffer);
    persistent_[buffer(binding.buffer).offset] = &binding;
  }
  for (const Step& step : program_.setup) {
    for (const BufferId out : step.out) {
      axes(out) = step.in.empty() ? 0 : axes(step.in[0]);
      kept[buffer(out).offset] = axes(out);
      set_up_.push_back(out);
    }
  }
  for (const Step& step : program_.steps) {
    for (const BufferId out : step.out) {
      const auto planned = plan.values.find(buffer(out).name);
      const auto again = kept.find(buffer(out).offset);
      if (planned != plan.values.end()) {
        axes(out) = replicated(planned->second);
      } else if (step.collective) {
        axes(out) = after_collective(*step.collective, axes(step.in[0]));
      } else if (again != kept.end()) {
        axes(out) = again->second;
      }
    }
  }
}

void ReplicaCheck::find_last_reads() {
  last_reads_.resize(program_.steps.size());
  overwrites_.resize(program_.steps.size());
  const auto meet = [&](BufferId a, BufferId b) {
    const Buffer &x = program_.buffers[static_cast<size_t>(a)],
                 &y = program_.buffers[static_cast<size_t>(b)];
    return x.offset < y.offset + byte_size(y.type) && y.offset < x.offset + byte_size(x.type);
  };
  std::set<BufferId> read_later;
  for (size_t s = program_.steps.size(); s-- > 0;) {
    const Step& step = program_.steps[s];
    for (const BufferId out : step.out) read_later.erase(out);
    for (const BufferId in : step.in) {
      const bool last = read_later.insert(in).second;
      // A reshape's result lies where its operand does, which others may read later.
      if (std::any_of(step.out.begin(), step.out.end(),
                      [&](BufferId out) { return meet(in, out); }))
        overwrites_[s].push_back(in);
      else if (last)
        last_reads_[s].push_back(in);
    }
  }
}

TensorView ReplicaCheck::view(BufferId buffer) const {
  const Buffer& b = program_.buffers[static_cast<size_t>(buffer)];
  return {executor_.arena()->data() + b.offset, b.type};
}

/// From now on memory is to hold what it holds now; what was known of it before is forgotten.
void ReplicaCheck::hold(BufferId buffer, int64_t maker) {
  const TensorView now = view(buffer);
  const int64_t bytes = byte_size(now.type);
  if (bytes == 0) return;
  const int64_t offset = program_.buffers[static_cast<size_t>(buffer)].offset;
  auto at = held_.lower_bound(offset);
  if (at != held_.begin() && std::prev(at)->first + std::prev(at)->second.bytes > offset) --at;
  while (at != held_.end() && at->first < offset + bytes) at = held_.erase(at);
  const uint32_t hash = crc32c(now.data, bytes);
  held_.emplace_hint(at, offset, Held{bytes, hash, maker});
  const AxisSet axes = axes_[static_cast<size_t>(buffer)];
  if (axes == 0) return;
  made_.push_back({axes, buffer, micro_, collectives_, maker, hash});
  uint32_t& digest = digests_[axes];
  digest = crc32c(&hash, sizeof hash, digest);
}

void ReplicaCheck::look_at(const std::vector<BufferId>& read, size_t reader) {
  for (const BufferId buffer : read) {
    const TensorView now = view(buffer);
    const auto known = held_.find(program_.buffers[static_cast<size_t>(buffer)].offset);
    if (known == held_.end() || known->second.bytes != byte_size(now.type)) continue;
    if (!changed_.empty() || crc32c(now.data, known->second.bytes) == known->second.hash) continue;
    const int64_t maker = known->second.maker;
    changed_ =
        str(describe(buffer), " changed in memory ",
            maker == kBefore
                ? "after the step or micro-batch began"
                : "after " + name_of(program_.steps[static_cast<size_t>(maker)]) + " made it",
            ", and ", name_of(program_.steps[reader]), " read it");
  }
}

void ReplicaCheck::begin() {
  held_.clear(), made_.clear(), digests_.clear(), changed_.clear();
  micro_ = collectives_ = 0;
  for (const auto& [offset, binding] : persistent_) hold(binding->buffer, kBefore);
  for (const BufferId buffer : set_up_) hold(buffer, kBefore);
  executor_.on_step([this](size_t step, std::span<const TensorView>) { after(step); });
}

void ReplicaCheck::before_micro() {
  ++micro_;
  for (const Binding& binding : program_.bindings) {
    if (!is_persistent(binding.role)) hold(binding.buffer, kBefore);
  }
  if (!program_.steps.empty() && program_.steps[0].phase == Phase::micro)
    look_at(overwrites_[0], 0);
}

void ReplicaCheck::before_update() {
  for (size_t s = 0; s < program_.steps.size(); ++s) {
    if (program_.steps[s].phase == Phase::update) return look_at(overwrites_[s], s);
  }
}

void ReplicaCheck::after(size_t step) {
  const Step& done = program_.steps[step];
  if (done.kind == Step::Kind::collective) ++collectives_;
  look_at(last_reads_[step], step);
  for (const BufferId out : done.out) hold(out, static_cast<int64_t>(step));
  const size_t next = step + 1;
  if (next < program_.steps.size() && program_.steps[next].phase == done.phase)
    look_at(overwrites_[next], next);
}

std::string ReplicaCheck::describe(BufferId buffer) const {
  const Buffer& b = program_.buffers[static_cast<size_t>(buffer)];
  const auto kept = persistent_.find(b.offset);
  const Binding* bound = kept == persistent_.end() ? nullptr : kept->second;
  for (const Binding& binding : program_.bindings) {
    if (binding.buffer == buffer) bound = &binding;
  }
  if (bound == nullptr) return str("'", b.name, "'");
  const std::string_view what = bound->role == Role::parameter  ? "parameter"
                                : bound->role == Role::batch    ? "input"
                                : bound->role == Role::constant ? "constant"
                                : bound->role == Role::scalar   ? "scalar"
                                                                : "state";
  const bool whole = bound->box == full_box(bound->global.shape);
  return str(what, " '", bound->name, "'", whole ? "" : " at " + box_text(bound->box));
}

std::string ReplicaCheck::describe(const Made& made) const {
  if (made.maker == kBefore) return describe(made.buffer);
  return str(describe(made.buffer), ", as ",
             name_of(program_.steps[static_cast<size_t>(made.maker)]), " left it,");
}

std::string ReplicaCheck::end(Communicator& host) {
  executor_.on_step(nullptr);
  std::vector<int64_t> mine{changed_.empty() ? 0 : 1};
  for (const auto& [axes, digest] : digests_) {
    mine.push_back(static_cast<int64_t>(axes));
    mine.push_back(digest);
  }
  const std::vector<std::vector<int64_t>> all = gather(host, mine);
  for (int rank = 0; rank < host.size(); ++rank) {
    if (all[static_cast<size_t>(rank)][0] == 0) continue;
    return str("on ", name_in_job(host, rank), " ", text_of(host, rank, changed_));
  }
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (size_t i = 1; i < all[rank].size(); i += 2) {
      const auto axes = static_cast<AxisSet>(all[rank][i]);
      for (const int64_t peer : program_.mesh.group(static_cast<int64_t>(rank), axes_in(axes))) {
        const std::vector<int64_t>& other = all[static_cast<size_t>(peer)];
        if (i + 1 >= other.size() || other[i] != all[rank][i] || other[i + 1] != all[rank][i + 1])
          return compare(host);
      }
    }
  }
  return "";
}

constexpr size_t kColumns = 4;  // of a row: axes, key, collectives, hash

/// A row for each replica that was made, of each rank.
std::vector<std::vector<int64_t>> ReplicaCheck::tables(Communicator& host) const {
  std::vector<int64_t> rows;
  for (const Made& made : made_) {
    const std::string& name = program_.buffers[static_cast<size_t>(made.buffer)].name;
    const int64_t key = made.micro << 32 | crc32c(name.data(), static_cast<int64_t>(name.size()));
    rows.insert(rows.end(), {static_cast<int64_t>(made.axes), key, made.collectives, made.hash});
  }
  return gather(host, rows);
}

/// The difference that was made first: what depends on it comes after it, on other ranks after a
/// collective.
std::string ReplicaCheck::compare(Communicator& host) const {
  const std::vector<std::vector<int64_t>> all = tables(host);
  using Rows = std::map<int64_t, std::vector<size_t>>;  // by axes
  std::vector<Rows> rows(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (size_t r = 0; r < all[rank].size() / kColumns; ++r)
      rows[rank][all[rank][r * kColumns]].push_back(r);
  }
  std::optional<Difference> first;
  const auto look_at = [&](const std::vector<int64_t>& ranks, int64_t axes) {
    const auto row = [&](int64_t rank, size_t k) -> const int64_t* {
      const Rows& own = rows[static_cast<size_t>(rank)];
      const auto found = own.find(axes);
      if (found == own.end() || k >= found->second.size()) return nullptr;
      return &all[static_cast<size_t>(rank)][found->second[k] * kColumns];
    };
    for (size_t k = 0; const int64_t* const lead = row(ranks[0], k); ++k) {
      Difference here{ranks, {}, lead[2], rows[static_cast<size_t>(ranks[0])].at(axes)[k]};
      for (const int64_t rank : ranks) {
        const int64_t* const other = row(rank, k);
        if (other == nullptr || other[1] != lead[1]) return;  // these ranks run other steps
        here.hashes.push_back(other[3]);
      }
      if (std::count(here.hashes.begin(), here.hashes.end(), lead[3]) ==
          static_cast<int64_t>(ranks.size()))
        continue;
      if (!first ||
          std::pair(here.collectives, here.made) < std::pair(first->collectives, first->made))
        first = std::move(here);
      return;
    }
  };
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& [axes, made] : rows[rank]) {
      const std::vector<int64_t> ranks =
          program_.mesh.group(static_cast<int64_t>(rank), axes_in(static_cast<AxisSet>(axes)));
      if (ranks[0] == static_cast<int64_t>(rank)) look_at(ranks, axes);
    }
  }
  if (!first) return "";
  const auto root = static_cast<int>(first->ranks[0]);
  const std::string what =
      text_of(host, root, host.rank() == root ? describe(made_[first->made]) : "");
  return str(what, " ", odd_ones(host, first->ranks, first->hashes));
}

}  // namespace shardrun
