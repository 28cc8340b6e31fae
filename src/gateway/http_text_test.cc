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

TEST(HttpText, QueriesAreTakenApart) {
  EXPECT_EQ(query_of_target("/a?b=c&d#e?f"), "b=c&d");
  EXPECT_EQ(query_of_target("/a#?b=c"), "");
  EXPECT_EQ(query_of_target("http://h/a?b"), "b");
  EXPECT_EQ(query_value("a=1&b=x+y%26&b=2&c", "b"), "x y&");
  EXPECT_EQ(query_value("a=1&c", "c"), "");
  EXPECT_EQ(query_value("a%5Bb%5D=1", "a[b]"), "1");
  EXPECT_EQ(query_value("ab=1", "a"), std::nullopt);
  EXPECT_EQ(query_value("a=%zz", "a"), std::nullopt);
  EXPECT_EQ(query_value("", "a"), std::nullopt);
  EXPECT_EQ(query_value("&&a=1&", "a"), "1");
}

TEST(HttpText, TracesAreSpelledRight) {
  const std::string good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  EXPECT_TRUE(is_traceparent(good));
  EXPECT_TRUE(is_traceparent("cc" + good.substr(2) + "-more"));
  EXPECT_FALSE(is_traceparent(good + "-more"));
  EXPECT_FALSE(is_traceparent("cc" + good.substr(2) + "more"));
  EXPECT_FALSE(is_traceparent("ff" + good.substr(2)));
  EXPECT_FALSE(is_traceparent("00-00000000000000000000000000000000-00f067aa0ba902b7-01"));
  EXPECT_FALSE(is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"));
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = 'G';
    EXPECT_FALSE(is_traceparent(bad)) << i;
    EXPECT_FALSE(is_traceparent(good.substr(0, i)));
  }
}

}  // namespace
}  // namespace galley::gateway
