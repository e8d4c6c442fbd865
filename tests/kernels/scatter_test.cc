// What indices pick one by one, and scatters to such places: in parts of several threads, of which
// each place has one, with places that are hit often, never, or lie outside.
#include "tests/kernels/check.h"

namespace shardrun {
namespace {

/// Indices of [-1, bounds of their kind + 1): some of them outside.
Tensor draw_indices(const Shape& shape, const std::vector<int64_t>& bounds, DType dtype,
                    std::mt19937_64& rng) {
  std::vector<int64_t> values(static_cast<size_t>(element_count(shape)));
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t bound = bounds[i % bounds.size()];
    values[i] = rng() % 50 == 0 ? (rng() % 2 == 0 ? -1 : bound)
                                : static_cast<int64_t>(rng() % static_cast<uint64_t>(bound));
  }
  return convert(Tensor::from(shape, values, DType::i64), dtype);
}

/// Holds every CPU kernel that accepts the call to the reference, with three threads and with two.
/// Returns how many do.
int check_indexed(Case c, const Tensor& indices, std::mt19937_64& rng) {
  c.out = infer_types(c.node, c.in);
  SCOPED_TRACE(describe(c));
  std::vector<Tensor> in = random_operands(c, rng);
  in[1] = indices;
  const std::string reduction = c.node.attrs.s("reduction", "none");
  const bool sums = reduction == "add" || reduction == "mul";
  const double tolerance = !sums ? 0 : c.in[0].dtype == DType::bf16 ? 4e-3 : 1e-6;
  const Tensor want = run_reference(c.node, in)[0];
  const int threads = omp_get_max_threads();
  int accepted = 0;
  for (const KernelImpl& impl : cpu_kernels()) {
    if (impl.op != c.node.op || impl.refuses({c.node, c.in, c.out})) continue;
    ++accepted;
    std::vector<Tensor> got;
    for (const int team : {3, 2}) {
      omp_set_num_threads(team);
      got.push_back(run_impl(impl, c, in)[0]);
      expect_close(got.back(), want, tolerance);
    }
    const auto bytes = static_cast<size_t>(byte_size(want.type()));
    EXPECT_TRUE(bytes == 0 || std::memcmp(got[0].data(), got[1].data(), bytes) == 0);
  }
  omp_set_num_threads(threads);
  return accepted;
}

TEST(CpuKernels, ElementsThatIndicesPick) {
  std::mt19937_64 rng(kSeed + 20);
  struct Picked {
    Shape data;
    int64_t axis, count;
  };
  for (const Picked& p :
       {Picked{{3, 50, 1300}, 1, 80}, Picked{{70, 900}, 1, 300}, Picked{{90, 264}, 0, 200},
        Picked{{20000}, 0, 9000}, Picked{{5, 7, 3, 111}, 1, 40}, Picked{{2, 0, 3}, 2, 4},
        Picked{{30, 40}, 1, 0}}) {
    Shape shape = p.data;
    shape[static_cast<size_t>(p.axis)] = p.count;
    const std::vector<int64_t> bounds = {p.data[static_cast<size_t>(p.axis)]};
    for (const DType index : {DType::i64, DType::i32}) {
      const Tensor indices = draw_indices(shape, bounds, index, rng);
      for (const DType dtype : {DType::f32, DType::bf16, DType::i64, DType::boolean}) {
        const TensorType data{dtype, p.data}, picked{dtype, shape};
        EXPECT_EQ(
            check_indexed({make("gather_elements", {{"axis", p.axis}}), {data, indices.type()}, {}},
                          indices, rng),
            1);
        for (const char* reduction : {"none", "add", "mul", "max", "min"}) {
          const bool accepted = is_float(dtype) || std::string_view(reduction) == "none";
          EXPECT_EQ(check_indexed({make("scatter_elements",
                                        {{"axis", p.axis}, {"reduction", std::string(reduction)}}),
                                   {data, indices.type(), picked},
                                   {}},
                                  indices, rng),
                    accepted);
        }
      }
    }
  }
}

TEST(CpuKernels, SlicesThatTuplesPick) {
  std::mt19937_64 rng(kSeed + 21);
  struct Picked {
    Shape data, tuples;  // without an index's dim
    int64_t entries, batch_dims;
  };
  for (const Picked& p :
       {Picked{{40, 30, 70}, {500}, 2, 0}, Picked{{3000}, {50, 100}, 1, 0},
        Picked{{64, 512}, {40}, 1, 0}, Picked{{20, 9, 11, 16}, {7, 30}, 3, 0},
        Picked{{3, 400, 20}, {3, 1000}, 1, 1}, Picked{{4, 5, 60}, {4, 5, 17}, 1, 2},
        Picked{{30, 2}, {6}, 0, 0}, Picked{{50, 3}, {0}, 1, 0}, Picked{{50, 0}, {7}, 1, 0}}) {
    Shape shape = p.tuples;
    shape.push_back(p.entries);
    const auto from = p.data.begin() + p.batch_dims;
    const std::vector<int64_t> bounds(from, from + p.entries);
    for (const DType index : {DType::i64, DType::i32}) {
      const Tensor indices = draw_indices(shape, bounds, index, rng);
      for (const DType dtype : {DType::f32, DType::bf16, DType::i64, DType::boolean}) {
        Case gather{make("gather_nd", {{"batch_dims", p.batch_dims}}),
                    {{dtype, p.data}, indices.type()},
                    {}};
        const TensorType picked = infer_types(gather.node, gather.in)[0];
        EXPECT_EQ(check_indexed(gather, indices, rng), 1);
        for (const char* reduction : {"none", "add", "mul", "max", "min"}) {
          const bool accepted = is_float(dtype) || std::string_view(reduction) == "none";
          EXPECT_EQ(check_indexed({make("scatter_nd", {{"batch_dims", p.batch_dims},
                                                       {"reduction", std::string(reduction)}}),
                                   {{dtype, p.data}, indices.type(), picked},
                                   {}},
                                  indices, rng),
                    accepted);
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardrun
