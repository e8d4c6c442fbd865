#include "inference/run_inputs.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/tensor.h"
#include "exec/data/data_internal.h"
#include "model.h"

namespace shardrun {

GivenArrays::GivenArrays(const std::string& path) : path_(path) {
  if (path.ends_with(".npz")) {
    archive_.emplace(path);
    return;
  }
  SR_REQUIRE(path.ends_with(".npy"), invalid_input, path, ": ends in neither .npy nor .npz");
  const auto file = std::make_shared<MappedFile>(path);
  alone_ = parse_npy(file->data(), file->size(), file, path);
}

const StoredArray* GivenArrays::find(const std::string& input, size_t inputs) const {
  if (alone_) return inputs == 1 ? &*alone_ : nullptr;
  return archive_->find(input);
}

std::string GivenArrays::names() const {
  if (alone_) return "one array without a name";
  std::string out;
  for (const std::string& name : archive_->names())
    out += str(out.empty() ? "'" : ", '", name, "'");
  return out;
}

namespace {

struct GivenInput {
  const DeclaredInput* input;
  const StoredArray* array;
  bool counts() const { return !input->dims.empty(); }  // not a scalar
  const std::string& symbol() const { return input->dims[0].symbol; }
};

/// Those inputs that have an array, of the rank that the model wants.
std::vector<GivenInput> given_inputs(const std::vector<DeclaredInput>& declared,
                                     const GivenArrays& arrays) {
  std::vector<GivenInput> out;
  for (const DeclaredInput& input : declared) {
    const StoredArray* array = arrays.find(input.name, declared.size());
    if (array == nullptr) continue;
    SR_REQUIRE(array->shape.size() == input.dims.size(), invalid_input, array->name, ": is ",
               to_string(array->shape), ", the model's input '", input.name, "' has ",
               input.dims.size(), input.dims.size() == 1 ? " dim" : " dims");
    out.push_back({&input, array});
  }
  return out;
}

/// The size of dim 0 that all of these agree on; none if they do not.
template <class Size>
std::optional<int64_t> common(const std::vector<GivenInput>& given, Size&& size) {
  std::optional<int64_t> all;
  for (const GivenInput& g : given) {
    if (!g.counts()) continue;
    const int64_t one = size(g);
    if (all && *all != one) return std::nullopt;
    all = one;
  }
  return all;
}

/// Is the first dim of every input a symbol, and that symbol nothing but a first dim?
bool count_samples(const std::vector<GivenInput>& given) {
  std::set<std::string> first, others;
  for (const GivenInput& g : given) {
    if (!g.counts()) continue;
    if (g.symbol().empty()) return false;
    first.insert(g.symbol());
    for (size_t axis = 1; axis < g.input->dims.size(); ++axis)
      others.insert(g.input->dims[axis].symbol);
  }
  return !first.empty() && std::none_of(first.begin(), first.end(), [&](const std::string& symbol) {
    return others.count(symbol) > 0;
  });
}

/// Every symbol, but for those of first dims where these count samples, has its array's size.
void bind_sizes(const std::vector<GivenInput>& given, bool samples, ModelOptions& options) {
  std::map<std::string, std::string> bound_by;
  for (const GivenInput& g : given) {
    for (size_t axis = 0; axis < g.input->dims.size(); ++axis) {
      const std::string& symbol = g.input->dims[axis].symbol;
      if (symbol.empty() || (samples && axis == 0)) continue;
      const int64_t size = g.array->shape[axis];
      SR_REQUIRE(size > 0, invalid_input, g.array->name, ": is ", to_string(g.array->shape),
                 ", and dim '", symbol, "' of input '", g.input->name, "' wants at least 1");
      const auto [it, fresh] = options.dims.try_emplace(symbol, size);
      if (fresh) bound_by[symbol] = g.input->name;
      SR_REQUIRE(it->second == size, invalid_input, g.array->name, ": dim '", symbol,
                 "' of input '", g.input->name, "' is ", size, ", but ", it->second,
                 bound_by.count(symbol) > 0 ? str(" in the array for '", bound_by[symbol], "'")
                                            : std::string(" by --dim"));
    }
  }
}

/// The batch that the call names, by its symbol or --batch.
std::optional<int64_t> named_batch(const std::vector<GivenInput>& given,
                                   const ModelOptions& options) {
  if (options.batch) return options.batch;
  for (const GivenInput& g : given) {
    const auto bound = g.counts() ? options.dims.find(g.symbol()) : options.dims.end();
    if (bound != options.dims.end()) return bound->second;
  }
  return std::nullopt;
}

}  // namespace

Turns bind_to_arrays(const OnnxFile& model, const GivenArrays& arrays, ModelOptions& options) {
  const std::vector<DeclaredInput>& declared = model.declared_inputs();
  const std::vector<GivenInput> given = given_inputs(declared, arrays);
  if (given.empty() && !declared.empty()) {
    std::string names;
    for (const DeclaredInput& input : declared)
      names += str(names.empty() ? "'" : ", '", input.name, "'");
    fail(ErrorKind::invalid_input, arrays.path(), ": has ", arrays.names(),
         ", the model's inputs are ", names, "; give an .npz with an array for each");
  }
  const auto samples = common(given, [](const GivenInput& g) { return g.array->shape[0]; });
  const bool symbols = count_samples(given);
  Turns out;
  if (symbols && samples) {
    SR_REQUIRE(*samples > 0, invalid_input, arrays.path(), ": has no samples, wanted at least 1");
    out.samples = *samples;
    out.batch = named_batch(given, options).value_or(std::min(kDefaultBatch, *samples));
    for (const GivenInput& g : given) {
      if (g.counts() && out.symbols.insert(g.symbol()).second) options.dims[g.symbol()] = out.batch;
    }
    options.batch.reset();
    bind_sizes(given, true, options);
    return out;
  }
  SR_REQUIRE(!options.batch, invalid_input, "--batch ", *options.batch, ": the arrays of ",
             arrays.path(), " are one batch",
             symbols ? ": their first dims differ" : ": not every input has a symbolic first dim");
  const bool fixed = std::all_of(given.begin(), given.end(), [](const GivenInput& g) {
    return !g.counts() || g.symbol().empty();
  });
  const auto batch = common(given, [](const GivenInput& g) { return g.input->dims[0].size; });
  bind_sizes(given, false, options);
  if (!fixed || !samples || !batch || *samples == 0 || *batch == 0) return out;
  out.samples = *samples;
  out.batch = *batch;
  out.symbolic = false;
  return out;
}

RunInputs::RunInputs(const GivenArrays& arrays, std::vector<BatchField> fields, size_t inputs,
                     const Turns& turns)
    : turns_(turns), fields_(std::move(fields)) {
  for (const BatchField& field : fields_) {
    const StoredArray* array = arrays.find(field.name, inputs);
    SR_REQUIRE(array != nullptr, invalid_input, arrays.path(),
               ": has no array for the model's input '", field.name, "' ", field.type, "; it has ",
               arrays.names());
    Shape wanted = field.type.shape;
    if (turns_.samples != 0 && !wanted.empty()) wanted[0] = turns_.samples;
    SR_REQUIRE(array->shape == wanted, invalid_input, array->name, ": is ", to_string(array->shape),
               ", the model's input '", field.name, "' wants ", to_string(wanted));
    // Bytes are the numbers that they are, as x.float() has them.
    const bool bytes = array->format == "|u1";
    SR_REQUIRE(is_float_format(*array) == is_float(field.type.dtype) || bytes, invalid_input,
               array->name, ": its elements are '", array->format, "', the model's input '",
               field.name, "' is of ", field.type.dtype, "; convert with astype");
    Input input{Samples(*array), nullptr};
    input.reader = plain_reader(input.samples, field);
    inputs_.emplace(field.name, std::move(input));
  }
}

void RunInputs::read(int64_t turn, const BatchField& field, const Box& box, void* out) const {
  const Input& input = inputs_.at(field.name);
  if (is_empty(box)) return;
  const int64_t width = size_of(field.type.dtype);
  const auto refuse_nan = [&](int64_t sample, std::span<const Range> inner, const void* made) {
    if (field.type.dtype != DType::f32) return;
    const float* values = static_cast<const float*>(made);
    for (int64_t i = 0; i < count_in(inner); ++i) {
      SR_REQUIRE(!std::isnan(values[i]), invalid_input, input.samples.first().name, ": sample ",
                 sample, " has a NaN, which input '", field.name, "' does not take");
    }
  };
  if (box.empty()) {
    input.reader->read({}, {}, out);
    return refuse_nan(0, {}, out);
  }
  const std::span inner = std::span(box).subspan(1);
  const int64_t elements = count_in(inner);
  for (int64_t row = box[0].begin; row < box[0].end(); ++row) {
    const int64_t sample =
        turns_.samples == 0 ? row : std::min(turn * turns_.batch + row, turns_.samples - 1);
    char* to = static_cast<char*>(out) + (row - box[0].begin) * elements * width;
    input.reader->read({sample, Split::validation, 0}, inner, to);
    refuse_nan(sample, inner, to);
  }
}

}  // namespace shardrun
