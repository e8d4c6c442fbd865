// NotFinite: finds the first value of a step that is not finite.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator.h"
#include "exec/executor.h"
#include "graph/graph.h"
#include "graph/plan.h"

namespace shardrun {

/// Follows one rank's executor, step by step, while a step of training or a pass is made again:
///
///   NotFinite search(executor, graph, plan);
///   fill(batch), search.look_at_batch(origin);
///   executor.run_micro();
///   throw Failure(… + search.first(comm, {"loss"}).text);
///
/// Infinities may be meant, as those of a mask are: only what the metric's own value comes from
/// counts. Back from the metric, what is NaN comes from operands that are NaN, if there are any,
/// and else from infinite ones; what is infinite comes from operands that are. Where there are
/// none, the first number that is not finite was made. Example, masked attention whose scores
/// overflow:
///
///   scores = q k         inf       the first
///   masked = scores + m  inf, -inf; m is meant
///   y = softmax(masked)  NaN       inf - inf
class NotFinite {
 public:
  /// Until it goes, `executor` runs step by step and shows what each leaves. `plan` is the one that
  /// its Program is of, and `graph` what that is for.
  NotFinite(Executor& executor, const Graph& graph, const Plan& plan);
  ~NotFinite();
  NotFinite(const NotFinite&) = delete;
  NotFinite& operator=(const NotFinite&) = delete;

  /// Where a row of an input comes from: "a.npz: array 'x', row 7"; "": not known.
  using Origin = std::function<std::string(const std::string& input, int64_t row)>;
  /// The batch is there, and its micro-batch about to run. What was seen of the one before is
  /// forgotten: it had found nothing.
  void look_at_batch(Origin origin);
  /// Has the micro-batch left anything that is not finite, in these metrics or in what is
  /// accumulated, and not only for state that was so before? On this rank.
  bool found(const std::vector<std::string>& metrics) const;

  struct First {
    std::string text;       // "the first value that is not finite is …"; "" if there is none
    bool in_batch = false;  // it came with the data
  };
  /// The first of all ranks that those come from: the same on every rank. Collective.
  First first(Communicator& host, const std::vector<std::string>& metrics) const;

 private:
  /// What a tensor holds that is not finite.
  struct Seen {
    int64_t nans = 0, infinities = 0;
    int64_t first_nan = -1, first_infinity = -1;  // elements
    explicit operator bool() const { return nans + infinities > 0; }
  };
  /// A step that has run, or, without one, a binding that the program reads.
  struct Event {
    std::optional<size_t> step;
    std::vector<Seen> out;  // empty: of a binding that has not been looked at
    const Binding* binding = nullptr;
  };
  struct Value {
    size_t event = 0, result = 0;
  };
  static Seen scan(const Tensor& tensor);
  BufferId buffer_of(const Value& value) const;
  const Seen& seen(const Value& value) const;
  std::vector<Value> ends(const std::vector<std::string>& metrics) const;
  std::optional<Value> last_write(BufferId buffer, size_t before) const;
  std::vector<Value> operands(const Value& value, bool nans) const;
  bool is_meant(const Value& value) const;
  bool is_carried(const Value& value) const;
  bool is_before(const Value& a, const Value& b) const;
  std::optional<Value> first_here(const std::vector<std::string>& metrics) const;
  std::optional<Value> origin(const Value& value) const;
  std::string element(const Value& value, int64_t flat) const;
  std::string row_of_batch(const Value& value, int64_t flat) const;
  std::string describe(const Value& value) const;
  std::string_view part_of_step(const Node& node) const;

  Executor& executor_;
  const Graph& graph_;
  const Plan& plan_;
  std::map<std::string, ValueId> values_;
  std::map<std::string, NodeId> nodes_;
  std::vector<bool> forward_;  // by node: does the loss depend on it?
  mutable std::vector<Event> events_;
  std::map<BufferId, std::vector<Value>> writes_;  // in the order of events
  Origin origin_;
};

}  // namespace shardrun
