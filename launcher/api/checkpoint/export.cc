// Trained weights, written as the formats of others have them.
#include <algorithm>
#include <filesystem>

#include "checkpoint/resume.h"
#include "checkpoint/trained_model.h"
#include "checkpoint/trained_numbers.h"
#include "checkpoint/weights.h"
#include "contents.h"
#include "exec/checkpoint/folder.h"
#include "exec/safetensors_folder.h"
#include "files.h"
#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/file/byte_edits.h"
#include "graph/onnx/weights/given_weights.h"
#include "graph/optimizer.h"
#include "model.h"
#include "ranks/world.h"
#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

std::string checkpoint_named(const std::string& path) {
  const std::string out = checkpoint_meant(path);
  SR_REQUIRE(!out.empty(), invalid_input, path, ": ",
             !fs::exists(path)         ? "no such folder"
             : !fs::is_directory(path) ? "is a file, wanted a checkpoint or a folder of them"
                                       : "holds no checkpoint");
  return out;
}

/// `f`, which finds that a checkpoint is damaged: then the newest whole one before it is named.
template <class F>
auto or_name_older(const std::string& checkpoint, const F& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw Error(ErrorKind::invalid_input, with_older(e.what(), checkpoint, "export that:"));
  }
}

/// Without it Hugging Face's from_pretrained refuses a file.
const std::map<std::string, std::string> kFormat = {{"format", "pt"}};

/// A tensor of a safetensors file.
struct Written {
  SafetensorsTensor tensor;
  importer::Numbers numbers;
};

class Export {
 public:
  explicit Export(const ExportRequest& request)
      : request_(request),
        from_(open_checkpoint(checkpoint_named(request.checkpoint))),
        checkpoint_(from_.checkpoint),
        state_(from_.state),
        manifest_file_(str(checkpoint_.path(), "/", Manifest::kFile)),
        trained_(read_trained_model(state_.model, str(manifest_file_, ": run.model"))) {
    report_.checkpoint = checkpoint_.path();
    report_.step = checkpoint_.manifest().step;
    find_model();
    find_given();
    numbers_.emplace(checkpoint_, map_, given_, options_.seed);
  }

  ExportReport run() {
    const fs::path output(request_.output);
    SR_REQUIRE(request_.tied.empty() || output.extension() != ".onnx", invalid_input,
               "--tied: ", request_.output, " is the model's file, in which a weight has one name");
    SR_REQUIRE(!output.empty(), invalid_input, "export: names no output");
    if (output.extension() == ".onnx") {
      write_model();
    } else if (output.extension() == ".safetensors" && !fs::is_directory(output)) {
      write_file();
    } else {
      SR_REQUIRE(output.extension().empty() || fs::is_directory(output) || !output.has_filename(),
                 invalid_input, "export: cannot tell what '", request_.output,
                 "' is to be; name FILE.onnx, FILE.safetensors or a folder");
      write_folder();
    }
    return std::move(report_);
  }

 private:
  static Resumed open_checkpoint(const std::string& path) {
    return or_name_older(path, [&] { return open_resumed(path); });
  }

  // ---- where the numbers are

  void find_model() {
    const std::string path = request_.model.empty() ? trained_.path : request_.model;
    SR_REQUIRE(fs::exists(path), invalid_input, checkpoint_.path(), ": was trained from ", path,
               ", which is not there; say with --model where it is now");
    for (const std::string& library : trained_.ops) load_ops(library);
    model_ = path;
    SR_REQUIRE(fingerprint_of(model_.file()) == trained_.fingerprint, invalid_input, path,
               ": is not the model that ", checkpoint_.path(),
               " was trained from, or has changed since; say with --model where that is");
    options_ = model_options_of(state_.options, str(manifest_file_, ": run.options"));
    ImportOptions import = import_options(options_);
    import.contents = nullptr;
    map_ = model_.file().map_weights(import);
  }

  /// What the run was given with --weights and no checkpoint has: constants, which cannot be done
  /// without, and tensors of the module that the model does not read.
  void find_given() {
    const std::string& named = request_.weights;
    SR_REQUIRE(named.empty() || fs::exists(named), invalid_input, "--weights ", named,
               ": no such file or folder");
    if (trained_.given.empty()) return;
    weights_path_ = request_.weights.empty() ? trained_.weights : request_.weights;
    const bool is_there = fs::exists(weights_path_);
    if (is_there && blocks_hash(files_of_weights(weights_path_)) == trained_.weights_fingerprint) {
      given_ = match_weights(map_, find_weights(weights_path_, trained_.except, true)).sources;
      return;
    }
    for (const std::string& name : trained_.given) {
      const auto value = map_.values.find(name);
      SR_REQUIRE(value == map_.values.end() || value->second.kept, invalid_input,
                 checkpoint_.path(), ": has '", name, "' from --weights ", weights_path_,
                 is_there ? ", which have changed since" : ", which are not there",
                 "; say with --weights where they are");
    }
    weights_path_.clear();
  }

  /// Also makes the folders that they are to be in.
  void check_outputs(const std::vector<std::string>& outputs) const {
    std::vector<NamedFile> out, in;
    for (const std::string& file : outputs) {
      SR_REQUIRE(!fs::exists(file) || fs::is_regular_file(file) || fs::is_directory(file),
                 invalid_input, "--output: ", file, " is a pipe or a device, wanted a file");
      std::error_code error;
      const fs::path folder = fs::path(file).parent_path();
      if (!folder.empty()) fs::create_directories(folder, error);
      SR_REQUIRE(!error, invalid_input, "--output: ", folder.string(),
                 ": cannot be made: ", error.message());
      out.push_back({"--output", file});
    }
    for (const std::string& file : model_files(model_)) in.push_back({"the model", file});
    for (const std::string& file : weight_files(weights_path_)) in.push_back({"--weights", file});
    in.push_back({"the checkpoint", manifest_file_});
    for (const Manifest::File& file : checkpoint_.manifest().files)
      in.push_back({"the checkpoint", str(checkpoint_.path(), "/", file.name)});
    check_files(out, in);
  }

  // ---- the model's file

  void write_model() {
    importer::ModelCopy copy(model_.file());
    std::set<std::string> placed;
    for (const auto& [initialiser, run] : map_.initialisers) {
      placed.insert(run.value);
      if (!numbers_->differs(run.value)) continue;
      const Shape& shape = map_.values.at(initialiser).type.shape;
      copy.set_numbers(initialiser, numbers_->of({run}, shape));
      count({map_.values.at(initialiser).stored, shape});
    }
    std::vector<std::string> apart, described;
    const auto place = [&](const std::string& value, std::vector<std::string>& list) {
      if (!placed.insert(value).second) return;
      const TensorType type{map_.values.at(value).stored, map_.values.at(value).type.shape};
      const ValueRun whole{value, 0, 0, element_count(type.shape), false};
      copy.add_initialiser(value, type.dtype, numbers_->of({whole}, type.shape));
      count(type);
      list.push_back(value);
    };
    for (const WeightMap::Input& input : map_.inputs) {
      if (!numbers_->differs(input.value)) continue;
      copy.set_input(input.node, input.input, input.value);
      place(input.value, apart);
    }
    for (const WeightMap::Maker& maker : map_.makers) {
      if (!numbers_->differs(maker.value)) continue;
      copy.remove_node(maker.node);
      place(maker.value, maker.describes ? described : apart);
    }
    note(apart, " that the exporter merged or left out, being equal or zero, are stored: ");
    note(described, " that the file only described are stored: ");
    for (const KeptValue& value : weights_of_checkpoint()) {
      if (placed.count(value.name) == 0)
        report_.left_out.push_back(
            {value.name, "no initialiser of the main graph has its numbers"});
    }
    check_outputs(copy.outputs(request_.output));
    verify();
    copy.write(request_.output);
    report_.files = copy.outputs(request_.output);
  }

  void note(const std::vector<std::string>& names, const char* what) {
    if (names.empty()) return;
    report_.notes.push_back(str("weights", what, importer::listed(names)));
  }

  // ---- the module's tensors

  std::vector<Written> module_tensors() {
    std::vector<Written> out;
    std::vector<std::string> guessed;
    std::set<std::string> values;
    const auto add = [&](const std::string& name, const TensorType& type,
                         importer::Numbers numbers) {
      out.push_back({{name, type}, std::move(numbers)});
      count(type);
    };
    for (const ModuleTensor& tensor : map_.tensors) {
      if (std::any_of(tensor.runs.begin(), tensor.runs.end(), [&](const ValueRun& run) {
            return map_.values.at(run.value).described && !numbers_->differs(run.value);
          })) {
        report_.left_out.push_back(
            {tensor.name, "the file only describes it, and no loss needs it"});
        continue;
      }
      add(tensor.name, tensor.type, numbers_->of(tensor.runs, tensor.type.shape));
      for (const ValueRun& run : tensor.runs) values.insert(run.value);
      if (tensor.is_guessed) guessed.push_back(tensor.name);
    }
    note(guessed, " whose name the file has lost are called as PyTorch's layers call theirs: ");
    for (const auto& [name, of] : request_.tied) {
      const auto tensor = std::find_if(map_.tensors.begin(), map_.tensors.end(),
                                       [&](const ModuleTensor& t) { return t.name == of; });
      SR_REQUIRE(tensor != map_.tensors.end(), invalid_input, "--tied ", name, "=", of,
                 ": the module has no tensor '", of, "'");
      SR_REQUIRE(std::none_of(out.begin(), out.end(),
                              [&](const Written& w) { return w.tensor.name == name; }),
                 invalid_input, "--tied ", name, "=", of, ": the module has a tensor '", name,
                 "' already");
      add(name, tensor->type, numbers_->of(tensor->runs, tensor->type.shape));
    }
    for (const auto& [name, why] : map_.missing) {
      if (request_.tied.count(name) > 0) continue;
      if (const std::optional<TensorType> type = numbers_->type_outside_map(name)) {
        add(name, *type,
            numbers_->of({{name, 0, 0, element_count(type->shape), false}}, type->shape));
        values.insert(name);
      } else {
        report_.left_out.push_back({name, why});
      }
    }
    add_batch_counts(out);
    for (const KeptValue& value : weights_of_checkpoint()) {
      if (values.count(value.name) == 0)
        report_.left_out.push_back({value.name, "the file does not say what the module calls it"});
    }
    // Large elements first, so that each tensor begins at a multiple of its own.
    std::stable_sort(out.begin(), out.end(), [](const Written& a, const Written& b) {
      return size_of(a.tensor.type.dtype) > size_of(b.tensor.type.dtype);
    });
    return out;
  }

  void add_batch_counts(std::vector<Written>& to) {
    size_t counted = 0;
    for (const auto& [name, statistic, times] : map_.batch_counts) {
      if (numbers_->in_checkpoint(statistic) == nullptr) continue;
      const int64_t batches = state_.draws * times;
      to.push_back(
          {{name, {DType::i64, {}}}, {{DType::i64, {}}, [batches](int64_t, int64_t, void* out) {
                                        std::memcpy(out, &batches, sizeof batches);
                                      }}});
      count({DType::i64, {}});
      ++counted;
    }
    if (counted > 0) {
      report_.notes.push_back(
          str("num_batches_tracked counts the ", state_.draws,
              " batches of this training: the file does not hold those before"));
    }
    if (const size_t other = map_.batch_counts.size() - counted; other > 0) {
      report_.notes.push_back(str("num_batches_tracked of ", other,
                                  " batch normalisations whose statistics stood still ",
                                  "is not in the file; load_state_dict keeps the module's own"));
    }
  }

  static std::vector<SafetensorsTensor> tensors_of(const std::vector<Written>& all) {
    std::vector<SafetensorsTensor> out;
    for (const Written& one : all) out.push_back(one.tensor);
    return out;
  }
  static void put(const Written& one, SafetensorsWriter& file) {
    const auto stream =
        importer::make_stream(one.numbers, one.tensor.name, one.tensor.type.dtype, false);
    importer::each_block(stream, [&](const char* data, int64_t bytes) { file.write(data, bytes); });
  }

  void write_file() {
    const std::vector<Written> all = module_tensors();
    report_.files = {request_.output};
    check_outputs(report_.files);
    verify();
    SafetensorsWriter file(request_.output, tensors_of(all), kFormat);
    for (const Written& one : all) put(one, file);
    file.finish();
  }

  void write_folder() {
    const std::vector<Written> all = module_tensors();
    const SafetensorsFolder folder(request_.output, tensors_of(all), kFormat,
                                   request_.most_file_bytes);
    report_.files = folder.files();
    check_outputs(report_.files);
    verify();
    folder.write([&](size_t tensor, SafetensorsWriter& file) { put(all[tensor], file); });
  }

  // ---- both

  void count(const TensorType& type) {
    ++report_.tensors;
    report_.bytes += byte_size(type);
  }

  /// What the checkpoint has besides the optimizer's state.
  std::vector<KeptValue> weights_of_checkpoint() const {
    std::vector<KeptValue> out;
    const Manifest& manifest = checkpoint_.manifest();
    for (const Manifest::Tensor& tensor : manifest.tensors) {
      if (manifest.find(parameter_of_state(tensor.value.name)) == nullptr)
        out.push_back(tensor.value);
    }
    return out;
  }
  /// Before anything is written: that the weights are what was saved.
  void verify() const {
    or_name_older(checkpoint_.path(), [&] {
      checkpoint_.verify([&](const std::string& name) {
        return checkpoint_.manifest().find(parameter_of_state(name)) == nullptr;
      });
    });
  }

  const ExportRequest& request_;
  const Resumed from_;
  const Checkpoint& checkpoint_;
  const RunState& state_;
  const std::string manifest_file_;
  const TrainedModel trained_;
  OnnxModel model_;
  std::string weights_path_;  // "": none are needed
  ModelOptions options_;
  WeightMap map_;
  std::map<std::string, Source> given_;
  std::optional<TrainedNumbers> numbers_;
  ExportReport report_;
};

}  // namespace

ExportReport export_weights(const ExportRequest& request) {
  return at_boundary([&] { return Export(request).run(); });
}

}  // namespace shardrun
