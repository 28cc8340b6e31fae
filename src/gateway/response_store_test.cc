// Goal: a conversation is put together from the Responses it was made of, and listed page by page.
// Method: stores in memory.
#include "gateway/response_store.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/virtual_loop.h"
#include "gateway/sqlite_response_store.h"

namespace galley::gateway {
namespace {

class ResponseStoreTest : public testing::Test {
 protected:
  void put(std::string id, std::string previous, std::string input, std::string said) {
    const std::string output = fmt::format(
        R"([{{"type":"message","id":"msg_{}_0","role":"assistant","content":[{{"type":"output_text","text":"{}"}}]}}])",
        id, said);
    const auto kept = store_->put({.id = id,
                                   .tenant = "alice",
                                   .previous_id = std::move(previous),
                                   .created_s = 1,
                                   .body = fmt::format(R"({{"id":"{}","output":{}}})", id, output),
                                   .input = std::move(input)});
    ASSERT_TRUE(kept) << to_string(kept.error());
  }
  // A conversation of three turns.
  void talk() {
    put("resp_a", "", R"([{"role":"user","content":"one"}])", "ONE");
    put("resp_b", "resp_a",
        R"([{"type":"message","id":"msg_mine","role":"user","content":"two"},)"
        R"({"type":"function_call_output","call_id":"c","output":"r"}])",
        "TWO");
    put("resp_c", "resp_b", R"([{"role":"assistant","content":"three"}])", "THREE");
  }
  std::string page(std::string_view id, const ListPage& page = {}) {
    auto text = list_input_items(*store_, "alice", id, page);
    return text ? *text : to_string(text.error());
  }
  static std::vector<std::string> ids(std::string_view text) {
    std::vector<std::string> out;
    const auto json = recipe::parse_json(text);
    for (const recipe::Json& item : *json->find("data")->array()) {
      out.push_back(*item.find("id")->string());
    }
    return out;
  }

  VirtualLoop clock_{UnixTime(std::chrono::seconds(1'700'000'000))};
  std::unique_ptr<SqliteResponseStore> store_ =
      SqliteResponseStore::open(":memory:", {}, clock_).value();
};

TEST_F(ResponseStoreTest, AConversationIsItsTurnsInOrder) {
  talk();
  const auto items = earlier_items(*store_, "alice", "resp_c");
  ASSERT_TRUE(items) << to_string(items.error());
  std::string texts;
  for (const recipe::Json& item : *items) {
    const recipe::Json* const output = item.find("output");
    texts += recipe::to_json(output == nullptr ? *item.find("content") : *output);
  }
  EXPECT_EQ(
      texts,
      R"("one"[{"type":"output_text","text":"ONE"}]"two""r")"
      R"([{"type":"output_text","text":"TWO"}]"three"[{"type":"output_text","text":"THREE"}])");
}

TEST_F(ResponseStoreTest, WhatIsMissingIsNamed) {
  talk();
  const auto unknown = earlier_items(*store_, "alice", "resp_x");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::kInvalidArgument);
  EXPECT_EQ(unknown.error().what, "Previous response with id \"resp_x\" not found.");
  EXPECT_EQ(unknown.error().where, "previous_response_id");
  EXPECT_EQ(unknown.error().reason, "previous_response_not_found");
  // Somebody else's is not there.
  EXPECT_EQ(earlier_items(*store_, "bob", "resp_c").error().what,
            "Previous response with id \"resp_c\" not found.");
  // One that lost its beginning is not answered with half a conversation.
  ASSERT_TRUE(store_->remove("alice", "resp_a"));
  EXPECT_EQ(earlier_items(*store_, "alice", "resp_c").error().what,
            "Previous response with id \"resp_a\" not found.");
}

TEST_F(ResponseStoreTest, AChainIsBounded) {
  // The last first: whoever goes on from what is there counts it all as used, which takes time.
  for (std::size_t i = kChainLengthMax + 1; i-- > 0;) {
    put(fmt::format("r{}", i), i == 0 ? "" : fmt::format("r{}", i - 1), "[]", "x");
  }
  EXPECT_TRUE(earlier_items(*store_, "alice", fmt::format("r{}", kChainLengthMax - 1)));
  const auto long_one = earlier_items(*store_, "alice", fmt::format("r{}", kChainLengthMax));
  ASSERT_FALSE(long_one);
  EXPECT_EQ(long_one.error().code, Code::kTooLarge);
}

TEST_F(ResponseStoreTest, ItemsAreListedWithIdsAndBlocks) {
  talk();
  EXPECT_EQ(page("resp_a"),
            R"({"object":"list","data":[{"id":"msg_resp_a_in0","role":"user","content":)"
            R"([{"type":"input_text","text":"one"}],"type":"message","status":"completed"}],)"
            R"("first_id":"msg_resp_a_in0","last_id":"msg_resp_a_in0","has_more":false})");
  EXPECT_NE(page("resp_c", {.limit = 1}).find(R"("type":"output_text","text":"three")"),
            std::string::npos);
}

TEST_F(ResponseStoreTest, PagesFollowEachOther) {
  talk();
  const std::vector<std::string> all{"msg_resp_a_in0",  "msg_resp_a_0", "msg_mine",
                                     "item_resp_b_in1", "msg_resp_b_0", "msg_resp_c_in0"};
  EXPECT_EQ(ids(page("resp_c", {.descending = false})), all);
  EXPECT_EQ(ids(page("resp_c")), std::vector<std::string>(all.rbegin(), all.rend()));
  std::vector<std::string> seen;
  ListPage at{.limit = 4, .descending = false};
  const std::string first = page("resp_c", at);
  EXPECT_NE(first.find(R"("has_more":true)"), std::string::npos);
  at.after = ids(first).back();
  const std::string second = page("resp_c", at);
  EXPECT_NE(second.find(R"("has_more":false)"), std::string::npos);
  EXPECT_EQ(ids(second), std::vector<std::string>(all.begin() + 4, all.end()));
  at.after = all.back();
  EXPECT_EQ(page("resp_c", at),
            R"({"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false})");
  EXPECT_NE(page("resp_c", {.after = "nobody"}).find("(at after)"), std::string::npos);
  EXPECT_EQ(list_input_items(*store_, "alice", "resp_x", {}).error().code, Code::kNotFound);
}

TEST_F(ResponseStoreTest, EveryListedItemHasAnIdOfItsOwn) {
  put("r", "",
      R"([{"id":null,"content":"a"},{"id":"","content":"b"},{"id":7,"content":"c"},)"
      R"({"id":"x","content":"d"},{"id":"x","content":"e"},{"id":"msg_r_in6","content":"f"},)"
      R"({"content":"g"}])",
      "R");
  const std::vector<std::string> all{"msg_r_in0", "msg_r_in1", "msg_r_in2", "x",
                                     "msg_r_in4", "msg_r_in6", "msg_r_in6_"};
  EXPECT_EQ(ids(page("r", {.descending = false})), all);
  ListPage at{.limit = 1, .descending = false};
  std::vector<std::string> seen;
  for (std::size_t i = 0; i < all.size(); ++i) {
    at.after = seen.empty() ? "" : seen.back();
    seen.push_back(ids(page("r", at)).front());
  }
  EXPECT_EQ(seen, all);
}

TEST_F(ResponseStoreTest, BrokenTextIsAnErrorOfOurs) {
  ASSERT_TRUE(store_->put({.id = "r", .tenant = "alice", .body = "{", .input = "[]"}));
  EXPECT_EQ(earlier_items(*store_, "alice", "r").error().code, Code::kCorruption);
}

}  // namespace
}  // namespace galley::gateway
