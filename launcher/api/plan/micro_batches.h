// MicroBatchChoice: the number of micro-batches into which a step's samples are divided.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardrun/shardrun.h"

namespace shardrun {

/// The size of a micro-batch for a model that takes any, by what a call says of it; nullopt: it
/// says nothing. Throws invalid_input where it contradicts itself, and where only a search can tell
/// (load_and_plan).
std::optional<int64_t> asked_batch(const ModelOptions& options);

/// How many micro-batches a step has, if one has `samples`. Throws invalid_input if that is not
/// what the call says.
int count_micro_batches(const ModelOptions& options, int64_t samples);

/// What tactics say of turns: "batch@turns=4" slices a step's samples into 4 micro-batches, one
/// after the other; of "batch@turns=auto" kAutoMicroBatches. nullopt: they say nothing. Throws
/// invalid_input: something else than the batch, no whole number from 1 on, twice.
std::optional<int> turns_of(const std::vector<std::string>& tactics);
/// The other tactics: what is cut along axes of the mesh.
std::vector<std::string> mesh_tactics(const std::vector<std::string>& tactics);

/// The numbers of micro-batches that `samples` fall into, ascending; where there are many, a dozen
/// of them that stand about evenly in logarithms, with the first and the last.
std::vector<int64_t> candidate_micro_batches(int64_t samples);

/// Which of the candidates to plan, one after the other. Memory falls with the number of
/// micro-batches, so the least that fits is found by halving. Time mostly grows with it, but where
/// memory is just enough a plan pays for that; so from there on up, until two in a row are no
/// faster than the best.
///
///     MicroBatchChoice choice(candidates.size());
///     while (const std::optional<size_t> next = choice.next())
///       choice.tell(*next, seconds_of(candidates[*next]));
///     choice.best();
class MicroBatchChoice {
 public:
  explicit MicroBatchChoice(size_t candidates)
      : seconds_(candidates), tried_(candidates), fits_from_(candidates) {}
  /// The candidate to plan now; nullopt: that was all.
  std::optional<size_t> next() const;
  /// What came of it: its predicted seconds, or nullopt where it does not fit.
  void tell(size_t candidate, std::optional<double> seconds);
  /// The fastest that fits; of equal ones the one of fewer micro-batches.
  std::optional<size_t> best() const { return best_; }

 private:
  std::vector<std::optional<double>> seconds_;  // by candidate: of those that fit
  std::vector<bool> tried_;
  size_t below_ = 0, fits_from_;  // candidates below the one do not fit, from the other on they do
  std::optional<size_t> best_;
};

}  // namespace shardrun
