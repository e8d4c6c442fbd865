// ONNX's own node tests: each model is imported, run by the reference kernels and compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>

#include "graph/onnx/file/model_file.h"
#include "graph/onnx/import.h"
#include "kernels/reference/interpreter.h"
#include "onnx-ml.pb.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

constexpr double kRelative = 1e-3, kAbsolute = 1e-7;  // onnx's own tolerances
// What import has reached. Raise it with each operator that comes in.
constexpr int kReached = SHARDRUN_NODE_TESTS_REACHED;

/// Expected values come from numpy's generator, which no other runtime imitates.
bool depends_on_numpy_generator(const std::string& name) {
  return name == "test_training_dropout" || name == "test_training_dropout_default" ||
         name == "test_training_dropout_default_mask" || name == "test_training_dropout_mask";
}

/// A serialised TensorProto. Stored f16, bf16 and f64 stay so.
Tensor read_tensor(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  ::onnx::TensorProto proto;
  EXPECT_TRUE(proto.ParseFromIstream(&file)) << path;
  importer::ImportBudget budget(static_cast<int64_t>(fs::file_size(path)));
  importer::ExternalData none("");
  return importer::store_tensor(proto, none, budget).data;
}

struct Case {
  std::vector<std::string> inputs, outputs;
  std::vector<Tensor> in, want;
};

Case read_case(const fs::path& folder) {
  Case out;
  ::onnx::ModelProto model;
  std::ifstream file(folder / "model.onnx", std::ios::binary);
  EXPECT_TRUE(model.ParseFromIstream(&file));
  for (const auto& input : model.graph().input()) out.inputs.push_back(input.name());
  for (size_t i = 0; i < out.inputs.size(); ++i) {
    out.in.push_back(read_tensor(folder / str("test_data_set_0/input_", i, ".pb")));
  }
  for (int i = 0; i < model.graph().output_size(); ++i) {
    out.want.push_back(read_tensor(folder / str("test_data_set_0/output_", i, ".pb")));
  }
  return out;
}

/// The first difference, or empty.
std::string difference(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  if (got.size() != want.size()) return str(got.size(), " outputs, wanted ", want.size());
  for (size_t o = 0; o < got.size(); ++o) {
    if (got[o].type() != want[o].type())
      return str("output ", o, " is ", got[o].type(), ", wanted ", want[o].type());
    for (int64_t i = 0; i < got[o].count(); ++i) {
      const double a = got[o].at(i), b = want[o].at(i);
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      if (!(std::abs(a - b) <= kAbsolute + kRelative * std::abs(b))) {
        return str("output ", o, "[", i, "] is ", a, ", wanted ", b);
      }
    }
  }
  return "";
}

/// Runs with the named inputs known at import, the others fed.
std::vector<Tensor> run(const fs::path& folder, const Case& c, const std::vector<bool>& known) {
  ImportOptions options;
  options.training = false;
  options.checked_indices = false;
  options.evaluate = run_reference;
  NamedTensors feeds;
  for (size_t i = 0; i < c.inputs.size(); ++i)
    (known[i] ? options.constants : feeds)[c.inputs[i]] = c.in[i];
  return evaluate_graph(OnnxFile((folder / "model.onnx").string()).import(options), feeds);
}

enum class Outcome { passed, failed, unsupported };

/// Inputs that are shapes, axes and the like must be known at import: first none is, then the
/// integers one by one, then all integers and single numbers, at last everything.
Outcome try_case(const fs::path& folder, std::string& why) {
  const Case c = read_case(folder);
  std::vector<std::vector<bool>> attempts;
  const size_t n = c.inputs.size();
  attempts.emplace_back(n, false);
  std::vector<bool> small(n);
  for (size_t i = 0; i < n; ++i) {
    small[i] = !is_float(c.in[i].dtype()) || c.in[i].count() == 1;
    if (!small[i]) continue;
    std::vector<bool> one(n, false);
    one[i] = true;
    attempts.push_back(one);
  }
  attempts.push_back(small);
  attempts.emplace_back(n, true);
  for (const auto& known : attempts) {
    try {
      why = difference(run(folder, c, known), c.want);
      return why.empty() ? Outcome::passed : Outcome::failed;
    } catch (const Error& e) {
      why = e.what();
      if (e.kind() != ErrorKind::unsupported) return Outcome::failed;
    }
  }
  return Outcome::unsupported;
}

TEST(OnnxNodeTests, EveryImportedOneComputesItsOutputs) {
  const fs::path data = fs::path(SHARDRUN_ONNX_DIR) / "onnx/backend/test/data/node";
  if (!fs::is_directory(data)) GTEST_SKIP() << data << " is absent; scripts/setup fetches it";
  std::ifstream list(SHARDRUN_SOURCE_DIR "/tests/graph/onnx/node-tests.txt");
  ASSERT_TRUE(list.good());
  const char* only = std::getenv("SHARDRUN_NODE_TEST");  // one name, to look at
  int passed = 0, failed = 0, unsupported = 0;
  std::string name;
  while (std::getline(list, name)) {
    if (name.empty() || (only != nullptr && name != only)) continue;
    std::string why = "expected values come from numpy's generator";
    const Outcome outcome =
        depends_on_numpy_generator(name) ? Outcome::unsupported : try_case(data / name, why);
    passed += outcome == Outcome::passed;
    failed += outcome == Outcome::failed;
    unsupported += outcome == Outcome::unsupported;
    if (outcome == Outcome::failed) ADD_FAILURE() << name << ": " << why;
    if (outcome == Outcome::unsupported)
      std::cout << "unsupported " << name << ": " << why.substr(0, 260) << "\n";
  }
  std::cout << "onnx node tests: " << passed << " passed, " << failed << " failed, " << unsupported
            << " unsupported of " << passed + failed + unsupported << "\n";
  if (only == nullptr) {
    EXPECT_GE(passed, kReached);
  }
}

}  // namespace
}  // namespace shardrun
