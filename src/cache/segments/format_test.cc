// Goal: what is written is read back, and nothing else is taken for it. Method: round trips, and
// every single byte changed, cut off or shifted.
#include "cache/segments/format.h"

#include <gtest/gtest.h>

#include "cache/block_store.h"
#include "cache/segments/store_for_test.h"

namespace galley::cache {
namespace {

SegmentName a_name() {
  return {.writer = 0x0123456789abcdef,
          .number = 7,
          .retention = "chat",
          .bucket_s = 1'700'000'000,
          .expires_s = 1'700'608'400};
}

RecordHead a_head() {
  return {.segment = a_name(),
          .sequence = 99,
          .space = std::string(kNamespaceBytesMax, 's'),
          .key = key_for_test(1),
          .parent = key_for_test(2),
          .layout = 3,
          .numerics = 4,
          .exact = true,
          .parts = {{.bytes = 5000, .crc = 1}, {.bytes = 0, .crc = 0}, {.bytes = 1, .crc = 2}}};
}

Table a_table() {
  return {.kind = TableKind::kJournal,
          .number = 3,
          .data_begin = 4096,
          .data_end = 12'288,
          .segment = a_name(),
          .scopes = {{.space = "a", .layout = 1, .numerics = 2}, {.space = ""}},
          .rows = {{.key = key_for_test(8), .sequence = 5, .page = 1, .pages = 1, .scope = 1},
                   {.key = key_for_test(9), .sequence = 6, .page = 2, .pages = 1, .exact = true}}};
}

TEST(SegmentFormat, AFilesNameSaysWhichSegmentItIs) {
  const std::string stem = file_stem(a_name());
  EXPECT_EQ(stem, "chat-6553f100-655d3990-0123456789abcdef-00000007");
  EXPECT_EQ(parse_file_stem(stem), a_name());
  for (const char* wrong : {"", "chat", "chat-1-2-3", "chat-1-2-3-", "Chat-1-2-3-4", "-1-2-3-4",
                            "chat-1-2-3-4-5", "chat-1-2-3-x", "chat-1-2-11112222333344445-4",
                            "chat-1--2-3-4", "a123456789012345-1-2-3-4"}) {
    EXPECT_FALSE(parse_file_stem(wrong)) << wrong;
  }
}

TEST(SegmentFormat, HeadsAndEndsComeBack) {
  const auto head = encode_segment_head(a_name());
  ASSERT_EQ(head.size(), kDiskPage);
  EXPECT_EQ(*decode_segment_head(head), a_name());
  const SegmentEnd end{.segment = a_name(), .footer_offset = 8192, .footer_bytes = 4096};
  const auto page = encode_segment_end(end);
  const auto back = decode_segment_end(page);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->footer_offset, 8192U);
  EXPECT_EQ(back->footer_bytes, 4096U);
  EXPECT_FALSE(decode_segment_end(head));
  EXPECT_FALSE(decode_segment_head(page));
}

TEST(SegmentFormat, ARecordComesBack) {
  const RecordHead head = a_head();
  std::vector<std::byte> bytes(record_head_bytes(3));
  encode_record_head(head, bytes);
  const auto back = decode_record_head(bytes);
  ASSERT_TRUE(back) << to_string(back.error());
  EXPECT_EQ(back->segment, head.segment);
  EXPECT_EQ(back->space, head.space);
  EXPECT_EQ(back->key, head.key);
  EXPECT_EQ(back->parent, head.parent);
  EXPECT_EQ(std::tuple(back->sequence, back->layout, back->numerics, back->exact),
            std::tuple(99U, 3U, 4U, true));
  ASSERT_EQ(back->parts.size(), 3U);
  EXPECT_EQ(back->parts[0].bytes, 5000U);
  EXPECT_EQ(record_bytes(back->parts), 8192U);
}

// The published layout of a block of V4.1-Flash: 112 KiB with its header.
TEST(SegmentFormat, ABlockOfFourSourcesTakesItsOwnPagesAndNoMore) {
  const std::vector<PartHead> parts{{22'784, 0}, {22'784, 0}, {22'784, 0}, {45'568, 0}};
  EXPECT_EQ(payload_bytes(parts), 113'920U);
  EXPECT_EQ(record_bytes(parts), 114'688U);
}

TEST(SegmentFormat, ATableComesBack) {
  const Table table = a_table();
  const auto bytes = encode_table(table);
  EXPECT_EQ(bytes.size(), kDiskPage);
  EXPECT_EQ(table_bytes(bytes), kDiskPage);
  const auto back = decode_table(bytes);
  ASSERT_TRUE(back) << to_string(back.error());
  EXPECT_EQ(back->kind, table.kind);
  EXPECT_EQ(back->scopes, table.scopes);
  EXPECT_EQ(std::tuple(back->number, back->data_begin, back->data_end),
            std::tuple(3U, 4096U, 12'288U));
  ASSERT_EQ(back->rows.size(), 2U);
  EXPECT_EQ(back->rows[1].key, key_for_test(9));
  EXPECT_EQ(back->rows[0].scope, 1);
  EXPECT_FALSE(back->rows[0].exact);
  EXPECT_TRUE(back->rows[1].exact);
}

template <class Decode>
void expect_refused(std::vector<std::byte> bytes, std::size_t covered, const Decode& decode) {
  ASSERT_TRUE(decode(bytes));
  for (std::size_t i = 0; i < covered; ++i) {
    for (const unsigned bit : {0U, 7U}) {
      bytes[i] ^= static_cast<std::byte>(1U << bit);
      ASSERT_FALSE(decode(bytes)) << "byte " << i;
      bytes[i] ^= static_cast<std::byte>(1U << bit);
    }
  }
  for (std::size_t size = 0; size < covered; ++size) {
    ASSERT_FALSE(decode(std::span(bytes).first(size))) << size;
  }
}

TEST(SegmentFormat, AnyChangedByteIsSeen) {
  using Bytes = std::span<const std::byte>;
  expect_refused(encode_segment_head(a_name()), kDiskPage,
                 [](Bytes bytes) { return decode_segment_head(bytes).has_value(); });
  expect_refused(encode_segment_end({.segment = a_name()}), kDiskPage,
                 [](Bytes bytes) { return decode_segment_end(bytes).has_value(); });
  expect_refused(encode_table(a_table()), 112 + 2 * 88 + 2 * 40,
                 [](Bytes bytes) { return decode_table(bytes).has_value(); });
  std::vector<std::byte> head(record_head_bytes(3));
  encode_record_head(a_head(), head);
  expect_refused(head, head.size(),
                 [](Bytes bytes) { return decode_record_head(bytes).has_value(); });
}

}  // namespace
}  // namespace galley::cache
