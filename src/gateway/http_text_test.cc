// Goal: the text rules of HTTP hold at their edges.
// Method: tables of inputs and outputs.
#include "gateway/http_text.h"

#include <gtest/gtest.h>

namespace galley::gateway {
namespace {

TEST(HttpText, ComparesAsciiWithoutCase) {
  EXPECT_TRUE(same_ignoring_case("Chunked", "cHUNKED"));
  EXPECT_FALSE(same_ignoring_case("chunked", "chunked "));
  EXPECT_FALSE(same_ignoring_case("@", "`"));  // differ by the case bit only
  EXPECT_EQ(to_lower("X-Request-Id[Z"), "x-request-id[z");
}

TEST(HttpText, TakesThePathOutOfATarget) {
  EXPECT_EQ(path_of_target("/v1/models"), "/v1/models");
  EXPECT_EQ(path_of_target("/v1/models?limit=2"), "/v1/models");
  EXPECT_EQ(path_of_target("http://host:80/v1/models?x#y"), "/v1/models");
  EXPECT_EQ(path_of_target("http://host"), "/");
  EXPECT_EQ(path_of_target("/proxy?to=http://host/x"), "/proxy");
  EXPECT_EQ(path_of_target("/a://b/c"), "/a://b/c");
  EXPECT_EQ(path_of_target("*"), "*");
}

TEST(HttpText, DecodesPercentSigns) {
  EXPECT_EQ(percent_decoded("a%2Fb%c3%A9"), "a/b\xC3\xA9");
  EXPECT_EQ(percent_decoded(""), "");
  EXPECT_EQ(percent_decoded("%4"), std::nullopt);
  EXPECT_EQ(percent_decoded("%"), std::nullopt);
  EXPECT_EQ(percent_decoded("%g0"), std::nullopt);
  EXPECT_EQ(percent_decoded("%0G"), std::nullopt);
}

TEST(HttpText, AcceptsHarmlessRequestIdsOnly) {
  EXPECT_TRUE(is_request_id("aZ09._-"));
  EXPECT_TRUE(is_request_id(std::string(128, 'a')));
  EXPECT_FALSE(is_request_id(std::string(129, 'a')));
  EXPECT_FALSE(is_request_id(""));
  EXPECT_FALSE(is_request_id("a b"));
  EXPECT_FALSE(is_request_id("a\r\nb"));
}

TEST(HttpText, WritesDates) {
  EXPECT_EQ(http_date(784'111'777), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
  EXPECT_EQ(rfc3339(784'111'777), "1994-11-06T08:49:37Z");
  EXPECT_EQ(rfc3339(951'782'400), "2000-02-29T00:00:00Z");
}

TEST(HttpText, AHeaderValueCannotEndItsLine) {
  std::string out;
  append_header("x-note", "a\r\nb: c\x7F\xC3\xA9", out);
  EXPECT_EQ(out, "x-note: a??b: c???\r\n");
}

}  // namespace
}  // namespace galley::gateway
