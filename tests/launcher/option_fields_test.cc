// Each row of the table of options reaches what follows from it: the flag, JSON, the comparison of
// ranks, the recipe.
#include "option_fields.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "option_json.h"
#include "plan/plan_origin.h"
#include "recipe.h"
#include "tests/launcher/command.h"
#include "train/train_options.h"

namespace shardrun::test {
namespace {

// Some other value than the default.
void change(std::string& value) { value += "x"; }
void change(bool& value) { value = !value; }
void change(std::vector<std::string>& value) { value.emplace_back("x"); }
void change(std::map<std::string, int64_t>& value) { value["x"] = 3; }
template <class T>
requires std::is_arithmetic_v<T>
void change(T& value) { value += 3; }
template <class T>
void change(std::optional<T>& value) {
  change(value.emplace());
}

/// check(row, options with the row's field changed) for each.
template <class Options, class Check>
void each_changed(Check&& check) {
  std::apply(
      [&](const auto&... fields) {
        const auto one = [&](const auto& field) {
          Options options;
          change(options.*field.member);
          SCOPED_TRACE(field.row.name);
          check(field.row, options);
        };
        (one(fields), ...);
      },
      option_fields<Options>());
}

/// Fields that the table has not leave a hole, unless they are small enough for padding.
/// `behind`: bytes at the end that are no options.
template <class Options>
void expect_no_holes(size_t behind) {
  struct Piece {
    size_t begin, size, align;
  };
  std::vector<Piece> pieces;
  const Options options;
  const auto* start = reinterpret_cast<const char*>(&options);
  each_option(options, [&](const OptionRow&, const auto& value) {
    pieces.push_back({static_cast<size_t>(reinterpret_cast<const char*>(&value) - start),
                      sizeof value, alignof(decltype(value))});
  });
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  pieces.push_back({sizeof(Options) - behind, 0, alignof(Options)});
  size_t end = 0;
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.begin, (end + piece.align - 1) / piece.align * piece.align)
        << "a field behind byte " << end << " of the struct has no row";
    end = piece.begin + piece.size;
  }
}

TEST(OptionFields, EachFieldHasARow) {
  expect_no_holes<ModelOptions>(0);
  expect_no_holes<PlanRequest>(sizeof(PlanRequest::on_progress));
  using Hooks = decltype(TrainOptions::on_step);  // and three alike
  expect_no_holes<TrainOptions>(4 * sizeof(Hooks));
}

TEST(OptionFields, FlagsStandOnce) {
  std::set<std::string> flags;
  each_option_row([&](const OptionRow& row) {
    EXPECT_STRNE(row.name, "");
    EXPECT_EQ(*row.flag == '\0', row.group == OptionGroup::none) << row.name;
    EXPECT_TRUE(*row.flag == '\0' || flags.insert(row.flag).second) << row.flag;
    EXPECT_TRUE(row.recipe == RecipePart::none || *row.flag != '\0') << row.name;
  });
}

TEST(OptionFields, TrainHasEachFlagWithItsHelp) {
  Workspace at;
  const Outcome help = at.shardrun("train --help");
  ASSERT_EQ(help.status, 0) << describe(help);
  each_option_row([&](const OptionRow& row) {
    if (*row.flag == '\0') return;
    const size_t line = help.out.find(std::string("\n  ") + row.flag + " ");
    ASSERT_NE(line, std::string::npos) << row.flag;
    const std::string text = row.list_help != nullptr ? row.list_help() : row.help;
    EXPECT_NE(help.out.find(text, line), std::string::npos) << row.flag;
  });
}

TEST(OptionFields, ErrorsNameEachCommand) {
  Workspace at;
  const Outcome none = at.shardrun("");
  EXPECT_EQ(none.status, 2) << describe(none);
  const Outcome help = at.shardrun("--help");
  const size_t list = help.out.find("Subcommands:\n");
  ASSERT_NE(list, std::string::npos) << describe(help);
  std::istringstream lines(help.out.substr(list));
  std::string line;
  std::getline(lines, line);
  int commands = 0;
  while (std::getline(lines, line) && line.starts_with("  ")) {
    if (line[2] == ' ') continue;
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    EXPECT_NE(none.err.find(" " + name), std::string::npos) << name << " in " << none.err;
    ++commands;
  }
  EXPECT_EQ(commands, 16);
}

template <class Options>
void expect_compared() {
  each_changed<Options>([](const OptionRow& row, const Options& changed) {
    EXPECT_EQ(same_on_ranks(changed) != same_on_ranks(Options()),
              (row.use & (kSame | kSamePresence)) != 0);
  });
}
TEST(OptionFields, RanksCompareThem) {
  expect_compared<ModelOptions>();
  expect_compared<PlanRequest>();
  expect_compared<TrainOptions>();
}

TEST(OptionFields, PlanFilesKeepThem) {
  each_changed<ModelOptions>([](const OptionRow& row, const ModelOptions& changed) {
    const nlohmann::json written = origin_json({"m.onnx", "", changed, 1});
    const PlannedModel read = read_origin(written, "p.json: field model");
    EXPECT_EQ(read.path, "m.onnx");
    EXPECT_EQ(origin_json(read), written);
    EXPECT_EQ(written != origin_json({"m.onnx", "", ModelOptions(), 1}),
              (row.use & kPlanFile) != 0);
  });
  each_changed<PlanRequest>([](const OptionRow& row, const PlanRequest& changed) {
    const nlohmann::json written = request_json(changed);
    EXPECT_EQ(request_json(read_request(written, "p.json: field request")), written);
    EXPECT_EQ(written != request_json(PlanRequest()), (row.use & kPlanFile) != 0);
  });
}

TEST(OptionFields, CheckpointsKeepThem) {
  each_changed<TrainOptions>([](const OptionRow& row, const TrainOptions& changed) {
    const nlohmann::json written = learning_options(changed);
    EXPECT_EQ(learning_options(read_learning_options(written, "run.options")), written);
    EXPECT_EQ(written != learning_options(TrainOptions()), (row.use & kRunOptions) != 0);
  });
}

TEST(OptionFields, RecipesTakeThoseOfLearning) {
  each_option_row([&](const OptionRow& row) {
    if (row.recipe == RecipePart::none) return;
    EXPECT_EQ(parse_recipe(row.flag, "m").size(), 1u);
  });
  try {
    (void)parse_recipe("--data", "m.onnx");
    FAIL() << "a recipe names a file";
  } catch (const std::exception& e) {
    EXPECT_STREQ(e.what(),
                 "m.onnx: '--data' is not a flag that a model may give; those are --loss "
                 "--loss-output --freeze --train --train-only --shared --dtype --optimizer "
                 "--target-shift --beta1 --beta2 --eps --momentum --nesterov --weight-decay "
                 "--decay-all --clip --accumulate --global-batch --batch --dim --seed --steps --lr "
                 "--min-lr --schedule --warmup --eval-every --eval-batches --validation --patience "
                 "--augment --normalise --sort-edges");
  }
}

}  // namespace
}  // namespace shardrun::test
