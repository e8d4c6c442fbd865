// Each name that users choose an enum's value by is parsed and printed by its one table and stands
// in the flag's help; another one is refused with the list.
#include "choices.h"

#include <gtest/gtest.h>

#include <set>

#include "exec/learning_rate.h"
#include "graph/optimizer.h"
#include "graph/passes/training.h"
#include "models/gpt.h"
#include "models/wide_resnet.h"
#include "option_fields.h"
#include "planner/names/search_names.h"
#include "simulate/pipeline_order.h"

namespace shardrun {
namespace {

template <class Kind, size_t count>
void expect_choices(const Named<Kind> (&all)[count], const std::string& help = "",
                    const std::string& by_default = "") {
  SCOPED_TRACE(names_of(all));
  std::set<std::string_view> names;
  std::set<Kind> kinds;
  for (const Named<Kind>& one : all) {
    EXPECT_EQ(parse_choice("choice", all, std::string(one.name)), one.kind) << one.name;
    EXPECT_EQ(name_of(all, one.kind), one.name);
    EXPECT_TRUE(names.insert(one.name).second) << one.name << " stands twice";
    EXPECT_TRUE(kinds.insert(one.kind).second) << one.name << " is another one, too";
    if (!help.empty()) {
      EXPECT_NE(help.find(one.name), std::string::npos) << one.name << " in: " << help;
    }
  }
  if (!by_default.empty()) {
    EXPECT_TRUE(names.count(by_default)) << by_default;
  }
  for (const std::string wrong : {"", "none of these", "AUTO"}) {
    try {
      parse_choice("choice", all, wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
      EXPECT_EQ(e.what(), str("choice '", wrong, "' is not one of ", names_of(all)));
    }
  }
}

/// Of the option that is `member`, with its default.
template <class Options, class Kind, size_t count>
void expect_option(std::string Options::*member, const Named<Kind> (&all)[count]) {
  const OptionRow row = option_row(member);
  SCOPED_TRACE(row.flag);
  expect_choices(all, row.list_help != nullptr ? row.list_help() : row.help, Options().*member);
}

TEST(Choices, OfAModel) {
  expect_option(&ModelOptions::step, kModelSteps);
  expect_option(&ModelOptions::loss, kLosses);
  expect_option(&ModelOptions::shared, kSharedWeights);
  expect_option(&ModelOptions::mode, kModes);
  expect_option(&ModelOptions::running_statistics, kRunningStatistics);
  expect_option(&ModelOptions::dtype, kComputeTypes);
  expect_option(&ModelOptions::optimizer, kOptimizers);
}

TEST(Choices, OfAPlan) {
  expect_option(&PlanRequest::planner, kPlanners);
  expect_option(&PlanRequest::annotations, kAnnotationUses);
  expect_option(&PlanRequest::recompute, kRecomputes);
  expect_choices(kBaselines, planner_help());
  expect_choices(kSolvers, solver_help(), SolveRequest().solver);
}

TEST(Choices, OfARun) {
  expect_option(&TrainOptions::target_shift, kTargetShifts);
  expect_option(&TrainOptions::schedule, kSchedules);
}

TEST(Choices, OfASimulation) {
  expect_choices(kPipelineSchedules);
  expect_choices(kCommStreams);
}

TEST(Choices, OfModelBuilders) {
  expect_choices(kFamilies);
  expect_choices(kGptNorms);
  expect_choices(kGptMlps);
  expect_choices(kGptPositions);
}

}  // namespace
}  // namespace shardrun
