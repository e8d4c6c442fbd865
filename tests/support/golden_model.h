// What PyTorch computed for a model of tests/golden, and the model as imported, to be compared.
#pragma once

#include <gtest/gtest.h>

#include "graph/onnx/import.h"
#include "graph/passes/recognise/recognise.h"
#include "graph/passes/training.h"
#include "tests/support/sharded_run.h"

namespace shardrun::test {

/// Steps, learning rate and optimizer of make_golden.py's record.
inline constexpr int kGoldenSteps = 3;
inline constexpr double kGoldenRate = 1e-2;

/// |got - want| / |want|, by Euclidean norms; infinity where types differ.
double relative_norm(const Tensor& got, const Tensor& want);

/// What `model`.npz holds, by name.
NamedTensors read_recorded(const std::string& model);

struct GoldenModel {
  NamedTensors recorded;  // in/…, output, losses, grad/…, after/…, stats/…
  NamedTensors feeds;     // of in/…, what the graph takes
  Graph forward;          // fused, with its loss
  Recognised fused;
  ImportReport report;

  double loss(int step) const { return recorded.at("losses").at(step); }
  std::vector<double> losses() const;
  bool noted(const std::string& text) const;

  /// Compares every recorded tensor of this kind ("grad/") with what `of` gives for its name.
  template <class Of>
  void compare(const std::string& kind, double tolerance, Of of) const {
    int compared = 0;
    for (const auto& [name, want] : recorded) {
      if (name.rfind(kind, 0) != 0) continue;
      EXPECT_LE(relative_norm(of(name.substr(kind.size())), want), tolerance) << name;
      ++compared;
    }
    EXPECT_GT(compared, 0) << kind;
  }

  /// Output, loss and every gradient of one pass by the reference kernels.
  void expect_first_pass(double tolerance) const;
  /// Losses, parameters and running statistics of three steps by the reference kernels.
  void expect_three_steps(double tolerance) const;
};

/// `model`.npz and `model`.`exporter`.onnx; `loss` is that of attach_loss. Integer inputs whose
/// contents decide sizes are taken from the record.
GoldenModel load_golden(const std::string& model, const std::string& exporter,
                        std::optional<LossKind> loss, ImportOptions options = {});

/// The whole step by AdamW as in the record; make_golden.py's weights decay.
Graph golden_training_graph(const Graph& forward, double weight_decay = 0.1);

/// Three steps by the reference kernels, whose losses are compared with `losses`: what persists
/// after them.
NamedTensors expect_golden_losses(const Graph& training, const NamedTensors& feeds,
                                  const Tensor& losses, double tolerance);

}  // namespace shardrun::test
