// shardrun export: writes the weights of a checkpoint as ONNX or safetensors.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "command.h"

namespace shardrun::cli {
namespace {

/// One file by its name, several by the first and how many.
std::string names_of(const std::vector<std::string>& files) {
  return files.size() == 1 ? files[0]
                           : files[0] + " and " + std::to_string(files.size() - 1) + " more";
}

struct Export {
  ExportRequest request;
  std::vector<std::string> tied;
  std::string file_size = "5GB";
  const CLI::Option* sized = nullptr;  // --max-file-size
};

void add_export_options(CLI::App& app, Export& asked) {
  ExportRequest& r = asked.request;
  app.add_option("checkpoint", r.checkpoint,
                 "A checkpoint, or a folder of them, whose newest is taken")
      ->required();
  app.add_option(
         "-o,--output", r.output,
         "FILE.onnx: the model's file with the trained weights in it; FILE.safetensors or a "
         "folder: the state_dict() of the PyTorch module")
      ->required();
  app.add_option("--model", r.model,
                 "Where the model's file is now (default: where it was when the run began)");
  app.add_option("--weights", r.weights, "The same of what train --weights named");
  app.add_option("--tied", asked.tied,
                 "NAME=TENSOR: the module has TENSOR under this name, too, which the model's file "
                 "does not say (repeatable)")
      ->allow_extra_args(false);
  asked.sized =
      app.add_option("--max-file-size", asked.file_size,
                     "Of the files in a folder: tensors in one take at most so much, such as 5GB")
          ->capture_default_str();
}

/// Writes, and tells what.
int run(Export& asked) {
  for (const std::string& text : asked.tied) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) {
      throw Failure(Failure::Kind::call, "--tied " + text + ": wanted NAME=TENSOR");
    }
    const bool fresh =
        asked.request.tied.try_emplace(text.substr(0, equals), text.substr(equals + 1)).second;
    if (!fresh) {
      throw Failure(Failure::Kind::call,
                    "--tied " + text + ": '" + text.substr(0, equals) + "' is given twice");
    }
  }
  const std::string& output = asked.request.output;
  std::error_code error;
  if (asked.sized->count() > 0 && !std::filesystem::is_directory(output, error) &&
      !std::filesystem::path(output).extension().empty())
    throw Failure(Failure::Kind::call, "--max-file-size: is of a folder's files, and --output " +
                                           output + " is one file; leave out one of the two");
  asked.request.most_file_bytes = parse_bytes(asked.file_size, "--max-file-size");
  const ExportReport report = export_weights(asked.request);
  std::printf("%s: %lld tensors, %.1f MB, of %s (step %lld)\n", names_of(report.files).c_str(),
              static_cast<long long>(report.tensors), static_cast<double>(report.bytes) / 1e6,
              report.checkpoint.c_str(), static_cast<long long>(report.step));
  for (const std::string& note : report.notes) std::printf("note: %s\n", note.c_str());
  if (report.left_out.empty()) return 0;
  std::fflush(stdout);
  std::fprintf(stderr, "warning: not written, as their numbers or their place are not known:\n");
  for (const auto& [name, why] : report.left_out)
    std::fprintf(stderr, "  %s: %s\n", name.c_str(), why.c_str());
  return 0;
}

}  // namespace

Command export_command() {
  const auto asked = std::make_shared<Export>();
  return {.name = "export",
          .help = "Write the trained weights of a checkpoint for PyTorch or ONNX Runtime",
          .add_options = [asked](CLI::App& app, Arguments&) { add_export_options(app, *asked); },
          .run_alone = [asked](Arguments&) { return run(*asked); }};
}

}  // namespace shardrun::cli
