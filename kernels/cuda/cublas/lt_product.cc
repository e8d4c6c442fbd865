// Descriptors of cuBLASLt, and the choice among its algorithms.
#include "kernels/cuda/cublas/lt_product.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "device/cuda/cuda.h"
#include "device/cuda/library.h"
#include "kernels/cuda/measure.h"

namespace shardrun::cuda {

std::string LtShape::key() const {
  std::string text = str("product ", rows, "x", cols, "x", depth, transpose_a ? " T" : " N",
                         transpose_b ? "T " : "N ", in, "->", out, tf32 ? " tf32" : "", " ld ",
                         a.ld, ",", b.ld, ",", d.ld);
  if (batch > 1) text += str(" batch ", batch, " step ", a.step, ",", b.step, ",", d.step);
  if (adds_c) text += " + c";
  if (adds_bias) text += " + bias";
  switch (ending) {
    case Ending::none: break;
    case Ending::relu: text += " relu"; break;
    case Ending::gelu: text += keeps ? " gelu, kept" : " gelu"; break;
    case Ending::gelu_grad: text += " gelu_grad"; break;
  }
  if (sums != Sums::none) text += sums == Sums::of_a ? ", sums of a" : ", sums of b";
  return text;
}

int64_t LtShape::workspace_bytes() const {
  constexpr int64_t kMost = 32 << 20, kLeast = 1 << 20, kParts = 8;
  const int64_t part = rows * cols * batch * 4;
  return part > kMost / kParts ? kMost : std::min(kMost, kLeast + kParts * part);
}

namespace {

void check_lt(cublasStatus_t status, std::string_view operation) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorKind::device, operation, ": ", SR_VENDOR(cublas_lt(), cublasLtGetStatusString)(status));
}

/// One a GPU and process, shared by all that runs on it; never destroyed, since what uses it may
/// outlive main.
cublasLtHandle_t handle_of(int device) {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> handles;
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[device];
  if (handle == nullptr)
    check_lt(SR_VENDOR(cublas_lt(), cublasLtCreate)(&handle), "cublasLtCreate");
  return handle;
}

struct DescDeleter {
  void operator()(cublasLtMatmulDesc_t desc) const {
    SR_VENDOR(cublas_lt(), cublasLtMatmulDescDestroy)(desc);
  }
};
struct LayoutDeleter {
  void operator()(cublasLtMatrixLayout_t layout) const {
    SR_VENDOR(cublas_lt(), cublasLtMatrixLayoutDestroy)(layout);
  }
};
struct PreferenceDeleter {
  void operator()(cublasLtMatmulPreference_t preference) const {
    SR_VENDOR(cublas_lt(), cublasLtMatmulPreferenceDestroy)(preference);
  }
};
using Desc = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, DescDeleter>;
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, LayoutDeleter>;
using Preference =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, PreferenceDeleter>;

cudaDataType_t data_type(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

Layout make_layout(DType dtype, int64_t rows, int64_t cols, const LtShape::Operand& operand,
                   int64_t batch) {
  cublasLtMatrixLayout_t made = nullptr;
  check_lt(SR_VENDOR(cublas_lt(), cublasLtMatrixLayoutCreate)(
               &made, data_type(dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(cols),
               operand.ld),
           "cublasLtMatrixLayoutCreate");
  Layout layout(made);
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
    check_lt(SR_VENDOR(cublas_lt(), cublasLtMatrixLayoutSetAttribute)(made, attribute, &value,
                                                                      sizeof value),
             "cublasLtMatrixLayoutSetAttribute");
  };
  if (batch > 1) {
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, operand.step);
  }
  return layout;
}

/// Algorithms are 64 bytes that mean something to the version of cuBLASLt that made them.
std::string to_text(const cublasLtMatmulAlgo_t& algo) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char* byte = reinterpret_cast<const unsigned char*>(&algo);
       text.size() < 2 * sizeof algo; ++byte) {
    text += kDigits[*byte / 16];
    text += kDigits[*byte % 16];
  }
  return text;
}

std::optional<cublasLtMatmulAlgo_t> from_text(const std::string& text) {
  cublasLtMatmulAlgo_t algo{};
  if (text.size() != 2 * sizeof algo) return std::nullopt;
  auto* bytes = reinterpret_cast<unsigned char*>(&algo);
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < sizeof algo; ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes[i] = static_cast<unsigned char>(high * 16 + low);
  }
  return algo;
}

/// The library says nothing of NaN: its relu may make a number of it.
cublasLtEpilogue_t epilogue_of(const LtShape& s) {
  switch (s.ending) {
    case LtShape::Ending::none: break;
    case LtShape::Ending::relu:
      return s.adds_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case LtShape::Ending::gelu:
      if (s.keeps)
        return s.adds_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
      return s.adds_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case LtShape::Ending::gelu_grad: return CUBLASLT_EPILOGUE_DGELU;
  }
  switch (s.sums) {
    case LtShape::Sums::none: break;
    case LtShape::Sums::of_a: return CUBLASLT_EPILOGUE_BGRADA;
    case LtShape::Sums::of_b: return CUBLASLT_EPILOGUE_BGRADB;
  }
  return s.adds_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

class Product final : public LtProduct {
 public:
  explicit Product(const LtShape& shape) : LtProduct(shape), workspace_(shape.workspace_bytes()) {}

  bool try_run(const LtOperands& operands, void* workspace, void* on) override {
    const auto stream = static_cast<cudaStream_t>(on);
    if (!desc_) prepare();
    const int64_t alignment = alignment_of(operands);
    Choice& choice = choices_[alignment];
    if (!choice.made && !choose(choice, alignment, operands, workspace, stream)) return false;
    for (const LtShape::Start& start : shape_.starts)
      check_lt(multiply(start, operands, workspace, stream, choice.algorithm), "cublasLtMatmul");
    return true;
  }

 private:
  struct Choice {
    cublasLtMatmulAlgo_t algorithm{};
    bool made = false;
  };

  /// On what boundary all operands of all starts lie, up to an arena's.
  int64_t alignment_of(const LtOperands& o) const {
    uint64_t all = 64;
    for (const void* p : {o.a, o.b, static_cast<const void*>(o.d), o.c, row(o), auxiliary(o)})
      all = std::gcd(all, reinterpret_cast<uint64_t>(p));
    const auto step = [&](int64_t elements, DType dtype) {
      all = std::gcd(all, static_cast<uint64_t>(elements * size_of(dtype)));
    };
    for (const LtShape::Start& s : shape_.starts)
      step(s.a, shape_.in), step(s.b, shape_.in), step(s.d, shape_.out);
    return static_cast<int64_t>(all);
  }

  /// What an epilogue reads or writes for each row or column of d, and for each element of d.
  static const void* row(const LtOperands& o) { return o.bias != nullptr ? o.bias : o.sums; }
  static const void* auxiliary(const LtOperands& o) { return o.x != nullptr ? o.x : o.kept; }
  bool has_auxiliary() const { return shape_.keeps || shape_.ending == LtShape::Ending::gelu_grad; }

  void prepare() {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    handle_ = handle_of(device);
    tuned_ = &tuned_products();
    const LtShape& s = shape_;
    const cublasComputeType_t compute = s.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasLtMatmulDesc_t made = nullptr;
    check_lt(SR_VENDOR(cublas_lt(), cublasLtMatmulDescCreate)(&made, compute, CUDA_R_32F),
             "cublasLtMatmulDescCreate");
    Desc desc(made);
    const auto transpose = [&](cublasLtMatmulDescAttributes_t attribute, bool is) {
      const int32_t operation = is ? CUBLAS_OP_T : CUBLAS_OP_N;
      set(made, attribute, operation);
    };
    transpose(CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_a);
    transpose(CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_b);
    set(made, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(epilogue_of(s)));
    if (has_auxiliary()) {
      set(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.d.ld);
      if (s.batch > 1) set(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, s.d.step);
    }
    a_ = s.transpose_a ? make_layout(s.in, s.depth, s.rows, s.a, s.batch)
                       : make_layout(s.in, s.rows, s.depth, s.a, s.batch);
    b_ = s.transpose_b ? make_layout(s.in, s.cols, s.depth, s.b, s.batch)
                       : make_layout(s.in, s.depth, s.cols, s.b, s.batch);
    d_ = make_layout(s.out, s.rows, s.cols, s.d, s.batch);
    desc_ = std::move(desc);
  }

  template <class Value>
  static void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                  const Value& value) {
    check_lt(SR_VENDOR(cublas_lt(), cublasLtMatmulDescSetAttribute)(desc, attribute, &value,
                                                                    sizeof value),
             "cublasLtMatmulDescSetAttribute");
  }

  static const void* at(const void* base, int64_t element, DType dtype) {
    return static_cast<const char*>(base) + element * size_of(dtype);
  }

  /// The descriptor names the memory of what comes behind the sums, which heuristics look at, too.
  void point(const LtShape::Start& start, const LtOperands& o) const {
    if (shape_.adds_bias || shape_.sums != LtShape::Sums::none)
      set(desc_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, row(o));
    if (has_auxiliary())
      set(desc_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
          at(auxiliary(o), start.d, shape_.out));
  }

  cublasStatus_t multiply(const LtShape::Start& start, const LtOperands& o, void* workspace,
                          cudaStream_t stream, const cublasLtMatmulAlgo_t& algo) const {
    const float one = 1, beta = shape_.adds_c ? 1 : 0;
    point(start, o);
    void* d = static_cast<char*>(o.d) + start.d * size_of(shape_.out);
    const cublasStatus_t status = SR_VENDOR(cublas_lt(), cublasLtMatmul)(
        handle_, desc_.get(), &one, at(o.a, start.a, shape_.in), a_.get(),
        at(o.b, start.b, shape_.in), b_.get(), &beta,
        shape_.adds_c ? at(o.c, start.d, shape_.out) : d, d_.get(), d, d_.get(), &algo, workspace,
        static_cast<size_t>(workspace_), stream);
    launched(stream, kLibraryLaunches);
    return status;
  }

  /// None, if cuBLASLt has no algorithm.
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(int64_t boundary) const {
    constexpr int kMost = 16;
    cublasLtMatmulPreference_t made = nullptr;
    check_lt(SR_VENDOR(cublas_lt(), cublasLtMatmulPreferenceCreate)(&made),
             "cublasLtMatmulPreferenceCreate");
    const Preference preference(made);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_lt(SR_VENDOR(cublas_lt(), cublasLtMatmulPreferenceSetAttribute)(made, attribute, &value,
                                                                            sizeof value),
               "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_));
    // Sums of a split depth stay f32 until the end: other schemes add them in the result's type.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    const auto alignment = static_cast<uint32_t>(boundary);
    for (auto which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(which, alignment);
    std::vector<cublasLtMatmulHeuristicResult_t> found(kMost);
    int count = 0;
    const cublasStatus_t status = SR_VENDOR(cublas_lt(), cublasLtMatmulAlgoGetHeuristic)(
        handle_, desc_.get(), a_.get(), b_.get(), d_.get(), d_.get(), made, kMost, found.data(),
        &count);
    if (!shape_.ends()) check_lt(status, "cublasLtMatmulAlgoGetHeuristic");
    found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(count) : 0);
    return found;
  }

  /// Does cuBLASLt still take an algorithm that was kept?
  bool takes(const cublasLtMatmulAlgo_t& algo) const {
    cublasLtMatmulHeuristicResult_t result{};
    return SR_VENDOR(cublas_lt(), cublasLtMatmulAlgoCheck)(handle_, desc_.get(), a_.get(), b_.get(),
                                                           d_.get(), d_.get(), &algo,
                                                           &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= static_cast<size_t>(workspace_);
  }

  /// False if there is none.
  bool choose(Choice& choice, int64_t alignment, const LtOperands& operands, void* workspace,
              cudaStream_t stream) {
    point(shape_.starts[0], operands);
    const std::string key = str(shape_.key(), " on ", alignment);
    if (const auto kept = tuned_->find(key)) {
      const auto algo = from_text(*kept);
      if (algo && takes(*algo)) {
        choice = {*algo, true};
        return true;
      }
    }
    const std::vector<cublasLtMatmulHeuristicResult_t> found = candidates(alignment);
    if (found.empty()) return false;
    choice.algorithm = found[0].algo;
    if (is_recorded(stream)) return true;             // nothing can be measured: the likeliest
    if (shape_.adds_c && operands.c == operands.d) {  // each run would add once more: the likeliest
      choice.made = true;
      return true;
    }
    const auto fastest = fastest_of(found, operands, workspace, stream);
    if (!fastest) return false;
    choice.algorithm = *fastest;
    const auto kept = from_text(tuned_->keep(key, to_text(choice.algorithm)));
    if (kept && takes(*kept)) choice.algorithm = *kept;
    choice.made = true;
    return true;
  }

  std::optional<cublasLtMatmulAlgo_t> fastest_of(
      const std::vector<cublasLtMatmulHeuristicResult_t>& found, const LtOperands& operands,
      void* workspace, cudaStream_t stream) const {
    std::optional<cublasLtMatmulAlgo_t> best;
    float least = 0;
    for (const cublasLtMatmulHeuristicResult_t& result : found) {
      if (result.state != CUBLAS_STATUS_SUCCESS) continue;
      const float time = measure(stream, "a matrix product", [&] {
        return multiply(shape_.starts[0], operands, workspace, stream, result.algo) ==
               CUBLAS_STATUS_SUCCESS;
      });
      if (time >= 0 && (!best || time < least)) least = time, best = result.algo;
    }
    return best;
  }

  int64_t workspace_;
  cublasLtHandle_t handle_ = nullptr;
  Autotune* tuned_ = nullptr;
  Desc desc_;
  Layout a_, b_, d_;
  std::map<int64_t, Choice> choices_;  // by alignment
};

}  // namespace

Autotune& tuned_products() {
  return tuned_here(str("cublasLt ", SR_VENDOR(cublas_lt(), cublasLtGetVersion)()));
}

void LtProduct::run(const LtOperands& operands, void* workspace, void* stream) {
  SR_REQUIRE(try_run(operands, workspace, stream), device, "cuBLASLt has no algorithm for ",
             shape_.key());
}

std::unique_ptr<LtProduct> make_lt_product(const LtShape& shape) {
  return std::make_unique<Product>(shape);
}

}  // namespace shardrun::cuda
