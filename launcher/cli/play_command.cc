// shardrun play: planning as a game, a line of JSON for each move.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "command.h"
#include "loaded.h"
#include "option_flags.h"
#include "shardrun/input.h"
#include "shardrun/play.h"

namespace shardrun::cli {
namespace {

using nlohmann::json;

/// As other programs read them, whatever bytes a name has.
void say(const json& line) {
  std::printf("%s\n", line.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

json state_json(PlanSession& session) {
  const PlanSession::Price price = session.price();
  char state[17];
  std::snprintf(state, sizeof state, "%016llx", static_cast<unsigned long long>(session.state()));
  return {
      {"state", state},
      {"tactics", session.tactics()},
      {"price", {{"seconds", price.seconds}, {"bytes", price.bytes}, {"relative", price.relative}}},
      {"actions", session.actions()}};
}

json report_json(PlanSession& session) {
  const TacticReport report = session.report();
  return {{"tactics", session.tactics()},
          {"report",
           {{"seconds", report.seconds},
            {"bytes", report.bytes},
            {"collectives", report.collectives},
            {"unresolved", report.unresolved}}}};
}

[[noreturn]] void refuse_request(const std::string& why) {
  throw Failure(Failure::Kind::call, why);
}

/// A field of text, or a complaint that names it.
std::string text_field(const json& line, const char* name, const char* wanted) {
  const auto it = line.find(name);
  if (it == line.end())
    refuse_request(std::string("field '") + name + "' is missing; wanted " + wanted);
  if (!it->is_string())
    refuse_request(std::string("field '") + name + "' is " + it->type_name() + "; wanted " +
                   wanted);
  const auto& text = it->get_ref<const std::string&>();
  if (text.find('\0') != std::string::npos)  // where a sentence would end
    refuse_request(std::string("field '") + name + "' has a byte of 0; wanted " + wanted);
  return text;
}

/// Does what one line asks. False: the game is over.
bool answer(PlanSession& session, const std::string& text) {
  const json line = json::parse(text, nullptr, false);
  if (!line.is_object())
    refuse_request(R"(wanted a JSON object, such as {"command": "apply", "action": "#0@a"})");
  constexpr const char* kCommands = "apply, undo, state, report or stop";
  const std::string command = text_field(line, "command", kCommands);
  if (command == "apply") {
    session.apply(text_field(line, "action", "one of the state's actions"));
  } else if (command == "undo") {
    session.undo();
  } else if (command == "report" || command == "stop") {
    say(report_json(session));
    return command == "report";
  } else if (command != "state") {
    refuse_request("field 'command' is '" + shortened(command) + "'; wanted " + kCommands);
  }
  say(state_json(session));
  return true;
}

/// The next line of standard input; false: there is none. Throws Failure(call): it has no end.
bool next_line(std::string& line, int64_t number) {
  constexpr size_t kMostBytes = 1 << 20;
  line.clear();
  int c = std::cin.get();
  if (c == std::char_traits<char>::eof()) return false;
  for (; c != std::char_traits<char>::eof() && c != '\n'; c = std::cin.get()) {
    if (line.size() == kMostBytes)
      refuse_request("line " + std::to_string(number) + " of standard input has more than " +
                     std::to_string(kMostBytes) + " bytes, wanted a JSON object");
    line += static_cast<char>(c);
  }
  return true;
}

int run_play(World& world, Arguments& args) {
  if (args.threads) world.assume_threads(*args.threads);
  const Model model = load_model(world, args.onnx(), args.model_options);
  PlanSession session(world, model, args.plan);
  say(state_json(session));
  std::string line;
  // Until nobody reads the answers.
  for (int64_t number = 1; std::ferror(stdout) == 0 && next_line(line, number); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      if (!answer(session, line)) break;
    } catch (const Failure& failure) {
      say({{"error", "line " + std::to_string(number) + ": " + failure.what()}});
    }
  }
  return 0;
}

void add_play_options(CLI::App& app, Arguments& args) {
  add_model_options(app, args);
  add_plan_options(app, args);
}

}  // namespace

Command play_command() {
  return {.name = "play",
          .help =
              "Plan as a game: one JSON object a line, of an agent on standard input, of what "
              "came of it on standard output (docs/planners.md)",
          .takes_recipe = true,
          .add_options = add_play_options,
          .run = run_play,
          .prepare = [](Arguments& args) {
            if (args.plan.plan_file.empty()) take_ranks_planned_for(args);  // else refused
          }};
}

}  // namespace shardrun::cli
