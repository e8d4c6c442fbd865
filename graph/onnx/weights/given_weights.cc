// Which of the given tensors each value gets, and one sentence for all that does not fit.
#include "graph/onnx/weights/given_weights.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/regex.h"
#include "base/runs.h"
#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/exporter/name_prefix.h"

namespace shardrun {
namespace {

using importer::listed;
using importer::NamePrefix;

constexpr size_t kShown = 8;                     // names of each kind of mistake
constexpr int64_t kCompared = int64_t{1} << 18;  // elements at once

bool counts_batches(const std::string& name) {
  return name.substr(name.rfind('.') + 1) == "num_batches_tracked";
}

/// A tensor's elements from `first` on, as many as `shape` has. Nothing where they do not lie in a
/// row.
std::optional<Source> run_of(const Source& source, int64_t first, const Shape& shape) {
  Source out = source;
  if (source.kind == Source::Kind::file && source.perm.empty()) {
    out.offset += first * size_of(source.dtype);
    out.shape = shape;
  } else if (source.kind == Source::Kind::data && source.perm.empty()) {
    out.data = Tensor({source.data.dtype(), shape});
    const int64_t width = size_of(source.data.dtype());
    std::memcpy(out.data.data(), static_cast<const char*>(source.data.data()) + first * width,
                static_cast<size_t>(out.data.count() * width));
  } else {
    return std::nullopt;
  }
  return out;
}

bool are_equal(const GivenWeights::Tensor& a, const GivenWeights::Tensor& b) {
  if (a.shape != b.shape || !a.source || !b.source) return false;
  const int64_t count = element_count(a.shape);
  std::vector<double> x(static_cast<size_t>(std::min(count, kCompared))), y(x.size());
  const TensorType type{DType::f64, {count}};
  const bool in_order = a.source->perm == b.source->perm;
  for (int64_t first = 0; first < count && in_order; first += kCompared) {
    const int64_t some = std::min(kCompared, count - first);
    Source one = *a.source, other = *b.source;
    one.perm.clear();
    other.perm.clear();
    read_source(one, type, {{first, some}}, 0, x.data());
    read_source(other, type, {{first, some}}, 0, y.data());
    if (std::memcmp(x.data(), y.data(), static_cast<size_t>(some) * sizeof(double)) != 0)
      return false;
  }
  return in_order;
}

class Matcher {
 public:
  Matcher(const WeightMap& map, const GivenWeights& given)
      : map_(map), given_(given), except_("--weights-except", given.except) {
    find_wanted();
    find_names();
  }

  MatchedWeights run() {
    for (const auto& [value, candidates] : whole_) give_whole(value, candidates);
    for (const auto& [value, runs] : composed_) give_composed(value, runs);
    for (const auto& [name, tensor] : named_) {
      if (used_.count(name) == 0) leave(name, *tensor);
    }
    complain();
    return std::move(out_);
  }

 private:
  /// A name under which a value's numbers may be given, and how they then lie.
  struct Candidate {
    std::string name;
    Shape shape;
    bool transposed = false;
  };
  struct Run {
    const ModuleTensor* tensor;
    const ValueRun* run;
  };

  void find_wanted() {
    for (const ModuleTensor& tensor : map_.tensors) {
      const bool whole =
          tensor.runs.size() == 1 && tensor.runs[0].count == count_of(tensor.runs[0]);
      for (const ValueRun& run : tensor.runs) {
        if (whole) {
          whole_[run.value].push_back({tensor.name, tensor.type.shape, run.transposed});
        } else {
          composed_[run.value].push_back({&tensor, &run});
        }
      }
      wanted_.insert(tensor.name);
    }
    for (const auto& [name, value] : map_.values) {
      if (!value.kept || composed_.count(name) > 0) continue;
      add_own(name, value.type.shape);
    }
    for (const auto& missing : map_.missing) wanted_.insert(missing.name);
    for (const auto& count : map_.batch_counts) wanted_.insert(count.name);
  }
  /// A value's own name, which may be none of the module's.
  void add_own(const std::string& value, const Shape& shape) {
    auto& candidates = whole_[value];
    const bool known = std::any_of(candidates.begin(), candidates.end(),
                                   [&](const Candidate& c) { return c.name == value; });
    if (!known) candidates.push_back({value, shape, false});
    wanted_.insert(value);
  }
  int64_t count_of(const ValueRun& run) const {
    const auto value = map_.values.find(run.value);
    return value == map_.values.end() ? -1 : element_count(value->second.type.shape);
  }

  /// The given tensors by what the module calls them.
  void find_names() {
    std::vector<std::string> names, in_file;
    for (const auto& [name, tensor] : given_.tensors) {
      names.push_back(importer::without_compiled(name));
      in_file.push_back(name);
    }
    const NamePrefix prefix = importer::find_prefix(names, wanted_);
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string changed = prefix.apply(names[i]);
      const std::string& name = changed.empty() ? names[i] : changed;
      named_[name] = &given_.tensors.at(in_file[i]);
      in_file_[name] = in_file[i];
    }
    if (!prefix.changes()) return;
    out_.notes.push_back(
        prefix.without.empty()
            ? str(given_.origin, ": its names lack the model's '", prefix.with, "' in front")
        : prefix.with.empty()
            ? str(given_.origin, ": its names have '", prefix.without, "' in front")
            : str(given_.origin, ": its names begin with '", prefix.without, "' where the model's ",
                  "do with '", prefix.with, "'"));
  }

  const GivenWeights::Tensor* find(const std::string& name) {
    const auto found = named_.find(name);
    return found == named_.end() || is_excepted(name) ? nullptr : found->second;
  }
  bool is_excepted(const std::string& name) {
    const auto in_file = in_file_.find(name);
    return except_.first_in(name) != nullptr ||
           (in_file != in_file_.end() && except_.first_in(in_file->second) != nullptr);
  }

  // ---- a value of its own tensor

  void give_whole(const std::string& value, const std::vector<Candidate>& candidates) {
    const TensorType& type = map_.values.at(value).type;
    const Candidate* taken = nullptr;
    bool excepted = false;
    for (const Candidate& candidate : candidates) {
      excepted = excepted || is_excepted(candidate.name);
      const GivenWeights::Tensor* tensor = find(candidate.name);
      if (tensor == nullptr) continue;
      used_.insert(candidate.name);
      if (!fits(candidate.name, *tensor, {type.dtype, candidate.shape})) {
        taken = &candidate;
        continue;
      }
      if (taken == nullptr) {
        out_.sources[value] = candidate.transposed ? transposed(*tensor->source) : *tensor->source;
      } else if (!are_equal(*named_.at(taken->name), *tensor)) {
        apart_.push_back(str("'", taken->name, "' and '", candidate.name, "'"));
      }
      if (taken == nullptr) taken = &candidate;
    }
    const bool wanted = given_.complete || map_.values.at(value).kept;
    if (taken == nullptr && !excepted && wanted) missing_.push_back(candidates[0].name);
  }

  bool fits(const std::string& name, const GivenWeights::Tensor& tensor, const TensorType& wanted) {
    if (tensor.shape != wanted.shape) {
      wrong_.push_back(
          str("'", name, "' is ", to_string(tensor.shape), ", wanted ", to_string(wanted.shape)));
      return false;
    }
    if (tensor.source && is_of_kind(*tensor.source, wanted.dtype)) return true;
    wrong_.push_back(str("'", name, "' is ", tensor.dtype, ", wanted ",
                         is_float(wanted.dtype) ? "a floating type" : to_string(wanted.dtype)));
    return false;
  }
  static bool is_of_kind(const Source& source, DType wanted) {
    if (source.kind == Source::Kind::parts) return is_of_kind(source.parts[0].source, wanted);
    const DType dtype = source.kind == Source::Kind::data ? source.data.dtype() : source.dtype;
    return dtype == wanted || (is_float(dtype) && is_float(wanted));
  }

  // ---- a value that several tensors make up

  void give_composed(const std::string& value, const std::vector<Run>& runs) {
    const TensorType& type = map_.values.at(value).type;
    if (std::any_of(runs.begin(), runs.end(),
                    [&](const Run& run) { return is_excepted(run.tensor->name); }))
      return;
    Source whole;
    whole.kind = Source::Kind::parts;
    bool complete = true;
    for (const auto& [tensor, run] : runs) {
      const GivenWeights::Tensor* found = find(tensor->name);
      used_.insert(tensor->name);
      if (found == nullptr) {
        if (missing_.empty() || missing_.back() != tensor->name) missing_.push_back(tensor->name);
        complete = false;
        continue;
      }
      if (!fits(tensor->name, *found, {type.dtype, tensor->type.shape})) {
        complete = false;
        continue;
      }
      int64_t at = run->tensor_first;
      for (const Box& box : boxes_of_run(type.shape, run->first, run->count)) {
        const std::optional<Source> part = run_of(*found->source, at, box_shape(box));
        SR_REQUIRE(part, unsupported, given_.origin, ": '", tensor->name,
                   "' does not lie in one piece, of which '", value,
                   "' takes parts; give it as safetensors");
        whole.parts.push_back({box, *part});
        at += element_count(box_shape(box));
      }
    }
    if (complete) out_.sources[value] = std::move(whole);
  }

  // ---- what is left over

  void leave(const std::string& name, const GivenWeights::Tensor& tensor) {
    if (counts_batches(name) || is_excepted(name)) return;
    if (wanted_.count(name) > 0) {
      unread_.push_back(name);
      if (tensor.source) out_.sources[name] = *tensor.source;
      return;
    }
    for (const std::string& used : used_) {
      const auto other = named_.find(used);
      if (other == named_.end() || !are_equal(*other->second, tensor)) continue;
      out_.notes.push_back(
          str(given_.origin, ": '", name, "' has the numbers of '", used, "', as tied weights do"));
      return;
    }
    unexpected_.push_back(in_file_.at(name));
  }

  void complain() {
    if (!unread_.empty()) {
      out_.notes.push_back(
          str(given_.origin, ": no node of the model reads ", listed(unread_, kShown)));
    }
    std::string all;
    const auto add = [&](const std::string& what) { all += (all.empty() ? "" : "; ") + what; };
    if (!missing_.empty()) add("it lacks " + listed(missing_, kShown));
    if (!unexpected_.empty()) add("the model has nothing for its " + listed(unexpected_, kShown));
    for (size_t i = 0; i < std::min(wrong_.size(), kShown); ++i) add(wrong_[i]);
    if (wrong_.size() > kShown)
      add(str(wrong_.size() - kShown, " more have another shape or type"));
    for (const std::string& names : apart_)
      add(names + " are one weight in the model, but have other numbers there");
    SR_REQUIRE(all.empty(), invalid_input, given_.origin, ": ", all,
               "; give the weights of this model, or name with --weights-except what is to begin "
               "as the model's file has it");
    for (const std::string& pattern : given_.except) {
      std::vector<std::string> names(wanted_.begin(), wanted_.end());
      for (const auto& [name, in_file] : in_file_) names.push_back(in_file);
      Regexes one("--weights-except", {pattern});
      SR_REQUIRE(one.first_in_none(names) == nullptr, invalid_input, "--weights-except '", pattern,
                 "': no tensor of the model or of ", given_.origin, " has such a name");
    }
  }

  const WeightMap& map_;
  const GivenWeights& given_;
  Regexes except_;
  MatchedWeights out_;
  std::map<std::string, std::vector<Candidate>> whole_;  // by value
  std::map<std::string, std::vector<Run>> composed_;
  std::set<std::string> wanted_;                              // all names that mean something
  std::map<std::string, const GivenWeights::Tensor*> named_;  // by name in the module
  std::map<std::string, std::string> in_file_;                // its name there
  std::set<std::string> used_;
  std::vector<std::string> missing_, unexpected_, wrong_, apart_, unread_;
};

}  // namespace

Source transposed(Source source) {
  if (source.kind == Source::Kind::parts) {
    for (SourcePart& part : source.parts) {
      std::swap(part.box[0], part.box[1]);
      part.source = transposed(std::move(part.source));
    }
  } else if (source.perm.empty()) {
    source.perm = {1, 0};
  } else {
    source.perm.clear();
  }
  return source;
}

MatchedWeights match_weights(const WeightMap& map, const GivenWeights& given) {
  return Matcher(map, given).run();
}

}  // namespace shardrun
