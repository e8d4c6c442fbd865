// Updates of parameters against their formulas and PyTorch.
#include <cmath>

#include "tests/kernels/check.h"
#include "tests/support/update_cases.h"

namespace shardrun {
namespace {

// Golden values from torch.optim.AdamW and Adam: lr 0.1, betas (0.9, 0.95), eps 1e-8, weight_decay
// 0.1, from p = 1 with gradients 0.5, -0.25, 0.125 in turn.
TEST(Optimizers, FollowTheFormulas) {
  for (const KernelList* list : {&cpu_kernels(), &reference_kernels()}) {
    for (bool decoupled : {true, false}) {
      Node node = make("adamw", {{"beta1", 0.9},
                                 {"beta2", 0.95},
                                 {"eps", 1e-8},
                                 {"weight_decay", 0.1},
                                 {"decoupled", int64_t{decoupled}}});
      const TensorType t{DType::f32, {1}}, s{DType::f32, {}};
      std::vector<TensorType> in = {t, t, t, t, s, {DType::i64, {}}, s}, out = {t, t, t};
      const KernelList* lists[] = {list};
      const PreparedKernel kernel = select_kernel(lists, {node, in, out});
      float p = 1, m = 0, v = 0, lr = 0.1f, clip = 1;
      const float want_decoupled[] = {0.89f, 0.85426313f, 0.81105238f},
                  want_coupled[] = {0.9f, 0.85393620f, 0.79905444f};
      for (int64_t step = 1; step <= 3; ++step) {
        float g = step == 1 ? 0.5f : step == 2 ? -0.25f : 0.125f;
        const std::vector<TensorView> views = {{&p, t},  {&g, t},        {&m, t},   {&v, t},
                                               {&lr, s}, {&step, in[5]}, {&clip, s}};
        const std::vector<TensorView> results = {{&p, t}, {&m, t}, {&v, t}};
        kernel.run({views, results, nullptr});
        EXPECT_NEAR(p, (decoupled ? want_decoupled : want_coupled)[step - 1], 2e-6)
            << "step " << step;
      }
    }
  }
}

/// A rank's shard of a maximum is -inf where another rank has it; 0 * -inf would be NaN.
TEST(Optimizers, WithoutDecayInfiniteParametersStay) {
  for (const KernelList* list : {&cpu_kernels(), &reference_kernels()}) {
    Node node = make("sgd", {{"momentum", 0.9}, {"weight_decay", 0.0}, {"nesterov", int64_t{0}}});
    const TensorType t{DType::f32, {2}}, s{DType::f32, {}};
    std::vector<TensorType> in = {t, t, t, s, {DType::i64, {}}, s}, out = {t, t};
    const KernelList* lists[] = {list};
    const PreparedKernel kernel = select_kernel(lists, {node, in, out});
    const float inf = std::numeric_limits<float>::infinity();
    float p[] = {-inf, inf}, g[] = {0.5f, -2}, buffer[] = {0, 1}, lr = 0.1f, clip = 1;
    int64_t step = 1;
    const std::vector<TensorView> views = {{p, t},   {g, t},         {buffer, t},
                                           {&lr, s}, {&step, in[4]}, {&clip, s}};
    const std::vector<TensorView> results = {{p, t}, {buffer, t}};
    kernel.run({views, results, nullptr});
    EXPECT_EQ(p[0], -inf);
    EXPECT_EQ(p[1], inf);
    EXPECT_FLOAT_EQ(buffer[0], 0.5f);
    EXPECT_FLOAT_EQ(buffer[1], -1.1f);
  }
}

TEST(Optimizers, NothingThatIsNotFiniteGetsIn) {
  for (const KernelList* list : {&cpu_kernels(), &reference_kernels()}) {
    expect_nothing_not_finite_gets_in(*list, "adamw");
    expect_nothing_not_finite_gets_in(*list, "sgd");
  }
}

// Golden values from torch.optim.SGD: lr 0.1, momentum 0.9, weight_decay 0.1, the same gradients.
TEST(Optimizers, SgdFollowsPyTorch) {
  for (const KernelList* list : {&cpu_kernels(), &reference_kernels()}) {
    for (bool nesterov : {true, false}) {
      Node node =
          make("sgd", {{"momentum", 0.9}, {"weight_decay", 0.1}, {"nesterov", int64_t{nesterov}}});
      const TensorType t{DType::f32, {1}}, s{DType::f32, {}};
      std::vector<TensorType> in = {t, t, t, s, {DType::i64, {}}, s}, out = {t, t};
      const KernelList* lists[] = {list};
      const PreparedKernel kernel = select_kernel(lists, {node, in, out});
      float p = 1, buffer = 0, lr = 0.1f, clip = 1;
      const float want_nesterov[] = {0.88600f, 0.86806595f, 0.79715610f},
                  want_plain[] = {0.94f, 0.9016f, 0.84552401f};
      for (int64_t step = 1; step <= 3; ++step) {
        float g = step == 1 ? 0.5f : step == 2 ? -0.25f : 0.125f;
        const std::vector<TensorView> views = {{&p, t},  {&g, t},        {&buffer, t},
                                               {&lr, s}, {&step, in[4]}, {&clip, s}};
        const std::vector<TensorView> results = {{&p, t}, {&buffer, t}};
        kernel.run({views, results, nullptr});
        EXPECT_NEAR(p, (nesterov ? want_nesterov : want_plain)[step - 1], 2e-6) << "step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace shardrun
