// Announcing, comparing, and the call itself.
#include "collectives/checked.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "collectives/reduce.h"

namespace shardrun {
namespace {

uint64_t mixed(uint64_t h, uint64_t with) { return (h ^ with) * 0x9e3779b97f4a7c15ull + 1; }

constexpr uint64_t kNotNamed = 0;

/// What a call is named in memory of the host, and of a device.
struct Kind {
  const char *host, *device;
};
constexpr Kind kAllGather = {"all_gather", "device all_gather"};
constexpr Kind kReduceScatter = {"reduce_scatter", "device reduce_scatter"};
constexpr Kind kAllReduce = {"all_reduce", "device all_reduce"};
constexpr Kind kAllToAll = {"all_to_all", "device all_to_all"};
constexpr Kind kBroadcast = {"broadcast", "device broadcast"};
constexpr Kind kBarrier = {"barrier", "device barrier"};
constexpr Kind kAnyOf = {"any_of", "device any_of"};
constexpr Kind kAllocate = {"allocate", "device allocate"};
constexpr Kind kSplit = {"split", "device split"};

class CheckedCommunicator final : public Communicator {
 public:
  CheckedCommunicator(std::unique_ptr<Communicator> inner, uint64_t group)
      : inner_(std::move(inner)),
        announcer_(announcer_of(*inner_)),
        of_device_(&inner_->host() != inner_.get()),
        ranks_(inner_->members().ranks),
        group_(group) {
    for (int r = 0; ranks_.empty() && r < size(); ++r) ranks_.push_back(r);
    all_.resize(static_cast<size_t>(size()));
    counts_.assign(all_.size(), sizeof(Announced));
  }

  /// A group that was not split from another has the number that its first rank gives it.
  void agree_on_group() {
    static std::atomic<uint64_t> made{0};
    uint64_t id = rank() == 0 ? ++made : 0;
    announcer_.broadcast(&id, sizeof id, 0);
    group_ = id;
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const Members& members() const override { return inner_->members(); }
  Communicator& host() override { return of_device_ ? inner_->host() : *this; }

  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    enter(kAllGather, sum_of(counts) * size_of(dtype));
    inner_->all_gather(send, recv, counts, dtype);
  }
  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void* staging) override {
    enter(kReduceScatter, sum_of(counts) * size_of(dtype), op);
    inner_->reduce_scatter(send, recv, counts, dtype, op, staging);
  }
  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) override {
    enter(kAllReduce, count * size_of(dtype), op);
    inner_->all_reduce(data, count, dtype, op, staging);
  }
  void all_reduce_each(std::span<const Reduced> buffers, DType dtype, Reduction op,
                       void* staging) override {
    int64_t count = 0;
    for (const Reduced& buffer : buffers) count += buffer.count;
    enter(kAllReduce, count * size_of(dtype), op);
    inner_->all_reduce_each(buffers, dtype, op, staging);
  }
  /// Ranks send and get what each of them says; the call itself compares that.
  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    enter(kAllToAll, 0);
    inner_->all_to_all(send, send_counts, recv, recv_counts, dtype);
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    enter(kBroadcast, bytes);
    inner_->broadcast(data, bytes, root);
  }
  void send(const void* data, int64_t bytes, int to) override { inner_->send(data, bytes, to); }
  void recv(void* data, int64_t bytes, int from) override { inner_->recv(data, bytes, from); }
  void barrier() override {
    enter(kBarrier, 0);
    inner_->barrier();
  }
  uint64_t any_of(uint64_t flags) override {
    enter(kAnyOf, 0);
    return inner_->any_of(flags);
  }
  Memory allocate(int64_t bytes) override {
    enter(kAllocate, 0);  // any size on each rank
    return inner_->allocate(bytes);
  }
  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) override {
    enter(kSplit, 0);
    std::unique_ptr<Communicator> part = inner_->split(groups);
    if (!part) return nullptr;
    uint64_t id = mixed(group_, static_cast<uint64_t>(calls_));
    for (const int r : part->members().ranks) id = mixed(id, static_cast<uint64_t>(r));
    return std::make_unique<CheckedCommunicator>(std::move(part), id);
  }
  void set_timeout(double seconds) override { inner_->set_timeout(seconds); }
  void abort() noexcept override { inner_->abort(); }

 private:
  struct Announced {
    uint64_t group = 0;  // host and device announce between the same ranks
    int64_t number = 0, bytes = 0, reduction = 0;
    char kind[24] = {};
    bool operator==(const Announced& other) const {
      return group == other.group && number == other.number && bytes == other.bytes &&
             reduction == other.reduction && std::strcmp(kind, other.kind) == 0;
    }
  };

  /// Between the hosts, and not checked itself.
  static Communicator& announcer_of(Communicator& of) {
    Communicator& host = of.host();
    const auto* checked = dynamic_cast<CheckedCommunicator*>(&host);
    return checked != nullptr ? *checked->inner_ : host;
  }

  void enter(const Kind& what, int64_t bytes, Reduction op = Reduction::sum) {
    if (group_ == kNotNamed) agree_on_group();
    ++calls_;
    const char* const kind = of_device_ ? what.device : what.host;
    Announced mine{group_, calls_, bytes, static_cast<int64_t>(op), {}};
    std::strncpy(mine.kind, kind, sizeof mine.kind - 1);
    const CheckedCall call{group_, calls_, kind, bytes, &ranks_};
    if (const std::shared_ptr<Job>& job = members().job)
      job->enters(ranks_[static_cast<size_t>(rank())], call);
    try {
      announcer_.all_gather(&mine, all_.data(), counts_, DType::u8);
    } catch (const Error& e) {
      throw e.with_context("entering " + to_string(call));
    }
    const auto other = std::find_if(all_.begin(), all_.end(),
                                    [&](const Announced& one) { return !(one == all_[0]); });
    if (other == all_.end()) return;
    const auto at = static_cast<size_t>(other - all_.begin());
    fail(ErrorKind::comm, "checked collectives: rank ", ranks_[0], " enters ", text(all_[0]),
         ", rank ", ranks_[at], " ", text(*other), ", of the same ranks");
  }

  std::string text(const Announced& one) const {
    static constexpr const char* kReductions[] = {"", " (max)", " (min)", " (prod)"};
    return to_string(CheckedCall{group_, one.number, one.kind, one.bytes, &ranks_}) +
           kReductions[one.reduction & 3];
  }

  const std::unique_ptr<Communicator> inner_;
  Communicator& announcer_;
  const bool of_device_;
  std::vector<int> ranks_;  // of the job
  uint64_t group_;
  int64_t calls_ = 0;
  std::vector<Announced> all_;
  std::vector<int64_t> counts_;
};

}  // namespace

std::unique_ptr<Communicator> make_checked(std::unique_ptr<Communicator> inner) {
  return std::make_unique<CheckedCommunicator>(std::move(inner), kNotNamed);
}

std::unique_ptr<Communicator> checked_as(Communicator& host, std::unique_ptr<Communicator> inner) {
  if (dynamic_cast<CheckedCommunicator*>(&host) == nullptr) return inner;
  auto out = std::make_unique<CheckedCommunicator>(std::move(inner), kNotNamed);
  out->agree_on_group();  // before hosts and devices announce side by side
  return out;
}

}  // namespace shardrun
