// ONNX models, with the recipes in their metadata.
#include "graph/onnx/import.h"
#include "graph/onnx/onnx_file.h"
#include "kernels/kernel.h"
#include "recipe.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardrun;
  const std::string path = fuzz::written("model.onnx", {reinterpret_cast<const char*>(data), size});
  const OnnxFile file(path);
  fuzz::expect_read_or_refused([&] { recipe_of(file); });
  fuzz::expect_read_or_refused([&] {
    ImportOptions options;
    options.batch = 2;
    options.shared = ImportOptions::Shared::keep;
    options.evaluate = run_reference;
    file.symbolic_dims();
    file.import(options);
  });
  return 0;
}
