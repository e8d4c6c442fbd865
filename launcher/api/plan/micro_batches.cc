// What a call says of micro-batches, and the choice of the best number of them.
#include "plan/micro_batches.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace shardrun {
namespace {

constexpr size_t kMostCandidates = 12;
constexpr int kPatience = 2;  // candidates in a row that are no faster than the best

constexpr std::string_view kTurns = "@turns=";

bool goes_by_turns(const std::string& tactic) { return tactic.find(kTurns) != std::string::npos; }

/// "12 or 16": the multiples of `part` around `samples`; where there is none below, the one above.
std::string nearest(int64_t samples, int64_t part) {
  const int64_t below = samples / part * part;
  return below > 0 ? str(below, " or ", below + part) : str(part);
}

}  // namespace

std::optional<int> turns_of(const std::vector<std::string>& tactics) {
  std::optional<int> turns;
  for (const std::string& text : tactics) {
    if (!goes_by_turns(text)) continue;
    const std::string by = str("--tactic '", text, "'");
    SR_REQUIRE(!turns, invalid_input, by, ": another tactic says turns, too; leave out one");
    const size_t at = text.find(kTurns);
    SR_REQUIRE(text.substr(0, at) == "batch", invalid_input, by, ": '", text.substr(0, at),
               "' does not go by turns, only the batch does, as in batch@turns=4");
    const std::string_view count = std::string_view(text).substr(at + kTurns.size());
    int number = kAutoMicroBatches;
    if (count != "auto") {
      const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), number);
      SR_REQUIRE(error == std::errc() && end == count.data() + count.size() && number >= 1,
                 invalid_input, by, ": '", count, "' turns, wanted 1 or more, or auto");
    }
    turns = number;
  }
  return turns;
}

std::vector<std::string> mesh_tactics(const std::vector<std::string>& tactics) {
  std::vector<std::string> out = tactics;
  std::erase_if(out, goes_by_turns);
  return out;
}

std::optional<int64_t> asked_batch(const ModelOptions& o) {
  const bool is_auto = o.accumulate == kAutoMicroBatches;
  SR_REQUIRE(!o.accumulate || is_auto || *o.accumulate >= 1, invalid_input, "accumulate is ",
             *o.accumulate, ", wanted 1 or more, or auto");
  if (!o.global_batch) {
    SR_REQUIRE(!is_auto, invalid_input,
               "--accumulate auto: divides the samples of a step among micro-batches; say how "
               "many these are, as --global-batch 64");
    return o.batch;
  }
  const int64_t samples = *o.global_batch;
  SR_REQUIRE(samples >= 1, invalid_input, "--global-batch is ", samples, ", wanted 1 or more");
  if (o.batch) return o.batch;
  SR_REQUIRE(!is_auto, invalid_input, "--accumulate auto and --global-batch ", samples,
             ": only plan, train and verify look for the number of micro-batches; give a number");
  const int64_t count = o.accumulate.value_or(1);
  SR_REQUIRE(samples % count == 0, invalid_input, "--global-batch ", samples, " and --accumulate ",
             count, ": ", samples, " samples do not make ", count,
             " micro-batches of one size; take a global batch of ", nearest(samples, count));
  return samples / count;
}

int count_micro_batches(const ModelOptions& o, int64_t samples) {
  if (!o.global_batch) return o.accumulate.value_or(1);
  const int64_t all = *o.global_batch;
  const std::string of =
      o.batch ? str("--batch ", samples) : str("the model, which takes ", samples, " at once");
  SR_REQUIRE(samples > 0, invalid_input, "--global-batch ", all,
             ": the model has no input of samples to count; leave it out");
  SR_REQUIRE(all % samples == 0, invalid_input, "--global-batch ", all, " and ", of, ": ", all,
             " samples are no whole number of micro-batches of ", samples,
             "; take a global batch of ", nearest(all, samples));
  const int64_t count = all / samples;
  SR_REQUIRE(count <= std::numeric_limits<int>::max(), invalid_input, "--global-batch ", all,
             " and ", of, ": ", count, " micro-batches are too many");
  SR_REQUIRE(!o.accumulate || o.accumulate == kAutoMicroBatches || *o.accumulate == count,
             invalid_input, "--global-batch ", all, ", --accumulate ", *o.accumulate, " and ", of,
             ": ", *o.accumulate, " micro-batches of ", samples, " are ", *o.accumulate * samples,
             " samples; leave out one of the three");
  return static_cast<int>(count);
}

std::vector<int64_t> candidate_micro_batches(int64_t samples) {
  std::vector<int64_t> all;
  for (int64_t count = 1; count <= samples / count; ++count) {
    if (samples % count != 0) continue;
    all.push_back(count);
    if (count != samples / count) all.push_back(samples / count);
  }
  std::sort(all.begin(), all.end());
  if (all.size() <= kMostCandidates) return all;
  std::vector<int64_t> out;
  const double whole = std::log(static_cast<double>(samples));
  for (size_t k = 0; k < kMostCandidates; ++k) {
    const double at = whole * static_cast<double>(k) / (kMostCandidates - 1);
    const auto distance = [&](int64_t count) {
      return std::abs(std::log(static_cast<double>(count)) - at);
    };
    const int64_t nearest = *std::min_element(
        all.begin(), all.end(), [&](int64_t a, int64_t b) { return distance(a) < distance(b); });
    if (out.empty() || out.back() != nearest) out.push_back(nearest);
  }
  return out;
}

std::optional<size_t> MicroBatchChoice::next() const {
  if (below_ < fits_from_) return below_ == 0 ? 0 : (below_ + fits_from_) / 2;
  std::optional<double> best;
  int since = 0;
  for (size_t c = fits_from_; c < tried_.size() && since < kPatience; ++c) {
    if (!tried_[c]) return c;
    const bool faster = seconds_[c] && (!best || *seconds_[c] < *best);
    if (faster) best = seconds_[c];
    since = faster ? 0 : since + 1;
  }
  return std::nullopt;
}

void MicroBatchChoice::tell(size_t candidate, std::optional<double> seconds) {
  tried_[candidate] = true;
  seconds_[candidate] = seconds;
  if (below_ < fits_from_) (seconds ? fits_from_ : below_) = seconds ? candidate : candidate + 1;
  if (!seconds) return;
  if (!best_ || *seconds < *seconds_[*best_] ||
      (*seconds == *seconds_[*best_] && candidate < *best_))
    best_ = candidate;
}

}  // namespace shardrun
