// A ring of runs.
#include "exec/timeline.h"

#include <algorithm>

#include "base/clock.h"

namespace shardrun {

Timeline::Timeline(int64_t runs, int64_t events)
    : capacity_(static_cast<size_t>(events)),
      events_(capacity_ * static_cast<size_t>(runs)),
      slots_(static_cast<size_t>(runs)) {}

double Timeline::now() { return now_seconds(); }

void Timeline::begin_run(int64_t number) {
  slots_[started_++ % slots_.size()] = {number, now(), 0, 0};
}

void Timeline::add(size_t step, size_t count, double begin, double end) {
  if (started_ == ended_) return;  // outside all runs
  const size_t at = (started_ - 1) % slots_.size();
  Slot& slot = slots_[at];
  if (slot.events < capacity_) events_[at * capacity_ + slot.events++] = {step, count, begin, end};
}

void Timeline::end_run() {
  slots_[(started_ - 1) % slots_.size()].end = now();
  ended_ = started_;
}

std::vector<Timeline::Run> Timeline::runs() const {
  std::vector<Run> out;
  // A run that has begun and not ended has taken the oldest one's place.
  const size_t kept = std::min(ended_, slots_.size() - (started_ - ended_));
  for (size_t run = ended_ - kept; run < ended_; ++run) {
    const size_t at = run % slots_.size();
    const Slot& slot = slots_[at];
    out.push_back({slot.number, slot.begin, slot.end,
                   std::span(events_).subspan(at * capacity_, slot.events)});
  }
  return out;
}

}  // namespace shardrun
