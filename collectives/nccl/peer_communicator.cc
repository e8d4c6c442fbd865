// Each rank pulls what it needs from its peers' memory, between two meetings on the host: at the
// first all ranks' earlier work is done and they have sent where their buffers lie; at the second
// everybody has read, and buffers may change again.
#include "collectives/nccl/peer_communicator.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include "base/error.h"
#include "base/shape.h"
#include "collectives/reduce.h"

namespace shardrun {
namespace {

/// A buffer in words that peers understand: offset in the rank's shard of the n-th allocation of
/// their group, or of the group that this was split off from, and so on.
struct Place {
  int64_t generation = 0;
  int64_t allocation = -1;  // -1: none that peers reach; -2: no bytes
  int64_t offset = 0;
};

/// Memory that ranks allocated together, and peers' parts of it.
struct Allocation {
  std::shared_ptr<char> own;
  int64_t bytes = 0;
  std::vector<std::shared_ptr<char>> parts;  // by rank of the world
};

/// Of one group. Those of groups that it was split off from are found too.
class Allocations {
 public:
  explicit Allocations(std::shared_ptr<const Allocations> parent) : parent_(std::move(parent)) {}
  void add(const std::shared_ptr<Allocation>& allocation) { all_.push_back(allocation); }

  Place find(const void* data, int64_t bytes) const {
    if (bytes == 0) return {0, -2, 0};
    const auto* at = static_cast<const char*>(data);
    for (size_t i = 0; i < all_.size(); ++i) {
      const auto a = all_[i].lock();
      if (!a || !a->own) continue;
      const std::less_equal<const char*> before;
      if (before(a->own.get(), at) && before(at + bytes, a->own.get() + a->bytes))
        return {0, static_cast<int64_t>(i), at - a->own.get()};
    }
    if (!parent_) return {};
    Place place = parent_->find(data, bytes);
    ++place.generation;
    return place;
  }

  char* at(int world_rank, Place place) const {
    if (place.allocation < 0) return nullptr;
    if (place.generation > 0) {
      --place.generation;
      return parent_->at(world_rank, place);
    }
    const auto a = all_[static_cast<size_t>(place.allocation)].lock();
    SR_REQUIRE(a != nullptr, comm, "a peer's memory has been given back");
    return a->parts[static_cast<size_t>(world_rank)].get() + place.offset;
  }

 private:
  std::shared_ptr<const Allocations> parent_;
  std::vector<std::weak_ptr<Allocation>> all_;  // the same on every rank of the group
};

/// A copy of a device's buffer in the host's memory.
class Copy {
 public:
  Copy(Device& device, const void* from, int64_t bytes) : Copy(bytes) {
    device.copy_out(data(), from, bytes);
  }
  explicit Copy(int64_t bytes)
      : bytes_(bytes), memory_(static_cast<size_t>(bytes) / sizeof(std::max_align_t) + 1) {}
  char* data() { return reinterpret_cast<char*>(memory_.data()); }
  void to(Device& device, void* target) { device.copy_in(target, data(), bytes_); }

 private:
  int64_t bytes_;
  std::vector<std::max_align_t> memory_;
};

class PeerCommunicator final : public Communicator {
 public:
  PeerCommunicator(Communicator& host, std::unique_ptr<Communicator> owned,
                   std::shared_ptr<PeerAccess> access, std::shared_ptr<Allocations> allocations,
                   std::vector<int> world)
      : host_(host),
        owned_(std::move(owned)),
        access_(std::move(access)),
        device_(access_->device()),
        allocations_(std::move(allocations)),
        world_(std::move(world)) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  const Members& members() const override { return host_.members(); }
  Communicator& host() override { return host_; }

  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    check_counts("all_gather", counts, *this);
    const int64_t element = size_of(dtype), own = counts[me()] * element,
                  all = sum_of(counts) * element;
    call(
        "all_gather", all, send, own,
        [&](const Peers& peers) {
          char* to = static_cast<char*>(recv);
          for (size_t r = 0; r < peers.size(); ++r) {
            const int64_t bytes = counts[r] * element;
            if (to != peers[r]) device_.copy(to, peers[r], bytes);
            to += bytes;
          }
        },
        [&] {
          Copy mine(device_, send, own), whole(all);
          host_.all_gather(mine.data(), whole.data(), counts, dtype);
          whole.to(device_, recv);
        });
  }

  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void*) override {
    check_counts("reduce_scatter", counts, *this);
    check_reducible("reduce_scatter", dtype, *this);
    const int64_t element = size_of(dtype), all = sum_of(counts) * element;
    call(
        "reduce_scatter", all, send, all,
        [&](const Peers& peers) {
          reduce_part(peers, offset_of(counts, rank()) * element, recv, counts[me()], dtype, op);
        },
        [&] {
          Copy whole(device_, send, all), mine(counts[me()] * element),
              staging(host_.reduce_scatter_staging(counts, dtype) + 64);
          host_.reduce_scatter(whole.data(), mine.data(), counts, dtype, op,
                               aligned(staging.data()));
          mine.to(device_, recv);
        });
  }

  /// Each rank sums one part, in place: nobody else reads that part of its data. Then it takes the
  /// other parts from those who summed them.
  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void*) override {
    check_reducible("all_reduce", dtype, *this);
    const int64_t element = size_of(dtype), bytes = count * element;
    call(
        "all_reduce", bytes, data, bytes,
        [&](const Peers& peers) {
          char* own = static_cast<char*>(data);
          const Range mine = shard_range(count, size(), rank());
          reduce_part(peers, mine.begin * element, own + mine.begin * element, mine.size, dtype,
                      op);
          meet();
          for (int r = 0; r < size(); ++r) {
            const Range part = shard_range(count, size(), r);
            const int64_t at = part.begin * element;
            if (r != rank() && part.size > 0)
              device_.copy(own + at, peers[static_cast<size_t>(r)] + at, part.size * element);
          }
        },
        [&] {
          Copy whole(device_, data, bytes), staging(host_.all_reduce_staging(count, dtype) + 64);
          host_.all_reduce(whole.data(), count, dtype, op, aligned(staging.data()));
          whole.to(device_, data);
        });
  }

  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    check_counts("all_to_all", send_counts, *this);
    check_counts("all_to_all", recv_counts, *this);
    const int64_t element = size_of(dtype);
    const int64_t sent = sum_of(send_counts) * element, received = sum_of(recv_counts) * element;
    std::vector<int64_t> all_counts(world_.size() * world_.size());
    named("all_to_all", std::max(sent, received), [&] {
      host_.all_gather(send_counts.data(), all_counts.data(),
                       std::vector<int64_t>(world_.size(), size()), DType::i64);
    });
    call(
        "all_to_all", std::max(sent, received), send, sent,
        [&](const Peers& peers) {
          char* to = static_cast<char*>(recv);
          for (size_t r = 0; r < peers.size(); ++r) {
            const auto theirs = std::span(all_counts).subspan(r * world_.size(), world_.size());
            SR_REQUIRE(theirs[me()] == recv_counts[r], comm, call_name("all_to_all", *this),
                       ": expects ", recv_counts[r], " elements of rank ", r, ", which sends ",
                       theirs[me()]);
            const int64_t bytes = recv_counts[r] * element;
            device_.copy(to, peers[r] + offset_of(theirs, rank()) * element, bytes);
            to += bytes;
          }
        },
        [&] {
          Copy whole(device_, send, sent), mine(received);
          host_.all_to_all(whole.data(), send_counts, mine.data(), recv_counts, dtype);
          mine.to(device_, recv);
        });
  }

  void broadcast(void* data, int64_t bytes, int root) override {
    check_peer("broadcast", root, *this);
    call(
        "broadcast", bytes, data, bytes,
        [&](const Peers& peers) {
          if (rank() != root) device_.copy(data, peers[static_cast<size_t>(root)], bytes);
        },
        [&] {
          Copy whole(device_, data, bytes);
          host_.broadcast(whole.data(), bytes, root);
          whole.to(device_, data);
        });
  }

  void send(const void* data, int64_t bytes, int to) override {
    Copy copy(device_, data, bytes);
    host_.send(copy.data(), bytes, to);
  }
  void recv(void* data, int64_t bytes, int from) override {
    Copy copy(bytes);
    host_.recv(copy.data(), bytes, from);
    copy.to(device_, data);
  }
  void barrier() override {
    device_.synchronize();
    host_.barrier();
  }
  uint64_t any_of(uint64_t flags) override { return host_.any_of(flags); }

  Memory allocate(int64_t bytes) override {
    auto allocation = std::make_shared<Allocation>();
    allocation->own = device_.allocate(bytes);
    allocation->bytes = bytes;
    const std::string handle = access_->handle_of(allocation->own.get());
    const auto length = static_cast<int64_t>(handle.size());
    std::string all(handle.size() * world_.size(), '\0');
    host_.all_gather(handle.data(), all.data(), std::vector<int64_t>(world_.size(), length),
                     DType::u8);
    // Ranks of other groups are not reached through this memory.
    allocation->parts.resize(static_cast<size_t>(*std::max_element(world_.begin(), world_.end())) +
                             1);
    std::string why;
    for (size_t r = 0; r < world_.size(); ++r) {
      std::shared_ptr<char>& part = allocation->parts[static_cast<size_t>(world_[r])];
      try {
        part = r == me() ? allocation->own
                         : access_->open(all.substr(r * handle.size(), handle.size()));
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::device) throw;
        why = e.what();
      }
    }
    // All go the same way: one that has not opened its peers' memory is none's. Who frees some has
    // heard here that all have opened it.
    const uint8_t opened = why.empty() ? 1 : 0;
    std::vector<uint8_t> by_rank(world_.size());
    host_.all_gather(&opened, by_rank.data(), std::vector<int64_t>(world_.size(), 1), DType::u8);
    const auto without = std::find(by_rank.begin(), by_rank.end(), 0);
    if (without == by_rank.end()) {
      allocations_->add(allocation);
    } else if (why.empty()) {
      why = str("rank ", without - by_rank.begin(), " of ", size(), " cannot open it");
    }
    return {std::shared_ptr<char>(allocation, allocation->own.get()), std::move(why)};
  }

  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) override {
    auto part = host_.split(groups);
    if (!part) return nullptr;
    std::vector<int> world;
    for (const std::vector<int>& group : groups) {
      if (std::find(group.begin(), group.end(), rank()) == group.end()) continue;
      for (int r : group) world.push_back(world_[static_cast<size_t>(r)]);
    }
    Communicator& host = *part;
    return std::make_unique<PeerCommunicator>(host, std::move(part), access_,
                                              std::make_shared<Allocations>(allocations_),
                                              std::move(world));
  }

  void set_timeout(double seconds) override { host_.set_timeout(seconds); }
  void abort() noexcept override { host_.abort(); }

 private:
  using Peers = std::vector<const char*>;

  size_t me() const { return static_cast<size_t>(rank()); }
  static char* aligned(char* data) {
    const auto at = reinterpret_cast<uintptr_t>(data);
    return data + (64 - at % 64) % 64;
  }

  void meet() {
    device_.synchronize();
    host_.barrier();
  }

  void reduce_part(const Peers& peers, int64_t offset, void* out, int64_t count, DType dtype,
                   Reduction op) {
    if (count == 0) return;
    std::vector<const void*> terms;
    for (const char* peer : peers) terms.push_back(peer + offset);
    access_->reduce(terms, out, count, dtype, op);
  }

  /// Errors of `f` say in which call they were met.
  void named(std::string_view operation, int64_t bytes, const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::comm) throw;
      throw e.with_context(call_name(operation, *this, bytes));
    }
  }

  /// `direct` with each rank's buffer of the call, or, where one of them is out of reach,
  /// `by_host`. `named_bytes` are those that errors name.
  void call(std::string_view operation, int64_t named_bytes, const void* data, int64_t bytes,
            const std::function<void(const Peers&)>& direct, const std::function<void()>& by_host) {
    named(operation, named_bytes, [&] {
      const Place mine = allocations_->find(data, bytes);
      std::vector<Place> places(world_.size());
      device_.synchronize();
      host_.all_gather(&mine, places.data(), std::vector<int64_t>(world_.size(), sizeof mine),
                       DType::u8);
      const bool reachable = std::all_of(places.begin(), places.end(),
                                         [](const Place& p) { return p.allocation != -1; });
      if (!reachable) return by_host();
      Peers peers;
      for (size_t r = 0; r < places.size(); ++r)
        peers.push_back(allocations_->at(world_[r], places[r]));
      direct(peers);
      meet();
    });
  }

  Communicator& host_;
  std::unique_ptr<Communicator> owned_;  // host_, of a group
  std::shared_ptr<PeerAccess> access_;
  Device& device_;
  std::shared_ptr<Allocations> allocations_;
  std::vector<int> world_;  // ranks of the world, in the group's order
};

}  // namespace

std::unique_ptr<Communicator> make_peer_communicator(Communicator& host,
                                                     std::shared_ptr<PeerAccess> access) {
  std::vector<int> world(static_cast<size_t>(host.size()));
  for (size_t r = 0; r < world.size(); ++r) world[r] = static_cast<int>(r);
  return std::make_unique<PeerCommunicator>(
      host, nullptr, std::move(access), std::make_shared<Allocations>(nullptr), std::move(world));
}

}  // namespace shardrun
