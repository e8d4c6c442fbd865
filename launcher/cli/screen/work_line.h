// WorkLine: what a command is at while it takes long.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace shardrun::cli {

/// On a terminal one line, from the first second on, that is written over each second and when the
/// work goes on, and goes when it ends: "planning, 3 s: finding out how conv can be cut". On a pipe
/// a line for each part of the work, and nothing of what it is at within one.
class WorkLine {
 public:
  /// `doing`: "planning". Shows nothing at all unless `shown`.
  WorkLine(std::string doing, bool shown);
  ~WorkLine() { end(); }
  WorkLine(const WorkLine&) = delete;
  WorkLine& operator=(const WorkLine&) = delete;

  /// The work goes on with this part.
  void part(const std::string& name);
  /// It is at this, of the part if it has any. Calls that follow closely are not all shown.
  void at(const std::string& what);
  /// What `print` prints stays, in place of the line, which is drawn again later.
  void above(const std::function<void()>& print);
  void end();

 private:
  using Clock = std::chrono::steady_clock;

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  void draw();
  void clear();

  std::string doing_, part_, what_;
  bool shown_, terminal_, written_ = false;
  Clock::time_point begin_ = Clock::now();
  double last_ = 0;  // s, when the line was written
  bool ended_ = false;
  std::mutex mutex_;  // of all but the first two lines
  std::condition_variable ends_;
  std::thread clock_;  // draws each second, whatever the work says
};

}  // namespace shardrun::cli
