#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/disk.h"
#include "base/result.h"
#include "cache/block_key.h"

// Bytes of segments, journals and footers (docs/formats/segment.md). Pure functions of bytes;
// whatever they are given, they never read outside of it.
namespace galley::cache {

inline constexpr std::uint32_t kSegmentFormatVersion = 1;
inline constexpr std::string_view kSegmentSuffix = ".segment";
inline constexpr std::string_view kJournalSuffix = ".journal";

// Which segment. It stands in the file's name, its head, each of its records and each of its
// tables, so that none of them is needed to know what the others are.
struct SegmentName {
  std::uint64_t writer{};    // a random number for each time a store was opened for writing
  std::uint32_t number{};    // counts that writer's segments
  std::string retention;     // class; 1 to kClassNameBytesMax of [a-z0-9_]
  std::int64_t bucket_s{};   // begin of its time bucket, Unix seconds
  std::int64_t expires_s{};  // all of it, at once
  friend auto operator<=>(const SegmentName&, const SegmentName&) = default;
};
[[nodiscard]] bool is_class_name(std::string_view text);
// "chat-6750a1b0-675a2c00-0123456789abcdef-00000001", without suffix: class, bucket, expiry, writer
// and number, in hex digits.
[[nodiscard]] std::string file_stem(const SegmentName& name);
[[nodiscard]] std::optional<SegmentName> parse_file_stem(std::string_view stem);

// The first page of a segment.
[[nodiscard]] std::vector<std::byte> encode_segment_head(const SegmentName& name);
[[nodiscard]] Result<SegmentName> decode_segment_head(std::span<const std::byte> page);

struct PartHead {
  std::uint32_t bytes{};
  std::uint32_t crc{};  // CRC-32C
};

struct RecordHead {
  SegmentName segment;
  std::uint64_t sequence{};  // grows with every put of a store; for purges
  std::string space;
  BlockKey key;
  BlockKey parent;
  std::uint64_t layout{};
  std::uint64_t numerics{};
  bool exact{};
  std::vector<PartHead> parts;
};
inline constexpr std::size_t kRecordHeadBytes = 256;  // and 8 a part
[[nodiscard]] std::size_t record_head_bytes(std::size_t parts);
[[nodiscard]] std::uint64_t payload_bytes(std::span<const PartHead> parts);
// Of the whole record, a multiple of the page.
[[nodiscard]] std::uint64_t record_bytes(std::span<const PartHead> parts);
// `out` has record_head_bytes().
void encode_record_head(const RecordHead& head, std::span<std::byte> out);
[[nodiscard]] bool begins_like_record(std::span<const std::byte> bytes);
// Of bytes that begin with a record. kCorruption. Payload is not looked at.
[[nodiscard]] Result<RecordHead> decode_record_head(std::span<const std::byte> bytes);
// Each part of a whole record. kCorruption when one does not verify; `verify` is off in a
// deliberate defect only.
[[nodiscard]] Result<std::vector<std::span<const std::byte>>> record_parts(
    const RecordHead& head, std::span<const std::byte> record, bool verify = true);

// What blocks of a table have in common.
struct TableScope {
  std::string space;
  std::uint64_t layout{};
  std::uint64_t numerics{};
  friend auto operator<=>(const TableScope&, const TableScope&) = default;
};
struct TableRow {
  BlockKey key;
  std::uint64_t sequence{};
  std::uint32_t page{};   // where the record begins, in pages
  std::uint32_t pages{};  // its size
  std::uint16_t scope{};  // index of Table::scopes
  bool exact{};
};
enum class TableKind : std::uint32_t { kJournal = 1, kFooter = 2 };
// A journal is a row of these, one for each group that was committed; a footer is one.
struct Table {
  TableKind kind{};
  std::uint32_t number{};      // of the group, from 0; 0 in a footer
  std::uint64_t data_begin{};  // all records between are in it
  std::uint64_t data_end{};
  SegmentName segment;
  std::vector<TableScope> scopes;
  std::vector<TableRow> rows;
};
inline constexpr std::size_t kTableScopesMax = 65'535;
// A multiple of the page.
[[nodiscard]] std::vector<std::byte> encode_table(const Table& table);
[[nodiscard]] bool begins_like_table(std::span<const std::byte> bytes);
// Bytes of the table that begins here, rounded up to pages, as its head says; nothing when that is
// none. Needs a page.
[[nodiscard]] std::optional<std::uint64_t> table_bytes(std::span<const std::byte> bytes);
// kCorruption. `verify` is off in a deliberate defect only.
[[nodiscard]] Result<Table> decode_table(std::span<const std::byte> bytes, bool verify = true);

// The last page of a closed segment: where its footer is.
struct SegmentEnd {
  SegmentName segment;
  std::uint64_t footer_offset{};
  std::uint64_t footer_bytes{};
};
[[nodiscard]] std::vector<std::byte> encode_segment_end(const SegmentEnd& end);
[[nodiscard]] Result<SegmentEnd> decode_segment_end(std::span<const std::byte> page);

}  // namespace galley::cache
