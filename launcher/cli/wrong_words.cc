// Flags and commands by how many letters they are apart from what was given.
#include "wrong_words.h"

#include <algorithm>
#include <filesystem>
#include <utility>

namespace shardrun::cli {
namespace {

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

/// The command that was asked for, or the command's own: "shardrun bench step".
std::pair<std::string, const CLI::App*> asked_for(const CLI::App& app) {
  const CLI::App* at = &app;
  std::string name = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return {name, at};
}

/// Words that a command does not know: CLI11 has them in no order that one reads.
std::string unknown_words(const CLI::App& app) {
  const CLI::App& train = *app.get_subcommand("train");
  const auto [name, command] = asked_for(app);
  std::string all, of_train, meant;
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

/// A command of which one of its own is wanted: "" where it has none.
std::string missing_command(const CLI::App& app, const std::vector<std::string>& words) {
  const auto [name, at] = asked_for(app);
  std::string own;
  for (const CLI::App* one : at->get_subcommands(nullptr))
    own += (own.empty() ? "" : ", ") + one->get_name();
  if (own.empty()) return "";
  return "'" + name + "' wants one of " + own +
         (words.size() > 1 ? ", got '" + words[1] + "'" : "") + "; '" + name +
         " --help' tells more";
}

/// "--lr: At Most 1 required but received 2"
std::string given_twice(const std::string& said) {
  const std::string more = ": At Most 1 required but received ";
  const size_t at = said.find(more);
  return at == std::string::npos ? ""
                                 : said.substr(0, at) + ": is given " +
                                       said.substr(at + more.size()) + " times; give it once";
}

/// "Could not convert: --stages = 99999999999": a whole number, as every option checks, of more
/// than 32 bits.
std::string beyond_range(const std::string& said) {
  const std::string begin = "Could not convert: ", between = " = ";
  const size_t at = said.find(between);
  if (said.rfind(begin, 0) != 0 || at == std::string::npos) return "";
  return said.substr(begin.size(), at - begin.size()) + ": '" + said.substr(at + between.size()) +
         "' is too large";
}

}  // namespace

std::string command_like(const CLI::App& app, const std::string& word) {
  std::error_code error;
  if (std::filesystem::exists(word, error)) return "";
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    const std::string& name = command->get_name();
    if (letters_apart(word, name) <= most_apart(word.size())) return name;
  }
  return "";
}

std::string wrong_words(const CLI::App& app, const std::vector<std::string>& words,
                        const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) return unknown_words(app);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)
    return missing_command(app, words);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    return given_twice(error.what());
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr)
    return beyond_range(error.what());
  return "";
}

}  // namespace shardrun::cli
