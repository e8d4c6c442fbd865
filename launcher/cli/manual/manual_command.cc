// shardrun manual: the man page and the shell's completion, made of the commands' options.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <sstream>

#include "command.h"
#include "shardrun/bench.h"

namespace shardrun::cli {
namespace {

struct Manual {
  const CLI::App* app = nullptr;  // the program's, which has all commands
  bool bash = false;
};

/// Text for troff: a backslash is an escape and a minus a hyphen, and a line that begins with a dot
/// or an apostrophe a request.
std::string troff(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins = i == 0 || text[i - 1] == '\n';
    if (begins && (text[i] == '.' || text[i] == '\'')) out += "\\&";
    if (text[i] == '\\') {
      out += "\\e";
    } else if (text[i] == '-') {
      out += "\\-";
    } else {
      out += text[i];
    }
  }
  return out;
}

/// "-o,--output TEXT": every name, and what is given with it.
std::string names_of(const CLI::Option& option) {
  const bool takes = option.get_items_expected_max() > 0;
  return option.get_name(false, true) + (takes ? " " + option.get_type_name() : "");
}

void add_options(std::ostream& out, const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    out << ".TP\n\\fB" << troff(names_of(*option)) << "\\fR\n"
        << troff(option->get_description()) << "\n";
  }
}

/// A section for a command, and one for each of its own: "model gpt".
void add_sections(std::ostream& out, const CLI::App& command, const std::string& before) {
  const std::string name = before + command.get_name();
  out << ".SH SHARDRUN " << troff(name) << "\n" << troff(command.get_description()) << "\n";
  add_options(out, command);
  for (const CLI::App* own : command.get_subcommands(nullptr)) add_sections(out, *own, name + " ");
}

std::string man_page(const CLI::App& app) {
  std::ostringstream out;
  out << ".TH SHARDRUN 1 \"\" \"shardrun " << version() << "\"\n.SH NAME\n"
      << "shardrun \\- train an ONNX model on many processes\n.SH SYNOPSIS\n"
      << ".B shardrun\n[COMMAND] [OPTIONS] MODEL.onnx\n.SH DESCRIPTION\n"
      << troff(app.get_description()) << "\n";
  out << ".SH OPTIONS\n";
  add_options(out, app);
  for (const CLI::App* command : app.get_subcommands(nullptr)) add_sections(out, *command, "");
  return out.str();
}

/// Words of a command: its flags.
std::string flags_of(const CLI::App& command) {
  std::string out;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) out += " --" + name;
    for (const std::string& name : option->get_snames()) out += " -" + name;
  }
  return out;
}

std::string commands_of(const CLI::App& app) {
  std::string out;
  for (const CLI::App* command : app.get_subcommands(nullptr))
    out += (out.empty() ? "" : " ") + command->get_name();
  return out;
}

/// What bash matches the line's first two words with, and the words and flags that go on.
void add_cases(std::ostream& out, const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    const std::string& name = command->get_name();
    for (const CLI::App* own : command->get_subcommands(nullptr)) {
      out << "    \"" << name << " " << own->get_name() << "\") flags=\"" << flags_of(*own)
          << "\" ;;\n";
    }
    out << "    \"" << name << " \"*) flags=\"" << flags_of(*command) << "\" words=\""
        << commands_of(*command) << "\" ;;\n";
  }
}

/// The flags of the command that the line names, of train where it names none; commands where one
/// may stand, and else files.
std::string completion(const CLI::App& app) {
  std::ostringstream out;
  out << "# bash completion of shardrun, made by 'shardrun manual --bash'\n"
      << "_shardrun() {\n"
      << "  local word=${COMP_WORDS[COMP_CWORD]} flags= words=\n"
      << "  case \"${COMP_WORDS[1]-} ${COMP_WORDS[2]-}\" in\n";
  add_cases(out, app);
  out << "    *) flags=\"" << flags_of(*app.get_subcommand("train")) << flags_of(app) << "\" ;;\n"
      << "  esac\n"
      << "  if [[ $word == -* ]]; then\n"
      << "    COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
      << "  elif [ \"$COMP_CWORD\" -eq 2 ] && [ -n \"$words\" ]; then\n"
      << "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      << "  else\n"
      << "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
      << "    [ \"$COMP_CWORD\" -eq 1 ] && COMPREPLY+=($(compgen -W \"" << commands_of(app)
      << "\" -- \"$word\"))\n"
      << "  fi\n"
      << "  return 0\n"
      << "}\n"
      << "complete -o filenames -F _shardrun shardrun\n";
  return out.str();
}

}  // namespace

Command manual_command() {
  const auto manual = std::make_shared<Manual>();
  return {.name = "manual",
          .help = "Print the man page, or bash's completion, made of the options",
          .add_options =
              [manual](CLI::App& app, Arguments&) {
                manual->app = app.get_parent();
                app.add_flag("--bash", manual->bash, "Print the completion");
              },
          .run_alone =
              [manual](Arguments&) {
                std::printf(
                    "%s",
                    (manual->bash ? completion(*manual->app) : man_page(*manual->app)).c_str());
                return 0;
              }};
}

}  // namespace shardrun::cli
