// Flags of the command line that follow from the table of options.
#pragma once

#include <CLI/CLI.hpp>

#include "option_fields.h"
#include "options.h"

namespace shardrun::cli {

template <class Options>
Options& options_in(Arguments& args) {
  if constexpr (std::is_same_v<Options, ModelOptions>) {
    return args.model_options;
  } else if constexpr (std::is_same_v<Options, PlanRequest>) {
    return args.plan;
  } else {
    static_assert(std::is_same_v<Options, TrainOptions>);
    return args.train;
  }
}

/// The flag of a row, for a value in `args`. Texts that are no values yet wait in `args` for
/// finish_arguments.
template <class T>
CLI::Option* bind_flag(CLI::App& app, Arguments& args, const OptionRow& row, T& value) {
  const std::string flag = row.flag;
  const std::string help = row.list_help != nullptr ? row.list_help() : row.help;
  switch (row.text) {
    case FlagText::value: break;
    case FlagText::sizes: return app.add_option(flag, args.dims, help)->allow_extra_args(false);
    case FlagText::bytes: return app.add_option(flag, args.bytes[flag], help);
    case FlagText::count_or_auto: return app.add_option(flag, args.accumulate, help);
    case FlagText::seed: return app.add_option(flag, args.train.seed, help);
    case FlagText::folder_or_none:
      return app.add_option(flag, args.resume, help)->expected(0, 1)->type_name("TEXT");
    case FlagText::given: return app.add_option(flag, args.profile_steps, help);
  }
  if constexpr (std::is_same_v<T, bool>) {
    return app.add_flag(flag, value, help);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return app.add_option(flag, value, help)->allow_extra_args(false);
  } else {
    return app.add_option(flag, value, help);
  }
}

template <class T>
void add_row(CLI::App& app, Arguments& args, const OptionRow& row, T& value) {
  CLI::Option* option = bind_flag(app, args, row, value);
  if (row.shows_default) option->capture_default_str();
}

/// The flag of one field, such as &TrainOptions::lr. `help`: in place of the table's.
template <class Options, class T>
void add_field(CLI::App& app, Arguments& args, T Options::*member, const char* help = nullptr) {
  OptionRow row = option_row(member);
  if (help != nullptr) row.help = help;
  add_row(app, args, row, options_in<Options>(args).*member);
}

}  // namespace shardrun::cli
