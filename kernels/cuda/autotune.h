// Autotune: which of a library's algorithms was fastest for a call, measured once and kept on disk.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace shardrun::cuda {

/// One file for a GPU's name and the libraries' versions. Several processes and threads may use it
/// at once: whoever measured a call first decides for all, so that later runs, and other ranks'
/// later calls, compute the same bits. A file that is damaged, or of another format, counts as
/// empty and is written anew; one that cannot be written is done without.
///
///   Autotune tuned(folder, "NVIDIA H200, cublasLt 13.1.0");
///   algorithm = tuned.find("m64 n64 k64 bf16");
///   if (!algorithm) algorithm = tuned.keep("m64 n64 k64 bf16", measure());
class Autotune {
 public:
  /// No folder: kept in this process alone.
  Autotune(const std::string& folder, const std::string& of);

  std::optional<std::string> find(const std::string& call);
  /// What is kept for the call now: `algorithm`, or what another was first with. Neither text may
  /// hold a tab or an end of line.
  std::string keep(const std::string& call, const std::string& algorithm);

  /// A line for each call that is known.
  std::string tell();
  /// What ranks have sent of their own: the first one's for each call is everybody's from now on,
  /// and what is kept.
  void take(std::span<const std::string> of_ranks);

  const std::string& path() const { return path_; }

 private:
  void read();
  void write() const;

  std::string of_, path_;
  std::mutex mutex_;
  std::map<std::string, std::string> known_;
};

/// Which of several ways to do a call: the one that `tuned` keeps, else the fastest, which is kept
/// for later. time(i): milliseconds of a way, negative where it cannot run; asked only if
/// `may_measure`. Nullopt where nothing is known, or no way runs.
std::optional<size_t> fastest(Autotune& tuned, const std::string& call,
                              const std::vector<std::string>& ways, bool may_measure,
                              const std::function<float(size_t)>& time);

/// time(); negative where that says so or throws Error(device) or out_of_memory: a way that cannot
/// run after all is left out. `settle` forgets its error, and throws where it has broken the device
/// for all that comes after it.
float time_if_it_runs(const std::function<float()>& time, const std::function<void()>& settle);

/// The calling thread's GPU's, for a library and its version: one for the process, in the cache
/// folder.
Autotune& tuned_here(const std::string& library);

/// Of all that tuned_here has given on the calling thread's GPU: Autotune's tell and take.
std::string choices_here();
void take_choices_here(std::span<const std::string> of_ranks);
/// This machine's cache folder, which all its processes that name it share; empty if it cannot be
/// written.
std::string place_of_choices();

}  // namespace shardrun::cuda
