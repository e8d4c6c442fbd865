// Making, mapping and freeing shared segments.
#include "collectives/mpi/node.h"

#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "collectives/mpi/mpi_job.h"
#include "collectives/mpi/watchdog.h"
#include "collectives/reduce.h"

namespace shardrun::mpi {
namespace {

constexpr int64_t kPage = 4096;
constexpr const char* kBacking = "/dev/shm";

/// The ranks of `comm` that are of the same node; freed with this.
class NodeComm {
 public:
  NodeComm(MPI_Comm comm, int name) {
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    check(MPI_Comm_split(comm, name, rank, &comm_), "MPI_Comm_split");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~NodeComm() { MPI_Comm_free(&comm_); }
  NodeComm(const NodeComm&) = delete;
  NodeComm& operator=(const NodeComm&) = delete;
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Puts a page under every byte of a fresh mapping, so that a full /dev/shm is an answer here and
/// no signal later. Returns errno.
int touch(char* data, int64_t bytes) {
  madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a hint
#ifndef MADV_POPULATE_WRITE
  constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14
#endif
  if (madvise(data, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  std::memset(data, 0, static_cast<size_t>(bytes));
  return 0;
}

/// Open MPI's ranks wait for ever for one that finds no space: nobody starts what would not fit.
std::string why_no_space(int64_t bytes) {
  struct statvfs space {};
  if (statvfs(kBacking, &space) != 0) return "";  // it is kept elsewhere
  const auto free_bytes =
      static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
  if (free_bytes >= bytes) return "";
  return str(kBacking, " has ", free_bytes, " bytes free, the ranks of this machine need ", bytes);
}

}  // namespace

std::string error_string(int code) {
  char text[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return str("MPI error ", code);
  return std::string(text, static_cast<size_t>(length));
}

void check(int code, const char* function) {
  SR_REQUIRE(code == MPI_SUCCESS, comm, "sharing memory: ", function,
             " failed: ", error_string(code));
}

Node::Node(MPI_Comm world, int ranks_per_node) : job_(std::make_shared<MpiJob>(world)) {
  MPI_Comm_rank(world, &world_rank_);
  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, world_rank_, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type");
  int rank = 0, size = 1;
  MPI_Comm_rank(node, &rank);
  MPI_Comm_size(node, &size);
  std::vector<int> ranks(static_cast<size_t>(size));
  const int code = MPI_Allgather(&world_rank_, 1, MPI_INT, ranks.data(), 1, MPI_INT, node);
  MPI_Comm_free(&node);
  check(code, "MPI_Allgather");
  one_of_several_ = size < job_->size();
  name_ = ranks[static_cast<size_t>(ranks_per_node > 0 ? rank - rank % ranks_per_node : 0)];
}

Node::~Node() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  for (Segment& segment : segments_) {
    MPI_Win_unlock_all(segment.window);
    MPI_Win_free(&segment.window);
  }
}

std::string Node::make_segment(MPI_Comm comm, int64_t bytes, Segment& segment) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  // Parts begin on pages of their own, a page or so behind where MPI says.
  int64_t mine = bytes + 2 * kPage, all = 0;
  check(MPI_Allreduce(&mine, &all, 1, MPI_INT64_T, MPI_SUM, comm), "MPI_Allreduce");
  std::string why;
  if (rank == 0) why = why_no_space(all);
  char text[256] = {};
  why.copy(text, sizeof text - 1);
  check(MPI_Bcast(text, sizeof text, MPI_CHAR, 0, comm), "MPI_Bcast");
  if (text[0] != '\0') return text;

  const auto all_agree = [&](bool fine) {
    int own = fine ? 1 : 0, every = 0;
    check(MPI_Allreduce(&own, &every, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
    return every == 1;
  };
  // A process that MPI finds no addresses in would leave the others waiting.
  void* const addresses = mmap(nullptr, static_cast<size_t>(all), PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const bool found = addresses != MAP_FAILED;
  if (found) munmap(addresses, static_cast<size_t>(all));
  if (!all_agree(found))
    return str("a process may not have ", all, " more bytes of addresses (ulimit -v)");
  MPI_Info info = MPI_INFO_NULL;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true");
  char* base = nullptr;
  const int code = MPI_Win_allocate_shared(mine, 1, info, comm, &base, &segment.window);
  MPI_Info_free(&info);
  if (!all_agree(code == MPI_SUCCESS)) {
    return "MPI_Win_allocate_shared failed" +
           (code == MPI_SUCCESS ? std::string() : ": " + error_string(code));
  }
  MPI_Win_lock_all(MPI_MODE_NOCHECK, segment.window);
  const auto page_of = [](char* part) {
    return part + (kPage - reinterpret_cast<intptr_t>(part) % kPage) % kPage;
  };
  for (size_t m = 0; m < segment.members.size(); ++m) {
    MPI_Aint size = 0;
    int unit = 1;
    char* part = nullptr;
    check(MPI_Win_shared_query(segment.window, static_cast<int>(m), &size, &unit, &part),
          "MPI_Win_shared_query");
    segment.places.push_back(page_of(part));
  }
  segment.own = page_of(base);
  segment.bytes = bytes;
  const int missing = bytes > 0 ? touch(segment.own, bytes) : 0;
  if (all_agree(missing == 0)) return "";
  MPI_Win_unlock_all(segment.window);
  MPI_Win_free(&segment.window);
  return str("shared memory has no pages for it", missing == 0 ? "" : ": ",
             missing == 0 ? "" : std::strerror(missing));
}

void Node::free_unused(MPI_Comm comm, const std::vector<int>& members) {
  std::vector<size_t> ours;
  std::vector<int> in_use;
  for (size_t s = 0; s < segments_.size(); ++s) {
    if (segments_[s].members != members) continue;
    ours.push_back(s);
    in_use.push_back(segments_[s].in_use ? 1 : 0);
  }
  check(MPI_Allreduce(MPI_IN_PLACE, in_use.data(), static_cast<int>(in_use.size()), MPI_INT,
                      MPI_MAX, comm),
        "MPI_Allreduce");
  for (size_t i = ours.size(); i-- > 0;) {
    if (in_use[i] != 0) continue;
    const auto segment = segments_.begin() + static_cast<std::ptrdiff_t>(ours[i]);
    MPI_Win_unlock_all(segment->window);
    check(MPI_Win_free(&segment->window), "MPI_Win_free");
    segments_.erase(segment);
  }
}

Memory Node::allocate(MPI_Comm comm, int64_t bytes) {
  const Watchdog watchdog("sharing memory");  // MPI waits for ever for a rank that finds no space
  const NodeComm here(comm, name_);
  int size = 1;
  MPI_Comm_size(here.get(), &size);
  if (size == 1) return {private_memory(bytes), ""};
  Segment segment;
  segment.members.resize(static_cast<size_t>(size));
  check(MPI_Allgather(&world_rank_, 1, MPI_INT, segment.members.data(), 1, MPI_INT, here.get()),
        "MPI_Allgather");
  free_unused(here.get(), segment.members);
  segment.id = (int64_t{world_rank_} << 32) + made_++;  // the first member's counts
  check(MPI_Bcast(&segment.id, 1, MPI_INT64_T, 0, here.get()), "MPI_Bcast");
  const std::string why = make_segment(here.get(), bytes, segment);
  if (!why.empty()) return {private_memory(bytes), why};
  const int64_t id = segment.id;
  segment.in_use = bytes > 0;
  char* own = bytes > 0 ? segment.own : nullptr;
  segments_.push_back(std::move(segment));
  if (own == nullptr) return {nullptr, ""};
  return {
      std::shared_ptr<char>(own, [node = shared_from_this(), id](char*) { node->give_back(id); }),
      ""};
}

void Node::give_back(int64_t id) {
  const auto segment =
      std::find_if(segments_.begin(), segments_.end(), [&](const auto& s) { return s.id == id; });
  if (segment != segments_.end()) segment->in_use = false;
}

std::optional<Place> Node::find(const void* data, int64_t bytes) const {
  if (bytes == 0) return Place{};
  const char* begin = static_cast<const char*>(data);
  for (const Segment& s : segments_) {
    if (s.in_use && begin >= s.own && begin + bytes <= s.own + s.bytes)
      return Place{s.id, begin - s.own};
  }
  return std::nullopt;
}

char* Node::at(int world_rank, Place place) const {
  for (const Segment& s : segments_) {
    if (s.id != place.segment) continue;
    const auto member = std::find(s.members.begin(), s.members.end(), world_rank);
    if (member != s.members.end())
      return s.places[static_cast<size_t>(member - s.members.begin())] + place.offset;
  }
  return nullptr;
}

}  // namespace shardrun::mpi
