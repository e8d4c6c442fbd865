// Threads that wait for the next call, and who failed first.
#include "ranks/ranks.h"

#include "collectives/checked.h"

namespace shardrun {

Ranks::Ranks(World& world) : world_(world.impl()) {
  if (world_.mpi) return;
  at_boundary([&] {
    share_cores(world_);  // agreed before there are threads
    communicators_ = make_local_communicators(world_.threads);
    errors_.resize(communicators_.size());
    for (auto& communicator : communicators_) {
      if (world_.checks) communicator = make_checked(std::move(communicator));
      if (world_.timeout) communicator->set_timeout(*world_.timeout);
    }
    try {
      for (int rank = 1; rank < world_.threads; ++rank)
        threads_.start([this, rank] { work(rank); });
    } catch (...) {
      close();
      throw;
    }
  });
}

Ranks::~Ranks() { close(); }

void Ranks::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  threads_.join();
}

void Ranks::work(int rank) {
  std::optional<Pinned> pinned;
  for (int64_t done = 0;; ++done) {
    const std::function<void(Communicator&)>* body = nullptr;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closed_ || calls_ > done; });
      if (closed_) return;
      body = body_;
    }
    run_as(rank, pinned, *body);
    {
      const std::lock_guard lock(mutex_);
      --busy_;
    }
    changed_.notify_all();
  }
}

void Ranks::run_as(int rank, std::optional<Pinned>& pinned,
                   const std::function<void(Communicator&)>& body) {
  const auto r = static_cast<size_t>(rank);
  try {
    if (!pinned) {
      share_cores(world_);
      pinned.emplace(part_of(world_.cores, rank, world_.threads), world_.kernel_threads);
    }
    body(*communicators_[r]);
  } catch (...) {
    errors_[r] = std::current_exception();
    communicators_[r]->abort();
  }
}

void Ranks::run(const std::function<void(Communicator&)>& body) {
  std::optional<Pinned> pinned;  // the caller's thread is its own again afterwards
  if (world_.mpi) {
    at_boundary([&] {
      share_cores(world_);
      pinned.emplace(world_.cores, world_.kernel_threads);
      body(*world_.mpi);
    });
    return;
  }
  errors_.assign(communicators_.size(), nullptr);
  {
    const std::lock_guard lock(mutex_);
    body_ = &body;
    busy_ = world_.threads - 1;
    ++calls_;
  }
  changed_.notify_all();
  run_as(0, pinned, body);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return busy_ == 0; });
  }
  throw_first(errors_);
}

void run_ranks(World& world, const std::function<void(Communicator&)>& body) {
  Ranks(world).run(body);
}

}  // namespace shardrun
