// RuleFile: what discovery found, kept from run to run.
//
// The file is data that may be damaged, or made by another program: it has a checksum and the
// version of the sources that rules follow from, only files that nobody else can write are read,
// and an option counts only if it can be one of the node's. What is wrong counts as none.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "planner/rules/discovery.h"

namespace shardrun {

/// The file of this user in the cache folder; "" where there is no cache (cache_folder()).
std::string rule_file_path();

class RuleFile {
 public:
  /// Reads `path`. A file that is missing, damaged, of another version or writable by others is
  /// empty. "": keeps nothing.
  explicit RuleFile(std::string path);

  RuleFile(const RuleFile&) = delete;
  RuleFile& operator=(const RuleFile&) = delete;

  /// The rule of a node with this rule_key, or nullopt if the file has none that the node can have.
  std::optional<SpmdRule> find(const std::string& key, const Node& node,
                               std::span<const TensorType> in);
  /// Keeps the rule for save(). A user's op has none here: what its library does may change.
  void add(const std::string& key, const Node& node, std::span<const TensorType> in,
           const SpmdRule& rule);
  /// Writes what was added, with what other processes have written since. One that is larger than
  /// 16 MiB is left with what this one has used. Nothing is written where nothing was added, or
  /// where it cannot be.
  void save() noexcept;

 private:
  /// Encoded rules by key, in `bytes`: the file is large, and few of its rules are used.
  using Entries = std::map<std::string_view, std::string_view>;
  static Entries entries_of(const std::string& bytes);
  void write(const Entries& entries) const;

  const std::string path_, bytes_;
  const Entries entries_;                    // of the file
  std::map<std::string, std::string> used_;  // by this process, those of the file among them
  bool added_ = false;
};

}  // namespace shardrun
