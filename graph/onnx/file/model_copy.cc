// What changes in a file, as edits of its bytes and of the lengths around them.
#include "graph/onnx/file/model_copy.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "base/files/output_file.h"
#include "base/round_up.h"
#include "graph/onnx/file/byte_edits.h"
#include "graph/onnx/file/device_configurations.h"
#include "graph/onnx/file/file_layout.h"
#include "graph/onnx/file/model_file.h"
#include "graph/onnx/file/wire.h"

namespace shardrun::importer {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostFile = (int64_t{1} << 31) - 1;  // protobuf's
constexpr uint64_t kDeviceIrVersion = 11;              // knows device configurations
constexpr int64_t kAlignment = 4096;                   // of new external data, to be mapped

int64_t size_of(const Span& span) { return span.end - span.begin; }

std::string number_field(uint64_t field, uint64_t value) {
  std::string out;
  append_varint(out, field << 3);
  append_varint(out, value);
  return out;
}

std::string text_field(uint64_t field, std::string_view text) {
  std::string out;
  append_field(out, field, text.size());
  return out.append(text);
}

std::string external_entry(const std::string& key, const std::string& value) {
  return text_field(kExternalDataField, text_field(1, key) + text_field(2, value));
}

int64_t total(const std::vector<Edit>& edits) {
  int64_t out = 0;
  for (const Edit& edit : edits) out += edit.delta();
  return out;
}

/// Adds what they do to the length of the message around them.
void adjust_length(const Message& message, std::vector<Edit>& edits) {
  const int64_t longer = total(edits);
  if (longer == 0) return;
  Edit length{message.length.begin, size_of(message.length)};
  append_varint(length.text, static_cast<uint64_t>(size_of(message.payload) + longer));
  edits.push_back(std::move(length));
}

void move_behind(std::vector<Edit>& from, std::vector<Edit>& to) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

void put_in_order(std::vector<Edit>& edits) {
  std::stable_sort(edits.begin(), edits.end(),
                   [](const Edit& a, const Edit& b) { return a.at < b.at; });
}

}  // namespace

struct ModelCopy::Parts {
  struct Added {
    std::string name;
    DType stored;
    Numbers numbers;
    int64_t bytes() const { return byte_size({stored, numbers.type.shape}); }
  };

  explicit Parts(const OnnxFile& from)
      : file(from),
        path(from.path()),
        folder(fs::path(path).parent_path().string()),
        layout(from.file()) {}

  /// What the file's initialisers name as their external data, and what each is called next to
  /// `output`.
  std::map<std::string, std::string> locations(const std::string& output) const {
    std::map<std::string, std::string> out;
    for (const auto& tensor : layout.initialisers) {
      const FileLayout::Numbers numbers = layout.numbers_of(tensor);
      if (numbers.external) out[numbers.keys.at("location")];
    }
    const std::string name = fs::path(output).filename().string(),
                      own = fs::path(path).filename().string();
    for (auto& [from, to] : out) {
      to = name == own ? from : name + ".data";
      if (name != own && out.size() > 1) to += "/" + from;
    }
    for (const std::string& external : file.external_files()) {
      const std::string location = fs::path(external).lexically_relative(folder).string();
      SR_REQUIRE(name == own || out.count(location) > 0, unsupported, path, ": external data in '",
                 location, "' belong to a tensor that is no initialiser, where their name cannot ",
                 "change; write to another folder, as ", own);
      out.try_emplace(location, location);
    }
    return out;
  }

  int64_t added_bytes() const {
    int64_t out = 0;
    for (const Added& tensor : added) out += tensor.bytes();
    return out;
  }

  const OnnxFile file;
  const std::string path, folder;
  const FileLayout layout;
  // What changes, by place in the layout.
  std::map<size_t, Numbers> changed;
  std::map<size_t, std::map<size_t, std::string>> inputs;  // of nodes
  std::set<size_t> removed;                                // nodes
  std::optional<Annotations::Configuration> configuration;
  std::string held;                              // of it
  std::map<size_t, NodeAnnotation> annotations;  // of it, by node
  std::vector<Added> added;

  /// The edits of one copy.
  class Copy;
};

class ModelCopy::Parts::Copy {
 public:
  Copy(const Parts& of, const std::string& output, int64_t most_inline)
      : of_(of),
        output_(output),
        locations_(of.locations(output)),
        adds_external_(of.added_bytes() > most_inline) {
    for (const auto& [from, to] : locations_)
      data_[from] = {resolve_location(from, of.folder), new_path(to), {}};
    new_data_ = fs::path(output).filename().string() + ".data";
    while (std::any_of(locations_.begin(), locations_.end(), [&](const auto& names) {
      return names.second == new_data_ || names.second.starts_with(new_data_ + "/");
    }))
      new_data_ += ".new";
  }

  std::vector<std::string> files() const {
    std::vector<std::string> out = {output_};
    for (const auto& [location, file] : data_) out.push_back(file.to);
    if (adds_external_) out.push_back(new_path(new_data_));
    return out;
  }

  void write() {
    refuse_shared_bytes();
    std::vector<Edit> edits = of_graph(), around = of_model();
    move_behind(around, edits);
    const int64_t longer = total(edits);
    const auto bytes = static_cast<int64_t>(of_.layout.file.bytes().size()) + longer;
    SR_REQUIRE(longer <= 0 || bytes <= kMostFile, unsupported, output_, ": would have ", bytes,
               " bytes, more than the 2 GB of protobuf; export the model with external data");
    std::vector<std::unique_ptr<OutputFile>> files;
    const auto open = [&](const std::string& path) -> std::ostream& {
      std::error_code ignored;  // a folder that cannot be made is one that the file is not made in
      if (const fs::path folder = fs::path(path).parent_path(); !folder.empty())
        fs::create_directories(folder, ignored);
      files.push_back(std::make_unique<OutputFile>(path));
      return files.back()->stream();
    };
    for (auto& [location, file] : data_) {
      put_in_order(file.edits);
      copy_with(InputFile(file.from), file.edits, open(file.to));
    }
    if (adds_external_) write_added(open(new_path(new_data_)));
    put_in_order(edits);
    copy_with(of_.file.file(), edits, open(output_));
    for (const auto& file : files) file->finish();
  }

 private:
  struct DataFile {
    std::string from, to;
    std::vector<Edit> edits;
  };

  std::string new_path(const std::string& location) const {
    return (fs::path(output_).parent_path() / location).string();
  }

  static int64_t offset_of(const FileLayout::Numbers& numbers) {
    const auto offset = numbers.keys.find("offset");
    return offset == numbers.keys.end() ? 0 : std::stoll(offset->second);
  }

  const ElementType& type_of(const FileLayout::Numbers& numbers, const std::string& name) const {
    const ElementType* type = element_type(numbers.onnx_type);
    SR_REQUIRE(type != nullptr, unsupported, of_.path, ": initialiser '", name, "' is ",
               onnx_type_name(static_cast<int>(numbers.onnx_type)),
               ", whose numbers cannot be written");
    return *type;
  }

  /// Bytes that two initialisers have in common cannot hold other numbers for one of them.
  void refuse_shared_bytes() const {
    struct Range {
      int64_t begin, end;
      size_t tensor;
    };
    std::map<std::string, std::vector<Range>> by_file;
    for (size_t i = 0; i < of_.layout.initialisers.size(); ++i) {
      const auto& tensor = of_.layout.initialisers[i];
      const FileLayout::Numbers numbers = of_.layout.numbers_of(tensor);
      const ElementType* type = element_type(numbers.onnx_type);
      if (!numbers.external || numbers.count == 0 || type == nullptr) continue;
      const int64_t begin = offset_of(numbers);
      by_file[numbers.keys.at("location")].push_back(
          {begin, begin + numbers.count * shardrun::size_of(type->dtype), i});
    }
    for (auto& [location, ranges] : by_file) {
      std::sort(ranges.begin(), ranges.end(),
                [](const Range& a, const Range& b) { return a.begin < b.begin; });
      for (size_t r = 1; r < ranges.size(); ++r) {
        const size_t a = ranges[r - 1].tensor, b = ranges[r].tensor;
        SR_REQUIRE(ranges[r].begin >= ranges[r - 1].end ||
                       (of_.changed.count(a) == 0 && of_.changed.count(b) == 0),
                   unsupported, of_.path, ": initialisers '", of_.layout.initialisers[a].name,
                   "' and '", of_.layout.initialisers[b].name, "' share bytes of ", location,
                   ", so that training cannot give each its own");
      }
    }
  }

  std::vector<Edit> of_graph() {
    std::vector<Edit> out;
    for (size_t i = 0; i < of_.layout.initialisers.size(); ++i) {
      std::vector<Edit> edits = of_initialiser(i);
      adjust_length(of_.layout.initialisers[i].message, edits);
      move_behind(edits, out);
    }
    for (size_t node = 0; node < of_.layout.nodes.size(); ++node) {
      if (of_.removed.count(node) > 0) continue;
      const Message& message = of_.layout.nodes[node];
      std::vector<Edit> edits, more = of_annotation(node);
      if (const auto inputs = of_.inputs.find(node); inputs != of_.inputs.end())
        edits = of_node(message, inputs->second);
      move_behind(more, edits);
      adjust_length(message, edits);
      move_behind(edits, out);
    }
    for (const size_t node : of_.removed) {
      const Span& whole = of_.layout.nodes[node].whole;
      out.push_back({whole.begin, size_of(whole)});
    }
    std::vector<Edit> edits = of_added();
    move_behind(edits, out);
    adjust_length(of_.layout.graph, out);
    return out;
  }

  std::vector<Edit> of_initialiser(size_t place) {
    const auto& tensor = of_.layout.initialisers[place];
    const FileLayout::Numbers numbers = of_.layout.numbers_of(tensor);
    std::vector<Edit> out;
    if (numbers.external) {
      const std::string& from = numbers.keys.at("location");
      const std::string& to = locations_.at(from);
      if (to != from)
        out.push_back(
            {numbers.location.begin, size_of(numbers.location), external_entry("location", to)});
    }
    const auto change = of_.changed.find(place);
    if (change == of_.changed.end()) return out;
    const ElementType& type = type_of(numbers, tensor.name);
    SR_REQUIRE(element_count(change->second.type.shape) == numbers.count, internal, "'",
               tensor.name, "' has ", numbers.count, " numbers, ", change->second.type,
               " are given");
    const auto stream = [&](bool varints) {
      return make_stream(change->second, tensor.name, type.dtype, varints);
    };
    if (numbers.external || numbers.raw) {
      const int64_t at = numbers.external ? offset_of(numbers) : numbers.raw->begin;
      Edit edit{at, numbers.count * shardrun::size_of(type.dtype), "", stream(false)};
      auto& edits = numbers.external ? data_.at(numbers.keys.at("location")).edits : out;
      edits.push_back(std::move(edit));
      return out;
    }
    // One packed field, where the first one was.
    const auto fields = numbers.own.find(type.field);
    if (fields == numbers.own.end()) return out;  // of no numbers
    Edit first{fields->second[0].begin, size_of(fields->second[0]), "", stream(type.varints)};
    append_field(first.text, type.field, static_cast<uint64_t>(first.stream->bytes));
    out.push_back(std::move(first));
    for (size_t i = 1; i < fields->second.size(); ++i)
      out.push_back({fields->second[i].begin, size_of(fields->second[i])});
    return out;
  }

  std::vector<Edit> of_node(const Message& node, const std::map<size_t, std::string>& inputs) {
    std::vector<Edit> out;
    size_t count = 0;
    int64_t behind = node.payload.begin;
    for_each_field(of_.layout.bytes(node.payload), [&](uint64_t field, auto whole, auto payload) {
      if (field != kInputField || !payload) return true;
      const Span span = of_.layout.span(whole);
      if (const auto given = inputs.find(count++); given != inputs.end())
        out.push_back({span.begin, size_of(span), text_field(kInputField, given->second)});
      behind = span.end;
      return true;
    });
    Edit more{behind, 0};
    for (const auto& [input, name] : inputs) {
      if (input < count) continue;
      for (; count < input; ++count) more.text += text_field(kInputField, "");
      more.text += text_field(kInputField, name);
      ++count;
    }
    if (!more.text.empty()) out.push_back(std::move(more));
    return out;
  }

  /// Takes the fields `field` that are messages of this name (their field 1) out of `fields`.
  void remove_named(uint64_t field, std::string_view fields, const std::string& name,
                    std::vector<Edit>& edits) const {
    for_each_field(fields, [&](uint64_t f, auto whole, auto payload) {
      bool named = false;
      if (f != field || !payload) return true;
      for_each_field(*payload, [&](uint64_t inner, auto, auto text) {
        named = named || (inner == 1 && text && *text == name);
        return true;
      });
      const Span span = of_.layout.span(whole);
      if (named) edits.push_back({span.begin, size_of(span)});
      return true;
    });
  }

  /// What the node says of the configuration that is set, instead of what it said.
  std::vector<Edit> of_annotation(size_t node) const {
    std::vector<Edit> out;
    if (!of_.configuration) return out;
    const Span& payload = of_.layout.nodes[node].payload;
    remove_named(kDeviceConfigurationField, of_.layout.bytes(payload), of_.configuration->name,
                 out);
    if (const auto given = of_.annotations.find(node); given != of_.annotations.end())
      out.push_back(
          {payload.end, 0, text_field(kDeviceConfigurationField, annotation_bytes(given->second))});
    return out;
  }

  /// What the model has besides the graph: the configuration, with what is held under it, and the
  /// IR version that it needs.
  std::vector<Edit> of_model() const {
    std::vector<Edit> out;
    if (!of_.configuration) return out;
    const std::string_view all = of_.layout.file.bytes();
    const std::string key = held_key(of_.configuration->name);
    remove_named(kConfigurationField, all, of_.configuration->name, out);
    remove_named(kMetadataField, all, key, out);
    const auto end = static_cast<int64_t>(all.size());
    Edit behind{end, 0, text_field(kConfigurationField, configuration_bytes(*of_.configuration))};
    if (!of_.held.empty())
      behind.text += text_field(kMetadataField, text_field(1, key) + text_field(2, of_.held));
    uint64_t version = 0;
    for_each_field(all, [&](uint64_t field, auto whole, auto payload) {
      if (field == kIrVersionField && !payload) version = number_in(whole);
      return true;
    });
    // Of a field that comes twice the last counts.
    if (version < kDeviceIrVersion) behind.text += number_field(kIrVersionField, kDeviceIrVersion);
    out.push_back(std::move(behind));
    return out;
  }

  /// Where each of the added tensors begins in its file.
  int64_t next_offset(int64_t behind) const { return round_up(behind, kAlignment); }

  std::vector<Edit> of_added() const {
    std::vector<Edit> out;
    int64_t offset = 0;
    for (const Added& tensor : of_.added) {
      const int64_t bytes = tensor.bytes();
      std::string fields;
      for (const int64_t dim : tensor.numbers.type.shape)
        fields += number_field(kDimsField, static_cast<uint64_t>(dim));
      fields += number_field(kDataTypeField, element_type(tensor.stored).onnx);
      fields += text_field(kNameField, tensor.name);
      Edit edit{of_.layout.graph.payload.end, 0};
      int64_t more = 0;
      if (adds_external_) {
        fields += external_entry("location", new_data_);
        fields += external_entry("offset", std::to_string(offset));
        fields += external_entry("length", std::to_string(bytes));
        fields += number_field(kDataLocationField, kExternal);
        offset = next_offset(offset + bytes);
      } else {
        append_field(fields, kRawDataField, static_cast<uint64_t>(bytes));
        edit.stream = make_stream(tensor.numbers, tensor.name, tensor.stored, false);
        more = bytes;
      }
      append_field(edit.text, kInitialiserField, fields.size() + static_cast<uint64_t>(more));
      edit.text += fields;
      out.push_back(std::move(edit));
    }
    return out;
  }

  void write_added(std::ostream& to) const {
    int64_t at = 0;
    for (const auto& [name, stored, numbers] : of_.added) {
      const Stream stream = make_stream(numbers, name, stored, false);
      each_block(stream, [&](const char* data, int64_t some) { to.write(data, some); });
      const int64_t next = next_offset(at + stream.bytes);
      to << std::string(static_cast<size_t>(next - at - stream.bytes), '\0');
      at = next;
    }
  }

  const Parts& of_;
  const std::string output_;
  const std::map<std::string, std::string> locations_;
  const bool adds_external_;
  std::map<std::string, DataFile> data_;  // by location in the file
  std::string new_data_;                  // location
};

ModelCopy::ModelCopy(const OnnxFile& file) : parts_(std::make_unique<Parts>(file)) {}
ModelCopy::~ModelCopy() = default;

void ModelCopy::set_numbers(const std::string& initialiser, Numbers numbers) {
  const auto& all = parts_->layout.initialisers;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& t) { return t.name == initialiser; });
  SR_REQUIRE(found != all.end(), invalid_input, parts_->path, ": has no initialiser '", initialiser,
             "'");
  parts_->changed[static_cast<size_t>(found - all.begin())] = std::move(numbers);
}

void ModelCopy::add_initialiser(const std::string& name, DType stored, Numbers numbers) {
  parts_->added.push_back({name, stored, std::move(numbers)});
}

void ModelCopy::set_input(size_t node, size_t input, const std::string& name) {
  SR_REQUIRE(node < parts_->layout.nodes.size(), invalid_input, parts_->path, ": has no node ",
             node);
  parts_->inputs[node][input] = name;
}

void ModelCopy::remove_node(size_t node) {
  SR_REQUIRE(node < parts_->layout.nodes.size(), invalid_input, parts_->path, ": has no node ",
             node);
  parts_->removed.insert(node);
}

void ModelCopy::set_configuration(const Annotations::Configuration& configuration,
                                  const std::string& held) {
  parts_->configuration = configuration;
  parts_->held = held;
}

void ModelCopy::annotate(size_t node, NodeAnnotation annotation) {
  SR_REQUIRE(node < parts_->layout.nodes.size(), invalid_input, parts_->path, ": has no node ",
             node);
  annotation.configuration = parts_->configuration.value().name;
  parts_->annotations[node] = std::move(annotation);
}

std::vector<std::string> ModelCopy::outputs(const std::string& output) const {
  return Parts::Copy(*parts_, output, most_inline).files();
}

void ModelCopy::write(const std::string& output) const {
  Parts::Copy(*parts_, output, most_inline).write();
}

}  // namespace shardrun::importer
