#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/disk_table.h"
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
  std::string name;  // released name of the data; scale_name() of it is that of the scales
  TensorKind kind{};
  std::vector<std::int64_t> shape;  // logical: FP4 bytes count two columns
};

inline constexpr int kFp4Block = 32;       // columns of an FP4 weight that share a scale
inline constexpr int kRowScaleBlock = 32;  // channels of an engram row that share a scale

// Released name of a tensor's scales: ".weight" becomes ".scale".
[[nodiscard]] std::string scale_name(std::string_view tensor);

// Every tensor the plan needs, in file order. Engram tables, vision and draft stages included.
[[nodiscard]] std::vector<TensorSpec> expected_tensors(const ModelPlan& plan);

// A directory with config.json and one or many safetensors files, mapped. Any naming of
// tensor_names.h is accepted; lookups use released names.
class Checkpoint {
 public:
  // Errors name file, tensor and expectation. Only the structure is read; tensor data stays
  // untouched on disk (except experts stored transposed, which are copied).
  static Result<Checkpoint> open(const std::filesystem::path& directory);

  [[nodiscard]] const ModelPlan& plan() const { return plan_; }
  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }

  // The tensors open() checked. Asserts that the plan has them.
  [[nodiscard]] std::vector<float> vector(std::string_view name) const;
  [[nodiscard]] kernels::Weight matrix(std::string_view name) const;
  [[nodiscard]] std::vector<std::int64_t> ids(std::string_view name) const;
  // The same matrix left on disk, to be read by row. Error: the file cannot be opened again.
  [[nodiscard]] Result<kernels::DiskTable> disk_table(std::string_view name) const;

  // Names what the packed forms of its matrices are made from, 32 hex digits: their layout
  // (kernels/packed_weight.h), config.json, and name, size, time of change and header of every
  // file, as they were when it was opened. Bytes of tensors are not read, nor is the directory's
  // name part of it; docs/formats/packed_weights.md has the exact bytes.
  [[nodiscard]] std::string fingerprint() const;

  // Bytes of all tensors: engram tables; those that were copied because the file keeps them
  // transposed; the others.
  struct Sizes {
    std::size_t weights{};
    std::size_t copied{};
    std::size_t tables{};
  };
  [[nodiscard]] Sizes sizes() const;

  // Where a tensor lies, for messages: "DIR/model.safetensors: NAME", NAME as the file spells it;
  // the directory for a tensor that no file has.
  [[nodiscard]] std::string locate(std::string_view name) const;

  struct Problem {
    std::string where;  // file and tensor, as locate() gives it
    std::string what;   // "is missing", "has shape [..], want [..]", ...
  };
  // Every difference between files and plan in `directory`: tensors that are missing, not expected,
  // of a wrong shape, dtype or scale, values that are not finite, scales that are not positive,
  // expert ids out of range, an engram token map or tables that do not fit. Reads all data. Error:
  // no config or no readable file.
  static Result<std::vector<Problem>> verify(const std::filesystem::path& directory);

 private:
  struct Stored {
    std::size_t file{};  // index in paths_
    std::string name;    // as the file spells it
    TensorView view;
    std::shared_ptr<const std::vector<std::byte>> owned;
  };

  // Files, names and plan; tensors are not yet compared with it.
  static Result<Checkpoint> read(const std::filesystem::path& directory);
  Result<void> add_file(const std::filesystem::path& path);
  [[nodiscard]] const TensorView* find(std::string_view released_name) const;
  [[nodiscard]] std::string describe_mismatch(const TensorSpec& spec) const;
  [[nodiscard]] std::vector<Problem> structure_problems() const;
  [[nodiscard]] std::vector<Problem> index_problems() const;
  [[nodiscard]] std::vector<Problem> value_problems() const;
  [[nodiscard]] std::vector<Problem> engram_problems() const;

  std::filesystem::path directory_;
  std::string config_text_;
  ModelPlan plan_;
  std::vector<Safetensors> files_;
  std::vector<std::filesystem::path> paths_;
  std::map<std::string, std::string> index_;  // file of each tensor; empty: there is no index
  std::map<std::string, Stored, std::less<>> stored_;  // by released name
};

}  // namespace galley::model
