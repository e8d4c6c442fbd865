// Uses: which steps of one rank's Program make and read each buffer.
#pragma once

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>
#include <vector>

#include "graph/program.h"
#include "kernels/kernel.h"

namespace shardrun {

/// Who makes and reads each buffer. Steps are counted as they stand when it is made, or noted.
class Uses {
 public:
  explicit Uses(const Program& program);

  /// For who changes steps: those of [first, last) are forgotten before, and noted after.
  void forget(const Program& program, size_t first, size_t last);
  void note(const Program& program, size_t first, size_t last);

  const std::vector<size_t>& makers(BufferId b) const { return makers_[static_cast<size_t>(b)]; }
  const std::vector<size_t>& readers(BufferId b) const { return readers_[static_cast<size_t>(b)]; }
  /// Made by one step, and not by the host before.
  bool makes_alone(BufferId b) const { return makers(b).size() == 1 && !is(given_, b); }
  /// Made by one step, for other steps alone.
  bool passing(BufferId b) const { return makers(b).size() == 1 && !is(bound_, b); }
  /// Is it there before step `s`, as it is at step `to`?
  bool stands(BufferId b, size_t s, size_t to) const {
    return (makers(b).empty() || is(bound_, b) || makers(b)[0] < s) &&
           std::none_of(makers(b).begin(), makers(b).end(),
                        [&](size_t m) { return m >= s && m < to; });
  }
  /// Does it live on to step `s` without it?
  bool lives_to(BufferId b, size_t s, size_t except) const {
    return is(bound_, b) || std::any_of(readers(b).begin(), readers(b).end(),
                                        [&](size_t r) { return r >= s && r != except; });
  }
  /// Does the host or another step write it after step `from` and before step `to`?
  bool written_between(BufferId b, size_t from, size_t to) const {
    return std::any_of(makers(b).begin(), makers(b).end(),
                       [&](size_t s) { return s > from && s < to; });
  }

 private:
  static bool is(const std::vector<bool>& marked, BufferId b) {
    return marked[static_cast<size_t>(b)];
  }

  std::vector<std::vector<size_t>> makers_, readers_;
  std::vector<bool> bound_, given_;  // by buffer
};

/// Of bindings with this role.
std::set<BufferId> buffers_of(const Program& program, Role role);

bool is_kernel(const Step& step, std::string_view op);
/// The one step that makes `made`, an `op` of the phase of step `s`; null if others than `readers`
/// know of it, or what it reads is written before `s`.
const Step* made_for(const Program& program, const Uses& uses, BufferId made, std::string_view op,
                     size_t s, const std::vector<size_t>& readers);
/// Is it an optimizer's?
bool is_update(const Step& step);

/// Does the backend run a step that does more by the kernel that runs `alone`, what it was made of?
/// Null: it does.
using RunsAlike = std::function<bool(const KernelCall& more, const KernelCall& alone)>;
bool runs_alike(const Program& program, const Step& more, const Step& alone,
                const RunsAlike& asked);

/// Takes out the buffers that no step or binding knows, and gives local nodes the numbers of the
/// others. By old number the new one, -1: gone.
std::vector<BufferId> drop_unused_buffers(Program& program);

/// Takes out steps, and the buffers that no step or binding knows any more.
void remove_gone(Program& program, const std::set<size_t>& gone);

/// Calls `rewrite(uses, s, gone)` for every step s, with the uses as they are before the first
/// call, and takes out the steps that it has added to `gone`.
template <class Rewrite>
void rewrite_steps(Program& program, const Rewrite& rewrite) {
  const Uses uses(program);
  std::set<size_t> gone;
  for (size_t s = 0; s < program.steps.size(); ++s) rewrite(uses, s, gone);
  remove_gone(program, gone);
}

}  // namespace shardrun
