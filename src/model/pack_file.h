#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

#include "base/mapped_file.h"
#include "base/result.h"
#include "kernels/weight.h"

// A file with the packed form of every matrix of a model, made once and mapped by whoever loads the
// model later. The format is described in docs/formats/packed_weights.md.
namespace galley::model {

// Raised with every change of the format, or of the order in which product_matrices() has them.
inline constexpr std::uint32_t kPackFileVersion = 1;

// Where the file of the checkpoint with this fingerprint lies in `directory`.
[[nodiscard]] std::filesystem::path pack_file_path(const std::filesystem::path& directory,
                                                   std::string_view key);

// Bytes written so far, and in all, which is said once the file is there. False stops the writing.
// Any thread calls it, one at a time.
using PackProgress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

// Packs `matrices`, product_matrices() of a model, on all cores into `path`, and returns the file's
// size. Memory stays at some MiB a core, whatever their size. Whoever else writes the same file
// does no harm. Errors: kInvalidArgument when no matrix has a packed form, kUnavailable with the
// system's reason, kCancelled; then nothing is left behind.
[[nodiscard]] Result<std::uint64_t> write_pack_file(const std::filesystem::path& path,
                                                    std::string_view key,
                                                    std::span<kernels::Weight* const> matrices,
                                                    const PackProgress& progress);

// Maps the file, and points the matrices into it; they use it as long as the result lives. The
// header and the directory are verified, the packed bytes are not read. Errors: kNotFound; another
// kind says why the file is of no use, and no matrix is changed.
[[nodiscard]] Result<MappedFile> map_pack_file(const std::filesystem::path& path,
                                               std::string_view key,
                                               std::span<kernels::Weight* const> matrices);

}  // namespace galley::model
