// Strategies by a node's text, and by which options of its rule are left.
#include "planner/space/strategy_table.h"

namespace shardrun {
namespace {

std::string text_of(const Node& node, std::span<const TensorType> in,
                    std::span<const TensorType> out) {
  std::string text = node.op + "{" + to_string(node.attrs) + "}";
  for (const TensorType& type : in) text += " " + to_string(type);
  for (const TensorType& type : out) text += ">" + to_string(type);
  return text;
}

}  // namespace

const std::vector<Strategy>& StrategyTable::of(const Node& node, std::span<const TensorType> in,
                                               std::span<const TensorType> out,
                                               const SpmdRule& rule, bool leave_empty) {
  std::deque<Entry>& alike = known_[text_of(node, in, out)];
  for (const Entry& entry : alike) {
    if (entry.leave_empty == leave_empty && entry.options == rule.options) return entry.strategies;
  }
  alike.push_back({rule.options, leave_empty,
                   enumerate_strategies(node, in, out, rule, mesh_, cluster_, leave_empty)});
  return alike.back().strategies;
}

}  // namespace shardrun
