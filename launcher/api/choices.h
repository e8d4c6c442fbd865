// Options that are one of a few names, parsed where they come in.
#pragma once

#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/error.h"
#include "base/named.h"
#include "graph/onnx/import.h"

namespace shardrun {

/// What a model is planned for: ModelOptions::step.
enum class ModelStep { train, forward, token };
inline constexpr Named<ModelStep> kModelSteps[] = {
    {"train", ModelStep::train}, {"forward", ModelStep::forward}, {"token", ModelStep::token}};
inline constexpr Named<DType> kComputeTypes[] = {{"f32", DType::f32}, {"bf16", DType::bf16}};
inline constexpr Named<ImportOptions::Shared> kSharedWeights[] = {
    {"keep", ImportOptions::Shared::keep}, {"split", ImportOptions::Shared::split}};
inline constexpr Named<ImportOptions::Mode> kModes[] = {{"train", ImportOptions::Mode::train}};
inline constexpr Named<ImportOptions::Statistics> kRunningStatistics[] = {
    {"pytorch", ImportOptions::Statistics::pytorch}, {"onnx", ImportOptions::Statistics::onnx}};

/// May results of the forward pass be computed again: PlanRequest::recompute.
enum class Recompute { automatic, never };
inline constexpr Named<Recompute> kRecomputes[] = {{"auto", Recompute::automatic},
                                                   {"never", Recompute::never}};

/// TrainOptions::target_shift; auto says nothing.
inline constexpr Named<std::optional<int>> kTargetShifts[] = {
    {"auto", std::nullopt}, {"0", 0}, {"1", 1}};

enum class AnnotationUse { hint, required, ignore };
inline constexpr Named<AnnotationUse> kAnnotationUses[] = {{"hint", AnnotationUse::hint},
                                                           {"required", AnnotationUse::required},
                                                           {"ignore", AnnotationUse::ignore}};

/// Throws invalid_input: "dtype 'f16' is not one of f32, bf16".
template <class Kind, size_t count>
Kind parse_choice(const char* what, const Named<Kind> (&all)[count], const std::string& text) {
  const std::optional<Kind> kind = kind_named(all, text);
  SR_REQUIRE(kind, invalid_input, what, " '", text, "' is not one of ", names_of(all));
  return *kind;
}

inline DType parse_compute_type(const std::string& text) {
  return parse_choice("dtype", kComputeTypes, text);
}

}  // namespace shardrun
