// Generated kernels: compiled for this machine and compared with the reference; compiled by NVRTC,
// which needs no GPU; kept in a cache folder.
#include "kernels/cuda/elements/element_source.h"

#include <gtest/gtest.h>
#include <nvrtc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>

#include "device/cuda/library.h"
#include "kernels/cuda/cublas/matmul_plan.h"
#include "kernels/cuda/elements/nvrtc.h"
#include "program/ops/post.h"
#include "tests/cuda/host/compiled_on_host.h"
#include "tests/support/kernel_cases.h"

namespace shardrun::cuda {
namespace {

/// Ops whose kernels have views of their own are tried on all cases, others on their samples.
const std::set<std::string> kWithViews = {"add",   "where", "dropout", "expand",   "slice",
                                          "trilu", "iota",  "fill",    "transpose"};

std::vector<Case> chosen_cases(const std::string& op) {
  std::vector<Case> chosen;
  std::set<std::string> seen;
  for (const Case& c : cases_of(op_def(op))) {
    if (element_refuses({c.node, c.in, c.out})) continue;
    if (element_count(c.out[0].shape) > 100000) continue;
    // Else one of each number of elements and each type: views are not the op's affair.
    if (!kWithViews.count(op)) {
      const std::string kind = str(c.in[0].dtype, c.out[0].dtype, to_string(c.node.attrs), c.low,
                                   element_count(c.out[0].shape) % 4 == 0);
      if (!seen.insert(kind).second) continue;
    }
    chosen.push_back(c);
  }
  return chosen;
}

struct Planned {
  Case c;
  std::vector<std::pair<size_t, int64_t>> kernels;  // number and elements: wide and narrow
};

void run(const HostLibrary& library, const Planned& planned, std::mt19937_64& rng) {
  SCOPED_TRACE(describe(planned.c));
  const std::vector<Tensor> in = random_operands(planned.c, rng);
  const Tensor want = run_reference(planned.c.node, in)[0];
  for (const auto& [number, count] : planned.kernels) {
    Tensor got(planned.c.out[0]);
    std::vector<void*> pointers;
    for (const Tensor& t : in) pointers.push_back(t.data());
    pointers.push_back(got.data());
    library.run(number, pointers, count);
    expect_close(got, want, got.dtype() == DType::bf16 ? 4e-3 : 1e-6);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(ElementSource, AgreesWithTheReferenceOnEveryOp) {
  ManySources sources;
  std::vector<Planned> all;
  for (const std::string& op : element_ops()) {
    const std::vector<Case> cases = chosen_cases(op);
    EXPECT_FALSE(cases.empty()) << op;
    for (const Case& c : cases) {
      Planned planned{c, {}};
      for (int64_t widest : {16, 1}) {
        const ElementSource source = element_source(chain_of({c.node, c.in, c.out}), widest);
        planned.kernels.emplace_back(sources.add(source.text), source.count);
      }
      all.push_back(std::move(planned));
    }
  }
  std::cout << all.size() << " calls, " << sources.size() << " kernels\n";
  const HostLibrary library(sources);
  std::mt19937_64 rng(20261122);
  for (const Planned& planned : all) run(library, planned, rng);
}

Node make(const char* op, Attrs attrs) {
  return {.op = op, .name = "node", .attrs = std::move(attrs), .inputs = {}, .outputs = {}};
}

/// Functions' corners: what the reference makes of NaN, infinities, both zeros and tiny numbers.
TEST(ElementSource, KeepsNaNAndInfinity) {
  const float inf = INFINITY, nan = NAN;
  const Tensor x = Tensor::from<float>(
      {12}, {nan, inf, -inf, 0.0f, -0.0f, 1e-40f, 88.0f, 89.0f, -104.0f, 3e38f, -3e38f, 1.0f},
      DType::f32);
  const Tensor y = Tensor::from<float>(
      {12}, {1, nan, inf, inf, -inf, 2, 0, -2, 0.5f, 3e38f, 3e38f, nan}, DType::f32);
  ManySources sources;
  std::vector<Case> cases;
  for (const char* op :
       {"exp",   "log",  "tanh",       "erf",        "sigmoid",      "relu",  "sqrt",
        "abs",   "neg",  "reciprocal", "softplus",   "sign",         "round", "isnan",
        "isinf", "clip", "elu",        "leaky_relu", "add",          "mul",   "div",
        "max",   "min",  "equal",      "less",       "greater_equal"}) {
    Case c{make(op, {}), {x.type()}, {}};
    if (op_def(op).samples[0].in.size() == 2) c.in.push_back(y.type());
    c.out = infer_types(c.node, c.in);
    cases.push_back(c);
  }
  std::vector<size_t> numbers;
  for (const Case& c : cases)
    numbers.push_back(sources.add(element_source(chain_of({c.node, c.in, c.out}), 16).text));
  const HostLibrary library(sources);
  for (size_t n = 0; n < cases.size(); ++n) {
    SCOPED_TRACE(cases[n].node.op);
    const std::vector<Tensor> in = cases[n].in.size() == 2 ? std::vector{x, y} : std::vector{x};
    const Tensor want = run_reference(cases[n].node, in)[0];
    Tensor got(want.type());
    std::vector<void*> pointers;
    for (const Tensor& t : in) pointers.push_back(t.data());
    pointers.push_back(got.data());
    library.run(numbers[n], pointers, 12);
    for (int64_t i = 0; i < 12; ++i) {
      const double g = got.at(i), w = want.at(i);
      EXPECT_TRUE(std::isnan(w) ? std::isnan(g)
                                : g == w || std::fabs(g - w) <= 1e-5 * std::fabs(w) + 1e-37)
          << "(" << x.at(i) << ", " << y.at(i) << ") is " << g << ", want " << w;
    }
  }
}

Node gelu_node() { return make("gelu", {{"approximate", std::string("tanh")}}); }

/// dropout(gelu(x + bias)) + x in bf16: what is between is rounded as if it had been stored.
TEST(ElementSource, AChainGivesTheBitsOfItsCalls) {
  const TensorType x{DType::bf16, {6, 40}}, bias{DType::bf16, {40}}, step{DType::i64, {}};
  const Node dropout = make("dropout", {{"p", 0.4},
                                        {"key", int64_t{11}},
                                        {"seed", int64_t{3}},
                                        {"global_shape", std::vector<int64_t>{12, 43}},
                                        {"start", std::vector<int64_t>{3, 2}}});
  ElementChain chain;
  chain.values = {x, bias, step, x, x, x, x};
  chain.calls = {{make("add", {}), {0, 1}, 3},
                 {gelu_node(), {3}, 4},
                 {dropout, {4, 2}, 5},
                 {make("add", {}), {5, 0}, 6}};
  chain.reads = {0, 1, 2};
  chain.writes = {6, 4};
  std::mt19937_64 rng(7);
  const std::vector<Tensor> in = random_operands({make("add", {}), {x, bias, step}, {}}, rng);
  ManySources sources;
  std::vector<std::pair<size_t, int64_t>> numbers;
  for (int64_t widest : {16, 1}) {
    const ElementSource source = element_source(chain, widest);
    EXPECT_EQ(source.alignment, widest == 16 ? 16 : 2);
    EXPECT_EQ(source.threads, widest == 16 ? 30 : 240);
    numbers.emplace_back(sources.add(source.text), source.count);
  }
  std::vector<size_t> singles;
  for (const ElementChain::Call& call : chain.calls) {
    std::vector<TensorType> types;
    for (int place : call.in) types.push_back(chain.values[static_cast<size_t>(place)]);
    singles.push_back(sources.add(element_source(chain_of({call.node, types, {&x, 1}}), 16).text));
  }
  const HostLibrary library(sources);
  std::vector<Tensor> values = in;
  for (int n = 0; n < 4; ++n) values.emplace_back(x);
  for (size_t c = 0; c < chain.calls.size(); ++c) {
    std::vector<void*> pointers;
    for (int place : chain.calls[c].in)
      pointers.push_back(values[static_cast<size_t>(place)].data());
    pointers.push_back(values[static_cast<size_t>(chain.calls[c].out)].data());
    library.run(singles[c], pointers, 240);
  }
  for (const auto& [number, count] : numbers) {
    Tensor y(x), gelu(x);
    library.run(number, {in[0].data(), in[1].data(), in[2].data(), y.data(), gelu.data()}, count);
    EXPECT_EQ(std::memcmp(y.data(), values[6].data(), 480), 0);
    EXPECT_EQ(std::memcmp(gelu.data(), values[4].data(), 480), 0);
  }
}

/// Behind a product, in its memory: what runs where cuBLASLt has no epilogue.
TEST(ElementSource, EndsProductsInPlace) {
  ManySources sources;
  std::vector<Planned> all;
  std::set<std::string> seen;
  for (const Case& c : cases_of(op_def("matmul_post"))) {
    const KernelCall call{c.node, c.in, c.out};
    std::string why;
    const bool even = element_count(c.out[0].shape) % 8 == 0;
    if (post_ops(c.node).empty() || !plan_matmul(call, false, &why) ||
        element_count(c.out[0].shape) > 100000 ||
        !seen.insert(str(to_string(c.node.attrs), c.out[0].dtype, even)).second)
      continue;
    Planned planned{c, {}};
    for (int64_t widest : {16, 1}) {
      const ElementSource source = element_source(chain_behind(call), widest);
      planned.kernels.emplace_back(sources.add(source.text), source.count);
    }
    all.push_back(std::move(planned));
  }
  EXPECT_GE(all.size(), 9u);
  const HostLibrary library(sources);
  std::mt19937_64 rng(12);
  for (const auto& [c, kernels] : all) {
    SCOPED_TRACE(describe(c));
    const std::vector<Tensor> in = random_operands(c, rng);
    const std::vector<Tensor> want = run_reference(c.node, in);
    for (const auto& [number, count] : kernels) {
      std::vector<Tensor> got(c.out.begin(), c.out.end());
      got.back() = run_reference(without_post_ops(c.node), std::span(in).first(kOwnOperands))[0];
      std::vector<void*> pointers = {got.back().data()};
      for (size_t i = kOwnOperands; i < in.size(); ++i) pointers.push_back(in[i].data());
      const size_t writes = chain_behind({c.node, c.in, c.out}).writes.size();
      for (size_t i = 0; i < writes; ++i) pointers.push_back(got[i].data());
      library.run(number, pointers, count);
      for (size_t i = 0; i < got.size(); ++i)
        expect_close(got[i], want[i], got[i].dtype() == DType::bf16 ? 1e-2 : 1e-6);
    }
  }
}

bool no_nvrtc(std::string* why) {
  try {
    nvrtc().find("nvrtcVersion");
    return false;
  } catch (const Error& e) {
    *why = e.what();
    return true;
  }
}

/// The GPUs that builds have machine code for, and the oldest that NVRTC knows; newest first.
std::set<int, std::greater<>> architectures() {
  int count = 0;
  EXPECT_EQ(SR_VENDOR(nvrtc(), nvrtcGetNumSupportedArchs)(&count), NVRTC_SUCCESS);
  std::vector<int> known(static_cast<size_t>(count));
  EXPECT_EQ(SR_VENDOR(nvrtc(), nvrtcGetSupportedArchs)(known.data()), NVRTC_SUCCESS);
  std::set<int, std::greater<>> chosen = {80, 90};
  if (!known.empty()) chosen.insert(known.front());
  return chosen;
}

/// One call of each op that joins others, as many in a chain as have results of one shape; they
/// read each other's results where the types allow it.
std::vector<ElementChain> chains_of_all_ops() {
  constexpr size_t kMost = 12;
  std::map<Shape, std::vector<ElementChain>> by_shape;
  for (const std::string& op : element_ops()) {
    std::set<Shape> seen;
    for (const Case& c : cases_of(op_def(op))) {
      if (!fuses_chains(c.node) || element_refuses({c.node, c.in, c.out}) ||
          !seen.insert(c.out[0].shape).second)
        continue;
      std::vector<ElementChain>& chains = by_shape[c.out[0].shape];
      if (chains.empty() || chains.back().calls.size() == kMost) chains.emplace_back();
      ElementChain& chain = chains.back();
      ElementChain::Call call{c.node, {}, 0};
      for (const TensorType& type : c.in) {
        const auto made = std::find_if(
            chain.calls.rbegin(), chain.calls.rend(),
            [&](const auto& m) { return chain.values[static_cast<size_t>(m.out)] == type; });
        if (made == chain.calls.rend()) {
          chain.reads.push_back(static_cast<int>(chain.values.size()));
          chain.values.push_back(type);
        }
        call.in.push_back(made == chain.calls.rend() ? chain.reads.back() : made->out);
      }
      call.out = static_cast<int>(chain.values.size());
      chain.values.push_back(c.out[0]);
      chain.writes.push_back(call.out);
      chain.calls.push_back(std::move(call));
    }
  }
  // Chains that join an op, or one of its types, which none before has joined.
  std::vector<ElementChain> all;
  std::set<std::pair<std::string, DType>> joined;
  for (auto& [shape, chains] : by_shape) {
    for (ElementChain& chain : chains) {
      const size_t before = joined.size();
      if (chain.calls.size() == 1) continue;
      for (const ElementChain::Call& call : chain.calls)
        joined.emplace(call.node.op, chain.values[static_cast<size_t>(call.out)].dtype);
      if (joined.size() > before) all.push_back(std::move(chain));
    }
  }
  return all;
}

/// Whatever source a step may ask for: single calls of each type, what runs behind products, and
/// joined steps. For the newest GPUs all of them; for the others every op once, in whichever of the
/// three kinds it is met, since GPUs differ in what math.h has for them alone.
TEST(Nvrtc, CompilesEverySourceForGpusThatAreNotThere) {
  std::string why;
  if (no_nvrtc(&why)) GTEST_SKIP() << why;
  ManySources every, few;
  const auto add = [&](const ElementChain& chain, bool to_few) {
    for (int64_t widest : {16, 1}) {
      const std::string text = element_source(chain, widest).text;
      every.add(text);
      if (to_few) few.add(text);
    }
  };
  for (const std::string& op : element_ops()) {
    std::set<std::string> seen;
    for (const Case& c : cases_of(op_def(op))) {
      if (seen.insert(str(c.in.empty() ? DType::f32 : c.in[0].dtype, c.out[0].dtype)).second)
        add(chain_of({c.node, c.in, c.out}), !fuses_chains(c.node));
    }
  }
  std::set<std::string> seen;
  for (const Case& c : cases_of(op_def("matmul_post"))) {
    const KernelCall call{c.node, c.in, c.out};
    if (post_ops(c.node).empty() || !plan_matmul(call, false, &why) ||
        !seen.insert(str(to_string(c.node.attrs), c.out[0].dtype)).second)
      continue;
    add(chain_behind(call), seen.size() == 1);
  }
  EXPECT_GE(seen.size(), 5u);
  const std::vector<ElementChain> chains = chains_of_all_ops();
  std::set<std::string> joined;
  for (const ElementChain& chain : chains) {
    for (const ElementChain::Call& call : chain.calls) joined.insert(call.node.op);
    add(chain, true);
  }
  for (const std::string& op : element_ops()) {
    EXPECT_EQ(joined.count(op) > 0, fuses_chains(make(op.c_str(), {}))) << op;
  }
  std::cout << every.size() << " kernels, " << chains.size() << " of joined steps, " << few.size()
            << " for the older GPUs\n";
  bool newest = true;
  for (int number : architectures()) {
    SCOPED_TRACE(str("sm_", number));
    const ManySources& sources = newest ? every : few;
    newest = false;
    const std::string code = compile_cuda(sources.text(), str("sm_", number));
    EXPECT_EQ(code.substr(1, 3), "ELF");
    for (size_t n = 0; n < sources.size(); ++n)
      EXPECT_NE(code.find(str("kernel", n)), std::string::npos);
  }
}

TEST(Nvrtc, NamesWhatDoesNotCompile) {
  std::string why;
  if (no_nvrtc(&why)) GTEST_SKIP() << why;
  try {
    compile_cuda("extern \"C\" __global__ void kernel() { nothing; }", "sm_90");
    FAIL() << "compiled";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("\"nothing\" is undefined"), std::string::npos)
        << e.what();
  }
}

struct TestFolder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / str("shardrun_cubins_", getpid());
  ~TestFolder() { std::filesystem::remove_all(path); }
  std::filesystem::path file() const {
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 1);
    return std::filesystem::directory_iterator(path)->path();
  }
};

TEST(Nvrtc, KeepsWhatItCompiled) {
  std::string why;
  if (no_nvrtc(&why)) GTEST_SKIP() << why;
  const TestFolder folder;
  const std::string source = "extern \"C\" __global__ void kernel(int* x) { *x = 42; }";
  const std::string code = compile_cuda_cached(source, "sm_90", folder.path / "deep");
  EXPECT_EQ(code, compile_cuda(source, "sm_90"));
  std::filesystem::remove_all(folder.path / "deep");
  EXPECT_EQ(code, compile_cuda_cached(source, "sm_90", folder.path));
  // A file that is read is not written: the same one is still there.
  const std::filesystem::path file = folder.file();
  std::filesystem::last_write_time(file, std::filesystem::file_time_type{});
  const auto before = std::filesystem::last_write_time(file);
  EXPECT_EQ(code, compile_cuda_cached(source, "sm_90", folder.path));
  EXPECT_EQ(std::filesystem::last_write_time(file), before);
  // One that is cut off or altered is made again.
  const auto whole = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, whole - 1);
  EXPECT_EQ(code, compile_cuda_cached(source, "sm_90", folder.path));
  EXPECT_EQ(std::filesystem::file_size(folder.file()), whole);
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(-5, std::ios::end);
    bytes << "?";
  }
  EXPECT_EQ(code, compile_cuda_cached(source, "sm_90", folder.path));
  // Other GPUs have other files.
  EXPECT_NE(code, compile_cuda_cached(source, "sm_80", folder.path));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path), {}), 2);
}

}  // namespace
}  // namespace shardrun::cuda
