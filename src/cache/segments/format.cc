#include "cache/segments/format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <fmt/format.h>
#include <type_traits>

#include "base/check.h"
#include "base/page_buffer.h"
#include "cache/block_store.h"
#include "cache/crc32c.h"

namespace galley::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers lie as they are stored");

using Magic = std::array<char, 8>;
constexpr Magic kSegmentMagic{'G', 'L', 'Y', 'S', 'E', 'G', '1', '\n'};
constexpr Magic kRecordMagic{'G', 'L', 'Y', 'B', 'L', 'K', '1', '\n'};
constexpr Magic kTableMagic{'G', 'L', 'Y', 'T', 'B', 'L', '1', '\n'};
constexpr Magic kEndMagic{'G', 'L', 'Y', 'E', 'N', 'D', '1', '\n'};

constexpr std::size_t kClassBytes = 16;
constexpr std::size_t kSpaceBytes = 64;

// The structs below are what lies on the disk.
struct DiskName {
  std::uint64_t writer;
  std::uint32_t number;
  std::uint32_t zero;
  std::array<char, kClassBytes> retention;  // filled up with zeros
  std::int64_t bucket_s;
  std::int64_t expires_s;
};
static_assert(sizeof(DiskName) == 48);

// What all four kinds begin with. The checksum is of everything behind it.
struct DiskBegin {
  Magic magic;
  std::uint32_t crc;
  std::uint32_t version;
};
constexpr std::size_t kChecksummedFrom = 12;

struct DiskSegmentHead {
  DiskBegin begin;
  DiskName name;
};
static_assert(sizeof(DiskSegmentHead) == 64);

struct DiskRecordHead {
  DiskBegin begin;
  std::uint32_t head_bytes;
  std::uint32_t parts;
  std::uint64_t payload_bytes;
  std::uint64_t sequence;
  std::uint64_t layout;
  std::uint64_t numerics;
  std::uint32_t flags;
  std::uint32_t space_bytes;
  BlockKey key;
  BlockKey parent;
  DiskName segment;
  std::array<char, kSpaceBytes> space;
  std::array<std::byte, 48> zero;
};
static_assert(sizeof(DiskRecordHead) == kRecordHeadBytes);
constexpr std::uint32_t kExactFlag = 1;

struct DiskTableHead {
  DiskBegin begin;
  std::uint64_t bytes;  // without the padding
  std::uint32_t kind;
  std::uint32_t number;
  std::uint64_t data_begin;
  std::uint64_t data_end;
  DiskName segment;
  std::uint32_t scopes;
  std::uint32_t rows;
  std::uint64_t zero;
};
static_assert(sizeof(DiskTableHead) == 112);

struct DiskScope {
  std::uint64_t layout;
  std::uint64_t numerics;
  std::uint32_t space_bytes;
  std::uint32_t zero;
  std::array<char, kSpaceBytes> space;
};
static_assert(sizeof(DiskScope) == 88);

struct DiskRow {
  BlockKey key;
  std::uint64_t sequence;
  std::uint32_t page;
  std::uint32_t pages;
  std::uint16_t scope;
  std::uint16_t flags;
  std::uint32_t zero;
};
static_assert(sizeof(DiskRow) == 40);

struct DiskEnd {
  DiskBegin begin;
  DiskName segment;
  std::uint64_t footer_offset;
  std::uint64_t footer_bytes;
};
static_assert(sizeof(DiskEnd) == 80);

template <class T>
T get(std::span<const std::byte> bytes, std::size_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  GALLEY_ASSERT(offset + sizeof(T) <= bytes.size());
  T out;
  std::memcpy(&out, bytes.data() + offset, sizeof(T));
  return out;
}

template <class T>
void set(std::span<std::byte> bytes, std::size_t offset, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  GALLEY_ASSERT(offset + sizeof(T) <= bytes.size());
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

template <std::size_t N>
void set_text(std::array<char, N>& field, std::string_view text) {
  GALLEY_ASSERT(text.size() <= N);
  std::ranges::copy(text, field.begin());
}

DiskName disk_name(const SegmentName& name) {
  DiskName out{.writer = name.writer,
               .number = name.number,
               .bucket_s = name.bucket_s,
               .expires_s = name.expires_s};
  set_text(out.retention, name.retention);
  return out;
}

std::optional<SegmentName> segment_name(const DiskName& name) {
  const std::string_view field(name.retention.data(), name.retention.size());
  const std::string_view text = field.substr(0, std::min(field.find('\0'), field.size()));
  if (!is_class_name(text)) {
    return std::nullopt;
  }
  return SegmentName{.writer = name.writer,
                     .number = name.number,
                     .retention = std::string(text),
                     .bucket_s = name.bucket_s,
                     .expires_s = name.expires_s};
}

std::unexpected<Error> damaged(std::string_view what) {
  return fail(Code::kCorruption, std::string(what));
}

void seal(std::span<std::byte> bytes, const Magic& magic) {
  set(bytes, 0, DiskBegin{.magic = magic, .crc = 0, .version = kSegmentFormatVersion});
  const std::uint32_t crc = crc32c(bytes.subspan(kChecksummedFrom));
  set(bytes, offsetof(DiskBegin, crc), crc);
}

bool begins_with(std::span<const std::byte> bytes, const Magic& magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

// Magic, checksum and version of `bytes`, all that the checksum covers.
Result<void> check_seal(std::span<const std::byte> bytes, const Magic& magic, bool verify = true) {
  if (!begins_with(bytes, magic)) {
    return damaged("wrong magic");
  }
  const auto begin = get<DiskBegin>(bytes, 0);
  if (verify && begin.crc != crc32c(bytes.subspan(kChecksummedFrom))) {
    return damaged("wrong checksum");
  }
  if (begin.version != kSegmentFormatVersion) {
    return damaged(fmt::format("version {}, known is {}", begin.version, kSegmentFormatVersion));
  }
  return {};
}

template <class T>
bool parse_hex(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, 16);
  return error == std::errc() && end == text.data() + text.size() && text.front() != '-';
}

}  // namespace

bool is_class_name(std::string_view text) {
  return !text.empty() && text.size() <= kClassNameBytesMax &&
         std::ranges::all_of(text, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

std::string file_stem(const SegmentName& name) {
  return fmt::format("{}-{:x}-{:x}-{:016x}-{:08x}", name.retention, name.bucket_s, name.expires_s,
                     name.writer, name.number);
}

std::optional<SegmentName> parse_file_stem(std::string_view stem) {
  std::array<std::string_view, 5> fields;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::size_t end = i + 1 < fields.size() ? stem.find('-') : stem.size();
    if (end == std::string_view::npos || end == 0) {
      return std::nullopt;
    }
    fields.at(i) = stem.substr(0, end);
    stem.remove_prefix(std::min(end + 1, stem.size()));
  }
  SegmentName out{.retention = std::string(fields[0])};
  if (!is_class_name(out.retention) || !parse_hex(fields[1], out.bucket_s) ||
      !parse_hex(fields[2], out.expires_s) || !parse_hex(fields[3], out.writer) ||
      !parse_hex(fields[4], out.number)) {
    return std::nullopt;
  }
  return out;
}

std::vector<std::byte> encode_segment_head(const SegmentName& name) {
  std::vector<std::byte> page(kDiskPage);
  set(std::span(page), 0, DiskSegmentHead{.name = disk_name(name)});
  seal(page, kSegmentMagic);
  return page;
}

Result<SegmentName> decode_segment_head(std::span<const std::byte> page) {
  if (page.size() != kDiskPage) {
    return damaged("no whole page");
  }
  GALLEY_CHECK_OK(check_seal(page, kSegmentMagic));
  auto name = segment_name(get<DiskSegmentHead>(page, 0).name);
  if (!name) {
    return damaged("no class name");
  }
  return std::move(*name);
}

std::size_t record_head_bytes(std::size_t parts) {
  return kRecordHeadBytes + parts * sizeof(PartHead);
}

std::uint64_t payload_bytes(std::span<const PartHead> parts) {
  std::uint64_t sum = 0;
  for (const PartHead& part : parts) {
    sum += part.bytes;
  }
  return sum;
}

std::uint64_t record_bytes(std::span<const PartHead> parts) {
  return page_ceil(record_head_bytes(parts.size()) + payload_bytes(parts));
}

void encode_record_head(const RecordHead& head, std::span<std::byte> out) {
  GALLEY_ASSERT(out.size() == record_head_bytes(head.parts.size()));
  DiskRecordHead disk{.head_bytes = static_cast<std::uint32_t>(out.size()),
                      .parts = static_cast<std::uint32_t>(head.parts.size()),
                      .payload_bytes = payload_bytes(head.parts),
                      .sequence = head.sequence,
                      .layout = head.layout,
                      .numerics = head.numerics,
                      .flags = head.exact ? kExactFlag : 0,
                      .space_bytes = static_cast<std::uint32_t>(head.space.size()),
                      .key = head.key,
                      .parent = head.parent,
                      .segment = disk_name(head.segment)};
  set_text(disk.space, head.space);
  set(out, 0, disk);
  std::size_t at = kRecordHeadBytes;
  for (const PartHead& part : head.parts) {
    set(out, at, part);
    at += sizeof(part);
  }
  seal(out, kRecordMagic);
}

bool begins_like_record(std::span<const std::byte> bytes) {
  return begins_with(bytes, kRecordMagic);
}

Result<RecordHead> decode_record_head(std::span<const std::byte> bytes) {
  if (bytes.size() < kRecordHeadBytes || !begins_like_record(bytes)) {
    return damaged("no record");
  }
  const auto disk = get<DiskRecordHead>(bytes, 0);
  if (disk.parts > kBlockPartsMax || disk.head_bytes != record_head_bytes(disk.parts) ||
      disk.head_bytes > bytes.size()) {
    return damaged("wrong number of parts");
  }
  GALLEY_CHECK_OK(check_seal(bytes.first(disk.head_bytes), kRecordMagic));
  auto name = segment_name(disk.segment);
  if (!name || disk.space_bytes > kNamespaceBytesMax) {
    return damaged("a name is too long");
  }
  RecordHead out{.segment = std::move(*name),
                 .sequence = disk.sequence,
                 .space = std::string(disk.space.data(), disk.space_bytes),
                 .key = disk.key,
                 .parent = disk.parent,
                 .layout = disk.layout,
                 .numerics = disk.numerics,
                 .exact = (disk.flags & kExactFlag) != 0};
  out.parts.resize(disk.parts);
  if (!out.parts.empty()) {
    std::memcpy(out.parts.data(), bytes.data() + kRecordHeadBytes,
                out.parts.size() * sizeof(PartHead));
  }
  if (payload_bytes(out.parts) != disk.payload_bytes || disk.payload_bytes > kBlockBytesMax) {
    return damaged("wrong payload size");
  }
  return out;
}

Result<std::vector<std::span<const std::byte>>> record_parts(const RecordHead& head,
                                                             std::span<const std::byte> record,
                                                             bool verify) {
  std::size_t at = record_head_bytes(head.parts.size());
  if (record.size() < at + payload_bytes(head.parts)) {
    return damaged("the record is cut");
  }
  std::vector<std::span<const std::byte>> out;
  out.reserve(head.parts.size());
  for (const PartHead& part : head.parts) {
    const auto bytes = record.subspan(at, part.bytes);
    if (verify && crc32c(bytes) != part.crc) {
      return damaged(fmt::format("part {} does not verify", out.size()));
    }
    out.push_back(bytes);
    at += part.bytes;
  }
  return out;
}

std::vector<std::byte> encode_table(const Table& table) {
  const std::size_t bytes = sizeof(DiskTableHead) + table.scopes.size() * sizeof(DiskScope) +
                            table.rows.size() * sizeof(DiskRow);
  std::vector<std::byte> out(page_ceil(bytes));
  const std::span all(out);
  set(all, 0,
      DiskTableHead{.bytes = bytes,
                    .kind = static_cast<std::uint32_t>(table.kind),
                    .number = table.number,
                    .data_begin = table.data_begin,
                    .data_end = table.data_end,
                    .segment = disk_name(table.segment),
                    .scopes = static_cast<std::uint32_t>(table.scopes.size()),
                    .rows = static_cast<std::uint32_t>(table.rows.size())});
  std::size_t at = sizeof(DiskTableHead);
  for (const TableScope& scope : table.scopes) {
    DiskScope disk{.layout = scope.layout,
                   .numerics = scope.numerics,
                   .space_bytes = static_cast<std::uint32_t>(scope.space.size())};
    set_text(disk.space, scope.space);
    set(all, at, disk);
    at += sizeof(disk);
  }
  for (const TableRow& row : table.rows) {
    set(all, at,
        DiskRow{.key = row.key,
                .sequence = row.sequence,
                .page = row.page,
                .pages = row.pages,
                .scope = row.scope,
                .flags = static_cast<std::uint16_t>(row.exact ? kExactFlag : 0)});
    at += sizeof(DiskRow);
  }
  seal(all.first(bytes), kTableMagic);
  return out;
}

bool begins_like_table(std::span<const std::byte> bytes) {
  return begins_with(bytes, kTableMagic);
}

std::optional<std::uint64_t> table_bytes(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(DiskTableHead) || !begins_like_table(bytes)) {
    return std::nullopt;
  }
  const auto head = get<DiskTableHead>(bytes, 0);
  const std::uint64_t expected = sizeof(DiskTableHead) +
                                 std::uint64_t{head.scopes} * sizeof(DiskScope) +
                                 std::uint64_t{head.rows} * sizeof(DiskRow);
  if (head.scopes > kTableScopesMax || head.bytes != expected) {
    return std::nullopt;
  }
  return page_ceil(expected);
}

Result<Table> decode_table(std::span<const std::byte> bytes, bool verify) {
  const auto padded = table_bytes(bytes);
  const auto head = padded ? get<DiskTableHead>(bytes, 0) : DiskTableHead{};
  if (!padded || head.bytes > bytes.size()) {
    return damaged("no whole table");
  }
  GALLEY_CHECK_OK(check_seal(bytes.first(head.bytes), kTableMagic, verify));
  auto name = segment_name(head.segment);
  if (!name || (head.kind != static_cast<std::uint32_t>(TableKind::kJournal) &&
                head.kind != static_cast<std::uint32_t>(TableKind::kFooter))) {
    return damaged("no such table");
  }
  Table out{.kind = static_cast<TableKind>(head.kind),
            .number = head.number,
            .data_begin = head.data_begin,
            .data_end = head.data_end,
            .segment = std::move(*name)};
  std::size_t at = sizeof(DiskTableHead);
  out.scopes.reserve(head.scopes);
  for (std::uint32_t i = 0; i < head.scopes; ++i, at += sizeof(DiskScope)) {
    const auto disk = get<DiskScope>(bytes, at);
    if (disk.space_bytes > kNamespaceBytesMax) {
      return damaged("a name is too long");
    }
    out.scopes.push_back({.space = std::string(disk.space.data(), disk.space_bytes),
                          .layout = disk.layout,
                          .numerics = disk.numerics});
  }
  out.rows.reserve(head.rows);
  for (std::uint32_t i = 0; i < head.rows; ++i, at += sizeof(DiskRow)) {
    const auto disk = get<DiskRow>(bytes, at);
    if (disk.scope >= head.scopes || disk.pages == 0) {
      return damaged("a row is wrong");
    }
    out.rows.push_back({.key = disk.key,
                        .sequence = disk.sequence,
                        .page = disk.page,
                        .pages = disk.pages,
                        .scope = disk.scope,
                        .exact = (disk.flags & kExactFlag) != 0});
  }
  return out;
}

std::vector<std::byte> encode_segment_end(const SegmentEnd& end) {
  std::vector<std::byte> page(kDiskPage);
  set(std::span(page), 0,
      DiskEnd{.segment = disk_name(end.segment),
              .footer_offset = end.footer_offset,
              .footer_bytes = end.footer_bytes});
  seal(page, kEndMagic);
  return page;
}

Result<SegmentEnd> decode_segment_end(std::span<const std::byte> page) {
  if (page.size() != kDiskPage) {
    return damaged("no whole page");
  }
  GALLEY_CHECK_OK(check_seal(page, kEndMagic));
  const auto disk = get<DiskEnd>(page, 0);
  auto name = segment_name(disk.segment);
  if (!name) {
    return damaged("no class name");
  }
  return SegmentEnd{.segment = std::move(*name),
                    .footer_offset = disk.footer_offset,
                    .footer_bytes = disk.footer_bytes};
}

}  // namespace galley::cache
