// Looking at every result, then back from what was found.
#include "train/not_finite.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "graph/passes/recompute.h"
#include "ranks/world.h"

namespace shardrun {
namespace {

std::string text_of(const std::vector<int64_t>& element) {
  std::string out = "[";
  for (size_t d = 0; d < element.size(); ++d) out += str(d == 0 ? "" : ", ", element[d]);
  return out + "]";
}

/// Operations that make infinities on purpose.
constexpr std::array kMeant = {"fill", "where", "iota"};

}  // namespace

NotFinite::NotFinite(Executor& executor, const Graph& graph, const Plan& plan)
    : executor_(executor), graph_(graph), plan_(plan), forward_(graph.nodes().size(), false) {
  for (size_t v = 0; v < graph.values().size(); ++v)
    values_.emplace(graph.values()[v].name, static_cast<ValueId>(v));
  for (size_t n = 0; n < graph.nodes().size(); ++n)
    nodes_.emplace(graph.nodes()[n].name, static_cast<NodeId>(n));
  std::vector<ValueId> wanted;
  if (graph.loss != kNoValue) wanted.push_back(graph.loss);
  while (!wanted.empty()) {
    const NodeId maker = graph.value(wanted.back()).producer;
    wanted.pop_back();
    if (maker < 0 || forward_[static_cast<size_t>(maker)]) continue;
    forward_[static_cast<size_t>(maker)] = true;
    const std::vector<ValueId>& read = graph.node(maker).inputs;
    wanted.insert(wanted.end(), read.begin(), read.end());
  }
  executor_.on_step([this](size_t step, std::span<const TensorView> results) {
    Event event{step, {}, nullptr};
    for (const TensorView& result : results) event.out.push_back(scan(executor_.read(result)));
    const std::vector<BufferId>& made = executor_.program().steps[step].out;
    for (size_t r = 0; r < made.size(); ++r) writes_[made[r]].push_back({events_.size(), r});
    events_.push_back(std::move(event));
  });
}

NotFinite::~NotFinite() { executor_.on_step(nullptr); }

NotFinite::Seen NotFinite::scan(const Tensor& tensor) {
  Seen seen;
  if (!is_float(tensor.type().dtype)) return seen;
  const TensorView view = tensor.view();
  dispatch_float(view.type.dtype, [&](auto tag) {
    const auto* const at = view.as<typename decltype(tag)::type>();
    for (int64_t i = 0; i < view.count(); ++i) {
      const auto number = static_cast<double>(at[i]);
      if (std::isfinite(number)) continue;
      const bool nan = std::isnan(number);
      int64_t& first = nan ? seen.first_nan : seen.first_infinity;
      if (first < 0) first = i;
      ++(nan ? seen.nans : seen.infinities);
    }
  });
  return seen;
}

/// The batch does not outlive its micro-batch; the rest is looked at when it is wanted.
void NotFinite::look_at_batch(Origin origin) {
  origin_ = std::move(origin);
  events_.clear();
  writes_.clear();
  for (const Binding& binding : executor_.program().bindings) {
    Event event{std::nullopt, {}, &binding};
    if (binding.role == Role::batch) event.out.push_back(scan(executor_.read(binding)));
    writes_[binding.buffer].push_back({events_.size(), 0});
    events_.push_back(std::move(event));
  }
}

const NotFinite::Seen& NotFinite::seen(const Value& value) const {
  Event& event = events_[value.event];
  if (event.out.empty()) {
    // The host sets scalars, NaN among them where nothing is to be updated.
    const bool scalar = event.binding->role == Role::scalar;
    event.out.push_back(scalar ? Seen() : scan(executor_.read(*event.binding)));
  }
  return event.out[value.result];
}

/// Where a search begins: what has become of the metrics and of what is accumulated.
std::vector<NotFinite::Value> NotFinite::ends(const std::vector<std::string>& metrics) const {
  std::vector<Value> out;
  const Program& program = executor_.program();
  const auto offset = [&](BufferId b) { return program.buffers[static_cast<size_t>(b)].offset; };
  const auto add = [&](const Binding& binding, bool by_place) {
    for (size_t e = events_.size(); e-- > 0 && events_[e].step;) {
      const std::vector<BufferId>& made = program.steps[*events_[e].step].out;
      for (size_t r = 0; r < made.size(); ++r) {
        if (by_place ? offset(made[r]) != offset(binding.buffer) : made[r] != binding.buffer)
          continue;
        if (seen({e, r})) out.push_back({e, r});
        return;
      }
    }
  };
  for (const std::string& metric : metrics) {
    if (const Binding* binding = executor_.find_metric(metric)) add(*binding, false);
  }
  for (const Binding& binding : program.bindings) {
    if (binding.zeroed_each_step) add(binding, true);
  }
  return out;
}

bool NotFinite::found(const std::vector<std::string>& metrics) const {
  const std::optional<Value> made = first_here(metrics);
  return made && !is_carried(*made);
}

/// Of this rank.
std::optional<NotFinite::Value> NotFinite::first_here(
    const std::vector<std::string>& metrics) const {
  std::optional<Value> first;
  for (const Value& end : ends(metrics)) {
    const std::optional<Value> made = origin(end);
    if (made && (!first || is_before(*made, *first))) first = made;
  }
  return first;
}

bool NotFinite::is_before(const Value& a, const Value& b) const {
  return std::pair(is_carried(a), a.event) < std::pair(is_carried(b), b.event);
}

BufferId NotFinite::buffer_of(const Value& value) const {
  const Event& event = events_[value.event];
  if (!event.step) return event.binding->buffer;
  return executor_.program().steps[*event.step].out[value.result];
}

std::optional<NotFinite::Value> NotFinite::last_write(BufferId buffer, size_t before) const {
  const auto found = writes_.find(buffer);
  if (found == writes_.end()) return std::nullopt;
  const std::vector<Value>& all = found->second;
  const auto end =
      std::find_if(all.begin(), all.end(), [&](const Value& v) { return v.event >= before; });
  return end == all.begin() ? std::nullopt : std::optional(*std::prev(end));
}

/// Those with a NaN, or with an infinity.
std::vector<NotFinite::Value> NotFinite::operands(const Value& value, bool nans) const {
  std::vector<Value> out;
  const Event& event = events_[value.event];
  if (!event.step) return out;
  for (const BufferId read : executor_.program().steps[*event.step].in) {
    const std::optional<Value> operand = last_write(read, value.event);
    if (operand && (nans ? seen(*operand).nans : seen(*operand).infinities) > 0)
      out.push_back(*operand);
  }
  return out;
}

bool NotFinite::is_meant(const Value& value) const {
  if (seen(value).nans > 0) return false;
  const Event& event = events_[value.event];
  if (!event.step) return event.binding->role == Role::constant;
  const std::string& op = executor_.program().steps[*event.step].node.op;
  return std::find(kMeant.begin(), kMeant.end(), op) != kMeant.end();
}

/// Is it state that forward() changes? The step that is made again has changed it once already.
bool NotFinite::is_carried(const Value& value) const {
  const Event& event = events_[value.event];
  return !event.step && event.binding->role == Role::state;
}

/// The earliest of all that it comes from, state only where there is nothing else; none if that is
/// all meant.
std::optional<NotFinite::Value> NotFinite::origin(const Value& value) const {
  std::set<std::pair<size_t, size_t>> met;
  std::vector<Value> stack{value};
  std::optional<Value> first;
  const auto offer = [&](const Value& made) {
    if (!is_meant(made) && (!first || is_before(made, *first))) first = made;
  };
  while (!stack.empty()) {
    const Value at = stack.back();
    stack.pop_back();
    if (!met.emplace(at.event, at.result).second) continue;
    std::vector<Value> from = operands(at, true);
    if (seen(at).nans == 0 || from.empty()) {
      std::vector<Value> infinite = operands(at, false);
      // A NaN of infinities that are meant is made here.
      const bool born = seen(at).nans > 0 && from.empty();
      if (born) std::erase_if(infinite, [&](const Value& v) { return !origin(v); });
      from.insert(from.end(), infinite.begin(), infinite.end());
    }
    if (from.empty()) offer(at);
    stack.insert(stack.end(), from.begin(), from.end());
  }
  return first;
}

/// Of the whole value where it is known how it lies, else of this rank's shard.
std::string NotFinite::element(const Value& value, int64_t flat) const {
  const Program& program = executor_.program();
  const Buffer& buffer = program.buffers[static_cast<size_t>(buffer_of(value))];
  const Shape& shape = buffer.type.shape;
  std::vector<int64_t> at(shape.size());
  for (size_t d = shape.size(); d-- > 0; flat /= shape[d]) at[d] = flat % shape[d];
  const Binding* const bound = events_[value.event].binding;
  const auto known = values_.find(buffer.name);
  const auto lies = plan_.values.find(buffer.name);
  std::optional<Box> box;
  if (bound != nullptr) {
    box = bound->box;
  } else if (known != values_.end() && lies != plan_.values.end()) {
    box = local_box(graph_.type(known->second).shape, lies->second, program.mesh,
                    program.mesh.coordinates(program.rank));
  }
  bool fits = box && box->size() == shape.size();
  for (size_t d = 0; fits && d < shape.size(); ++d) fits = (*box)[d].size == shape[d];
  for (size_t d = 0; fits && d < shape.size(); ++d) at[d] += (*box)[d].begin;
  return text_of(at) + (fits || program.mesh.size() == 1 ? "" : " of the rank's shard");
}

/// " (a.npz: array 'x', row 7)", where an input's element comes from a row of a file.
std::string NotFinite::row_of_batch(const Value& value, int64_t flat) const {
  const Event& event = events_[value.event];
  if (event.step || event.binding->role != Role::batch || event.binding->box.empty()) return "";
  const Shape& shape =
      executor_.program().buffers[static_cast<size_t>(buffer_of(value))].type.shape;
  const int64_t row = flat / (element_count(shape) / shape[0]) + event.binding->box[0].begin;
  const std::string from = origin_(event.binding->name, row);
  return from.empty() ? "" : " (" + from + ")";
}

std::string_view NotFinite::part_of_step(const Node& node) const {
  if (node.name.rfind(kAgain, 0) == 0) return "computed again for the backward pass";
  const auto found = nodes_.find(node.name);
  if (found == nodes_.end()) return "";
  if (graph_.node(found->second).phase == Phase::update) return "in the update";
  return forward_[static_cast<size_t>(found->second)] ? "in the forward pass"
                                                      : "in the backward pass";
}

std::string NotFinite::describe(const Value& value) const {
  const Program& program = executor_.program();
  const Event& event = events_[value.event];
  const Seen& holds = seen(value);
  const Buffer& buffer = program.buffers[static_cast<size_t>(buffer_of(value))];
  std::string what, why;
  if (!event.step) {
    const Role role = event.binding->role;
    what = str(role == Role::batch       ? "input"
               : role == Role::parameter ? "parameter"
               : role == Role::constant  ? "constant"
                                         : "state",
               " '", event.binding->name, "'");
  } else {
    const Step& step = program.steps[*event.step];
    const std::string op =
        step.collective ? std::string(to_string(step.collective->kind)) : step.node.op;
    const std::string_view part = part_of_step(step.node);
    what = str("'", buffer.name, "' (", op, part.empty() ? "" : " ", part, ")");
    if (op == "div" && holds.nans > 0) why = "; 0 / 0 is one, as in a mean of nothing";
  }
  const bool nan = holds.nans > 0;
  const std::string found =
      str("the first value that is not finite is ", what, ": ", nan ? "NaN" : "an infinity");
  if (buffer.type.shape.empty())
    return found + (program.mesh.size() > 1 ? str(" on rank ", program.rank) : "") + why;
  const int64_t first = nan ? holds.first_nan : holds.first_infinity;
  return str(found, " in ", nan ? holds.nans : holds.infinities, " of ",
             element_count(buffer.type.shape), " elements",
             program.mesh.size() > 1 ? str(" on rank ", program.rank) : "", ", the first at ",
             element(value, first), row_of_batch(value, first), why);
}

NotFinite::First NotFinite::first(Communicator& host,
                                  const std::vector<std::string>& metrics) const {
  const std::optional<Value> own = first_here(metrics);
  // Ranks have the same collectives, and between them kernels of their own.
  constexpr int64_t kNone = int64_t{1} << 40, kCarried = kNone / 2;
  std::array<int64_t, 3> mine{kNone, 0, 0};
  if (own) {
    const Event& event = events_[own->event];
    mine = {is_carried(*own) ? kCarried : 0, static_cast<int64_t>(own->event),
            !event.step && event.binding->role == Role::batch ? 1 : 0};
    for (size_t e = 0; e < own->event; ++e) {
      const std::optional<size_t>& step = events_[e].step;
      mine[0] += step && executor_.program().steps[*step].collective;
    }
  }
  std::vector<std::array<int64_t, 3>> all(static_cast<size_t>(host.size()));
  host.all_gather(mine.data(), all.data(), std::vector<int64_t>(all.size(), 3), DType::i64);
  const auto earliest = std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a[0], a[1]) < std::pair(b[0], b[1]);
  });
  if ((*earliest)[0] == kNone) return {};
  std::string text = own ? describe(*own) : "";
  broadcast_text(host, text, static_cast<int>(earliest - all.begin()));
  return {text, (*earliest)[2] != 0};
}

}  // namespace shardrun
