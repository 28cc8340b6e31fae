// Goal: every line of a batch is asked once and answered once, whatever it holds and however often
// a run is killed. Method: texts in, values out; files are strings here, cut at every byte.
#include "gateway/batch_lines.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "recipe/json.h"

namespace galley::gateway {
namespace {

using recipe::Protocol;

std::string line(std::string_view id, std::string_view more = R"("body": {"model": "m"})") {
  return fmt::format(
      R"({{"custom_id": "{}", "method": "POST", "url": "/v1/chat/completions", {}}})", id, more);
}

Error error_of(std::string_view text) {
  const BatchRequest request = parse_batch_line(text);
  EXPECT_FALSE(request.body.has_value()) << text;
  return request.body ? Error{} : request.body.error();
}

TEST(BatchIndex, FindsTheLinesAndTheirNames) {
  const std::string text = line("a") + "\n\n  \t\r\n" + line("b") + "\r\nnonsense\n" + line("c");
  const auto entries = index_batch(text);
  ASSERT_TRUE(entries.has_value()) << to_string(entries.error());
  ASSERT_EQ(entries->size(), 4U);
  EXPECT_EQ((*entries)[0].number, 1U);
  EXPECT_EQ((*entries)[0].custom_id, "a");
  EXPECT_EQ((*entries)[0].text, line("a"));
  EXPECT_EQ((*entries)[1].number, 4U);
  EXPECT_EQ((*entries)[1].custom_id, "b");
  EXPECT_EQ((*entries)[2].number, 5U);
  EXPECT_EQ((*entries)[2].custom_id, "");
  EXPECT_EQ((*entries)[3].custom_id, "c");
  EXPECT_TRUE(index_batch("")->empty());
  EXPECT_TRUE(index_batch("\n \n")->empty());
}

TEST(BatchIndex, TwoLinesOfOneNameAreBothNamed) {
  const auto entries = index_batch(line("a") + "\n" + line("b") + "\n\n" + line("a") + "\n");
  ASSERT_FALSE(entries.has_value());
  EXPECT_EQ(to_string(entries.error()),
            R"(invalid argument: custom_id "a" is that of line 1 too (at line 4))");
  // Names count as they read, not as they are spelled; lines without one have none in common.
  EXPECT_FALSE(index_batch(line("a") + "\n" + line(R"(\u0061)")).has_value());
  EXPECT_TRUE(index_batch("{}\n{}\n").has_value());
}

TEST(BatchIndex, LinesAreBounded) {
  std::string text(kBatchLinesMax, '\n');
  EXPECT_TRUE(index_batch(text).has_value());
  text += '\n';
  ASSERT_FALSE(index_batch(text).has_value());
  EXPECT_EQ(index_batch(text).error().code, Code::kTooLarge);
}

TEST(BatchLine, HasAProtocolAndABody) {
  for (const auto& [url, protocol] : {std::pair{"/v1/chat/completions", Protocol::kChat},
                                      std::pair{"/v1/responses", Protocol::kResponses},
                                      std::pair{"/v1/messages", Protocol::kMessages}}) {
    const BatchRequest request = parse_batch_line(
        fmt::format(R"({{"custom_id":"a","method":"POST","url":"{}","more":1,)"
                    R"("body":{{"model":"m","n":[1, 2.50],"stream":false,"stop":null}}}})",
                    url));
    EXPECT_EQ(request.protocol, protocol);
    ASSERT_TRUE(request.body.has_value()) << to_string(request.body.error());
    EXPECT_EQ(*request.body, R"({"model":"m","n":[1,2.5],"stream":false,"stop":null})");
  }
}

TEST(BatchLine, WhatIsNoRequestIsSaidByName) {
  EXPECT_TRUE(error_of(R"({"custom_id": )").what.starts_with("the line is no JSON: "));
  EXPECT_TRUE(error_of(R"({"custom_id": "x", 5})").what.ends_with(" (at byte 19)"));
  EXPECT_EQ(error_of("[]").what, "the line is no JSON object");
  const std::string all =
      R"("custom_id":"a","method":"POST","url":"/v1/messages","body":{"model":"m"})";
  ASSERT_TRUE(parse_batch_line("{" + all + "}").body.has_value());
  for (const std::string_view member : {R"("custom_id":"a")", R"("method":"POST")",
                                        R"("url":"/v1/messages")", R"("body":{"model":"m"})"}) {
    const std::string_view name = member.substr(1, member.find('"', 1) - 1);
    for (const std::string_view other : {R"("x":1)", R"(:7)", R"(:null)", R"(:"")", R"(:[])"}) {
      std::string text = "{" + all + "}";
      text.replace(text.find(member), member.size(),
                   other.starts_with(':') ? fmt::format("\"{}\"{}", name, other) : other);
      const Error error = error_of(text);
      EXPECT_EQ(error.where, name) << text;
      EXPECT_NE(error.what.find(fmt::format("`{}`", name)), std::string::npos) << error.what;
      // The error has the form of the protocol, where it is known.
      EXPECT_EQ(parse_batch_line(text).protocol,
                name == "url" ? Protocol::kChat : Protocol::kMessages);
    }
  }
}

TEST(BatchLine, AnotherUrlIsNotFound) {
  const Error error =
      error_of(R"({"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"model":"m"}})");
  EXPECT_EQ(error.code, Code::kNotFound);
  EXPECT_EQ(error.where, "url");
  EXPECT_NE(error.what.find(R"("/v1/embeddings")"), std::string::npos);
  EXPECT_NE(error.what.find("/v1/responses"), std::string::npos);
}

TEST(BatchLine, AStreamIsRefusedByName) {
  const Error error = error_of(line("a", R"("body": {"model": "m", "stream": true})"));
  EXPECT_EQ(error.code, Code::kInvalidArgument);
  EXPECT_EQ(error.where, "stream");
  EXPECT_NE(error.what.find("`stream`"), std::string::npos);
}

TEST(BatchLine, NamesAndLinesAreBounded) {
  const std::string longest(kCustomIdBytesMax, 'x');
  EXPECT_TRUE(parse_batch_line(line(longest)).body.has_value());
  EXPECT_EQ(error_of(line(longest + "x")).where, "custom_id");
  EXPECT_EQ(index_batch(line(longest + "x"))->front().custom_id, "");
  std::string text = line("a");
  text.append(kBatchLineBytesMax - text.size(), ' ');
  EXPECT_TRUE(parse_batch_line(text).body.has_value());
  EXPECT_EQ(error_of(text + " ").code, Code::kTooLarge);
}

TEST(BatchAnswer, IsOneLineInOpenAisForm) {
  EXPECT_EQ(batch_answer_line({.id = "1",
                               .custom_id = "a\"\n",
                               .number = 7,
                               .status = 200,
                               .request_id = "req_2",
                               .body = R"({"id":"x"})",
                               .note = {}}),
            R"({"id":"batch_req_1","custom_id":"a\"\n","response":{"status_code":200,)"
            R"("request_id":"req_2","body":{"id":"x"}},"error":null})"
            "\n");
  EXPECT_EQ(batch_answer_line({.id = "1",
                               .custom_id = {},
                               .number = 7,
                               .status = 400,
                               .request_id = "req_2",
                               .body = "{}",
                               .note = "`user` is ignored"}),
            R"({"id":"batch_req_1","custom_id":null,"line":7,"response":{"status_code":400,)"
            R"("request_id":"req_2","note":"`user` is ignored","body":{}},"error":null})"
            "\n");
}

std::string answer(std::string_view id, int status = 200, std::size_t number = 0) {
  return batch_answer_line({.id = "1",
                            .custom_id = std::string(id),
                            .number = number,
                            .status = status,
                            .request_id = "req_2",
                            .body = R"({"text":"ü"})",
                            .note = {}});
}

Result<BatchDone> read_whole(std::string_view text, std::size_t piece = 1000) {
  BatchDoneReader reader;
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size()))) {
    GALLEY_CHECK_OK(reader.feed(text.substr(0, piece)));
  }
  return reader.finish();
}

TEST(BatchDone, AFileCutAnywhereHasItsWholeLines) {
  const std::string lines[] = {answer("a"), answer("", 400, 3), answer("b", 500), answer("c")};
  std::string all;
  for (const std::string& one : lines) {
    all += one;
  }
  for (std::size_t cut = 0; cut <= all.size(); ++cut) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, all.size()}) {
      const auto done = read_whole(std::string_view(all).substr(0, cut), piece);
      ASSERT_TRUE(done.has_value()) << to_string(done.error());
      std::size_t whole = 0;
      std::size_t bytes = 0;
      while (whole < 4 && bytes + lines[whole].size() <= cut) {
        bytes += lines[whole++].size();
      }
      ASSERT_EQ(done->size(), whole) << cut;
      ASSERT_EQ(done->bytes, bytes) << cut;
      ASSERT_EQ(done->failed, whole < 2 ? 0U : whole == 2 ? 1U : 2U);
      ASSERT_EQ(done->custom_ids.contains("a"), whole > 0);
      ASSERT_EQ(done->numbers.contains(3), whole > 1);
    }
  }
}

TEST(BatchDone, WhatIsNoAnswerIsLeftAlone) {
  for (const std::string_view foreign :
       {"dear diary", "dear diary\n", "{}\n", "\n", R"({"id":"x","custom_id":"a"})",
        R"({"id":"batch_req_1","custom_id":"a","response":null,"error":null})"
        "\n",
        R"({"id":"batch_req_1","custom_id":null,"response":{"status_code":200},"error":null})"
        "\n"}) {
    const auto done = read_whole(answer("a") + std::string(foreign));
    ASSERT_FALSE(done.has_value()) << foreign;
    EXPECT_EQ(done.error().code, Code::kCorruption);
    EXPECT_EQ(done.error().where, "line 2");
  }
}

TEST(BatchDone, ASecondAnswerIsAnError) {
  EXPECT_EQ(read_whole(answer("a") + answer("b") + answer("a")).error().where, "line 3");
  EXPECT_EQ(read_whole(answer("", 400, 3) + answer("", 400, 3)).error().where, "line 2");
}

TEST(BatchDone, WhatIsDoneIsNotAskedAgain) {
  const std::string text = line("a") + "\n" + line("b") + "\nnonsense\n" + line("c") + "\n{}";
  const auto left_after = [&text](const std::string& output) {
    return entries_left(*index_batch(text), *read_whole(output));
  };
  EXPECT_EQ(left_after("")->size(), 5U);
  const auto left = left_after(answer("b") + answer("", 400, 3));
  ASSERT_TRUE(left.has_value());
  ASSERT_EQ(left->size(), 3U);
  EXPECT_EQ((*left)[0].custom_id, "a");
  EXPECT_EQ((*left)[1].custom_id, "c");
  EXPECT_EQ((*left)[2].number, 5U);
  EXPECT_TRUE(
      left_after(answer("a") + answer("b") + answer("c") + answer("", 400, 3) + answer("", 400, 5))
          ->empty());
  // Another batch's output.
  EXPECT_NE(left_after(answer("d")).error().what.find(R"("d")"), std::string::npos);
  EXPECT_NE(left_after(answer("", 400, 1)).error().what.find("line 1"), std::string::npos);
}

}  // namespace
}  // namespace galley::gateway
