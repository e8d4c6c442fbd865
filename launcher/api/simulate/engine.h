// Simulation: tasks on streams in virtual time. Knows no program, no cluster and no units but
// seconds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shardrun {

/// What a task is to its lane: work of the host, a kernel, or bytes on their way to other lanes.
enum class TaskKind : uint8_t { host, kernel, communication };

/// The link that a communication loads. Those that a lane has on one link at once share it alike.
enum class TaskLink : uint8_t { none, within_node, between_nodes };

struct SimTask {
  int stream = 0;
  TaskKind kind = TaskKind::kernel;
  double seconds = 0;  // with nothing else running
  int meeting = -1;    // of add_meeting: a task of several lanes; -1: of its own alone
  TaskLink link = TaskLink::none;
};

/// When a task could have begun for its own lane, when it began (later, where others of its meeting
/// came later) and when it ended.
struct SimSpan {
  double ready = 0, begin = 0, end = 0;
};

/// Where the time of a lane goes. The five add up to the makespan.
struct LaneTimes {
  double compute = 0;  // a kernel runs
  double exposed = 0;  // none does, but a communication
  double waiting = 0;  // neither, but one waits for other lanes to come to it
  double host = 0;     // nor that, and the host works
  double bubble = 0;   // none of these: the lane has nothing to do yet, or any more
};

/// Equal ranks are one lane. A lane has streams, and a stream runs its tasks in the order in which
/// they were added. A task begins when the one before it on its stream and all that it is `after`
/// have ended. Tasks of one meeting begin when the last of them could, run as long as the longest,
/// and end together, as a collective does.
///
///     Simulation sim(1.1);  // kernels take 1.1 times as long during communication
///     const int compute = sim.add_stream(0), links = sim.add_stream(0);
///     const int product = sim.add({compute, TaskKind::kernel, 2e-3});
///     const std::vector<int> after = {product};
///     sim.add({links, TaskKind::communication, 3e-3, -1, TaskLink::within_node}, after);
///     sim.add({compute, TaskKind::kernel, 1e-3});  // at the same time
///     sim.run();
///     sim.makespan();  // 5e-3
class Simulation {
 public:
  /// `overlap_slowdown`: how many times as long a kernel takes while its lane communicates; at
  /// least 1.
  explicit Simulation(double overlap_slowdown = 1) : overlap_slowdown_(overlap_slowdown) {}

  int add_stream(int lane);  // lanes count from 0
  int add_meeting();
  /// The task's number. `after`: of tasks that were added before.
  int add(const SimTask& task, std::span<const int> after = {});

  /// Once. Throws internal where tasks wait for each other for ever.
  void run();

  double makespan() const { return makespan_; }
  const std::vector<SimTask>& tasks() const { return tasks_; }
  const std::vector<SimSpan>& spans() const { return spans_; }
  int lane_of(int task) const { return lanes_of_[at(tasks_[at(task)].stream)]; }
  LaneTimes times(int lane) const;
  /// What the tasks of the busiest stream take one after the other, and all tasks of the lane that
  /// has most of them: the makespan lies between the two where nothing is slowed or waited for.
  double busiest_stream() const;
  double serial_sum() const;

 private:
  static size_t at(int index) { return static_cast<size_t>(index); }
  struct Run;

  double overlap_slowdown_;
  std::vector<int> lanes_of_;  // by stream
  std::vector<int> last_;      // by stream: its last task, or -1
  int lanes_ = 0;
  std::vector<SimTask> tasks_;
  std::vector<int> after_, after_end_;  // of all tasks, and by task where its own end
  std::vector<std::vector<int>> meetings_;
  std::vector<SimSpan> spans_;
  double makespan_ = 0;
};

}  // namespace shardrun
