// Goal: a body is what RFC 9112 says, within its limits, however its bytes arrive.
// Method: texts fed whole and byte by byte.
#include "gateway/http_body.h"

#include <gtest/gtest.h>
#include <string>

namespace galley::gateway {
namespace {

struct Outcome {
  int status = 0;
  bool done = false;
  std::string body;
  std::size_t used = 0;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << outcome.status << (outcome.done ? " done " : " open ") << outcome.used << " '"
             << outcome.body << "'";
}

Outcome read(const HttpHead& head, std::string_view bytes, std::size_t step, std::size_t max) {
  BodyParser parser(head, max);
  Outcome outcome;
  for (std::size_t at = 0; at < bytes.size() && !parser.done() && parser.refusal().status == 0;) {
    const std::size_t used = parser.feed(bytes.substr(at, step), outcome.body);
    at += used;
    outcome.used += used;
  }
  outcome.status = parser.refusal().status;
  outcome.done = parser.done();
  return outcome;
}

Outcome read(const HttpHead& head, std::string_view bytes, std::size_t max = 1000) {
  const Outcome whole = read(head, bytes, bytes.size(), max);
  Outcome single = read(head, bytes, 1, max);
  if (whole.status != 0) {
    single.body = whole.body;  // of a refused body nobody asks how far it came
    single.used = whole.used;
  }
  EXPECT_EQ(whole, single) << bytes;
  return whole;
}

Outcome chunks(std::string_view bytes, std::size_t max = 1000) {
  return read({.chunked = true}, bytes, max);
}

TEST(HttpBody, ByLengthTakesExactlyThat) {
  EXPECT_EQ(read({.body_bytes = 3}, "abcdef"), (Outcome{0, true, "abc", 3}));
  EXPECT_EQ(read({.body_bytes = 3}, "ab"), (Outcome{0, false, "ab", 2}));
  EXPECT_TRUE(BodyParser({}, 10).done());
}

TEST(HttpBody, ChunksAreJoinedAndWhatFollowsStays) {
  EXPECT_EQ(chunks("3\r\nabc\r\n1\r\nd\r\n0\r\n\r\nGET"), (Outcome{0, true, "abcd", 19}));
  EXPECT_EQ(chunks("0\r\n\r\n"), (Outcome{0, true, "", 5}));
  EXPECT_EQ(chunks("aB\r\n" + std::string(0xAB, 'x') + "\r\n0\r\n\r\n").body.size(), 0xABU);
  EXPECT_EQ(chunks("3\r\nabc\r\n0\r\n\r").done, false);
}

TEST(HttpBody, ReadsOverExtensionsAndTrailers) {
  const Outcome outcome = chunks("1;a=\"b\"\r\nx\r\n0;c\r\nt: 1\r\nu:\t2\r\n\r\n");
  EXPECT_EQ(outcome.body, "x");
  EXPECT_TRUE(outcome.done);
  EXPECT_TRUE(chunks("1 \t;a\r\nx\r\n000\r\n\r\n").done);
}

TEST(HttpBody, RefusesWhatIsNoChunk) {
  for (const std::string_view bad :
       {"\r\n",      "x\r\n",   "-1\r\n",     "+1\r\n",     "0x1\r\n",   " 1\r\n",
        "1\n",       "1\r\r\n", "1;a\nb\r\n", "1;\x01\r\n", "1\r\nab",   "1\r\na\n",
        "1\r\na\r0", "0\r\n\n", "0\r\na\n",   "0\r\na\r\r", "0\r\n\x7F", "0\r\n\rx",
        "1,\r\n",    "G\r\n",   "@\r\n",      "`\r\n"}) {
    EXPECT_EQ(chunks(bad).status, 400) << bad;
  }
}

TEST(HttpBody, HoldsItsLimits) {
  EXPECT_EQ(chunks("4\r\nabcd\r\n1\r\nx\r\n0\r\n\r\n", 5).body, "abcdx");
  EXPECT_EQ(chunks("4\r\nabcd\r\n2\r\n", 5).status, 413);
  EXPECT_EQ(chunks("6\r\n", 5).status, 413);
  EXPECT_EQ(chunks("ffffffffffffffff\r\n").status, 413);
  EXPECT_EQ(chunks("10000000000000000\r\n").status, 413);  // 2^64: nothing is left of it in 64 bits
  const std::string line(BodyParser::kSizeLineBytesMax - 4, 'e');
  EXPECT_TRUE(chunks("0;" + line + "\r\n\r\n").done);
  EXPECT_EQ(chunks("0;e" + line + "\r\n").status, 400);
  EXPECT_EQ(chunks(std::string(BodyParser::kSizeLineBytesMax + 1, '0')).status, 400);
  const std::string trailer(BodyParser::kTrailerBytesMax - 4, 't');
  EXPECT_TRUE(chunks("0\r\n" + trailer + "\r\n\r\n").done);
  EXPECT_EQ(chunks("0\r\nt" + trailer + "\r\n\r\n").status, 400);
  // A bound for each line, not for all of them together.
  std::string many;
  for (int i = 0; i < 300; ++i) {
    many += "1\r\nx\r\n";
  }
  EXPECT_TRUE(chunks(many + "0\r\n\r\n").done);
}

}  // namespace
}  // namespace galley::gateway
