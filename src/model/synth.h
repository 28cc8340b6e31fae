#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/random.h"
#include "base/result.h"

// Checkpoints with random weights: for tests, measurements and demonstrations where the real one
// does not fit.
namespace galley::model {

// Which released model the shapes and the order of the layers are taken from (spec model 1).
enum class SynthLike : std::uint8_t { kV4Flash, kV4Pro, kV41Flash };
// Error: kInvalidArgument for a name other than v4-flash, v4-pro, v4.1-flash.
[[nodiscard]] Result<SynthLike> synth_like(std::string_view name);

// The largest a checkpoint can be made: well above the released models.
inline constexpr int kSynthLayersMax = 256;
inline constexpr int kSynthHiddenMax = 1 << 15;
inline constexpr int kSynthExpertsMax = 1024;
inline constexpr int kSynthVocabularyMax = 1 << 20;
inline constexpr std::int64_t kSynthEngramBytesMax = std::int64_t{1} << 40;

// What is absent is as in the released model.
struct SynthOptions {
  SynthLike like{};
  int vocabulary{};
  // With fewer layers the pattern is kept: the first ones, and in V4.1 the cut in the middle.
  std::optional<int> layers;
  // The sizes that grow with it (heads, low ranks, experts' width) shrink in proportion; head,
  // window and index sizes stay.
  std::optional<int> hidden;
  std::optional<int> experts;
  // V4.1: bytes of all engram tables together, at least roughly.
  std::int64_t engram_bytes = std::int64_t{16} << 20;
  Seed seed;
};

// config.json of such a model. Errors: kInvalidArgument for sizes no model can have.
[[nodiscard]] Result<std::string> synth_config(const SynthOptions& options);

// Whether a checkpoint with `bytes` of tensors fits where `available` bytes are free; headers,
// index, token map and tokenizer take up to kSynthOtherBytes more. Error: kUnavailable.
inline constexpr std::uint64_t kSynthOtherBytes = std::uint64_t{64} << 20U;
[[nodiscard]] Result<void> synth_fits(std::uint64_t bytes, std::uint64_t available);

// Bytes written so far, and in all.
using SynthProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Writes config.json, safetensors shards with their index and, for V4.1, engram_token_map.bin into
// `directory`, which is made and must be empty. Formats are the released ones: FP4 experts, FP8
// with block scales, BF16, F32. Values resemble trained ones: some channels are much larger than
// the others, the router prefers some experts, norms lie around one. A seed gives the same bytes on
// every machine; memory stays at some MiB. config.json is written last, and without it nothing is a
// checkpoint. Errors: kInvalidArgument, kUnavailable when the disk is too full or fails.
[[nodiscard]] Result<void> synthesise(const SynthOptions& options,
                                      const std::filesystem::path& directory,
                                      const SynthProgress& progress);

}  // namespace galley::model
