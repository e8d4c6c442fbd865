// The command line: a thin client of shardrun/shardrun.h.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <thread>

#include "command.h"
#include "recipe.h"
#include "report.h"
#include "wrong_words.h"

namespace shardrun::cli {
namespace {

World make_world(const Arguments& args) {
  World world = args.ranks ? World::threads(*args.ranks) : World::launched();
  if (args.threads) world.use_threads(*args.threads);
  if (args.timeout) world.use_timeout(*args.timeout);
  if (!args.check.empty()) world.check_collectives();
  return world;
}

/// "--resume gpt.onnx": the folder was left out. CLI11 would take the model's file for it.
void part_resume_from_model(std::vector<std::string>& words) {
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    std::error_code error;
    if (words[i] == "--resume" && words[i + 1].ends_with(".onnx") &&
        !std::filesystem::is_directory(words[i + 1], error))
      std::swap(words[i], words[i + 1]);
  }
}

/// "--on-nan skip 3": one value.
void join_skip(std::vector<std::string>& words) {
  for (size_t i = 0; i + 2 < words.size(); ++i) {
    const bool counts = words[i + 2].find_first_not_of("-.0123456789") == std::string::npos;
    if (words[i] != "--on-nan" || words[i + 1] != "skip" || !counts) continue;
    words[i + 1] += " " + words[i + 2];
    words.erase(words.begin() + static_cast<std::ptrdiff_t>(i) + 2);
  }
}

/// "train, plan, verify"
std::string names_of(const std::vector<Command>& commands) {
  std::string names;
  for (const Command& command : commands) {
    names += names.empty() ? "" : ", ";
    names += command.name;
  }
  return names;
}

/// Says why a call is wrong, and returns the status. Mostly all processes find the same: the first
/// one says so, and that it ends ends the others before they speak. If it does not end, they do:
/// late enough for a launcher that is held up.
int refuse(const std::string& why) {
  if (!is_first_process()) {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::cerr << "shardrun: on one process, not the first: ";
  } else {
    std::cerr << "shardrun: ";
  }
  std::cerr << why << (why.empty() || why.back() != '\n' ? "\n" : "");
  return 2;
}

/// The program's flags and commands, and what a call asked for.
class Call {
 public:
  Call() {
    app_.set_version_flag("--version", version());
    for (const Command& command : commands_)
      command.add_options(*app_.add_subcommand(command.name, command.help), args_);
    refuse_empty_and_wrapped(app_);
  }

  /// The status of a call that ends here, as --help does.
  std::optional<int> parse(std::vector<std::string> words);
  /// The status of what was asked for.
  int run();

 private:
  bool is_asked(const Command& command) const {
    return app_.get_subcommand(command.name)->parsed();
  }
  bool is_asked_on_all() const;
  void parse_words(std::vector<std::string> words);
  void take_defaults(const std::vector<std::string>& words);
  void check() const;
  int run_on(World& world);

  Arguments args_;
  std::vector<Command> commands_ = commands();
  CLI::App app_{
      "shardrun trains an ONNX model on many processes: it plans how every tensor is cut over "
      "them, and runs each\n"
      "one's part. Under mpirun the ranks are MPI's. 'shardrun MODEL.onnx' is 'shardrun train "
      "MODEL.onnx'.",
      "shardrun"};
};

bool Call::is_asked_on_all() const {
  return std::any_of(commands_.begin(), commands_.end(),
                     [&](const Command& c) { return c.on_all && is_asked(c); });
}

void Call::parse_words(std::vector<std::string> words) {
  std::reverse(words.begin(), words.end());  // CLI11 takes them so
  app_.parse(words);
}

/// What the call leaves out is as a checkpoint's run had it, or as the model's recipe says.
void Call::take_defaults(const std::vector<std::string>& words) {
  for (const Command& command : commands_) {
    if (!is_asked(command)) continue;
    if (command.take_defaults && command.take_defaults(args_)) {
      parse_words(words);
    } else if (command.takes_recipe) {
      const Recipe recipe = add_recipe(*app_.get_subcommand(command.name), words, args_.onnx());
      args_.recipe = recipe.line;
      try {  // the call alone has been parsed
        if (recipe.words != words) parse_words(recipe.words);
      } catch (const CLI::ParseError& e) {
        throw recipe_failure(args_.onnx(), e.what());
      }
      return;
    }
  }
}

std::optional<int> Call::parse(std::vector<std::string> words) {
  const std::vector<std::string> flags = {"-h", "--help", "--version"};
  const bool named = words.empty() ||
                     std::find(flags.begin(), flags.end(), words[0]) != flags.end() ||
                     std::any_of(commands_.begin(), commands_.end(),
                                 [&](const Command& command) { return words[0] == command.name; });
  if (!named) {
    if (const std::string like = command_like(app_, words[0]); !like.empty())
      return refuse("there is neither a command nor a file '" + words[0] + "', but a command '" +
                    like + "'");
    words.insert(words.begin(), "train");
  }
  part_resume_from_model(words);
  join_skip(words);
  args_.words = words;
  try {
    parse_words(words);
    take_defaults(words);
  } catch (const Failure& e) {
    return refuse(e.what());
  } catch (const CLI::ParseError& e) {
    if (const std::string why = wrong_words(app_, words, e); !why.empty()) return refuse(why);
    std::ostringstream out, err;
    const int status = app_.exit(e, out, err);
    if (is_first_process()) std::cout << out.str();
    return status == 0 ? 0 : refuse(err.str());
  }
  try {  // each process finds the same here; one says so
    finish_arguments(args_);
    check();
  } catch (const Failure& e) {
    return refuse(e.what() + (args_.recipe.empty() ? "" : " (" + args_.recipe + ")"));
  }
  return std::nullopt;
}

void Call::check() const {
  if (app_.get_subcommands().empty()) {
    throw Failure(Failure::Kind::call, "name a model, 'shardrun MODEL.onnx', or a command: " +
                                           names_of(commands_) + "; --help tells more");
  }
  if (is_asked_on_all() && args_.ranks && launched_processes() > 1) {
    throw Failure(Failure::Kind::call,
                  "--ranks " + std::to_string(*args_.ranks) +
                      ": runs threads of one process, but the launcher started " +
                      std::to_string(launched_processes()) + "; leave out one of the two");
  }
}

int Call::run() {
  if (!is_asked_on_all() && !is_first_process()) return 0;  // work for one
  for (const Command& command : commands_) {
    if (!is_asked(command)) continue;
    try {
      if (command.run_alone) return command.run_alone(args_);
      const std::optional<int> status = command.delegate ? command.delegate(args_) : std::nullopt;
      if (status) return *status;
      if (command.prepare) command.prepare(args_);
    } catch (const Failure& e) {
      if (is_first_process()) std::fprintf(stderr, "shardrun: %s\n", e.what());
      return e.status();
    }
  }
  try {
    World world = is_asked_on_all()
                      ? make_world(args_)
                      : World::threads(args_.ranks.value_or(std::max(1, launched_processes())));
    try {
      return run_on(world);
    } catch (const std::exception& e) {
      return world.fail(e, [](const std::string&) { return first_to_fail(); });
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "shardrun: %s\n", e.what());
    return 1;
  }
}

int Call::run_on(World& world) {
  for (const Command& command : commands_) {
    if (!is_asked(command)) continue;
    if (const int status = command.run(world, args_); status != 0) return status;
  }
  return 0;
}

int run(int argc, char** argv) {
  try {
    Call call;
    const std::optional<int> status = call.parse({argv + 1, argv + argc});
    return status ? *status : call.run();
  } catch (const std::exception& e) {  // no memory, no threads
    std::fprintf(stderr, "shardrun: the system refused what was asked of it: %s\n", e.what());
    return 1;
  }
}

/// Where the caller closed standard input, output or errors, the next file that is opened would
/// take its place, and what is printed would end up there.
void open_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
}

}  // namespace
}  // namespace shardrun::cli

int main(int argc, char** argv) {
  shardrun::cli::open_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // ulimit -f: a write that fails says so instead
  std::signal(SIGPIPE, SIG_IGN);  // who reads what is printed may go, and training goes on
  return shardrun::cli::all_printed(shardrun::cli::run(argc, argv));
}
