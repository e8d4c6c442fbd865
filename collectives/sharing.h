// Collectives between ranks that reach each other's memory: threads, or processes of one machine.
//
// A collective is a meeting or two with work between them: each rank writes into its slot, which
// its peers can see, what it calls and where its buffer lies; once all have come, everybody reads
// (and for all_reduce writes) its peers' buffers directly; a last meeting makes sure that nobody
// goes on while a peer still reads. What is small goes along in the slots, and one meeting is
// enough. Only the first meeting of a call can be ended: it lets either all ranks through or none,
// and what follows it is bounded work that every rank finishes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/meeting.h"

namespace shardrun {

/// Where a buffer lies, in words that every rank understands.
struct Place {
  int64_t segment = -1;
  int64_t offset = 0;  // in its owner's part
};

class SharingCommunicator : public Communicator {
 public:
  /// A rank's slot: so many bytes on a boundary of 64, and made before any rank uses it.
  static int64_t slot_bytes(int ranks);
  static void make_slot(char* at);
  /// Meeting::end, where the ranks meet whose first slot this is.
  static void end_meetings(char* first_slot) noexcept;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const Members& members() const override { return members_; }
  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override;
  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void* staging) override;
  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) override;
  void all_reduce_each(std::span<const Reduced> buffers, DType dtype, Reduction op,
                       void* staging) override;
  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override;
  void broadcast(void* data, int64_t bytes, int root) override;
  void barrier() override { any_of(0); }
  uint64_t any_of(uint64_t flags) override;
  /// Collective: where each rank's buffer of `bytes` lies. Empty if one cannot be reached. Good
  /// until this rank's next call.
  std::span<char* const> reach(const void* data, int64_t bytes);
  void set_timeout(double seconds) override { timeout_ = seconds; }

 protected:
  struct Slot;
  struct Call;
  enum class Operation : uint8_t {
    all_gather,
    reduce_scatter,
    all_reduce,
    all_to_all,
    broadcast,
    barrier,
    reach,
    split
  };

  /// `slots`: every rank's; `members`: who they are. `polls`: as of Meeting. `messages`: makes the
  /// calls whose buffers not everybody reaches; null if there are none. `bounded`: between its
  /// meetings no rank can stop, for all are threads of one process: the later ones have no time
  /// limit, after which somebody would leave while a peer still reads.
  SharingCommunicator(const std::vector<char*>& slots, Members members, int rank, double timeout,
                      bool polls, std::unique_ptr<Communicator> messages, bool bounded);

  /// Where peers find own memory; none if they do not reach it. No bytes lie anywhere.
  virtual std::optional<Place> find(const void* data, int64_t bytes) const = 0;
  /// A peer's memory. Null for the place of no bytes.
  virtual char* at(int rank, Place place) const = 0;
  /// This rank has waited for too long and is about to throw.
  virtual void timed_out() {}

  double timeout() const { return timeout_; }
  bool polls() const { return polls_; }
  Communicator& messages() const { return *messages_; }

  /// Every rank calls both before and after what rank 0 does for all of them. Throws where the
  /// groups differ.
  void enter_split(const std::vector<std::vector<int>>& groups);
  void meet();
  /// Meets at `meeting`, the first time of a call or a later one of it, the ranks of this
  /// communicator that missing() names, and throws unless all come.
  void meet_at(Meeting& meeting, int size, bool first, std::string_view operation, int64_t bytes,
               const std::function<std::vector<int>()>& missing);

 private:
  Meeting& meeting() const;
  Slot& slot(int r) const { return *slots_[static_cast<size_t>(r)]; }
  Call& call_of(int r) const;
  int64_t* counts_of(int r) const;
  char* theirs(int r) const;
  Call& begin(Operation operation, DType dtype, int64_t bytes);
  void show(Call& call, const void* data, int64_t bytes, bool small) const;
  void show_sum(Call& call, std::span<const Reduced> buffers, DType dtype, Reduction op,
                bool small) const;
  bool enter();
  std::vector<int> missing() const;

  const Members members_;
  const std::unique_ptr<Communicator> messages_;
  std::vector<Slot*> slots_;
  std::vector<void*> parts_;     // of the call in progress, by rank
  std::vector<const void*> in_;  // the same, to be read
  std::vector<char*> reached_;   // by the last reach
  const int rank_;
  const int size_;
  const bool polls_, bounded_;
  double timeout_;
  int64_t bytes_ = 0;  // of the call in progress
  uint64_t calls_ = 0;
  uint32_t meetings_ = 0;
};

}  // namespace shardrun
