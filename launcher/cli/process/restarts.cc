// Words of the child, waiting for it, and when to start it again.
#include "process/restarts.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "kept_plan.h"
#include "option_fields.h"
#include "process/child.h"
#include "process/hosts.h"
#include "process/orphans.h"
#include "process/signals.h"
#include "report.h"
#include "shardrun/inference.h"
#include "shardrun/input.h"

namespace shardrun::cli {
namespace {

constexpr int kLongestPause = 64;  // s

using Clock = std::chrono::steady_clock;

/// The call's words without some flags and their values.
std::vector<std::string> words_without(const Arguments& args, const std::set<std::string>& flags) {
  std::vector<std::string> out;
  for (size_t i = 0; i < args.words.size(); ++i) {
    const std::string& word = args.words[i];
    if (flags.count(word.substr(0, word.find('='))) == 0) {
      out.push_back(word);
    } else if (word == "--resume") {  // its folder may be left out
      if (i + 1 < args.words.size() && !args.resume.empty() && args.words[i + 1] == args.resume[0])
        ++i;
    } else if (word.find('=') == std::string::npos) {
      ++i;
    }
  }
  return out;
}

using Words = std::vector<std::string>;

/// How the ranks are started: on which hosts, and what is different for their being fewer.
struct Start {
  Words launcher{};                  // none without --mpirun
  int64_t ranks = 0;                 // 0: not known
  std::set<std::string> left_out{};  // flags of the call
  std::string said{};                // " on 2 ranks, for node7 does not answer"
  std::string plan{};                // a file that an earlier start has left; "": none
  std::string resume{};              // a checkpoint of the run; "": what the call says
};

/// The plans that a job's starts leave in the folder of its checkpoints. Those of earlier jobs are
/// not taken for its own.
class KeptPlans {
 public:
  explicit KeptPlans(std::string folder) : folder_(std::move(folder)) {}

  void before_start() { before_ = times(); }
  /// What the start has written is for whoever starts in the same way.
  void after(const Start& start) {
    for (const auto& [path, time] : times()) {
      const auto known = before_.find(path);
      if (known == before_.end() || known->second != time) of_launcher_[start.launcher] = path;
    }
  }
  /// That of an earlier start by the same words, or of as many ranks; "": none.
  std::string of(const Start& start) const {
    if (const auto same = of_launcher_.find(start.launcher); same != of_launcher_.end())
      return same->second;
    const std::string path = kept_plan_path(folder_, start.ranks);
    for (const auto& [launcher, kept] : of_launcher_)
      if (kept == path) return path;
    return "";
  }
  void drop(const std::string& path) {
    std::erase_if(of_launcher_, [&](const auto& kept) { return kept.second == path; });
  }

 private:
  using Times = std::map<std::string, std::filesystem::file_time_type>;
  Times times() const {
    Times out;
    std::error_code error;
    for (std::filesystem::directory_iterator it(folder_, error), end; !error && it != end;
         it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (!name.starts_with("plan-") || !name.ends_with("-ranks.json")) continue;
      std::error_code gone;
      const auto time = it->last_write_time(gone);
      if (!gone) out[it->path().string()] = time;
    }
    return out;
  }
  std::string folder_;
  Times before_;
  std::map<Words, std::string> of_launcher_;
};

/// The flags whose choice a plan has made.
std::set<std::string> planned_flags() {
  std::set<std::string> out;
  each_option_row([&](const OptionRow& row) {
    if (row.use & kPlanned) out.insert(row.flag);
  });
  return out;
}

std::vector<std::string> words_of_child(const Arguments& args, const Start& start) {
  std::set<std::string> own = {"--restarts", "--mpirun"};
  own.insert(start.left_out.begin(), start.left_out.end());
  if (!start.plan.empty()) own.merge(planned_flags());
  if (!start.resume.empty()) own.insert("--resume");
  std::vector<std::string> out = start.launcher;
  out.push_back(own_program());
  const std::vector<std::string> words = words_without(args, own);
  out.insert(out.end(), words.begin(), words.end());
  if (!start.plan.empty()) out.insert(out.end(), {"--plan", start.plan});
  if (!start.resume.empty()) out.insert(out.end(), {"--resume", start.resume});
  return out;
}

bool is_given(const Arguments& args, const std::string& flag) {
  return std::any_of(args.words.begin(), args.words.end(), [&](const std::string& word) {
    return word.substr(0, word.find('=')) == flag;
  });
}

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i)
    out += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + shortened(names[i]);
  return out;
}

/// On the hosts of `all` that answer. nullopt if none does: that is said.
std::optional<Start> start_on_those_left(const Arguments& args, const HostList& all,
                                         const std::string& folder) {
  constexpr double kPatience = 60;  // s for a host to answer: a busy one takes its time
  Start out{.launcher = all.words(), .ranks = all.ranks()};
  const std::vector<std::string> hosts = all.hosts();
  if (hosts.empty()) return out;
  const std::vector<std::string> silent = all.silent(kPatience, folder);
  if (silent.empty()) return out;
  const std::string verb = silent.size() == 1 ? " does not answer" : " do not answer";
  if (silent.size() == hosts.size()) {
    std::fprintf(stderr, "shardrun: --restarts: the run is not started again: %s%s\n",
                 listed(silent).c_str(), verb.c_str());
    return std::nullopt;
  }
  const HostList left = all.without(silent, folder);
  out.launcher = left.words();
  out.ranks = left.ranks();
  if (left.ranks() > 0)
    out.said = " on " + std::to_string(left.ranks()) + (left.ranks() == 1 ? " rank" : " ranks");
  out.said += ", for " + listed(silent) + verb;
  // Without -np there is a rank for each slot.
  if (left.ranks() < all.ranks() || all.ranks() == 0) {
    for (const char* flag : {"--mesh", "--plan"})
      if (is_given(args, flag)) out.left_out.insert(flag);
    if (!out.left_out.empty())
      out.said += ", without " + listed({out.left_out.begin(), out.left_out.end()});
  }
  return out;
}

/// Signals that wait for this process, which takes them one by one.
class Waited {
 public:
  /// `checkpoint`: a signal that asks a run for a checkpoint, and this process for nothing; 0:
  /// none.
  explicit Waited(int checkpoint) : checkpoint_(checkpoint) {
    sigemptyset(&set_);
    for (const int signal : ending_signals()) sigaddset(&set_, signal);
    sigaddset(&set_, SIGCHLD);
    if (checkpoint != 0) sigaddset(&set_, checkpoint);
    sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~Waited() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Waited(const Waited&) = delete;
  Waited& operator=(const Waited&) = delete;
  const sigset_t& before() const { return before_; }
  /// The signal that has asked this process to end while nobody waited, or does so within
  /// `seconds`; 0: none.
  int asked_to_end(int seconds) const {
    const Clock::time_point end = Clock::now() + std::chrono::seconds(seconds);
    int out = 0;
    while (true) {
      const auto left = std::max(std::chrono::nanoseconds(0), end - Clock::now());
      const auto whole = std::chrono::duration_cast<std::chrono::seconds>(left);
      const timespec time{whole.count(), (left - whole).count()};
      const int signal = sigtimedwait(&set_, nullptr, out == 0 ? &time : &kNow);
      if (signal < 0 && errno != EINTR) return out;
      if (signal > 0 && ends(signal)) out = signal;
    }
  }
  bool ends(int signal) const { return signal != SIGCHLD && signal != checkpoint_; }
  siginfo_t next() const {
    siginfo_t info{};
    while (sigwaitinfo(&set_, &info) < 0) {
    }
    return info;
  }

 private:
  static constexpr timespec kNow{};
  int checkpoint_;
  sigset_t set_{}, before_{};
};

struct Ended {
  int status = 0;
  int signal = 0;  // by which this process was asked to end; 0: it was not
};

Ended run_once(const std::vector<std::string>& words, const Waited& signals) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  const pid_t self = getpid(), child = ::fork();
  if (child < 0)
    throw Failure(Failure::Kind::run, std::string("--restarts: fork: ") + std::strerror(errno));
  // What is sent to this process's group comes to the child once, from here.
  ::setpgid(child, child);
  if (child == 0) {
    sigprocmask(SIG_SETMASK, &signals.before(), nullptr);
    std::signal(SIGPIPE, SIG_DFL);
    std::signal(SIGXFSZ, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // it does not outlive this process
    if (getppid() == self) ::execvp(arguments[0], arguments.data());
    _exit(127);
  }
  Ended out;
  Clock::time_point passed_on;  // the last one
  for (int status = 0;;) {
    const siginfo_t info = signals.next();
    if (signals.ends(info.si_signo)) {
      const auto now = Clock::now();
      if (out.signal != info.si_signo || now > passed_on + kSameSignal)
        ::kill(child, info.si_signo);
      out.signal = info.si_signo;
      passed_on = now;
    } else if (info.si_signo != SIGCHLD) {
      ::kill(child, info.si_signo);
    } else if (::waitpid(child, &status, WNOHANG) == child) {
      out.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      end_orphans();  // ranks of a launcher that was killed train on, and write checkpoints
      return out;
    }
  }
}

/// Before a start behind so many in a row that failed by themselves and left no checkpoint:
/// seconds, from the second on, each time twice as many.
int pause_behind(int fruitless) {
  int out = fruitless < 2 ? 0 : 1;
  for (int k = 2; k < fruitless && out < kLongestPause; ++k) out *= 2;
  return out;
}

void tell_of_restart(const Arguments& args, const Start& start, int status, int64_t again,
                     int pause) {
  const std::string& folder = args.train.checkpoint;
  const bool goes_on = !args.resume.empty() && !args.resume[0].empty();
  const std::string from =
      start.resume.empty() ? (goes_on ? "from --resume " + args.resume[0] : "from its beginning") +
                                 ", for there is no checkpoint yet"
      : start.resume == newest_checkpoint(folder)
          ? "from the newest checkpoint of " + folder
          : "from " + start.resume + ", for what is newer is damaged";
  const std::string plan = start.plan.empty() ? "" : ", by the plan " + start.plan;
  const std::string when =
      pause == 0 ? "" : " in " + std::to_string(pause) + " s, for it came no further";
  std::fprintf(stderr, "shardrun: the run ended with status %d; restart %lld of %lld%s%s, %s%s\n",
               status, static_cast<long long>(again), static_cast<long long>(*args.restarts),
               when.c_str(), start.said.c_str(), from.c_str(), plan.c_str());
}

}  // namespace

int run_with_restarts(const Arguments& args) {
  if (args.train.checkpoint.empty()) {
    throw Failure(Failure::Kind::call,
                  "--restarts: starts again from the newest checkpoint; name a folder for them, "
                  "--checkpoint");
  }
  if (launched_processes() > 1 || std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    throw Failure(Failure::Kind::call,
                  "--restarts: the ranks of a launcher cannot start their job again; leave the "
                  "launcher to it: shardrun train … --restarts " +
                      std::to_string(*args.restarts) + " --mpirun 'mpirun -np " +
                      std::to_string(launched_processes()) + "'");
  }
  // While other programs and files are asked for hosts, a signal ends this process.
  const HostList hosts(args.mpirun.empty() ? std::vector<std::string>()
                                           : launcher_words(args.mpirun));
  const Waited signals(signal_named(args.checkpoint_signal));
  const TemporaryFolder folder;
  adopt_orphans();
  setenv(kRestartsMpirun, args.mpirun.c_str(), 1);
  KeptPlans plans(args.train.checkpoint);
  std::optional<Start> start = Start{.launcher = hosts.words(), .ranks = hosts.ranks()};
  int fruitless = 0;
  for (int64_t again = 0;; ++again) {
    plans.before_start();
    const std::string before = newest_checkpoint(args.train.checkpoint);
    const Ended ended = run_once(words_of_child(args, *start), signals);
    if (ended.signal != 0) return ended.status == 0 ? 0 : 128 + ended.signal;
    const bool refused = ended.status == 2;
    std::string whole;  // where the checkpoint was refused: the newest that will not be
    if (refused && !start->resume.empty()) whole = newest_checkpoint(args.train.checkpoint, true);
    const bool damaged = !whole.empty() && whole != start->resume;
    // A machine that has less memory than it had refuses the plan, not the call.
    const bool plan_refused = refused && !damaged && !start->plan.empty();
    const bool final =
        ended.status == 0 || (refused && !damaged && !plan_refused) ||
        std::ranges::find(kEndingSignals, ended.status - 128) != std::end(kEndingSignals);
    if (final || again == *args.restarts) return ended.status;
    plans.after(*start);
    if (plan_refused) plans.drop(start->plan);
    start = start_on_those_left(args, hosts, folder.path());
    if (const int signal = signals.asked_to_end(0); signal != 0) return 128 + signal;
    if (!start) return ended.status;
    const std::string newest = newest_checkpoint(args.train.checkpoint);
    start->resume = damaged ? whole : newest;
    if (!is_given(args, "--plan") || start->left_out.count("--plan"))
      start->plan = plans.of(*start);
    const bool alike = newest == before && ended.status < 128 && !damaged && !plan_refused;
    fruitless = alike ? fruitless + 1 : 0;
    const int pause = pause_behind(fruitless);
    tell_of_restart(args, *start, ended.status, again + 1, pause);
    if (const int signal = signals.asked_to_end(pause); signal != 0) return 128 + signal;
  }
}

}  // namespace shardrun::cli
