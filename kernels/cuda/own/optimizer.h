// Updates of AdamW, Adam and SGD in one pass over memory, of any number of parameters in one
// launch. Formulas: graph/ops/optimizer.cc.
#pragma once

#include <cfloat>
#include <cmath>

#include "graph/ops/optimizer.h"
#include "kernels/cuda/own/many.h"
#include "kernels/cuda/own/team.h"
#include "kernels/cuda/refusals.h"

namespace shardrun::cuda {

/// A parameter that a launch updates. A result may be its operand.
struct Updated {
  const float *param, *moment, *second;  // sgd has one moment
  const void* grad;
  float *new_param, *new_moment, *new_second;
  Bf16* copy;  // of the new parameter; null: not wanted
  int64_t count;
  int32_t piece;
  float decay;
  bool narrow;  // the gradient is bf16, else f32

  template <int N>
  SR_HOST_DEVICE void read_grad(int64_t at, float (&to)[N]) const {
    if (narrow) {
      read(static_cast<const Bf16*>(grad) + at, to);
    } else {
      read(static_cast<const float*>(grad) + at, to);
    }
  }
};

/// Those of a call.
inline std::vector<Updated> all_updated(const UpdateForm& form, const KernelArgs& args) {
  std::vector<Updated> all;
  for (size_t p = 0; p < form.count; ++p) {
    const auto in = [&](size_t which) { return args.in[form.operand(p, which)]; };
    const auto out = [&](size_t which) { return args.out[form.result(p, which)].as<float>(); };
    const bool two = form.moments == 2;
    all.push_back({in(0).as<float>(), in(2).as<float>(), two ? in(3).as<float>() : nullptr,
                   in(1).data, out(0), out(1), two ? out(2) : nullptr,
                   form.copy[p] ? args.out[*form.copy[p]].as<Bf16>() : nullptr, in(0).count(), 0,
                   static_cast<float>(form.decay[p]), in(1).type.dtype == DType::bf16});
  }
  return all;
}

/// What an update does with element c of a piece and N - 1 behind it: update(p, g, moment, second).
template <class Team, class F>
SR_HOST_DEVICE void update_piece(const Team& team, const Updated& of, int64_t row,
                                 const F& update) {
  const int64_t at = piece_begin(of, row);
  columns<float>(team, at, piece_length(of, row), [&](auto n, int64_t c) {
    float p[n()], g[n()], moment[n()], second[n()] = {};
    read(of.param + at + c, p);
    of.read_grad(at + c, g);
    read(of.moment + at + c, moment);
    if (of.second != nullptr) read(of.second + at + c, second);
    for (int i = 0; i < n(); ++i) update(p[i], g[i], moment[i], second[i]);
    write(of.new_param + at + c, p);
    write(of.new_moment + at + c, moment);
    if (of.second != nullptr) write(of.new_second + at + c, second);
    if (of.copy != nullptr) write(of.copy + at + c, p);
  });
}

/// Scalars of the device.
struct Scalars {
  const float *lr, *clip;
  const int64_t* step;
};

/// What becomes of `old`, which may be infinite: a rank's shard of a maximum is.
SR_HOST_DEVICE inline float held(float next, float old) {
  const float most = fmaxf(fabsf(old), FLT_MAX);
  const float within = next > most ? most : next < -most ? -most : next;
  return within == within ? within : old;
}

/// The logarithms of beta1 and beta2 give 1 - beta^step without cancellation.
struct Adam {
  double log_beta1, log_beta2;
  float beta1, beta2, rest1, rest2, eps;
  bool decoupled;

  static Adam of(const Attrs& n) {
    const double beta1 = n.f("beta1"), beta2 = n.f("beta2");
    return {std::log(beta1),
            std::log(beta2),
            static_cast<float>(beta1),
            static_cast<float>(beta2),
            static_cast<float>(1 - beta1),
            static_cast<float>(1 - beta2),
            static_cast<float>(n.f("eps")),
            n.i("decoupled", 1) != 0};
  }

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, const Updated& of, int64_t row,
                                 const Scalars& with) const {
    const auto n_step = static_cast<double>(*with.step > 1 ? *with.step : 1);
    const double correction1 = -expm1(n_step * log_beta1), correction2 = -expm1(n_step * log_beta2);
    const auto step_size = static_cast<float>(static_cast<double>(*with.lr) / correction1);
    const auto inv_root = static_cast<float>(1 / sqrt(correction2));
    const float keep = decoupled ? 1.0f - *with.lr * of.decay : 1.0f,
                scale = *with.clip + 0.0f * *with.lr;
    const bool l2 = !decoupled && of.decay != 0;  // 0 times an infinite parameter is NaN
    update_piece(team, of, row, [&](float& p, float g, float& mean, float& square) {
      const float d = scale * g + (l2 ? of.decay * p : 0.0f);
      if (!(fabsf(d) <= FLT_MAX)) return;
      mean = beta1 * mean + rest1 * d;
      square = fminf(beta2 * square + rest2 * (d * d), FLT_MAX);
      const float positive = square < 0.0f ? 0.0f : square;
      p = held(p * keep - step_size * mean / (sqrtf(positive) * inv_root + eps), p);
    });
  }
};

struct Sgd {
  float momentum;
  bool nesterov;

  static Sgd of(const Attrs& n) {
    return {static_cast<float>(n.f("momentum")), n.i("nesterov", 0) != 0};
  }

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, const Updated& of, int64_t row,
                                 const Scalars& with) const {
    const float rate = *with.lr, scale = *with.clip + 0.0f * *with.lr;
    update_piece(team, of, row, [&](float& p, float g, float& buffer, float&) {
      const float d = scale * g + (of.decay != 0 ? of.decay * p : 0.0f);
      if (!(fabsf(d) <= FLT_MAX)) return;
      buffer = held(momentum * buffer + d, buffer);
      p = held(p - rate * (nesterov ? d + momentum * buffer : buffer), p);
    });
  }
};

template <class Rule>
struct UpdatePiece {
  Rule rule;
  Scalars with;
  Many<Updated> all;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    rule(team, all.of(row), row, with);
  }
};

template <class On, class Rule>
PreparedKernel prepare_update(const KernelCall& call) {
  const UpdateForm form = UpdateForm::of(call.node, call.in.size());
  const Rule rule = Rule::of(call.node.attrs);
  int64_t pieces = 0;
  for (size_t p = 0; p < form.count; ++p)
    pieces += pieces_of(element_count(call.in[form.operand(p, 0)].shape));
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    const Scalars with{args.in[form.lr()].as<float>(), args.in[form.clip_scale()].as<float>(),
                       args.in[form.step()].as<int64_t>()};
    const UpdatePiece<Rule> body{rule, with, many<Updated>(args, form.count)};
    On::rows(args, pieces, kPieceWork, body, "update");
  };
  prepared.kept_bytes = static_cast<int64_t>(form.count * sizeof(Updated));
  prepared.keep = [form](const KernelArgs& args) { return table_of(all_updated(form, args)); };
  prepared.impl = "cuda:own";
  return prepared;
}

template <class On>
KernelList optimizer_kernels_on() {
  const auto refuses = [](std::vector<const char*> attrs) {
    attrs.insert(attrs.end(), {"weight_decay", "weight_decays", "copy", "copies"});
    return [=](const KernelCall& call) -> Refusal {
      if (auto reason = refuse_other_floats(call)) return reason;
      if (call.node.attrs.s("copy", "bf16") != "bf16") return "copies parameters in bf16";
      const UpdateForm form = UpdateForm::of(call.node, call.in.size());
      return refuse_more(call, form.operands(), form.results(), attrs);
    };
  };
  return {{"adamw", "cuda:own", refuses({"beta1", "beta2", "eps", "decoupled"}),
           prepare_update<On, Adam>},
          {"sgd", "cuda:own", refuses({"momentum", "nesterov"}), prepare_update<On, Sgd>}};
}

}  // namespace shardrun::cuda
