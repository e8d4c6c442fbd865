// Attention by products on the GPU.
#include "kernels/cuda/cublas/tf32.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/own/attention.h"
#include "kernels/cuda/own/teams.cuh"

namespace shardrun::cuda {
namespace {

struct OnGpuWithProducts : OnGpu {
  class Product {
   public:
    explicit Product(const LtShape& shape)
        : bytes_(shape.workspace_bytes()), product_(make_lt_product(shape)) {}
    int64_t workspace_bytes() const { return bytes_; }
    void run(const KernelArgs& args, const void* a, const void* b, void* d, void* workspace) {
      product_->run({a, b, d}, workspace, args.stream);
    }

   private:
    int64_t bytes_;
    std::unique_ptr<LtProduct> product_;
  };
};

}  // namespace

KernelList attention_by_products() {
  return attention_kernels_on<OnGpuWithProducts>(tf32_wanted());
}

}  // namespace shardrun::cuda
