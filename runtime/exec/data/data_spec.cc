// Which array of which file is for which field: npy:, npz:, idx: and cifar:.
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "base/tensor.h"
#include "exec/data/data_internal.h"
#include "exec/data/data_sources.h"

namespace shardrun {
namespace {

constexpr const char* kTargetNames[] = {"target", "targets", "labels", "label", "y"};
constexpr const char* kMaskNames[] = {"train_mask", "val_mask", "test_mask"};
constexpr const char* kEdges = "edge_index";

template <class List, class Name>
std::string quoted(const List& list, Name name) {
  std::string out;
  for (const auto& item : list) out += (out.empty() ? "'" : ", '") + std::string(name(item)) + "'";
  return out;
}

std::string names_of(const std::vector<BatchField>& fields) {
  return quoted(fields, [](const BatchField& f) { return f.name; });
}

std::string names_of(const NpzArchive& arrays) {
  return quoted(arrays.names(), [](const std::string& name) { return name; });
}

/// An archive and the names that its arrays go by.
struct NpzSpec {
  std::string path;
  std::map<std::string, std::string> array_of;  // by field
  NpzArchive arrays;

  NpzSpec(const std::string& spec, const std::string& rest)
      : path(split_text(rest, ',')[0]), arrays(path) {
    const std::vector<std::string> words = split_text(rest, ',');
    for (size_t i = 1; i < words.size(); ++i) {
      const size_t equals = words[i].find('=');
      SR_REQUIRE(equals != std::string::npos && equals > 0, invalid_input, "--data ", spec, ": '",
                 words[i], "' is not FIELD=ARRAY");
      const std::string field = words[i].substr(0, equals);
      SR_REQUIRE(array_of.emplace(field, words[i].substr(equals + 1)).second, invalid_input,
                 "--data ", spec, ": names an array for '", field, "' twice");
    }
  }

  /// The array for a field; null if there is none.
  const StoredArray* of(const std::string& field) const {
    if (const auto given = array_of.find(field); given != array_of.end()) {
      const StoredArray* array = arrays.find(given->second);
      SR_REQUIRE(array != nullptr, invalid_input, path, ": no array '", given->second,
                 "', wanted for '", field, "'; it has ", names_of(arrays));
      return array;
    }
    if (const StoredArray* array = arrays.find(field)) return array;
    if (!is_named_as_target(field)) return nullptr;
    for (const char* name : kTargetNames) {
      if (const StoredArray* array = arrays.find(name)) return array;
    }
    return nullptr;
  }
};

void check_dtype(const BatchField& field, const StoredArray& array) {
  const std::string one_hot = one_hot_advice(field, array.shape);
  SR_REQUIRE(!is_float_format(array) || is_float(field.type.dtype), invalid_input, array.name,
             ": elements are '", array.format, "', but the model's input '", field.name, "' is ",
             field.type, one_hot.empty() ? "; convert with astype" : one_hot);
}

/// The rows that each mask names, if there are masks.
std::optional<std::array<std::vector<int64_t>, 3>> read_masks(const NpzSpec& npz) {
  std::array<const StoredArray*, 3> masks{};
  std::string missing;
  bool any = false;
  for (size_t s = 0; s < masks.size(); ++s) {
    masks[s] = npz.arrays.find(kMaskNames[s]);
    any = any || masks[s] != nullptr;
    if (masks[s] == nullptr) missing += str(missing.empty() ? "'" : ", '", kMaskNames[s], "'");
  }
  if (!any) return std::nullopt;
  SR_REQUIRE(missing.empty(), invalid_input, npz.path, ": has masks, but no ", missing, "; it has ",
             names_of(npz.arrays), "; give train_mask, val_mask and test_mask, or none");
  std::array<std::vector<int64_t>, 3> out;
  for (size_t s = 0; s < masks.size(); ++s) {
    const StoredArray& mask = *masks[s];
    SR_REQUIRE(mask.format == "|b1" && mask.shape.size() == 1, invalid_input, mask.name, ": is ",
               to_string(mask.shape), " of '", mask.format,
               "', wanted booleans ('|b1') of one dim: astype(bool)");
    SR_REQUIRE(mask.shape == masks[0]->shape, invalid_input, mask.name, ": has ", mask.shape[0],
               " elements, but ", masks[0]->name, " has ", masks[0]->shape[0]);
    for (int64_t i = 0; i < mask.shape[0]; ++i) {
      if (mask.data[i] == 0) continue;
      for (size_t other = 0; other < s; ++other) {
        SR_REQUIRE(masks[other]->data[i] == 0, invalid_input, mask.name, ": has sample ", i,
                   ", and so has array '", kMaskNames[other],
                   "'; a sample is to be trained, validated or tested");
      }
      out[s].push_back(i);
    }
  }
  SR_REQUIRE(!out[0].empty(), invalid_input, masks[0]->name,
             ": is false everywhere: there is "
             "nothing to train on");
  return out;
}

std::unique_ptr<DataSource> open_with(ArrayData data, std::vector<BatchField> fields,
                                      const DataOptions& options) {
  bool whole = true;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (data.arrays[i].empty()) continue;
    check_dtype(fields[i], data.arrays[i].first());
    whole = whole && data.arrays[i].shape() == fields[i].type.shape;
  }
  // A graph is one batch: that its arrays are of other sizes does not make them samples.
  const bool graph =
      data.edges || (data.masks && std::any_of(fields.begin(), fields.end(), is_edge_list));
  for (size_t i = 0; graph && i < fields.size(); ++i) {
    if (data.arrays[i].empty()) continue;
    SR_REQUIRE(data.arrays[i].shape() == fields[i].type.shape, invalid_input,
               data.arrays[i].first().name, ": is ", to_string(data.arrays[i].shape()),
               ", but the model's input '", fields[i].name, "' is ",
               to_string(fields[i].type.shape),
               "; a graph is read whole: write the model for its sizes, or leave them symbolic");
  }
  if (whole || graph) return make_whole_source(std::move(data), std::move(fields), options);
  SR_REQUIRE(!options.sort_edges, invalid_input, "--data ", data.spec,
             ": sort-edges is for a graph that is one batch; the arrays are as large as the "
             "model's inputs nowhere");
  return make_sample_source(std::move(data), std::move(fields), options);
}

/// A mask has an element for each row of the targets; of the first input where a model, whose loss
/// is its own, has none.
void check_rows(const ArrayData& data, const std::vector<BatchField>& fields, const NpzSpec& npz) {
  if (!data.masks) return;
  const StoredArray& mask = *npz.arrays.find(kMaskNames[0]);
  const auto is_target = [](const BatchField& f) { return f.role == BatchField::Role::target; };
  const bool targets = std::any_of(fields.begin(), fields.end(), is_target);
  for (size_t i = 0; i < fields.size(); ++i) {
    if (targets ? !is_target(fields[i]) : i > 0 || data.arrays[i].empty()) continue;
    const StoredArray& array = data.arrays[i].first();
    SR_REQUIRE(!array.shape.empty() && array.shape[0] == mask.shape[0], invalid_input, mask.name,
               ": has ", mask.shape[0], " elements, but ", array.name, " is ",
               to_string(array.shape), "; wanted one for each of its rows");
  }
}

std::unique_ptr<DataSource> open_npz_file(const std::string& spec, const std::string& rest,
                                          std::vector<BatchField> fields,
                                          const DataOptions& options) {
  const NpzSpec npz(spec, rest);
  for (const auto& [field, array] : npz.array_of) {
    const bool known = std::any_of(fields.begin(), fields.end(),
                                   [&, f = field](const BatchField& b) { return b.name == f; });
    SR_REQUIRE(known, invalid_input, "--data ", spec, ": the model has no batch input '", field,
               "'; it has ", names_of(fields));
  }
  ArrayData data;
  data.spec = spec;
  data.masks = read_masks(npz);
  for (const BatchField& field : fields) {
    const StoredArray* array = npz.of(field.name);
    if (array == nullptr && field.name == "adjacency") {
      const StoredArray* edges = npz.of(kEdges);
      SR_REQUIRE(edges != nullptr, invalid_input, npz.path, ": no array 'adjacency', nor '", kEdges,
                 "' to make it from; it has ", names_of(npz.arrays));
      SR_REQUIRE(edges->shape.size() == 2 && edges->shape[0] == 2 && !is_float_format(*edges),
                 invalid_input, edges->name, ": is ", to_string(edges->shape), " of '",
                 edges->format, "', wanted integers [2, edges]");
      data.edges = *edges;
      data.arrays.emplace_back();
      continue;
    }
    SR_REQUIRE(array != nullptr, invalid_input, npz.path, ": no array '", field.name, "'; it has ",
               names_of(npz.arrays),
               "; name the arrays as the model's batch inputs: ", names_of(fields),
               ", or say npz:FILE,", field.name, "=ARRAY");
    data.arrays.emplace_back(*array);
  }
  check_rows(data, fields, npz);
  return open_with(std::move(data), std::move(fields), options);
}

std::unique_ptr<DataSource> open_npy_files(const std::string& spec, const std::string& list,
                                           std::vector<BatchField> fields,
                                           const DataOptions& options) {
  const std::vector<std::string> files = split_text(list, ',');
  SR_REQUIRE(files.size() == fields.size(), invalid_input, "--data ", spec, ": got ", files.size(),
             " files, wanted one for each of ", names_of(fields));
  ArrayData data;
  data.spec = spec;
  data.arrays.resize(fields.size());
  for (size_t i = 0; i < files.size(); ++i) {
    size_t field = i;
    std::string path = files[i];
    if (const size_t equals = path.find('='); equals != std::string::npos) {
      const std::string name = path.substr(0, equals);
      field = 0;
      while (field < fields.size() && fields[field].name != name) ++field;
      SR_REQUIRE(field < fields.size(), invalid_input, "--data ", spec,
                 ": the model has no batch input '", name, "'; it has ", names_of(fields));
      path = path.substr(equals + 1);
    }
    SR_REQUIRE(data.arrays[field].empty(), invalid_input, "--data ", spec,
               ": two files for input '", fields[field].name, "'");
    auto file = std::make_shared<MappedFile>(path);
    data.arrays[field].append(parse_npy(file->data(), file->size(), file, path));
  }
  return open_with(std::move(data), std::move(fields), options);
}

// ---- images and labels

/// The model's two inputs for them: images first.
std::pair<size_t, size_t> image_fields(const std::string& spec,
                                       const std::vector<BatchField>& fields) {
  const auto is_image = [](const BatchField& f) {
    return is_float(f.type.dtype) && f.type.shape.size() == 4;
  };
  const bool two = fields.size() == 2 && is_image(fields[0]) != is_image(fields[1]);
  const size_t images = two && is_image(fields[1]) ? 1 : 0;
  const bool labels =
      two && !is_float(fields[1 - images].type.dtype) && fields[1 - images].type.shape.size() == 1;
  std::string got;
  for (const BatchField& f : fields) got += str(got.empty() ? "'" : ", '", f.name, "' ", f.type);
  SR_REQUIRE(labels, invalid_input, "--data ", spec,
             ": gives floating images [batch, channels, height, width] and integer labels [batch], "
             "but the model takes ",
             got);
  return {images, 1 - images};
}

std::unique_ptr<DataSource> open_images(const std::string& spec,
                                        std::vector<std::pair<StoredArray, StoredArray>> training,
                                        std::vector<std::pair<StoredArray, StoredArray>> test,
                                        std::vector<BatchField> fields,
                                        const DataOptions& options) {
  const auto [images, labels] = image_fields(spec, fields);
  ArrayData data;
  data.spec = spec;
  data.images = true;
  data.arrays.resize(2);
  for (auto* pairs : {&training, &test}) {
    for (auto& [image, label] : *pairs) {
      const int64_t count = image.shape[0];
      SR_REQUIRE(label.shape == Shape{count}, invalid_input, label.name, ": is ",
                 to_string(label.shape), ", but ", image.name, " has ", count,
                 " images; wanted a label for each");
      if (pairs == &test) data.test += count;
      data.arrays[images].append(std::move(image));
      data.arrays[labels].append(std::move(label));
    }
  }
  for (size_t i = 0; i < 2; ++i) check_dtype(fields[i], data.arrays[i].first());
  return make_sample_source(std::move(data), std::move(fields), options);
}

std::unique_ptr<DataSource> open_idx_files(const std::string& spec, const std::string& rest,
                                           std::vector<BatchField> fields,
                                           const DataOptions& options) {
  const std::vector<std::string> files = split_text(rest, ',');
  SR_REQUIRE(files.size() == 2 || files.size() == 4, invalid_input, "--data ", spec, ": got ",
             files.size(), " files, wanted IMAGES,LABELS or IMAGES,LABELS,TEST_IMAGES,TEST_LABELS");
  std::vector<std::pair<StoredArray, StoredArray>> parts;
  for (size_t i = 0; i < files.size(); i += 2) {
    parts.emplace_back(open_idx(files[i]), open_idx(files[i + 1]));
    const Shape& shape = parts.back().first.shape;
    SR_REQUIRE(shape.size() >= 3, invalid_input, files[i], ": is ", to_string(shape),
               ", wanted images [images, height, width]");
  }
  std::vector<std::pair<StoredArray, StoredArray>> test(parts.begin() + 1, parts.end());
  parts.resize(1);
  return open_images(spec, std::move(parts), std::move(test), std::move(fields), options);
}

bool is_folder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::unique_ptr<DataSource> open_cifar_files(const std::string& spec, const std::string& rest,
                                             int labels, std::vector<BatchField> fields,
                                             const DataOptions& options) {
  std::vector<std::string> files = split_text(rest, ','), test_files;
  if (files.size() == 1 && is_folder(rest)) {
    if (labels == 1) {
      files.clear();
      for (int i = 1; i <= 5; ++i) files.push_back(str(rest, "/data_batch_", i, ".bin"));
      test_files = {rest + "/test_batch.bin"};
    } else {
      files = {rest + "/train.bin"};
      test_files = {rest + "/test.bin"};
    }
  }
  std::vector<std::pair<StoredArray, StoredArray>> training, test;
  for (const std::string& file : files) {
    CifarFile opened = open_cifar(file, labels);
    training.emplace_back(std::move(opened.images), std::move(opened.labels));
  }
  for (const std::string& file : test_files) {
    CifarFile opened = open_cifar(file, labels);
    test.emplace_back(std::move(opened.images), std::move(opened.labels));
  }
  return open_images(spec, std::move(training), std::move(test), std::move(fields), options);
}

}  // namespace

std::unique_ptr<DataSource> open_arrays(const DataSpec& spec, std::vector<BatchField> fields,
                                        const DataOptions& options) {
  const auto& [text, kind, rest] = spec;
  switch (kind) {
    case DataKind::npy: return open_npy_files(text, rest, std::move(fields), options);
    case DataKind::npz: return open_npz_file(text, rest, std::move(fields), options);
    case DataKind::idx: return open_idx_files(text, rest, std::move(fields), options);
    case DataKind::cifar: return open_cifar_files(text, rest, 1, std::move(fields), options);
    case DataKind::cifar100: return open_cifar_files(text, rest, 2, std::move(fields), options);
    case DataKind::text:
    case DataKind::tokens: break;
  }
  fail(ErrorKind::internal, "--data ", text, ": is not of arrays");
}

bool is_named_as_target(const std::string& field) {
  return std::find(std::begin(kTargetNames), std::end(kTargetNames), field) !=
         std::end(kTargetNames);
}

namespace {

/// The archive that a specification names; nullopt: it is of another kind.
std::optional<NpzSpec> archive_of(const std::string& text) {
  const std::optional<DataSpec> spec = parse_data(text);
  if (!spec || spec->kind != DataKind::npz) return std::nullopt;
  return NpzSpec(text, spec->rest);
}

bool has_masks(const NpzSpec& npz) {
  return std::any_of(std::begin(kMaskNames), std::end(kMaskNames),
                     [&](const char* name) { return npz.arrays.has(name); });
}

/// May the first dim of the arrays for these inputs be that of samples? Then it is one for all.
bool counts_samples(const NpzSpec& npz, const std::vector<std::string>& inputs) {
  std::set<int64_t> counts;
  for (const std::string& input : inputs) {
    const StoredArray* array = npz.of(input);
    if (array != nullptr && !array->shape.empty()) counts.insert(array->shape[0]);
  }
  return counts.size() <= 1;
}

}  // namespace

std::optional<Tensor> data_contents(const std::string& spec, const std::string& input,
                                    const std::vector<std::string>& inputs, bool sort_edges) {
  const std::optional<NpzSpec> npz = archive_of(spec);
  if (!npz) return std::nullopt;
  const bool one_batch = has_masks(*npz) || !counts_samples(*npz, inputs);
  const StoredArray* array = one_batch ? npz->of(input) : nullptr;
  if (array == nullptr || is_float_format(*array)) return std::nullopt;
  BatchField wide;
  wide.type = {DType::i64, array->shape};
  Tensor out(wide.type);
  load_elements(*array, array->data, 0, out.count(), wide, out.data());
  if (!sort_edges) return out;
  if (array->shape.size() != 2 || array->shape[0] != 2)
    return belongs_to_edges(input) ? std::nullopt : std::optional(out);
  const std::vector<int64_t> order = order_of_targets(*array);
  Tensor sorted(out.type());
  for (size_t i = 0; i < 2 * order.size(); ++i)
    sorted.as<int64_t>()[i] = out.as<int64_t>()[i / order.size() * order.size() +
                                                static_cast<size_t>(order[i % order.size()])];
  return sorted;
}

std::vector<std::string> files_of_data(const std::string& text) {
  const std::optional<DataSpec> spec = parse_data(text);
  if (!spec) return {};
  if (spec->kind == DataKind::text || spec->kind == DataKind::tokens) return {spec->rest};
  std::vector<std::string> files = split_text(spec->rest, ',');
  if (spec->kind == DataKind::npz) files.resize(1);
  for (std::string& file : files) {
    const size_t equals = spec->kind == DataKind::npy ? file.find('=') : std::string::npos;
    if (equals != std::string::npos) file = file.substr(equals + 1);
  }
  return files;
}

DataShapes data_shapes(const std::string& spec, const std::vector<std::string>& inputs) {
  DataShapes out;
  const std::optional<NpzSpec> npz = archive_of(spec);
  if (!npz) return out;
  for (const std::string& input : inputs) {
    if (const StoredArray* array = npz->of(input)) out.of[input] = array->shape;
  }
  out.whole = has_masks(*npz);
  return out;
}

}  // namespace shardrun
