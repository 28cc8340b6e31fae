#include "model/pack_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fmt/core.h>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <xxhash.h>

#include "base/ceil_div.h"
#include "base/check.h"
#include "base/cpu_count.h"
#include "base/mutex.h"
#include "base/new_file.h"
#include "base/worker_pool.h"
#include "kernels/packed_weight.h"
#include "model/packing.h"

namespace galley::model {
namespace {

namespace fs = std::filesystem;

// ---- the format; numbers are little-endian, as is this machine

constexpr std::array<char, 8> kMagic{'G', 'L', 'Y', 'P', 'A', 'C', 'K', '\n'};
constexpr std::size_t kKeyBytes = 32;
constexpr std::uint64_t kDataAlignment = 64;

struct Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t layout;
  std::array<char, kKeyBytes> key;
  std::uint64_t file_bytes;
  std::uint64_t matrices;
  XXH128_canonical_t checksum;  // of all before it, then the directory
};
static_assert(sizeof(Header) == 80);

struct Entry {
  std::uint64_t offset;  // 0: the matrix has no packed form
  std::uint64_t bytes;
};
static_assert(sizeof(Entry) == 16);

XXH128_canonical_t checksum_of(const Header& header, std::span<const Entry> directory) {
  std::vector<std::byte> text(offsetof(Header, checksum) + directory.size_bytes());
  std::memcpy(text.data(), &header, offsetof(Header, checksum));
  std::ranges::copy(std::as_bytes(directory), text.begin() + offsetof(Header, checksum));
  XXH128_canonical_t out;
  XXH128_canonicalFromHash(&out, XXH3_128bits(text.data(), text.size()));
  return out;
}

std::uint64_t data_begin(std::size_t matrices) {
  return ceil_div(sizeof(Header) + matrices * sizeof(Entry), kDataAlignment) * kDataAlignment;
}

// Every matrix behind the one before it.
std::vector<Entry> lay_out(std::span<kernels::Weight* const> matrices) {
  std::vector<Entry> entries;
  std::uint64_t end = data_begin(matrices.size());
  for (const kernels::Weight* const matrix : matrices) {
    const std::uint64_t bytes = packed_bytes(*matrix);
    entries.push_back({bytes == 0 ? 0 : end, bytes});
    end += bytes;
  }
  return entries;
}

// ---- writing

// Some groups of a matrix, packed and written together.
struct Piece {
  std::size_t matrix;
  std::size_t first_group;
  std::size_t groups;
};

// Large enough for the disk, small enough for the second-level cache.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20U;

std::vector<Piece> cut(std::span<kernels::Weight* const> matrices) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const auto shape = kernels::packed_shape(*matrices[i]);
    const std::size_t groups = shape ? ceil_div(matrices[i]->rows, kernels::kGroupRows) : 0;
    const std::size_t step = shape ? std::max<std::size_t>(1, kPieceBytes / shape->group_bytes) : 1;
    for (std::size_t group = 0; group < groups; group += step) {
      pieces.push_back({i, group, std::min(step, groups - group)});
    }
  }
  return pieces;
}

// What the workers share while they write the packed bytes.
class Writer {
 public:
  Writer(const NewFile& file,
         std::span<kernels::Weight* const> matrices,
         std::span<const Entry> entries,
         std::uint64_t total,
         const PackProgress& progress)
      : file_(file),
        matrices_(matrices),
        entries_(entries),
        total_(total),
        progress_(progress),
        unpackable_(matrices.size()) {}

  // Any thread. Does nothing once a piece has failed.
  void write(const Piece& piece) {
    if (stop_ || unpackable_[piece.matrix]) {
      return;
    }
    const kernels::Weight& matrix = *matrices_[piece.matrix];
    const kernels::PackedView shape = *kernels::packed_shape(matrix);
    const std::size_t bytes = piece.groups * shape.group_bytes;
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(bytes);
    for (std::size_t group = 0; group < piece.groups; ++group) {
      if (!kernels::pack_group(matrix, shape, piece.first_group + group,
                               buffer.get() + group * shape.group_bytes)) {
        unpackable_[piece.matrix] = true;
        return;
      }
    }
    const std::uint64_t offset =
        entries_[piece.matrix].offset + piece.first_group * shape.group_bytes;
    const auto done = file_.write(offset, {buffer.get(), bytes});
    const MutexLock lock(mutex_);
    if (!done && !error_) {
      error_ = done.error();
    }
    written_ += bytes;
    if (!error_ && !progress_(written_, total_)) {
      error_ = Error{.code = Code::kCancelled, .what = "stopped"};
    }
    stop_ = error_.has_value();
  }

  // After the last piece.
  [[nodiscard]] Result<void> result() {
    const MutexLock lock(mutex_);
    return error_ ? Result<void>(std::unexpected(*error_)) : Result<void>();
  }
  [[nodiscard]] bool packed(std::size_t matrix) const { return !unpackable_[matrix]; }

 private:
  const NewFile& file_;
  const std::span<kernels::Weight* const> matrices_;
  const std::span<const Entry> entries_;
  const std::uint64_t total_;
  const PackProgress& progress_;
  std::vector<std::atomic<bool>> unpackable_;  // by matrix: one of its groups has no packed form
  std::atomic<bool> stop_ = false;
  Mutex mutex_;
  std::uint64_t written_ GALLEY_GUARDED_BY(mutex_) = 0;
  std::optional<Error> error_ GALLEY_GUARDED_BY(mutex_);
};

// ---- reading

std::unexpected<Error> useless(const fs::path& path, std::string why) {
  return fail(Code::kCorruption, std::move(why), path.string());
}

Result<Header> read_header(const fs::path& path,
                           std::span<const std::byte> file,
                           std::string_view key) {
  Header header{};
  if (file.size() < sizeof(header)) {
    return useless(path, fmt::format("has {} bytes, less than a header", file.size()));
  }
  std::memcpy(&header, file.data(), sizeof(header));
  if (header.magic != kMagic) {
    return useless(path, "is no file of packed weights");
  }
  if (header.version != kPackFileVersion || header.layout != kernels::kPackedLayout) {
    return useless(path, fmt::format("has version {} and layout {}, want {} and {}", header.version,
                                     header.layout, kPackFileVersion, kernels::kPackedLayout));
  }
  if (std::string_view(header.key.data(), header.key.size()) != key) {
    return useless(path, "was made from another checkpoint");
  }
  if (header.file_bytes != file.size()) {
    return useless(path, fmt::format("has {} bytes, want {}", file.size(), header.file_bytes));
  }
  return header;
}

}  // namespace

fs::path pack_file_path(const fs::path& directory, std::string_view key) {
  return directory / (std::string(key) + ".galleypack");
}

Result<std::uint64_t> write_pack_file(const fs::path& path,
                                      std::string_view key,
                                      std::span<kernels::Weight* const> matrices,
                                      const PackProgress& progress) {
  GALLEY_ASSERT(key.size() == kKeyBytes);
  std::vector<Entry> entries = lay_out(matrices);
  std::uint64_t total = data_begin(matrices.size());
  for (const Entry& entry : entries) {
    total += entry.bytes;
  }
  if (total == data_begin(matrices.size())) {
    return fail(Code::kInvalidArgument, "no matrix of the model has a packed form");
  }
  GALLEY_TRY(NewFile file, NewFile::create(path, total));
  const std::vector<Piece> pieces = cut(matrices);
  {
    Writer writer(file, matrices, entries, total, progress);
    WorkerPool pool(cpu_count());
    pool.run(pieces.size(), [&](std::size_t i) { writer.write(pieces[i]); });
    GALLEY_CHECK_OK(writer.result());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i] = writer.packed(i) ? entries[i] : Entry{};
    }
  }
  Header header{.magic = kMagic,
                .version = kPackFileVersion,
                .layout = kernels::kPackedLayout,
                .key = {},
                .file_bytes = total,
                .matrices = entries.size(),
                .checksum = {}};
  std::ranges::copy(key, header.key.begin());
  header.checksum = checksum_of(header, entries);
  GALLEY_CHECK_OK(file.write(0, std::as_bytes(std::span(&header, 1))));
  GALLEY_CHECK_OK(file.write(sizeof(header), std::as_bytes(std::span(entries))));
  GALLEY_CHECK_OK(file.commit());
  progress(total, total);
  return total;
}

Result<MappedFile> map_pack_file(const fs::path& path,
                                 std::string_view key,
                                 std::span<kernels::Weight* const> matrices) {
  GALLEY_TRY(MappedFile mapped, MappedFile::open(path));
  const std::span<const std::byte> file = mapped.bytes();
  GALLEY_TRY(const Header header, read_header(path, file, key));
  const std::uint64_t begin = data_begin(matrices.size());
  if (header.matrices != matrices.size()) {
    return useless(path, fmt::format("has {} matrices, want {}", header.matrices, matrices.size()));
  }
  if (file.size() < begin) {
    return useless(path, "ends inside its directory");
  }
  std::vector<Entry> entries(matrices.size());
  std::memcpy(entries.data(), file.data() + sizeof(header), entries.size() * sizeof(Entry));
  const XXH128_canonical_t checksum = checksum_of(header, entries);
  if (std::memcmp(&checksum, &header.checksum, sizeof(checksum)) != 0) {
    return useless(path, "has another checksum than its header");
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto [offset, bytes] = entries[i];
    if (offset == 0 && bytes == 0) {
      continue;
    }
    if (bytes == 0 || bytes != packed_bytes(*matrices[i]) || offset < begin ||
        offset % kDataAlignment != 0 || offset > file.size() || bytes > file.size() - offset) {
      return useless(
          path, fmt::format("has matrix {} at {}, {} bytes, where it cannot be", i, offset, bytes));
    }
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    matrices[i]->packed = entries[i].offset == 0 ? nullptr : file.data() + entries[i].offset;
  }
  return mapped;
}

}  // namespace galley::model
