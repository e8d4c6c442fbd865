// ModelFile: a parsed ONNX file whose large weights stay on disk.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "graph/graph.h"
#include "graph/onnx/file/external_data.h"
#include "graph/onnx/file/import_budget.h"
#include "graph/onnx/file/mapped_file.h"
#include "graph/onnx/file/skeleton.h"

namespace shardrun::importer {

/// A tensor of an ONNX file: its contents either in `data` or, when `file` is set, there.
struct StoredTensor {
  std::string name;
  DType stored = DType::f32;  // element type where it is stored
  TensorType type;  // as the Graph sees it: floats are f32, 16-bit and unsigned integers widened
  Tensor data;
  std::shared_ptr<const InputFile> file;
  int64_t offset = 0;
  std::map<std::string, std::string> metadata;

  bool in_file() const { return file != nullptr; }
  int64_t count() const { return element_count(type.shape); }
  Tensor load() const;  // contents as `type`
  Source source() const;
};

/// Bytes of a StoredTensor, mapped or in memory, for comparing contents without reading them all.
class Contents {
 public:
  explicit Contents(const StoredTensor& tensor);
  const char* bytes() const { return bytes_; }

 private:
  std::optional<MappedFile> mapped_;
  const char* bytes_ = nullptr;
};

/// Throws invalid_input unless `name` can name a value: it has letters, and not too many.
/// `what` begins the message: "initialiser 3".
void check_name(const std::string& name, const std::string& what);
/// The number of letters alone, of names that may be empty.
void check_length(const std::string& name, const std::string& what);

struct ModelFile {
  std::shared_ptr<const InputFile> file;
  std::shared_ptr<ExternalData> external;
  ::onnx::ModelProto proto;
  std::map<int, FileSpan> raws;          // long raw_data of proto's initialisers
  std::shared_ptr<ImportBudget> budget;  // of which the above has taken its part
  bool checked = false;
  std::vector<StoredTensor> initialisers;  // once checked the main graph's, which proto then lacks
};

/// Throws Error without the file's name.
ModelFile parse_model(const std::shared_ptr<const InputFile>& file,
                      const std::shared_ptr<ExternalData>& external);
/// Looks at IR version, opsets, names, tensors' sizes and external data. Throws Error without the
/// file's name, and then leaves `model` of no use.
void check_model(ModelFile& model);

/// Decodes a tensor; `raw`, if given, holds its raw_data. What cannot stay in the file takes its
/// bytes from `budget`.
StoredTensor store_tensor(const ::onnx::TensorProto& proto, ExternalData& external,
                          ImportBudget& budget, const FileSpan* raw = nullptr);

/// The element type of the Graph for an ONNX one. Throws unsupported, naming it.
DType graph_dtype(int onnx_type);
std::string onnx_type_name(int onnx_type);
bool is_floating_onnx_type(int onnx_type);

}  // namespace shardrun::importer
