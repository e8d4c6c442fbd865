// Small ONNX models written as bytes: for tests that know the library as an installed program does,
// without the messages that it has of its own.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace shardrun::test {

/// A message on the wire: varints (type 0), fixed 32-bit numbers (5) and everything else (2).
class Bytes {
 public:
  Bytes& number(int field, uint64_t value) {
    varint(static_cast<uint64_t>(field) << 3);
    varint(value);
    return *this;
  }
  Bytes& single(int field, float value) {
    varint(static_cast<uint64_t>(field) << 3 | 5);
    char raw[4];
    std::memcpy(raw, &value, 4);
    bytes_.append(raw, 4);
    return *this;
  }
  Bytes& text(int field, const std::string& payload) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(payload.size());
    bytes_ += payload;
    return *this;
  }
  Bytes& message(int field, const Bytes& inner) { return text(field, inner.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

/// Field numbers are those of onnx-ml.proto.
class OnnxBytes {
 public:
  using Attribute = std::variant<int64_t, double, std::string, std::vector<int64_t>>;
  static constexpr int kFloat = 1, kInt64 = 7;

  /// A dim of 0 is the symbolic dim 'batch'.
  void input(const std::string& name, const std::vector<int64_t>& dims, int type = kFloat) {
    graph_.message(11, info(name, dims, type));
  }
  void output(const std::string& name, const std::vector<int64_t>& dims, int type = kFloat) {
    graph_.message(12, info(name, dims, type));
  }
  /// A weight whose elements follow from their index: of both signs, below `scale`.
  void weight(const std::string& name, const std::vector<int64_t>& dims, double scale) {
    int64_t count = 1;
    Bytes tensor;
    for (int64_t d : dims) {
      tensor.number(1, static_cast<uint64_t>(d));
      count *= d;
    }
    std::string raw(static_cast<size_t>(count) * 4, '\0');
    for (int64_t i = 0; i < count; ++i) {
      const auto x =
          static_cast<float>(scale * (static_cast<double>(i * 7919 % 2003) / 1001.0 - 1));
      std::memcpy(raw.data() + i * 4, &x, 4);
    }
    graph_.message(5, tensor.number(2, kFloat).text(8, name).text(9, raw));
  }
  /// `op` is 'MatMul' or 'domain::Op'.
  void node(const std::string& op, const std::vector<std::string>& inputs,
            const std::vector<std::string>& outputs,
            const std::map<std::string, Attribute>& attributes = {}) {
    Bytes node;
    for (const std::string& name : inputs) node.text(1, name);
    for (const std::string& name : outputs) node.text(2, name);
    const size_t colons = op.find("::");
    node.text(3, outputs[0] + ".node");
    node.text(4, colons == std::string::npos ? op : op.substr(colons + 2));
    for (const auto& [name, value] : attributes) node.message(5, attribute(name, value));
    if (colons != std::string::npos) {
      domains_[op.substr(0, colons)] = 1;
      node.text(7, op.substr(0, colons));
    }
    graph_.message(1, node);
  }
  void write(const std::string& path) const {
    Bytes model;
    model.number(1, 8).message(7, Bytes(graph_).text(2, "test"));
    model.message(8, Bytes().text(1, "").number(2, 17));
    for (const auto& [domain, version] : domains_)
      model.message(8, Bytes().text(1, domain).number(2, version));
    std::ofstream(path, std::ios::binary) << model.bytes();
  }

 private:
  static Bytes info(const std::string& name, const std::vector<int64_t>& dims, int type) {
    Bytes shape;
    for (int64_t d : dims) {
      shape.message(
          1, d == 0 ? Bytes().text(2, "batch") : Bytes().number(1, static_cast<uint64_t>(d)));
    }
    const Bytes tensor = Bytes().number(1, static_cast<uint64_t>(type)).message(2, shape);
    return Bytes().text(1, name).message(2, Bytes().message(1, tensor));
  }
  static Bytes attribute(const std::string& name, const Attribute& value) {
    Bytes out;
    out.text(1, name);
    if (const auto* i = std::get_if<int64_t>(&value)) {
      out.number(3, static_cast<uint64_t>(*i)).number(20, 2);
    } else if (const auto* f = std::get_if<double>(&value)) {
      out.single(2, static_cast<float>(*f)).number(20, 1);
    } else if (const auto* s = std::get_if<std::string>(&value)) {
      out.text(4, *s).number(20, 3);
    } else {
      for (int64_t i : std::get<std::vector<int64_t>>(value))
        out.number(8, static_cast<uint64_t>(i));
      out.number(20, 7);
    }
    return out;
  }

  Bytes graph_;
  std::map<std::string, uint64_t> domains_;
};

}  // namespace shardrun::test
