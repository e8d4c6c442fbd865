// SpmdRule: printing, Reshape's derived rule, and the cache.
#include <algorithm>
#include <numeric>

#include "planner/rules/alike_values.h"
#include "planner/rules/discovery.h"
#include "planner/rules/rule_file.h"
#include "planner/rules/trial.h"

namespace shardrun {
namespace {

std::string to_string(const std::vector<Placement>& placements, bool results) {
  std::string out = "[";
  for (size_t i = 0; i < placements.size(); ++i) {
    out += i ? ", " : "";
    switch (placements[i].kind) {
      case Placement::Kind::replicate: out += "-"; break;
      case Placement::Kind::shard:
        out += "S" + std::to_string(placements[i].dim);
        if (placements[i].window)
          out += str(results ? "{add " : "{halo ", shardrun::to_string(*placements[i].window), "}");
        if (!placements[i].blocks.empty()) out += str("{block ", placements[i].blocks.size(), "}");
        if (placements[i].rows_by >= 0) out += str("{rows of ", placements[i].rows_by, "}");
        break;
      case Placement::Kind::partial:
        out += "P(" + std::string(to_string(placements[i].op)) + ")";
        break;
    }
  }
  return out + "]";
}

std::string types_string(std::span<const TensorType> types) {
  std::string out;
  for (const TensorType& t : types) out += " " + shardrun::to_string(t);
  return out;
}

/// Which random stream a node draws from never decides how it can be cut. What a user's op calls
/// "key" or "seed" may be anything.
Attrs without_streams(const Node& node) {
  if (op_def(node.op).foreign) return node.attrs;
  Attrs out;
  for (const auto& [name, attr] : node.attrs.all()) {
    if (name != "key" && name != "seed") out.set(name, attr);
  }
  return out;
}

}  // namespace

std::string to_string(const SpmdRule::Option& option) {
  std::string out = to_string(option.in, false) + " -> " + to_string(option.out, true);
  return option.divisor > 0 ? out + " if parts divide " + std::to_string(option.divisor) : out;
}

SpmdRule reshape_rule(const Shape& from, const Shape& to) {
  SpmdRule rule;
  size_t i = 0, j = 0;
  while (true) {
    while (i < from.size() && from[i] == 1) ++i;  // a dim of 1 belongs to no group
    while (j < to.size() && to[j] == 1) ++j;
    if (i == from.size() || j == to.size()) break;
    // The group starts at i and j; its major dims are cut alike as long as the shards line up,
    // which they do if these dims are equal, or if the parts divide both.
    const int64_t a = from[i], b = to[j], divisor = a == b ? 0 : std::gcd(a, b);
    if (a > 1 && b > 1 && divisor != 1) {
      rule.options.push_back({{Placement::shard(static_cast<int>(i))},
                              {Placement::shard(static_cast<int>(j))},
                              divisor});
    }
    int64_t left = a, right = b;
    ++i;
    ++j;
    while (left != right) {
      if (left == 0 || right == 0) return rule;  // an empty tensor: nothing more to gain
      if (left < right) {
        if (i == from.size()) return rule;
        left *= from[i++];
      } else {
        if (j == to.size()) return rule;
        right *= to[j++];
      }
    }
  }
  for (ReduceOp op : kReduceOps) {
    rule.options.push_back({{Placement::partial(op)}, {Placement::partial(op)}});
  }
  return rule;
}

std::string rule_key(const Node& node, std::span<const TensorType> in) {
  std::string key = node.op + " |";
  if (op_def(node.op).reshapes) return key + types_string(in) + " |" + to_string(node.attrs);
  for (const TensorType& t : in) key += " " + std::string(to_string(t.dtype));
  for (const SmallNode& small : small_nodes(node, in, Evidence().size_sets, true)) {
    key += " |" + types_string(small.in) + " {" + to_string(without_streams(small.node)) + "}";
  }
  return key;
}

RuleCache::RuleCache() = default;

RuleCache::RuleCache(const std::string& file, Keep keep)
    : file_(std::make_unique<RuleFile>(file)), keep_(keep) {}

RuleCache::~RuleCache() {
  if (file_ != nullptr && keep_ == Keep::read_and_write) file_->save();
}

const SpmdRule& RuleCache::rule(const Node& node, std::span<const TensorType> in) {
  const std::string key = rule_key(node, in);
  const auto it = rules_.find(key);
  if (it != rules_.end()) return it->second;
  // What follows from shapes is derived in less time than a file is looked through.
  const bool kept = file_ != nullptr && !op_def(node.op).reshapes;
  std::optional<SpmdRule> found;
  if (kept) found = file_->find(key, node, in);
  if (found) {
    ++kept_rules_;
  } else {
    if (const auto shorter = shorter_node(node, in))
      found = lengthened_rule(rule(shorter->node, shorter->in), *shorter, node, in);
    if (!found) {
      if (on_search) on_search(node.op);
      found = discover(node, in);
    }
    kernel_runs_ += found->kernel_runs;
    if (kept) file_->add(key, node, in, *found);
  }
  return rules_.emplace(key, std::move(*found)).first->second;
}

}  // namespace shardrun
