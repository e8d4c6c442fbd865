// Folders of checkpoints, and what a call may do with them.
#include "checkpoint/resume.h"

#include <filesystem>
#include <limits>

#include "exec/checkpoint/folder.h"
#include "graph/optimizer.h"
#include "ranks/world.h"
#include "shardrun/inference.h"
#include "train/train_options.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

/// One by one, what tells a checkpoint of this model from all others.
void check_model(const Checkpoint& checkpoint, const RunState& state, const Model::Impl& model) {
  const std::string was = state.options.value("optimizer", model.options.optimizer),
                    now = model.options.optimizer;
  const auto is_sgd = [](const std::string& name) {
    return kind_named(kOptimizers, name) == OptimizerKind::sgd;
  };
  SR_REQUIRE(is_sgd(was) == is_sgd(now), invalid_input, checkpoint.path(),
             ": was trained by --optimizer ", was, ", this call has ", now,
             ", of whose state it has nothing");
  check_holds(checkpoint.manifest(), kept_values(model.train), Holds::all, checkpoint.path());
}

bool is_one_folder(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

std::string folder_of(const std::string& path) {
  const fs::path folder = fs::absolute(path).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).parent_path().string();
}

/// The checkpoint that a path means. Throws invalid_input if there is none.
std::string newest_in(const std::string& path) {
  const std::string out = checkpoint_meant(path);
  SR_REQUIRE(!out.empty(), invalid_input, "--resume ", path, ": ",
             fs::exists(path) ? "holds no checkpoint" : "no such folder");
  return out;
}

Resumed open_or_offer_older(const std::string& path) {
  try {
    return open_resumed(path);
  } catch (const Error& e) {
    throw Error(ErrorKind::invalid_input, with_older(e.what(), path, kGoOn));
  }
}

}  // namespace

std::string find_resumed(const Model::Impl& model, const TrainOptions& options) {
  std::string path;
  if (options.resume) {
    const bool named = !options.resume->empty();
    SR_REQUIRE(named || !options.checkpoint.empty(), invalid_input,
               "--resume: names no folder, and without --checkpoint there is none that it could "
               "mean");
    const std::string& folder = named ? *options.resume : options.checkpoint;
    path = named ? newest_in(folder) : checkpoint_meant(folder);
  }
  if (!options.checkpoint.empty()) {
    const std::vector<FoundCheckpoint> others = checkpoints_in(options.checkpoint);
    const bool own = !path.empty() && is_of_folder(path, options.checkpoint);
    SR_REQUIRE(others.empty() || own, invalid_input, "--checkpoint ", options.checkpoint,
               ": holds checkpoints already, the newest of step ", others.back().step,
               "; go on from it with --resume, or name another folder");
  }
  if (path.empty()) return path;
  const Resumed resumed = open_or_offer_older(path);
  check_model(resumed.checkpoint, resumed.state, model);
  metrics_to_go_on(options.metrics, resumed.state.metrics);
  return path;
}

Resumed open_newest(const std::string& path) { return open_or_offer_older(newest_in(path)); }

void restore_or_offer_older(const Checkpoint& checkpoint, Communicator& comm,
                            const std::function<void()>& restore) {
  try {
    restore();
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::comm) throw;
    std::string sentence;
    if (comm.rank() == 0) sentence = with_older(e.what(), checkpoint.path(), kGoOn);
    broadcast_text(comm, sentence, 0);
    throw Failure(Failure::Kind::call, sentence, true);
  }
}

TrainedRun read_trained_run(const std::string& path) {
  return at_boundary([&] {
    const Resumed resumed = open_newest(path);
    TrainedRun out;
    out.checkpoint = resumed.checkpoint.path();
    out.step = resumed.state.step;
    const std::string origin = str(out.checkpoint, "/", Manifest::kFile, ": run.options");
    out.model = model_options_of(resumed.state.options, origin);
    out.train = read_learning_options(resumed.state.options, origin);
    out.train.resume = out.checkpoint;
    return out;
  });
}

std::string newest_checkpoint(const std::string& folder, bool whole) {
  return at_boundary([&] {
    if (whole) return newest_whole_before(folder, std::numeric_limits<int64_t>::max());
    const std::vector<FoundCheckpoint> all = checkpoints_in(folder);
    return all.empty() ? "" : all.back().path;
  });
}

Resumed open_resumed(const std::string& path) {
  Checkpoint checkpoint = Checkpoint::open(path);
  RunState state = read_run_state(checkpoint.manifest().run, str(path, "/", Manifest::kFile));
  SR_REQUIRE(state.step == checkpoint.manifest().step, invalid_input, path, "/", Manifest::kFile,
             ": is of step ", checkpoint.manifest().step, ", its run of step ", state.step);
  return {std::move(checkpoint), std::move(state)};
}

std::string describe(const Resumed& resumed, const RunState& now, int64_t steps) {
  const int64_t step = resumed.state.step;
  std::string out = str(resumed.checkpoint.path(), ": ");
  out += step < steps ? str("goes on at step ", step + 1, " of ", steps)
                      : str("has taken ", step, " steps, no fewer than --steps ", steps,
                            ": nothing is left to train");
  const std::string other = differences(now.options, resumed.state.options);
  if (!other.empty()) return str(out, "; otherwise than it was begun: ", other);
  // The graph follows from the options, too: it says something where these are the same.
  return now.graph == resumed.state.graph ? out : out + "; the model's graph is another one now";
}

std::string with_older(const std::string& sentence, const std::string& path, const char* advice) {
  int64_t step = std::numeric_limits<int64_t>::max();
  const std::string folder = folder_of(path);
  for (const FoundCheckpoint& found : checkpoints_in(folder)) {
    if (is_one_folder(found.path, path)) step = found.step;
  }
  const std::string older = newest_whole_before(folder, step);
  if (std::error_code unread; !older.empty() && !std::filesystem::exists(path, unread)) {
    return str(sentence,
               "; that was removed meanwhile, as a run with --keep does; the newest whole "
               "one is ",
               older, ": ", advice, " ", older);
  }
  if (older.empty()) return str(sentence, "; ", folder, " holds no whole one before it");
  return str(sentence, "; the newest whole one before it is ", older, ": ", advice, " ", older);
}

bool is_of_folder(const std::string& path, const std::string& folder) {
  return is_one_folder(folder_of(path), folder);
}

}  // namespace shardrun
