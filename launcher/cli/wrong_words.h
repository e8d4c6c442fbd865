// What is said of words that are no call.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace shardrun::cli {

/// The command that is meant by a word which is neither one nor a file: "plan" for "pln"; "": none
/// is.
std::string command_like(const CLI::App& app, const std::string& word);

/// Why these words, of which the first is a command, are refused; "": as CLI11 says it.
std::string wrong_words(const CLI::App& app, const std::vector<std::string>& words,
                        const CLI::ParseError& error);

}  // namespace shardrun::cli
