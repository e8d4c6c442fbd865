// Updates of AdamW, Adam and SGD in one pass over memory. Formulas: graph/ops/optimizer.cc.
#pragma once

#include <cmath>

#include "kernels/cuda/chunks.h"
#include "kernels/cuda/refusals.h"
#include "kernels/cuda/team.h"

namespace shardrun::cuda {

/// A tensor in pieces that a team does at a time, each of whole packs.
struct Pieces {
  static constexpr int64_t kSize = 8192;
  int64_t count;

  int64_t rows() const { return (count + kSize - 1) / kSize; }
  static constexpr int64_t work() { return kSize / kWide<float>; }
  SR_HOST_DEVICE int64_t length(int64_t row) const {
    const int64_t left = count - row * kSize;
    return left < kSize ? left : kSize;
  }
};

/// What is wanted beside the new parameter and its moments; null: not wanted.
struct Extras {
  float* squares = nullptr;  // the gradient's, a sum for each piece
  Bf16* copy = nullptr;      // of the new parameter

  template <int N>
  SR_HOST_DEVICE void take(int64_t at, const float (&grad)[N], const float (&param)[N],
                           float* sum) const {
    if (squares != nullptr) {
      for (float g : grad) *sum += g * g;
    }
    if (copy != nullptr) write(copy + at, param);
  }
  template <class Team>
  SR_HOST_DEVICE void finish(const Team& team, int64_t row, float sum) const {
    if (squares == nullptr) return;
    sum = team.sum(sum);
    if (team.rank() == 0) squares[row] = sum;
  }
};

/// Which results these are; -1: not wanted.
struct ExtraResults {
  int64_t squares = -1, copy = -1;

  ExtraResults(const KernelCall& call, int64_t moments) {
    int64_t next = 1 + moments;
    if (call.node.attrs.i("squares", 0) != 0) squares = next++;
    if (call.node.attrs.has("copy")) copy = next;
  }
  Extras of(const KernelArgs& args) const {
    Extras e;
    if (squares >= 0) e.squares = static_cast<float*>(args.workspace);
    if (copy >= 0) e.copy = args.out[static_cast<size_t>(copy)].as<Bf16>();
    return e;
  }
  int64_t workspace_bytes(const Pieces& pieces) const {
    return squares >= 0 ? pieces.rows() * 4 : 0;
  }
  /// Behind the pieces: one sum of all.
  template <class On>
  void add(const KernelArgs& args, const Pieces& pieces) const {
    if (squares < 0) return;
    const SumChunks<float, float> body{static_cast<float*>(args.workspace),
                                       args.out[static_cast<size_t>(squares)].as<float>(), 1,
                                       pieces.rows()};
    On::rows(args, 1, pieces.rows(), body, "squares");
  }
};

/// The logarithms of beta1 and beta2 give 1 - beta^step without cancellation.
struct AdamConstants {
  double log_beta1, log_beta2;
  float beta1, beta2, rest1, rest2, eps, decay;
  bool decoupled;
};

template <class G>
struct AdamPiece {
  AdamConstants a;
  const float *param, *m, *v, *lr, *clip;
  const G* grad;
  const int64_t* step;
  float *new_param, *new_m, *new_v;
  Extras extras;
  Pieces pieces;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const auto n_step = static_cast<double>(*step > 1 ? *step : 1);
    const double correction1 = -expm1(n_step * a.log_beta1),
                 correction2 = -expm1(n_step * a.log_beta2);
    const auto step_size = static_cast<float>(static_cast<double>(*lr) / correction1);
    const auto inv_root = static_cast<float>(1 / sqrt(correction2));
    const float keep = a.decoupled ? 1.0f - *lr * a.decay : 1.0f, scale = *clip;
    const bool l2 = !a.decoupled && a.decay != 0;  // 0 times an infinite parameter is NaN
    const int64_t at = row * Pieces::kSize;
    float squares = 0;
    columns<float>(team, at, pieces.length(row), [&](auto n, int64_t c) {
      float p[n()], g[n()], mean[n()], square[n()];
      read(param + at + c, p);
      read(grad + at + c, g);
      read(m + at + c, mean);
      read(v + at + c, square);
      for (int i = 0; i < n(); ++i) {
        const float d = scale * g[i] + (l2 ? a.decay * p[i] : 0.0f);
        mean[i] = a.beta1 * mean[i] + a.rest1 * d;
        square[i] = a.beta2 * square[i] + a.rest2 * (d * d);
        const float positive = square[i] < 0.0f ? 0.0f : square[i];
        p[i] = p[i] * keep - step_size * mean[i] / (sqrtf(positive) * inv_root + a.eps);
      }
      write(new_param + at + c, p);
      write(new_m + at + c, mean);
      write(new_v + at + c, square);
      extras.take(at + c, g, p, &squares);
    });
    extras.finish(team, row, squares);
  }
};

template <class G>
struct SgdPiece {
  float momentum, decay;
  bool nesterov;
  const float *param, *buffer, *lr, *clip;
  const G* grad;
  float *new_param, *new_buffer;
  Extras extras;
  Pieces pieces;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const float rate = *lr, scale = *clip;
    const int64_t at = row * Pieces::kSize;
    float squares = 0;
    columns<float>(team, at, pieces.length(row), [&](auto n, int64_t c) {
      float p[n()], g[n()], b[n()];
      read(param + at + c, p);
      read(grad + at + c, g);
      read(buffer + at + c, b);
      for (int i = 0; i < n(); ++i) {
        const float d = scale * g[i] + (decay != 0 ? decay * p[i] : 0.0f);
        b[i] = momentum * b[i] + d;
        p[i] -= rate * (nesterov ? d + momentum * b[i] : b[i]);
      }
      write(new_param + at + c, p);
      write(new_buffer + at + c, b);
      extras.take(at + c, g, p, &squares);
    });
    extras.finish(team, row, squares);
  }
};

template <class On>
PreparedKernel prepare_adamw(const KernelCall& call) {
  const Attrs& n = call.node.attrs;
  const double beta1 = n.f("beta1"), beta2 = n.f("beta2");
  const AdamConstants a{std::log(beta1),
                        std::log(beta2),
                        static_cast<float>(beta1),
                        static_cast<float>(beta2),
                        static_cast<float>(1 - beta1),
                        static_cast<float>(1 - beta2),
                        static_cast<float>(n.f("eps")),
                        static_cast<float>(n.f("weight_decay", 0.0)),
                        n.i("decoupled", 1) != 0};
  const Pieces pieces{element_count(call.in[0].shape)};
  const ExtraResults extras(call, 2);
  const auto run = [=, dtype = call.in[1].dtype](const KernelArgs& args) {
    with_element(dtype, [&](auto element) {
      using G = decltype(element);
      const auto &in = args.in, &out = args.out;
      const AdamPiece<G> body{a,
                              in[0].as<float>(),
                              in[2].as<float>(),
                              in[3].as<float>(),
                              in[4].as<float>(),
                              in[6].as<float>(),
                              in[1].as<G>(),
                              in[5].as<int64_t>(),
                              out[0].as<float>(),
                              out[1].as<float>(),
                              out[2].as<float>(),
                              extras.of(args),
                              pieces};
      On::rows(args, pieces.rows(), Pieces::work(), body, "adamw");
      extras.template add<On>(args, pieces);
    });
  };
  return {run, extras.workspace_bytes(pieces), "cuda:own"};
}

template <class On>
PreparedKernel prepare_sgd(const KernelCall& call) {
  const Attrs& n = call.node.attrs;
  const auto momentum = static_cast<float>(n.f("momentum")),
             decay = static_cast<float>(n.f("weight_decay", 0.0));
  const bool nesterov = n.i("nesterov", 0) != 0;
  const Pieces pieces{element_count(call.in[0].shape)};
  const ExtraResults extras(call, 1);
  const auto run = [=, dtype = call.in[1].dtype](const KernelArgs& args) {
    with_element(dtype, [&](auto element) {
      using G = decltype(element);
      const auto &in = args.in, &out = args.out;
      const SgdPiece<G> body{momentum,           decay,
                             nesterov,           in[0].as<float>(),
                             in[2].as<float>(),  in[3].as<float>(),
                             in[5].as<float>(),  in[1].as<G>(),
                             out[0].as<float>(), out[1].as<float>(),
                             extras.of(args),    pieces};
      On::rows(args, pieces.rows(), Pieces::work(), body, "sgd");
      extras.template add<On>(args, pieces);
    });
  };
  return {run, extras.workspace_bytes(pieces), "cuda:own"};
}

template <class On>
KernelList optimizer_kernels_on() {
  const auto refuses = [](size_t operands, size_t results, std::vector<const char*> attrs) {
    attrs.insert(attrs.end(), {"weight_decay", "squares", "copy"});
    return [=](const KernelCall& call) -> Refusal {
      if (auto reason = refuse_other_floats(call)) return reason;
      if (call.node.attrs.s("copy", "bf16") != "bf16") return "copies parameters in bf16";
      return refuse_more(call, operands, results, attrs);
    };
  };
  return {{"adamw", "cuda:own", refuses(7, 5, {"beta1", "beta2", "eps", "decoupled"}),
           prepare_adamw<On>},
          {"sgd", "cuda:own", refuses(6, 4, {"momentum", "nesterov"}), prepare_sgd<On>}};
}

}  // namespace shardrun::cuda
