// In NCCL's place: messages go between threads of the process, and f32 sums; other calls are noted
// and do nothing.
#include "tests/cuda/stand_in_nccl.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <tuple>

struct ncclComm {
  int id, rank, size;
};

namespace {

using shardrun::test::StandInNccl;

struct All : StandInNccl {
  std::condition_variable arrived;
  std::map<std::tuple<int, int, int>, std::deque<std::string>> messages;  // of id, from and to
  char ids = 0;
};
All& all() {
  static All all;
  return all;
}

struct Receive {
  ncclComm* comm;
  void* to;
  size_t bytes;
  int from;
};
/// Of this rank's numbers and all others'.
struct Sum {
  ncclComm* comm;
  const float* own;
  float* to;
  size_t count;
};
thread_local int sends = 0;
thread_local std::vector<Receive> receives;
thread_local std::vector<Sum> sums;

ncclResult_t note(const char* call) {
  const std::lock_guard lock(all().mutex);
  all().calls.emplace_back(call);
  return ncclSuccess;
}

}  // namespace

extern "C" {

StandInNccl* stand_in_nccl() { return &all(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(all().mutex);
  *id = {};
  id->internal[0] = ++all().ids;
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const std::lock_guard lock(all().mutex);
  all().made.push_back({id.internal[0], rank, size});
  *comm = new ncclComm{id.internal[0], rank, size};
  return config->blocking == 0 ? ncclInProgress : ncclInvalidArgument;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  const std::lock_guard lock(all().mutex);
  *state = all().state;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::lock_guard lock(all().mutex);
  ++all().aborted;
  delete comm;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "remote process exited"; }
const char* ncclGetLastError(ncclComm_t) { return "connection closed"; }

ncclResult_t ncclGroupStart() {
  sends = 0;
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t, int to, ncclComm_t comm,
                      cudaStream_t) {
  const std::lock_guard lock(all().mutex);
  ++sends;
  all().messages[{comm->id, comm->rank, to}].emplace_back(static_cast<const char*>(data), count);
  all().arrived.notify_all();
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t, int from, ncclComm_t comm,
                      cudaStream_t) {
  receives.push_back({comm, data, count, from});
  return ncclSuccess;
}
ncclResult_t ncclReduce(const void* data, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t) {
  if (type != ncclFloat32 || op != ncclSum) return ncclInvalidArgument;
  if (root != comm->rank && to != data) return ncclInvalidArgument;  // it might be shorter
  if (root == comm->rank) {
    sums.push_back({comm, static_cast<const float*>(data), static_cast<float*>(to), count});
    return ncclSuccess;
  }
  return ncclSend(data, count * sizeof(float), ncclUint8, root, comm, nullptr);
}
ncclResult_t ncclGroupEnd() {
  std::unique_lock lock(all().mutex);
  std::string call = "group of " + std::to_string(sends) + " sends, " +
                     std::to_string(receives.size()) + " receives";
  if (!sums.empty()) call += ", " + std::to_string(sums.size()) + " sums";
  all().calls.push_back(call);
  const auto take = [&](const ncclComm* comm, int from, void* to, size_t bytes) {
    auto& messages = all().messages[{comm->id, from, comm->rank}];
    all().arrived.wait(lock, [&] { return !messages.empty(); });
    const bool fits = messages.front().size() == bytes;
    if (fits) std::memcpy(to, messages.front().data(), bytes);
    messages.pop_front();
    return fits;
  };
  bool fit = true;
  for (const Receive& receive : receives)
    fit = take(receive.comm, receive.from, receive.to, receive.bytes) && fit;
  for (const Sum& sum : sums) {
    std::vector<float> total(sum.own, sum.own + sum.count), other(sum.count);
    for (int r = 0; r < sum.comm->size; ++r) {
      if (r == sum.comm->rank) continue;
      fit = take(sum.comm, r, other.data(), sum.count * sizeof(float)) && fit;
      for (size_t i = 0; i < sum.count; ++i) total[i] += other[i];
    }
    std::memcpy(sum.to, total.data(), sum.count * sizeof(float));
  }
  receives.clear();
  sums.clear();
  return fit ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t) {
  return note("ncclAllReduce");
}
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return note("ncclAllGather");
}

}  // extern "C"
