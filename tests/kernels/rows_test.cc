// Reductions, softmaxes and searches: of rows and columns that are short, long or left over.
#include <algorithm>
#include <cmath>

#include "tests/kernels/check.h"

namespace shardrun {
namespace {

// Columns in several blocks, rows at one distance or several, in fours and left over, or none.
TEST(CpuKernels, ReducedColumns) {
  std::mt19937_64 rng(kSeed + 9);
  std::set<std::string> exercised;
  struct Reduced {
    Shape shape;
    std::vector<int64_t> axes;
  };
  for (const Reduced& r :
       {Reduced{{37, 300}, {0}}, Reduced{{3, 7, 260}, {0, 1}}, Reduced{{5, 2, 9, 130}, {0, 2}},
        Reduced{{1, 6, 200}, {0}}, Reduced{{2, 0, 150}, {1}}}) {
    for (const char* op : {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        Case c{make(op, {{"axes", r.axes}, {"keepdims", int64_t{0}}}), {{dtype, r.shape}}, {}};
        c.out = infer_types(c.node, c.in);
        EXPECT_EQ(check(c, rng, exercised), 1) << describe(c);
      }
    }
  }
}

// Exponentials of a row are kept where it is short enough.
TEST(CpuKernels, SoftmaxOfLongRows) {
  std::mt19937_64 rng(kSeed + 12);
  std::set<std::string> exercised;
  for (const int64_t columns : {8192, 8193, 20000}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (const char* op : {"softmax", "log_softmax"}) {
        const TensorType type{dtype, {3, columns}};
        EXPECT_EQ(check({make(op, {{"axis", int64_t{1}}}), {type}, {type}}, rng, exercised), 1)
            << op << " of " << type;
      }
    }
  }
}

// Lines side by side in several blocks, and long ones.
TEST(CpuKernels, RunningSums) {
  std::mt19937_64 rng(kSeed + 11);
  std::set<std::string> exercised;
  for (const auto& [shape, axis] : {std::pair{Shape{3, 50, 130}, 1},
                                    {Shape{7, 5000}, 1},
                                    {Shape{90, 64}, 0},
                                    {Shape{2, 3, 65}, 0}}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (int64_t form = 0; form < 4; ++form) {
        Case c{make("cumsum",
                    {{"axis", int64_t{axis}}, {"exclusive", form & 1}, {"reverse", form / 2}}),
               {{dtype, shape}},
               {{dtype, shape}}};
        EXPECT_EQ(check(c, rng, exercised), 1) << describe(c);
      }
    }
  }
}

// Lines side by side in several blocks, and long ones, of numbers of which many are equal.
TEST(CpuKernels, PlacesOfExtremes) {
  std::mt19937_64 rng(kSeed + 13);
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& [shape, axis] : {std::pair{Shape{3, 50, 130}, 1},
                                    {Shape{7, 5000}, 1},
                                    {Shape{90, 64}, 0},
                                    {Shape{600, 3}, 1},
                                    {Shape{2, 0, 3}, 1},
                                    {Shape{2, 1, 65}, 1}}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (const char* op : {"argmax", "argmin"}) {
        for (int64_t last : {0, 1}) {
          Case c{make(op, {{"axis", int64_t{axis}},
                           {"keepdims", int64_t{0}},
                           {"select_last_index", last}}),
                 {{dtype, shape}},
                 {}};
          c.out = infer_types(c.node, c.in);
          std::vector<float> values(static_cast<size_t>(element_count(shape)));
          for (float& x : values) {
            const uint64_t draw = rng() % 4000;
            x = draw == 0 ? NAN : draw == 1 ? -inf : static_cast<float>(draw % 300);
          }
          const std::vector<Tensor> in = {convert(Tensor::from(shape, values, DType::f32), dtype)};
          for (const KernelImpl& impl : cpu_kernels()) {
            if (impl.op != op) continue;
            expect_close(run_impl(impl, c, in)[0], run_reference(c.node, in)[0], 0);
          }
        }
      }
    }
  }
}

// Of numbers of which many are equal, NaN, infinite or a zero of either sign, the best few, many
// and all: short and long lines, side by side in sixteens or fewer.
TEST(CpuKernels, BestOfLines) {
  std::mt19937_64 rng(kSeed + 15);
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& [shape, axis] : {std::pair{Shape{37, 8}, 1},
                                    {Shape{21, 100}, 1},
                                    {Shape{7, 5003}, 1},
                                    {Shape{3, 150, 40}, 1},
                                    {Shape{5, 90, 3}, 1},
                                    {Shape{600, 2}, 0},
                                    {Shape{4, 1, 5}, 1},
                                    {Shape{2, 3, 0}, 1}}) {
    const int64_t size = shape[static_cast<size_t>(axis)];
    for (DType dtype : {DType::f32, DType::bf16}) {
      std::vector<float> values(static_cast<size_t>(element_count(shape)));
      for (float& x : values) {
        const uint64_t draw = rng() % 400;
        x = draw == 0   ? NAN
            : draw == 1 ? inf
            : draw == 2 ? -inf
            : draw == 3 ? -0.0f
                        : static_cast<float>(draw % 100) - 50;
      }
      const std::vector<Tensor> in = {convert(Tensor::from(shape, values, DType::f32), dtype)};
      for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{8},
                              int64_t{9}, int64_t{64}, int64_t{65}, int64_t{1000}, size}) {
        if (k > size) continue;
        for (const int64_t largest : {0, 1}) {
          Case c{make("top_k", {{"axis", int64_t{axis}}, {"k", k}, {"largest", largest}}),
                 {{dtype, shape}},
                 {}};
          SCOPED_TRACE(describe(c));
          c.out = infer_types(c.node, c.in);
          const std::vector<Tensor> want = run_reference(c.node, in);
          int tried = 0;
          for (const KernelImpl& impl : cpu_kernels()) {
            if (impl.op != c.node.op || impl.refuses({c.node, c.in, c.out})) continue;
            const std::vector<Tensor> got = run_impl(impl, c, in);
            for (size_t i = 0; i < 2; ++i) expect_close(got[i], want[i], 0);
            ++tried;
          }
          EXPECT_EQ(tried, 1);
        }
      }
    }
  }
}

// Lines of a few elements, several in a block: one operand with an element for each line, one for
// all, a line for all, or a line for some of them.
TEST(CpuKernels, ShortLines) {
  std::mt19937_64 rng(kSeed + 5);
  std::set<std::string> exercised;
  for (const int64_t length : {2, 4, 7, 8, 16, 63}) {
    for (const Shape& lines : {Shape{1201}, Shape{3, 401}, Shape{2, 3, 170}}) {
      Shape whole = lines, each = lines, some = lines;
      some.back() = 1;
      whole.push_back(length), each.push_back(1), some.push_back(length);
      for (const Shape& other : {each, Shape{1}, Shape{length}, some}) {
        for (DType dtype : {DType::f32, DType::bf16}) {
          for (const bool swapped : {false, true}) {
            Case c{make("sub", {}),
                   {{dtype, swapped ? other : whole}, {dtype, swapped ? whole : other}},
                   {}};
            c.out = infer_types(c.node, c.in);
            EXPECT_EQ(check(c, rng, exercised), 1) << describe(c);
          }
        }
      }
    }
  }
}

// Rows of a few columns are computed 16 at a time: as many as there are at the end, of all widths
// around those of vectors and of the limits, some of them alone, and over what they are made of.
TEST(CpuKernels, ShortRows) {
  std::mt19937_64 rng(kSeed + 16);
  std::set<std::string> exercised;
  for (const int64_t columns : {1, 2, 7, 15, 16, 17, 31, 32, 48, 63, 64, 65, 80, 81}) {
    for (const int64_t rows : {1, 21, 531}) {
      for (DType dtype : {DType::f32, DType::bf16}) {
        const TensorType x{dtype, {rows, columns}}, each{DType::f32, {rows}},
            along{DType::f32, {columns}}, labels{DType::i64, {rows}};
        const Attrs axis = {{"axis", int64_t{1}}}, eps = {{"axis", int64_t{1}}, {"eps", 1e-5}},
                    ignore = {{"ignore_index", int64_t{1}}};
        std::vector<Case> cases = {
            {make("softmax", axis), {x}, {}},
            {make("log_softmax", axis), {x}, {}},
            {make("softmax_grad", axis), {x, x}, {}},
            {make("log_softmax_grad", axis), {x, x}, {}},
            {make("layer_norm", eps), {x, along, along}, {}},
            {make("rms_norm", eps), {x, along}, {}},
            {make("layer_norm_grad", axis), {x, x, along, each, each}, {}},
            {make("layer_norm_grad", axis), {x, x, along, each, each, x}, {}},
            {make("rms_norm_grad", axis), {x, x, along, each}, {}},
            {make("cross_entropy", ignore), {x, labels}, {}},
            {make("cross_entropy_sums", {{"ignore_index", int64_t{1}}, {"classes", columns}}),
             {x, labels, {dtype, {rows}}},
             {}},
            {make("cross_entropy_join", ignore),
             {labels, {dtype, {rows}}, {DType::f32, {rows, 2}}},
             {}},
            {make("cross_entropy_grad", ignore), {each, x, labels, each}, {}},
            {make("cross_entropy_and_grad", ignore), {each, x, labels}, {}}};
        for (const char* op : {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"}) {
          const Attrs last = {{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{0}}};
          cases.push_back({make(op, last), {x}, {}});
        }
        for (Case& c : cases) {
          SCOPED_TRACE(describe(c));
          c.out = infer_types(c.node, c.in);
          EXPECT_EQ(check(c, rng, exercised), 1);
          const std::vector<const KernelList*> lists = {&cpu_kernels()};
          const PreparedKernel kernel = select_kernel(lists, {c.node, c.in, c.out});
          if (!kernel.run_rows || c.out[0] != x) continue;
          const std::vector<Tensor> in = random_operands(c, rng);
          std::vector<TensorView> from, to, over;
          for (const Tensor& t : in) from.push_back(t.view());
          std::vector<Tensor> whole;
          for (const TensorType& t : c.out) whole.emplace_back(t);
          for (const Tensor& t : whole) to.push_back(t.view());
          kernel.run({from, to});
          over = to;
          over[0].data = from[0].data;
          kernel.run_rows({from, over}, 0, rows / 3);
          kernel.run_rows({from, over}, rows / 3, rows);
          EXPECT_EQ(std::memcmp(from[0].data, to[0].data, static_cast<size_t>(byte_size(x))), 0);
        }
      }
    }
  }
}

// Rows of all widths around a vector's, that go where numbers say: to places of many, of few and
// of no rows.
TEST(CpuKernels, RowsByTheirNumbers) {
  std::mt19937_64 rng(kSeed + 17);
  std::set<std::string> exercised;
  for (const int64_t columns : {1, 2, 4, 7, 8, 15, 16, 17, 40}) {
    for (const int64_t places : {2, 300, 4000}) {
      for (DType dtype : {DType::f32, DType::bf16}) {
        constexpr int64_t kRows = 1201;
        const TensorType x{dtype, {kRows, columns}}, of{dtype, {places, columns}},
            table{DType::f32, {places, columns}}, numbers{DType::i64, {kRows}};
        const Attrs size = {{"size", places}}, axis = {{"axis", int64_t{0}}},
                    both = {{"axis", int64_t{0}}, {"size", places}};
        std::vector<Case> cases = {{make("gather", axis), {of, numbers}, {}},
                                   {make("gather_grad", both), {x, numbers}, {}},
                                   {make("add_rows", axis), {of, x, numbers}, {}},
                                   {make("segment_max", size), {x, numbers}, {}},
                                   {make("segment_exp_sum", {}), {x, table, numbers}, {}},
                                   {make("segment_softmax", size), {x, numbers}, {}},
                                   {make("segment_softmax_reduce_grad", size), {x, x, numbers}, {}},
                                   {make("segment_softmax_grad", size), {x, x, numbers}, {}},
                                   {make("segment_softmax_grad", {}), {x, x, table, numbers}, {}}};
        for (Case& c : cases) {
          SCOPED_TRACE(describe(c));
          c.out = infer_types(c.node, c.in);
          EXPECT_EQ(check(c, rng, exercised), 1);
        }
        Case divided{make("segment_softmax", {}), {x, table, table, numbers}, {}};
        divided.low = 0.4, divided.high = 1;  // what is divided by is well above 0
        divided.out = infer_types(divided.node, divided.in);
        EXPECT_EQ(check(divided, rng, exercised), 1) << describe(divided);
      }
    }
  }
}

// What is not finite stays in its row.
TEST(CpuKernels, ShortRowsKeepNaNAndInfinity) {
  const float inf = INFINITY;
  std::vector<float> values(40 * 9);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * static_cast<float>(i % 17);
  values[9 * 3 + 4] = NAN, values[9 * 20 + 1] = -inf, values[9 * 39 + 8] = NAN;
  const Tensor x = Tensor::from({40, 9}, values, DType::f32);
  for (const char* op : {"softmax", "log_softmax"}) {
    SCOPED_TRACE(op);
    const Case c{make(op, {{"axis", int64_t{1}}}), {x.type()}, {x.type()}};
    const Tensor want = run_reference(c.node, {{x}})[0];
    for (const KernelImpl& impl : cpu_kernels()) {
      if (impl.op == op) expect_close(run_impl(impl, c, {x})[0], want, 1e-5);
    }
  }
}

}  // namespace
}  // namespace shardrun
