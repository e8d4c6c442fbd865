// Keeping figures, and taking the disturbed ones again.
#include "measure/watch.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"

namespace shardrun {

Watch::Watch(std::function<Reference()> reference, std::function<double()> now, double patience,
             double least)
    : reference_(std::move(reference)), now_(std::move(now)), patience_(patience), least_(least) {}

void Watch::refer() {
  const Reference reference = reference_();
  last_ = reference.taken;
  least_ = std::min(least_, reference.least);
  at_ = now_();
}

void Watch::begin_stretch() {
  if (open_.empty() && now_() - at_ > kStretch / 4) refer();
}

/// What is open has its reference behind it. It stays what it was where it was disturbed less.
void Watch::end_stretch() {
  if (open_.empty()) return;
  const double before = last_;
  refer();
  const double slower = std::max(before, last_);
  for (const auto& [figure, value] : open_) {
    if (slower <= figure->reference) figure->value = value, figure->reference = slower;
  }
  open_.clear();
}

const double& Watch::take(std::function<double()> measure) {
  begin_stretch();
  while (open_.empty() && slow(last_) && waited_ < patience_) {
    const double begin = now_();
    refer();
    waited_ += now_() - begin;
  }
  const double value = measure();
  figures_.push_back({std::move(measure), value, kUnknown});
  open_.push_back({&figures_.back(), value});
  if (now_() - at_ > kStretch) end_stretch();
  return figures_.back().value;
}

void Watch::repeat(double deadline) {
  end_stretch();
  while (true) {
    std::vector<Figure*> disturbed;
    for (Figure& figure : figures_)
      if (slow(figure.reference)) disturbed.push_back(&figure);
    if (disturbed.empty()) return;
    for (Figure* figure : disturbed) {
      while (open_.empty() && slow(last_) && now_() < deadline) refer();
      if (now_() >= deadline) return end_stretch();
      begin_stretch();
      open_.push_back({figure, figure->measure()});
      if (now_() - at_ > kStretch) end_stretch();
    }
    end_stretch();
  }
}

Disturbance Watch::disturbance() const {
  Disturbance out{figures_.size()};
  for (const Figure& figure : figures_) {
    if (!slow(figure.reference)) continue;
    ++out.disturbed;
    out.times = std::max(out.times, figure.reference / least_);
  }
  return out;
}

Disturbance& Disturbance::operator+=(const Disturbance& more) {
  figures += more.figures;
  disturbed += more.disturbed;
  times = std::max(times, more.times);
  return *this;
}

std::string Disturbance::text() const {
  if (disturbed == 0) return "";
  return str(disturbed, " of ", figures,
             " figures were taken while something else slowed the machine down up to ",
             std::round(times * 10) / 10,
             " times; repeat 'shardrun calibrate' while nothing else runs");
}

}  // namespace shardrun
