// TrainOptions, looked at before anything takes long.
#include "train/train_options.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/resume.h"
#include "exec/checkpoint/agree.h"
#include "exec/checkpoint/folder.h"
#include "explain/text.h"
#include "model.h"
#include "option_json.h"
#include "ranks/backend.h"
#include "ranks/same_call.h"
#include "ranks/world.h"
#include "train/batches.h"

namespace shardrun {
namespace {

constexpr int64_t kMostProfiled = 1000;  // steps

void check_options(const TrainOptions& o) {
  SR_REQUIRE(o.steps >= 1, invalid_input, "steps is ", o.steps, ", wanted 1 or more");
  SR_REQUIRE(o.eval_every >= 0, invalid_input, "eval-every is ", o.eval_every,
             ", wanted 0 or more");
  SR_REQUIRE(o.eval_batches >= 0, invalid_input, "eval-batches is ", o.eval_batches,
             ", wanted 0 or more");
  SR_REQUIRE(o.profile_steps >= 1 && o.profile_steps <= kMostProfiled, invalid_input,
             "profile-steps is ", o.profile_steps, ", wanted 1 to ", kMostProfiled);
  SR_REQUIRE(o.check_replicas >= 0, invalid_input, "check-replicas is ", o.check_replicas,
             ", wanted 0 or more");
  SR_REQUIRE(o.check_replicas == 0 || backend().arenas_on_host, unsupported, "check-replicas ",
             o.check_replicas, ": hashes the memory of CPU ranks, and these run on ",
             backend().name, "; leave it out, or train on CPUs");
  SR_REQUIRE(o.patience >= 0, invalid_input, "patience is ", o.patience, ", wanted 0 or more");
  SR_REQUIRE(o.checkpoint_every >= 0, invalid_input, "checkpoint-every is ", o.checkpoint_every,
             ", wanted 0 or more");
  SR_REQUIRE(o.keep >= 0, invalid_input, "keep is ", o.keep, ", wanted 0 or more");
  SR_REQUIRE(!o.checkpoint.empty() || (o.checkpoint_every == 0 && o.keep == 0), invalid_input,
             "checkpoint-every and keep are of checkpoints: name a folder for them, --checkpoint");
  SR_REQUIRE(o.validation >= 0 && o.validation < 1, invalid_input, "validation is ", o.validation,
             ", wanted 0 to below 1");
}

template <class T>
void read(const nlohmann::json& item, T& out) {
  item.get_to(out);
}
template <class T>
void read(const nlohmann::json& item, std::optional<T>& out) {
  if (!item.is_null()) item.get_to(out.emplace());
}

/// Looks whether the folder can be written, and whether all ranks see what rank 0 writes there.
void check_checkpoint_folder(World& world, const std::string& folder) {
  if (folder.empty()) return;
  const std::string mark = decide_on_rank0(world, [&] {
    try {
      return FolderLock(folder).mark();
    } catch (const Error& e) {
      throw Error(ErrorKind::invalid_input, str("--checkpoint ", e.what()));
    }
  });
  if (!world.impl().mpi) return;
  Communicator& ranks = *world.impl().mpi;
  at_boundary([&] {
    together(ranks, [&] {
      const std::string seen = FolderLock::mark_in(folder);
      SR_REQUIRE(seen == mark, invalid_input, "--checkpoint ", folder,
                 ": does not hold here what rank 0 writes there; name a folder that all machines "
                 "share");
    });
  });
}

}  // namespace

nlohmann::json learning_options(const TrainOptions& options) {
  return options_json(options, kRunOptions);
}

TrainOptions read_learning_options(const nlohmann::json& options, const std::string& origin) {
  TrainOptions out;
  each_option(out, [&](const OptionRow& row, auto& value) {
    const auto found = options.find(row.name);
    if (!(row.use & kRunOptions) || found == options.end()) return;
    try {
      read(*found, value);
    } catch (const nlohmann::json::exception&) {
      fail(ErrorKind::invalid_input, origin, ".", row.name, " is ", found->dump().substr(0, 40),
           ", which is of another kind");
    }
  });
  return out;
}

int64_t steps_to_skip(const TrainOptions& options) {
  constexpr std::string_view kSkip = "skip ";
  const std::string& text = options.on_nan;
  if (text == "stop") return 0;
  int64_t steps = 0;
  const char* const end = text.data() + text.size();
  const bool skips = text.rfind(kSkip, 0) == 0;
  const auto read = std::from_chars(text.data() + (skips ? kSkip.size() : 0), end, steps);
  SR_REQUIRE(skips && read.ec == std::errc() && read.ptr == end && steps >= 1, invalid_input,
             "--on-nan is '", text, "', wanted stop, or skip and a number of steps, as in skip 3");
  return steps;
}

Schedule make_schedule(const TrainOptions& options) {
  Schedule schedule{parse_schedule(options.schedule), options.lr, options.min_lr, options.warmup,
                    options.steps};
  schedule.check();
  return schedule;
}

std::string check_training(World& world, const Model& model, const TrainOptions& options) {
  at_boundary([&] { require_trains("train", "trained", model.impl()); });  // the same on every rank
  return check_verification(world, model, options);
}

std::string check_verification(World& world, const Model& model, const TrainOptions& options) {
  require_same(world, "check_training", same_on_ranks(options));
  std::vector<NamedFile> read;
  for (const std::string& file : model_files(model.impl().onnx))
    read.push_back({"the model", file});
  for (const std::string& file : data_files(options.data)) read.push_back({"--data", file});
  for (const std::string& file : weight_files(model.impl().options.weights))
    read.push_back({"--weights", file});
  check_outputs(world,
                {{"--metrics", options.metrics},
                 {"--profile", options.profile},
                 {"--board", options.board, true},
                 {"--checkpoint", options.checkpoint, true},
                 {"--flight-recorder", options.flight_recorder, true}},
                read);
  decide_on_rank0(world, [&] {
    check_options(options);
    return std::string();
  });
  check_checkpoint_folder(world, options.checkpoint);
  return decide_on_rank0(world, [&] {
    make_schedule(options);
    steps_to_skip(options);
    find_resumed(model.impl(), options);
    check_device();
    const std::unique_ptr<DataSource> data = open_batches(model.impl().train, options);
    SR_REQUIRE(options.patience == 0 || data->batches(Split::validation) > 0, invalid_input,
               "patience ", options.patience, ": waits for validations, but ",
               options.data.empty() ? "synthetic batches" : "--data " + options.data,
               " have no validation part; give data with val_mask, or --validation above 0");
    std::string line = data->describe();
    if (const std::optional<TokenEntropy> entropy = data->entropy()) {
      line += str(format("; counting tokens alone has a loss of %.4f", entropy->unigram),
                  format(", pairs of them %.4f", entropy->bigram),
                  " (the unigram and the bigram entropy)");
    }
    if (const std::string note = note_on_labels(model.impl().train, options, *data); !note.empty())
      line += "\nnote: " + note;
    return line;
  });
}

}  // namespace shardrun
