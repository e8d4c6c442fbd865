// Faults by step, and the devices that have them.
#include "device/cuda/faults.h"

#include "base/error.h"
#include "device/cuda/by_stream.h"

namespace shardrun::cuda {

Fault* Faults::of_step(const std::string& number, const std::string& owner, int64_t bound) {
  const auto [it, fresh] = known_.try_emplace({step_, number, owner, bound}, nullptr);
  if (!fresh) return it->second;
  const auto place = static_cast<int64_t>(known_.size() - 1) % kChunk;
  if (place == 0) memory_.push_back(allocate_(kChunk * static_cast<int64_t>(sizeof(Fault))));
  it->second = reinterpret_cast<Fault*>(memory_.back().get()) + place;
  *it->second = {0, -1};
  return it->second;
}

void Faults::check() {
  std::string message, where;
  for (const auto& [kind, fault] : known_) {
    if (fault->place < 0) continue;
    const auto& [step, number, owner, bound] = kind;
    if (message.empty()) {
      message = str(number, " ", fault->value, " of ", owner, " ", fault->place, " is outside [0, ",
                    bound, ")");
      if (step != step_) where = step;
    }
    *fault = {0, -1};
  }
  if (message.empty()) return;
  const Error error(ErrorKind::invalid_input, message);
  throw where.empty() ? error : error.with_context(where);
}

namespace {

ByStream<Faults>& all_faults() {
  static ByStream<Faults> faults;
  return faults;
}

}  // namespace

Fault* fault_of(const void* stream, const std::string& number, const std::string& owner,
                int64_t bound) {
  Faults* const faults = all_faults().find(stream);
  return faults == nullptr ? nullptr : faults->of_step(number, owner, bound);
}

void set_faults_of(const void* stream, Faults* faults) { all_faults().set(stream, faults); }

}  // namespace shardrun::cuda
