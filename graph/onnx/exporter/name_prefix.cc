#include "graph/onnx/exporter/name_prefix.h"

#include <algorithm>
#include <map>

#include "graph/onnx/exporter/exporter_names.h"

namespace shardrun::importer {
namespace {

constexpr size_t kLookedAt = 100;  // names without a match
constexpr size_t kTried = 8;       // changes

/// How many bytes of whole components "b.weight" they end alike with.
size_t common_end(const std::string& a, const std::string& b) {
  size_t same = 0, whole = 0;
  while (same < a.size() && same < b.size() && a[a.size() - 1 - same] == b[b.size() - 1 - same]) {
    if (a[a.size() - 1 - same] == '.') whole = same;
    ++same;
  }
  const bool begins_a = same == a.size() || a[a.size() - 1 - same] == '.';
  const bool begins_b = same == b.size() || b[b.size() - 1 - same] == '.';
  return begins_a && begins_b ? same : whole;
}

}  // namespace

std::string NamePrefix::apply(const std::string& name) const {
  return name.starts_with(without) ? with + name.substr(without.size()) : "";
}

std::string without_compiled(const std::string& name) {
  static const std::string compiled = "_orig_mod.";
  std::string out = name;
  for (size_t at = out.find(compiled); at != std::string::npos; at = out.find(compiled, at)) {
    if (at == 0 || out[at - 1] == '.') {
      out.erase(at, compiled.size());
    } else {
      ++at;
    }
  }
  return out;
}

NamePrefix find_prefix(const std::vector<std::string>& names, const std::set<std::string>& wanted) {
  const auto matches = [&](const NamePrefix& prefix) {
    return std::count_if(names.begin(), names.end(), [&](const std::string& name) {
      return wanted.count(prefix.apply(name)) > 0;
    });
  };
  std::map<std::string, std::vector<std::string>> by_leaf;
  for (const std::string& name : wanted) by_leaf[last_name(name)].push_back(name);
  std::map<std::pair<std::string, std::string>, int> votes;
  size_t looked_at = 0;
  for (const std::string& name : names) {
    const auto alike = by_leaf.find(last_name(name));
    if (wanted.count(name) > 0 || alike == by_leaf.end() || ++looked_at > kLookedAt) continue;
    for (const std::string& other : alike->second) {
      const size_t same = common_end(name, other);
      ++votes[{name.substr(0, name.size() - same), other.substr(0, other.size() - same)}];
    }
  }
  std::vector<std::pair<int, NamePrefix>> tried;
  tried.reserve(votes.size());
  for (const auto& [prefix, count] : votes) tried.push_back({count, {prefix.first, prefix.second}});
  std::stable_sort(tried.begin(), tried.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  tried.resize(std::min(tried.size(), kTried));
  NamePrefix best;
  auto most = matches(best);
  for (const auto& [count, prefix] : tried) {
    if (const auto found = matches(prefix); found > most) {
      most = found;
      best = prefix;
    }
  }
  return best;
}

}  // namespace shardrun::importer
