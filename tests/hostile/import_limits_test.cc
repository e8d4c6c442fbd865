// Files that ask for much: whatever a file says, its import ends within 10 s of a core and four
// times its bytes and 64 MiB. Each is imported in a process of its own, whose peak is looked at.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "graph/onnx/import.h"
#include "kernels/kernel.h"
#include "tests/graph/onnx/build.h"
#include "tests/support/sanitizer.h"

namespace shardrun {
namespace {

using test::kFloat;
using test::kInt64;
using test::ModelBuilder;
using test::set_int;
using test::set_ints;
using test::set_string;
using test::TemporaryFolder;

constexpr int64_t kAnyway = int64_t{64} << 20, kHuge = int64_t{1} << 31, kPages = int64_t{4} << 20;
constexpr double kSeconds = 10 * test::kSlower;

struct Peak {
  int status = -1;
  int64_t bytes = 0;   // of memory
  double seconds = 0;  // of a core
  std::string said;    // "" if it was imported
};

/// What importing a file takes, in a process of its own that is ended after twice the time.
Peak import_apart(const std::string& path) {
  int channel[2];
  if (pipe(channel) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child == 0) {
    const auto seconds = static_cast<rlim_t>(2 * kSeconds);
    const rlimit limit{seconds, seconds};
    setrlimit(RLIMIT_CPU, &limit);
    ImportOptions options;
    options.evaluate = run_reference;
    std::string said;
    int status = 0;
    try {
      const OnnxFile file(path);
      file.symbolic_dims();
      file.import(options);
    } catch (const Error& e) {
      said = e.what();
      status = e.kind() == ErrorKind::internal ? 3 : 1;
    } catch (const std::exception& e) {
      said = e.what();
      status = 2;
    }
    if (write(channel[1], said.data(), std::min<size_t>(said.size(), 1000)) < 0) status = 4;
    _exit(status);
  }
  close(channel[1]);
  Peak peak;
  char buffer[1024];
  for (ssize_t got; (got = read(channel[0], buffer, sizeof buffer)) > 0;)
    peak.said.append(buffer, static_cast<size_t>(got));
  close(channel[0]);
  rusage usage{};
  int status = 0;
  wait4(child, &status, 0, &usage);
  peak.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  peak.bytes = usage.ru_maxrss * 1024;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  peak.seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  return peak;
}

using Write = std::function<std::string(const TemporaryFolder&)>;  // the path of the model

struct Hostile {
  const char* name;
  Write write;
};

Write built(const std::function<void(ModelBuilder&)>& fill) {
  return [fill](const TemporaryFolder& folder) {
    ModelBuilder b;
    fill(b);
    return b.write(folder);
  };
}

/// One node of one input 'x' of these dims.
Write one_node(const std::string& op, const std::vector<int64_t>& dims,
               const std::function<void(ModelBuilder&, ::onnx::NodeProto&)>& fill) {
  return built([=](ModelBuilder& b) {
    b.input("x", dims);
    b.output("y");
    fill(b, b.node(op, {"x"}, {"y"}));
  });
}

/// The tag and length of a length-delimited field.
std::string header(int field, uint64_t length) {
  std::string out(1, static_cast<char>(field << 3 | 2));
  for (; length >= 0x80; length >>= 7) out += static_cast<char>(length | 0x80);
  return out += static_cast<char>(length);
}

/// A model whose graph is these bytes.
Write raw_graph(const std::function<std::string()>& bytes) {
  return [bytes](const TemporaryFolder& folder) {
    const auto path = folder / "model.onnx";
    const std::string graph = bytes();
    ModelBuilder b;
    b.model.clear_graph();
    test::write_bytes(path, b.model.SerializeAsString() + header(7, graph.size()) + graph);
    return path.string();
  };
}

std::string repeated(const std::string& bytes, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += bytes;
  return out;
}

Write lstm(int64_t steps, bool peepholes) {
  return built([=](ModelBuilder& b) {
    b.input("x", {steps, 1, 1});
    b.floats("W", {1, 4, 1}, {1, 1, 1, 1});
    b.floats("R", {1, 4, 1}, {1, 1, 1, 1});
    b.floats("P", {1, 3}, {1, 1, 1});
    std::vector<std::string> inputs = {"x", "W", "R", "", "", "", ""};
    if (peepholes) inputs.push_back("P");
    b.node("LSTM", inputs, {"y"});
    b.output("y");
  });
}

/// A loop of 4,000 turns around `depth` others, with `body` in the innermost.
Write loops(int depth, const std::function<void(::onnx::GraphProto&)>& body) {
  return built([=](ModelBuilder& b) {
    b.input("x", {2});
    b.ints("turns", {4000}, true);
    ::onnx::GraphProto inner;
    for (int level = 0; level <= depth; ++level) {
      ::onnx::GraphProto graph;
      const std::string at = std::to_string(level);
      graph.set_name("body");
      ModelBuilder::set_info(graph.add_input(), "i" + at, {}, kInt64);
      ModelBuilder::set_info(graph.add_input(), "go" + at, {}, 9);
      ModelBuilder::set_info(graph.add_input(), "v" + at, {2}, kFloat);
      auto* node = graph.add_node();
      if (level == 0) {
        node->set_op_type("Identity");
        node->add_input("v0");
        node->add_output("w0");
        body(graph);
      } else {
        node->set_op_type("Loop");
        for (const std::string& in : {std::string("turns"), std::string(), "v" + at})
          node->add_input(in);
        node->add_output("w" + at);
        auto* attribute = node->add_attribute();
        attribute->set_name("body");
        attribute->set_type(::onnx::AttributeProto::GRAPH);
        *attribute->mutable_g() = inner;
      }
      ModelBuilder::set_info(graph.add_output(), "go" + at, {}, 9);
      ModelBuilder::set_info(graph.add_output(), "w" + at, {2}, kFloat);
      inner = graph;
    }
    auto& node = b.node("Loop", {"turns", "", "x"}, {"y"});
    auto* attribute = node.add_attribute();
    attribute->set_name("body");
    attribute->set_type(::onnx::AttributeProto::GRAPH);
    *attribute->mutable_g() = inner;
    b.output("y");
  });
}

/// Function 0 calls function 1 ten times, that function 2, …; the last is empty.
Write empty_functions() {
  return built([](ModelBuilder& b) {
    b.input("x", {2});
    auto* import = b.model.add_opset_import();
    import->set_domain("f");
    import->set_version(1);
    for (int i = 0; i < 30; ++i) {
      auto* function = b.model.add_functions();
      function->set_domain("f");
      function->set_name("f" + std::to_string(i));
      for (int call = 0; i < 29 && call < 10; ++call) {
        auto* node = function->add_node();
        node->set_domain("f");
        node->set_op_type("f" + std::to_string(i + 1));
      }
    }
    b.node("f0", {}, {}).set_domain("f");
    b.node("Relu", {"x"}, {"y"});
    b.output("y");
  });
}

/// `count` constants of a million numbers, each computed from the one before.
Write constants(int count, const std::string& op) {
  return built([=](ModelBuilder& b) {
    b.input("x", {2});
    b.ints("shape", {1024, 1024});
    b.node("ConstantOfShape", {"shape"}, {"c0"});
    for (int i = 0; i < count; ++i) {
      const std::string before = "c" + std::to_string(i);
      b.node(op, {before, before}, {"c" + std::to_string(i + 1)});
    }
    b.node("ReduceMax", {"c" + std::to_string(count)}, {"m"});
    std::string sum = "x";
    for (int i = 0; i < count; ++i) {  // so that all are needed to the end
      const std::string next = "s" + std::to_string(i);
      b.node("Gather", {"c" + std::to_string(i), "zero"}, {"g" + std::to_string(i)});
      b.node("ReduceMax", {"g" + std::to_string(i)}, {"h" + std::to_string(i)});
      b.node("Add", {sum, "h" + std::to_string(i)}, {next});
      sum = next;
    }
    b.ints("zero", {0}, true);
    b.node("Add", {sum, "m"}, {"y"});
    b.output("y");
  });
}

/// `count` initialisers of `type` and this shape in a sparse file next to the model.
Write external(int count, const std::vector<int64_t>& dims, int type, int64_t bytes) {
  return [=](const TemporaryFolder& folder) {
    ModelBuilder b;
    b.input("x", {2});
    std::string sum = "x";
    for (int i = 0; i < count; ++i) {
      auto* tensor = b.graph().add_initializer();
      tensor->set_name("w" + std::to_string(i));
      tensor->set_data_type(type);
      for (int64_t dim : dims) tensor->add_dims(dim);
      tensor->set_data_location(::onnx::TensorProto::EXTERNAL);
      auto* entry = tensor->add_external_data();
      entry->set_key("location");
      entry->set_value("data");
      b.node("Cast", {tensor->name()}, {"c" + std::to_string(i)});
      set_int(*b.graph().mutable_node(b.graph().node_size() - 1), "to", kFloat);
      b.node("ReduceMax", {"c" + std::to_string(i)}, {"m" + std::to_string(i)});
      b.node("Add", {sum, "m" + std::to_string(i)}, {"s" + std::to_string(i)});
      sum = "s" + std::to_string(i);
    }
    b.output(sum);
    test::write_bytes(folder / "data", "");
    std::filesystem::resize_file(folder / "data", static_cast<uintmax_t>(bytes));
    return b.write(folder);
  };
}

std::vector<Hostile> hostile() {
  std::vector<Hostile> out;
  const auto add = [&](const char* name, Write write) { out.push_back({name, std::move(write)}); };

  // Sizes in a few bytes.
  add("lstm", lstm(kHuge, false));
  add("lstm with peepholes", lstm(kHuge, true));
  add("lstm of a million steps", lstm(1'000'000, true));
  add("average pool", one_node("AveragePool", {1, 1, kHuge},
                               [](auto&, auto& node) { set_ints(node, "kernel_shape", {3}); }));
  add("average pool, padded", one_node("AveragePool", {1, 1, kHuge}, [](auto&, auto& node) {
        set_ints(node, "kernel_shape", {3});
        set_ints(node, "pads", {1, 1});
      }));
  add("average pool, a large window", one_node("AveragePool", {1, 1, kHuge}, [](auto&, auto& node) {
        set_ints(node, "kernel_shape", {kHuge / 2});
        set_ints(node, "pads", {kHuge / 4, kHuge / 4});
      }));
  add("max pool with indices", built([](ModelBuilder& b) {
        b.input("x", {1, kHuge, kHuge});
        set_ints(b.node("MaxPool", {"x"}, {"v", "y"}), "kernel_shape", {3});
        b.output("y");
      }));
  add("reverse sequence", built([](ModelBuilder& b) {
        b.input("x", {kHuge, 2});
        b.ints("n", {5, 6});
        b.node("ReverseSequence", {"x", "n"}, {"y"});
        b.output("y");
      }));
  add("split to sequence", built([](ModelBuilder& b) {
        b.input("x", {kHuge});
        b.ints("zero", {0}, true);
        b.node("SplitToSequence", {"x"}, {"s"});
        b.node("SequenceAt", {"s", "zero"}, {"y"});
        b.output("y");
      }));
  for (const char* mode : {"linear", "cubic"}) {
    add("resize", built([=](ModelBuilder& b) {
          b.input("x", {2, 2, 2, 2});
          b.ints("sizes", {2, 2, int64_t{1} << 24, int64_t{1} << 24});
          set_string(b.node("Resize", {"x", "", "", "sizes"}, {"y"}), "mode", mode);
          b.output("y");
        }));
  }
  for (const char* op : {"Expand", "Tile", "ConstantOfShape", "Range", "OneHot", "Pad"}) {
    add(op, built([=](ModelBuilder& b) {
          const std::string name = op;
          b.input("x", {2}, name == "OneHot" ? kInt64 : kFloat);
          b.ints("n", {kHuge}, name == "Range" || name == "OneHot");
          b.ints("n2", {kHuge, 2});
          b.ints("zero", {0}, true);
          b.ints("one", {1}, true);
          b.floats("values", {2}, {0, 1});
          if (name == "ConstantOfShape") {
            b.node(op, {"n"}, {"y"});
          } else if (name == "Range") {
            b.node(op, {"zero", "n", "one"}, {"y"});
          } else if (name == "OneHot") {
            b.node(op, {"x", "n", "values"}, {"y"});
          } else {
            b.node(op, {"x", name == "Tile" ? "n" : "n2"}, {"y"});
          }
          b.output("y");
        }));
  }
  add("einsum of many", built([](ModelBuilder& b) {
        b.input("x", {});
        const std::vector<std::string> inputs(5000, "x");
        set_string(b.node("Einsum", inputs, {"y"}), "equation", std::string(4999, ',') + "->");
        b.output("y");
      }));

  // Turns and calls.
  add("loops", loops(2, [](auto&) {}));
  add("functions of functions of nothing", empty_functions());
  add("a growing sequence", built([](ModelBuilder& b) {
        b.input("x", {2});
        b.node("SequenceConstruct", {"x"}, {"s0"});
        for (int i = 0; i < 20'000; ++i)
          b.node("SequenceInsert", {"s" + std::to_string(i), "x"}, {"s" + std::to_string(i + 1)});
        set_int(b.node("ConcatFromSequence", {"s20000"}, {"y"}), "axis", 0);
        b.output("y");
      }));

  // Constants.
  add("constants", constants(300, "Add"));
  add("products of constants", constants(20, "MatMul"));
  add("numbers of bool outside", external(1, {int64_t{1} << 40}, 9, int64_t{1} << 40));
  add("the same bytes many times", external(3000, {1 << 20}, 7, 8 << 20));
  add("looks at a constant", built([](ModelBuilder& b) {
        b.input("x", {4});
        b.ints("shape", {1 << 20});
        b.node("ConstantOfShape", {"shape"}, {"f"});
        set_int(b.node("Cast", {"f"}, {"rows"}), "to", kInt64);
        for (int i = 0; i < 5000; ++i) b.node("Gather", {"x", "rows"}, {"y" + std::to_string(i)});
        for (int i = 0; i < 5000; ++i) b.output("y" + std::to_string(i));
      }));
  add("weights that are alike", built([](ModelBuilder& b) {
        b.input("x", {2, 2});
        std::string x = "x";
        for (int i = 0; i < 20'000; ++i) {
          const std::string at = std::to_string(i);
          b.floats("w" + at, {2, 2}, {1, static_cast<float>(i + 2), 3, 4});
          b.node("MatMul", {x, "w" + at}, {"y" + at});
          x = "y" + at;
        }
        b.output(x);
      }));

  // The file itself.
  add("a sparse text", [](const TemporaryFolder& folder) {
    const auto path = folder / "model.onnx";
    const int64_t length = int64_t{3} << 30;
    const std::string start = header(2, static_cast<uint64_t>(length));
    test::write_bytes(path, start);
    std::filesystem::resize_file(path, start.size() + static_cast<uintmax_t>(length));
    return path.string();
  });
  add("nodes of two bytes", raw_graph([] { return repeated(std::string("\x0a\0", 2), 20 << 20); }));
  add("initialisers of two bytes",
      raw_graph([] { return repeated(std::string("\x2a\0", 2), 20 << 20); }));
  add("dims of two bytes", raw_graph([] {
        const std::string dims = repeated(std::string("\x0a\0", 2), 20 << 20);
        std::string info = header(2, dims.size()) + dims;
        info = header(1, info.size()) + info;
        info = header(2, info.size()) + info;
        return header(13, info.size()) + info;
      }));
  add("numbers of one byte", raw_graph([] {
        const std::string numbers(40 << 20, '\1');
        const std::string tensor = header(7, numbers.size()) + numbers;
        return header(5, tensor.size()) + tensor;
      }));
  add("dims, a million", built([](ModelBuilder& b) {
        b.input("x", std::vector<int64_t>(1'000'000, 1));
        std::string x = "x";
        for (int i = 0; i < 1000; ++i) {
          b.node("Relu", {x}, {"y" + std::to_string(i)});
          x = "y" + std::to_string(i);
        }
        b.output(x);
      }));
  add("unsqueezed to many dims", built([](ModelBuilder& b) {
        b.input("x", {2});
        std::vector<int64_t> axes(100'000);
        for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
        b.ints("axes", axes);
        b.node("Unsqueeze", {"x", "axes"}, {"y"});
        b.output("y");
      }));
  add("inputs", built([](ModelBuilder& b) {
        for (int i = 0; i < 40'000; ++i) b.input("x" + std::to_string(i), {2});
        b.node("Relu", {"x0"}, {"y"});
        b.output("y");
      }));
  add("a long chain", built([](ModelBuilder& b) {
        b.input("x", {2});
        std::string x = "x";
        for (int i = 0; i < 100'000; ++i) {
          b.node("Relu", {x}, {"y" + std::to_string(i)});
          x = "y" + std::to_string(i);
        }
        b.output(x);
      }));
  return out;
}

TEST(ImportLimits, WhateverTheFileSays) {
  TemporaryFolder plain;
  const Peak base = import_apart(built([](ModelBuilder& b) {
    b.input("x", {2});
    b.node("Relu", {"x"}, {"y"});
    b.output("y");
  })(plain));
  ASSERT_EQ(base.status, 0) << base.said;
  for (const Hostile& file : hostile()) {
    SCOPED_TRACE(file.name);
    TemporaryFolder folder;
    // Written in a process of its own: a child's peak begins at its parent's.
    const pid_t writer = fork();
    if (writer == 0) {
      file.write(folder);
      _exit(0);
    }
    int status = 0;
    waitpid(writer, &status, 0);
    ASSERT_EQ(status, 0);
    const std::string path = (folder / "model.onnx").string();
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
    const Peak peak = import_apart(path);
    EXPECT_TRUE(peak.status == 0 || peak.status == 1) << peak.status << ": " << peak.said;
    if (!test::kSanitized) {
      EXPECT_LE(peak.bytes, base.bytes + kAnyway + 4 * size + kPages) << peak.said;
    }
    EXPECT_LE(peak.seconds, kSeconds) << peak.said;
    std::printf("%-34s %12lld bytes: %6.1f MiB, %5.2f s; %.160s\n", file.name,
                static_cast<long long>(size), static_cast<double>(peak.bytes - base.bytes) / 0x1p20,
                peak.seconds, peak.status == 0 ? "imported" : peak.said.c_str() + path.size());
  }
}

/// What it costs to plan does not depend on how many steps there are.
TEST(ImportLimits, AnLstmIsAFewNodesHoweverManyStepsItHas) {
  TemporaryFolder folder;
  ImportOptions options;
  options.evaluate = run_reference;
  EXPECT_LT(OnnxFile(lstm(1000, false)(folder)).import(options).nodes().size(), 12u);
  EXPECT_GT(OnnxFile(lstm(100, true)(folder)).import(options).nodes().size(),
            1000u);  // written out
}

}  // namespace
}  // namespace shardrun
