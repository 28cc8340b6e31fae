#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/weight.h"
#include "model/plan.h"
#include "model/safetensors.h"

namespace galley::model {

// What a tensor holds, hence which formats it may have on disk (spec model 11).
enum class TensorKind : std::uint8_t {
  kVector,   // small parameters: BF16 or F32, widened when loaded
  kMatrix,   // linear kept in BF16 by the makers; F32 accepted
  kLinear8,  // linear kept in FP8 with block scales; BF16 and F32 accepted
  kLinear4,  // expert linear kept in FP4; FP8, BF16 and F32 accepted
  kRows8,    // engram table: FP8 rows with one scale for 32 channels
  kIds,      // I64
};

struct TensorSpec {
  std::string
      name;  // released name of the data; its scales are `name` with .weight replaced by .scale
  TensorKind kind{};
  std::vector<std::int64_t> shape;  // logical: FP4 bytes count two columns
};

// Every tensor the plan needs, in file order. Engram tables, vision and draft stages included.
[[nodiscard]] std::vector<TensorSpec> expected_tensors(const ModelPlan& plan);

// A directory with config.json and one or many safetensors files, mapped. Released names and those
// of transformers are accepted (table in docs/MODEL.md); lookups use released names.
class Checkpoint {
 public:
  // Errors name file and tensor. Only the structure is read; tensor data stays untouched on disk.
  static Result<Checkpoint> open(const std::filesystem::path& directory);

  [[nodiscard]] const ModelPlan& plan() const { return plan_; }
  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }

  // The tensors open() checked. Asserts that the plan has them.
  [[nodiscard]] std::vector<float> vector(std::string_view name) const;
  [[nodiscard]] kernels::Weight matrix(std::string_view name) const;
  [[nodiscard]] std::vector<std::int64_t> ids(std::string_view name) const;

  struct Problem {
    std::string tensor;
    std::string what;  // "is missing", "has shape [..], want [..]", "is not expected", "holds a
                       // value that is not finite"
  };
  // Every difference between files and plan; reads all data when `values` is set.
  [[nodiscard]] std::vector<Problem> verify(bool values) const;

 private:
  [[nodiscard]] const TensorView* find(std::string_view released_name) const;
  [[nodiscard]] std::string describe_mismatch(const TensorSpec& spec) const;

  std::filesystem::path directory_;
  ModelPlan plan_;
  std::vector<Safetensors> files_;
};

}  // namespace galley::model
