// The hosts that a launcher's command names, which of them answer, and the command on those alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardrun::cli {

/// One place of the list: a host may have several.
struct HostEntry {
  std::string name;              // "node7", also "user@node7"
  std::optional<int64_t> slots;  // ranks that it takes, if that is said
  std::string text;              // as it stands in the list: "node7:4", "node7 slots=4"
};

/// A command of Open MPI's mpirun, by its words, and the hosts of its --host, else of its
/// --hostfile (or --machinefile), else of a batch system's $PBS_NODEFILE or $SLURM_JOB_NODELIST.
class HostList {
 public:
  /// Knows no hosts where the command names none, is another program's, or counts them ("+n1").
  /// Throws Failure(run) if a file is no regular one or has more than 16 MiB, if Slurm's scontrol
  /// cannot be read, or if a hostfile has no host, or none that takes a rank.
  explicit HostList(std::vector<std::string> words);

  const std::vector<std::string>& words() const { return words_; }
  /// Names, each once, in their order.
  std::vector<std::string> hosts() const;
  /// Those on which the launcher, asked to run `true` there, does not succeed within `seconds`. All
  /// are asked side by side, with the command's --mca and --prefix options. `folder`: for files.
  std::vector<std::string> silent(double seconds, const std::string& folder) const;
  /// The command on all hosts but those. As many ranks as they have slots for, and no more than
  /// before: where the command has more ranks than slots, their part of them, one at least.
  /// `folder`: for a hostfile.
  ///   mpirun --host a:2,b:2 -np 4   without b:   mpirun --host a:2 -np 2
  HostList without(const std::vector<std::string>& silent, const std::string& folder) const;
  /// Of -np; 0: it is not said.
  int64_t ranks() const;

 private:
  enum class Source { none, words, file, batch };
  void read_file(const std::string& path);
  void read_hostfile(const std::string& flag, const std::string& path);
  void read_list(const std::string& list);
  void read_slurm(const std::string& nodes);
  int64_t slots() const;
  /// What to add to a launcher's words so that it takes these places; writes `file` if it must.
  std::vector<std::string> naming(const std::vector<HostEntry>& entries,
                                  const std::string& file) const;

  std::vector<std::string> words_;
  size_t program_ = 0;  // of words_, mpirun's
  Source source_ = Source::none;
  size_t named_ = 0;  // of words_: the flag of `source_`; its list is the next word
  std::vector<HostEntry> entries_;
  std::vector<std::string> excluded_;  // a hostfile's lines "^node3"
};

}  // namespace shardrun::cli
