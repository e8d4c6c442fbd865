// ModelFile: an opened ONNX file whose large weights stay on disk.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "graph/graph.h"
#include "graph/onnx/file/import_budget.h"
#include "graph/onnx/file/skeleton.h"

namespace shardrun::importer {

/// A tensor of an ONNX file: its contents either in `data` or, when `path` is set, in a file.
struct StoredTensor {
  std::string name;
  DType stored = DType::f32;  // element type where it is stored
  TensorType type;  // as the Graph sees it: floats are f32, 16-bit and unsigned integers widened
  Tensor data;
  std::string path;
  int64_t offset = 0;
  std::map<std::string, std::string> metadata;

  bool in_file() const { return !path.empty(); }
  int64_t count() const { return element_count(type.shape); }
  Tensor load() const;  // contents as `type`
  Source source() const;
};

/// Bytes of a StoredTensor, mapped or in memory, for comparing contents without reading them all.
class Contents {
 public:
  explicit Contents(const StoredTensor& tensor);
  ~Contents();
  Contents(const Contents&) = delete;
  Contents& operator=(const Contents&) = delete;
  const char* bytes() const { return bytes_; }

 private:
  const char* bytes_ = nullptr;
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
};

/// Throws invalid_input unless `name` can name a value: it has letters, not too many, and no NUL.
/// `what` begins the message: "initialiser 3".
void check_name(const std::string& name, const std::string& what);
/// The number of letters alone, of names that may be empty.
void check_length(const std::string& name, const std::string& what);

struct ModelFile {
  std::string path;
  std::string folder;                      // external data is looked up here
  ::onnx::ModelProto proto;                // graph.initializer is emptied
  std::vector<StoredTensor> initialisers;  // the main graph's
  std::shared_ptr<ImportBudget> budget;    // of which the above has taken its part
};

/// Opens and checks a file: its form, IR version, opsets, names, tensors' sizes and external data.
/// Throws Error with the file's name in front.
ModelFile open_model(const std::string& path);

/// The paths of external data that a file's tensors name, checked in no way: also those of a model
/// that open_model refuses. Empty where the file is no model.
std::vector<std::string> external_files(const std::string& path);

/// The file of external data that `location` names. Throws invalid_input if it lies outside of the
/// model's folder, or is not there.
std::string resolve_location(const std::string& location, const std::string& folder);

/// Decodes a tensor; `raw`, if given, holds its raw_data. External data is looked up in `folder`.
/// What cannot stay in the file takes its bytes from `budget`.
StoredTensor store_tensor(const ::onnx::TensorProto& proto, const std::string& folder,
                          ImportBudget& budget, const FileSpan* raw = nullptr);

/// The element type of the Graph for an ONNX one. Throws unsupported, naming it.
DType graph_dtype(int onnx_type);
std::string onnx_type_name(int onnx_type);
bool is_floating_onnx_type(int onnx_type);

}  // namespace shardrun::importer
