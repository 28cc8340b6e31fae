// Goal: each form of recorded loads gives its times, lengths and shared blocks, and nothing else is
// taken for one.
// Method: the first lines of the public traces (tests/data/traces).
#include "apps/bench_trace.h"

#include <algorithm>
#include <chrono>
#include <gtest/gtest.h>
#include <string>

#include "base/file.h"

namespace galley::apps {
namespace {

using namespace std::chrono_literals;

std::vector<TraceEntry> read(const std::string& name) {
  const auto text = read_file(GALLEY_TESTS_DIR "/data/traces/" + name, Bytes(1U << 20U));
  EXPECT_TRUE(text);
  auto entries = parse_trace(*text, 100);
  EXPECT_TRUE(entries) << entries.error().what;
  return entries.value_or(std::vector<TraceEntry>());
}

TEST(BenchTrace, Mooncake) {
  const auto entries = read("mooncake.jsonl");
  ASSERT_EQ(entries.size(), 5U);
  EXPECT_EQ(entries[0].prompt_tokens, 6758U);
  EXPECT_EQ(entries[0].answer_tokens, 500U);
  EXPECT_EQ(entries[0].blocks.size(), 14U);
  EXPECT_EQ(entries[0].block_tokens, 512U);
  EXPECT_EQ(entries[0].blocks[0], entries[1].blocks[0]);
  EXPECT_NE(entries[0].blocks[1], entries[1].blocks[1]);
}

TEST(BenchTrace, Lmcache) {
  const auto entries = read("lmcache.jsonl");
  ASSERT_EQ(entries.size(), 5U);
  EXPECT_EQ(entries[0].prompt_tokens, 306U);
  EXPECT_EQ(entries[0].block_tokens, 128U);
  EXPECT_EQ(entries[1].at, 2701ms);
}

TEST(BenchTrace, Flexlb) {
  const auto entries = read("flexlb.jsonl");
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[1].at, 56ms);
  EXPECT_EQ(entries[1].prompt_tokens, 93U);
  EXPECT_EQ(entries[1].answer_tokens, 1U);  // it says 0
  EXPECT_EQ(entries[0].block_tokens, 1024U);
  EXPECT_EQ(entries[0].blocks.size(), 7U);
}

TEST(BenchTrace, Azure) {
  const auto entries = read("azure.csv");
  ASSERT_EQ(entries.size(), 5U);
  EXPECT_EQ(entries[0].at, 0ms);
  EXPECT_EQ(std::chrono::round<std::chrono::milliseconds>(entries[1].at), 52ms);
  EXPECT_EQ(entries[3].prompt_tokens, 7433U);
  EXPECT_EQ(entries[3].answer_tokens, 14U);
}

TEST(BenchTrace, WhatIsNoneIsNamed) {
  const std::string good = R"({"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[]})";
  for (const std::string& bad :
       {std::string("x"), std::string("{}"), std::string("[]"),
        std::string(R"({"timestamp":-1,"input_length":5,"output_length":1,"hash_ids":[]})"),
        std::string(R"({"timestamp":0,"input_length":1e9,"output_length":1,"hash_ids":[]})"),
        std::string(R"({"timestamp":0,"input_length":5,"output_length":1})")}) {
    const auto parsed = parse_trace(good + "\n" + bad, 100);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_TRUE(parsed.error().what.starts_with("line 2: ")) << parsed.error().what;
    EXPECT_EQ(parse_trace(good + "\n" + bad, 1)->size(), 1U);
  }
  EXPECT_FALSE(parse_trace("", 100));
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (const char* const row : {"2023-11-16 18:17:03.9,1", "2023-13-16 18:17:03.9,1,1",
                                "2023-11-16 18:17:03.9,1,x", "now,1,1"}) {
    EXPECT_FALSE(parse_trace(head + row, 100)) << row;
  }
}

TEST(BenchTrace, ScalesKeepWhatIsShared) {
  auto entries = read("mooncake.jsonl");
  rescale(entries, {.lengths = 0.01, .pace = 2});
  EXPECT_EQ(entries[0].prompt_tokens, 68U);
  EXPECT_EQ(entries[0].block_tokens, 5U);
  const auto first = trace_prompt(entries[0], 0, 1000, Seed{1});
  const auto second = trace_prompt(entries[1], 1, 1000, Seed{1});
  EXPECT_EQ(first.size(), 68U);
  const auto same = std::ranges::mismatch(first, second).in1 - first.begin();
  EXPECT_EQ(same, 5);
  EXPECT_EQ(trace_prompt(entries[0], 0, 1000, Seed{1}), first);
  EXPECT_NE(trace_prompt(entries[0], 0, 1000, Seed{2}), first);
  auto quick = read("lmcache.jsonl");
  rescale(quick, {.pace = 10});
  EXPECT_EQ(std::chrono::round<std::chrono::milliseconds>(quick[1].at), 270ms);
}

}  // namespace
}  // namespace galley::apps
