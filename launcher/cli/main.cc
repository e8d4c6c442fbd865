// The command line: a thin client of shardrun/shardrun.h.
#include <fcntl.h>
#include <malloc.h>
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
    if (words[i] != "--on-nan" || words[i + 1] != "skip") continue;
    words[i + 1] += " " + words[i + 2];
    words.erase(words.begin() + static_cast<std::ptrdiff_t>(i) + 2);
  }
}

/// Letters to add, drop, change or swap with their neighbours, to make the one of the other.
size_t letters_apart(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> apart(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        apart[i][j] = i + j;
        continue;
      }
      const bool same = a[i - 1] == b[j - 1];
      apart[i][j] = std::min(
          {apart[i - 1][j] + 1, apart[i][j - 1] + 1, apart[i - 1][j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        apart[i][j] = std::min(apart[i][j], apart[i - 2][j - 2] + 1);
    }
  }
  return apart[a.size()][b.size()];
}

/// How many letters a word may be apart from what was meant: of few letters less than a third.
size_t most_apart(size_t letters) { return std::min<size_t>(2, letters / 3); }

/// The command's flag that `flag` is most like; "": none is.
std::string flag_like(const CLI::App& command, const std::string& flag) {
  std::string out;
  size_t least = most_apart(flag.size() - 2) + 1;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const size_t apart = letters_apart("--" + name, flag);
      if (apart < least) least = apart, out = "--" + name;
    }
  }
  return out;
}

/// Words that a command does not know: CLI11 has them in no order that one reads.
std::string unknown_words(const CLI::App& app) {
  const CLI::App& train = *app.get_subcommand("train");
  std::string all, of_train, meant, name = app.get_name();
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  for (const std::string& word : app.remaining(true)) {
    all += (all.empty() ? "" : " ") + word;
    const std::string flag = word.substr(0, word.find('='));
    if (flag.starts_with("--") && train.get_option_no_throw(flag) != nullptr)
      of_train += (of_train.empty() ? "" : ", ") + flag;
    const std::string like =
        flag.starts_with("--") && flag.size() > 2 ? flag_like(*command, flag) : "";
    if (!like.empty()) meant += (meant.empty() ? "" : ", ") + like;
  }
  return "'" + name + "' does not take '" + all + "'" +
         (of_train.empty() ? "" : " (" + of_train + " goes with 'shardrun train')") +
         (meant.empty() ? "" : ", but " + meant) + "; '" + name + " --help' tells what it takes";
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
  std::string command_like(const std::string& word) const;
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

/// The command that is meant by a word which is neither one nor a file; "": none is.
std::string Call::command_like(const std::string& word) const {
  std::error_code error;
  if (std::filesystem::exists(word, error)) return "";
  for (const Command& command : commands_)
    if (letters_apart(word, command.name) <= most_apart(word.size())) return command.name;
  return "";
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
    if (const std::string like = command_like(words[0]); !like.empty())
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
  } catch (const CLI::ExtrasError&) {
    return refuse(unknown_words(app_));
  } catch (const CLI::ArgumentMismatch& e) {
    const std::string said = e.what(), more = ": At Most 1 required but received ";
    const size_t at = said.find(more);
    return refuse(at == std::string::npos
                      ? said
                      : said.substr(0, at) + ": is given " + said.substr(at + more.size()) +
                            " times; give it once");
  } catch (const CLI::ParseError& e) {
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
    } catch (const Failure& e) {
      if (is_first_process()) std::fprintf(stderr, "shardrun: %s\n", e.what());
      return e.status();
    }
  }
  try {
    for (const Command& command : commands_) {
      if (command.prepare && is_asked(command)) command.prepare(args_);
    }
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
  Call call;
  const std::optional<int> status = call.parse({argv + 1, argv + argc});
  return status ? *status : call.run();
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
  // Planning makes and drops millions of small things between large ones. glibc would lay small
  // free blocks aside, and go over all of them whenever a large one is wanted.
  mallopt(M_MXFAST, 0);
  return shardrun::cli::all_printed(shardrun::cli::run(argc, argv));
}
