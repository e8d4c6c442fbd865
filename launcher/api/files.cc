// What a call reads and writes, looked at before it takes long.
#include "files.h"

#include <filesystem>

#include "base/error.h"
#include "base/files/input_file.h"
#include "base/files/output_file.h"
#include "base/printable.h"
#include "checkpoint/weights.h"
#include "exec/data/data.h"
#include "graph/json_text.h"
#include "graph/onnx/onnx_file.h"
#include "ranks/world.h"
#include "shardrun/input.h"
#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

/// Writing to one replaces what the other holds.
bool is_one_file(const std::string& a, const std::string& b) {
  std::error_code error;
  if (fs::exists(a, error) && !fs::is_regular_file(a, error)) return false;  // /dev/stdout, a pipe
  if (fs::exists(a, error) && fs::exists(b, error)) return fs::equivalent(a, b, error);
  return fs::weakly_canonical(fs::absolute(a, error), error) ==
         fs::weakly_canonical(fs::absolute(b, error), error);
}

}  // namespace

void check_files(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& [name, path, folder] = outputs[i];
    if (path.empty()) continue;
    for (size_t other = 0; other < i; ++other) {
      const bool both = folder && outputs[other].folder;
      SR_REQUIRE(both || outputs[other].path.empty() || !is_one_file(path, outputs[other].path),
                 invalid_input, name, ": ", outputs[other].name, " writes ", path,
                 ", too; name another file");
    }
    for (const NamedFile& input : inputs) {
      SR_REQUIRE(input.path.empty() || !is_one_file(path, input.path), invalid_input, name, ": ",
                 path, " is what ", input.name, " is read from; name another file");
    }
    try {
      folder ? check_output_folder(path) : check_output(path);
    } catch (const Error& e) {
      throw e.with_context(name);
    }
  }
}

void check_outputs(World& world, const std::vector<NamedFile>& outputs,
                   const std::vector<NamedFile>& inputs) {
  decide_on_rank0(world, [&] {
    check_files(outputs, inputs);
    return std::string();
  });
}

void write_output(const std::string& path, const std::string& text) {
  at_boundary([&] {
    OutputFile file(path);
    file.stream() << text;
    file.finish();
  });
}

std::string read_input(const NamedFile& file, const std::string& wanted, int64_t most) {
  return at_boundary([&] {
    try {
      return read_input_file(file.path, wanted.c_str(), most);
    } catch (const Error& e) {
      throw file.name.empty() ? e : e.with_context(file.name);
    }
  });
}

void check_json(const std::string& text, const std::string& origin, const std::string& wanted) {
  at_boundary([&] { (void)parse_json<nlohmann::json>(text, origin, wanted.c_str()); });
}

std::string shortened(const std::string& text) {
  constexpr size_t kMost = 80;
  return excerpt(text, kMost);
}

std::vector<std::string> model_files(const OnnxModel& model) {
  return at_boundary([&] { return files_of_model(model.file()); });
}

std::vector<std::string> data_files(const std::string& data) { return files_of_data(data); }

std::vector<std::string> weight_files(const std::string& weights) {
  return weights.empty() ? std::vector<std::string>()
                         : at_boundary([&] { return files_of_weights(weights); });
}

}  // namespace shardrun
