// Goal: lines have one fixed form per format, cannot be forged from values, and obey the level.
// Method: a virtual clock and a sink that collects lines; whole lines are compared.
#include "base/log.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/virtual_loop.h"

namespace galley {
namespace {

using namespace std::chrono_literals;

static_assert(!std::is_constructible_v<LogField, const char*, Secret>);

struct Fixture {
  explicit Fixture(LogLevel level, LogFormat format = LogFormat::kText)
      : log(clock, {.level = level, .format = format, .write = [this](std::string_view line) {
                      lines.emplace_back(line);
                    }}) {}
  VirtualLoop clock{UnixTime(1'769'860'800'250ms)};
  std::vector<std::string> lines;
  Log log;
};

TEST(Log, TextLines) {
  Fixture f(LogLevel::kDebug);
  const std::string id = "r-17";
  f.log.info("request done", {{"request", id},
                              {"tokens", 42U},
                              {"offset", -1},
                              {"seconds", 0.5},
                              {"stream", true},
                              {"note", "two words"}});
  f.log.warn("bare");
  f.log.error("failed");
  f.log.debug("detail");
  EXPECT_EQ(f.lines,
            (std::vector<std::string>{
                "2026-01-31T12:00:00.250Z info  request done request=r-17 tokens=42 "
                "offset=-1 seconds=0.5 stream=true note=\"two words\"",
                "2026-01-31T12:00:00.250Z warn  bare", "2026-01-31T12:00:00.250Z error failed",
                "2026-01-31T12:00:00.250Z debug detail"}));
}

TEST(Log, JsonLines) {
  Fixture f(LogLevel::kInfo, LogFormat::kJson);
  f.log.info("done", {{"who", "a\"b"},
                      {"n", std::numeric_limits<std::uint64_t>::max()},
                      {"m", std::numeric_limits<std::int64_t>::min()},
                      {"x", std::nan("")},
                      {"y", 1.5},
                      {"ok", false}});
  EXPECT_EQ(f.lines.at(0),
            R"({"time":"2026-01-31T12:00:00.250Z","level":"info","message":"done","who":"a\"b",)"
            R"("n":18446744073709551615,"m":-9223372036854775808,"x":"nan","y":1.5,"ok":false})");
}

TEST(Log, LevelsBelowAreDropped) {
  for (const LogLevel least :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError}) {
    Fixture f(least);
    f.log.debug("m");
    f.log.info("m");
    f.log.warn("m");
    f.log.error("m");
    EXPECT_EQ(f.lines.size(), 4U - std::to_underlying(least));
    EXPECT_TRUE(f.log.enabled(least));
  }
}

TEST(Log, ValuesCannotForgeALineOrAField) {
  Fixture f(LogLevel::kInfo);
  f.log.info("m", {{"a", "x\n2026 error fake"}, {"b", "x=y"}, {"c", ""}, {"d", "\"q\""}});
  EXPECT_EQ(f.lines.at(0),
            "2026-01-31T12:00:00.250Z info  m a=\"x\\n2026 error fake\" b=\"x=y\" "
            "c=\"\" d=\"\\\"q\\\"\"");
}

TEST(Log, LongValuesAreCut) {
  Fixture f(LogLevel::kInfo);
  f.log.info("m", {{"a", std::string(kLogValueBytesMax, 'x')},
                   {"b", std::string(kLogValueBytesMax + 1, 'y')}});
  EXPECT_EQ(f.lines.at(0),
            "2026-01-31T12:00:00.250Z info  m a=" + std::string(kLogValueBytesMax, 'x') + " b=\"" +
                std::string(kLogValueBytesMax, 'y') + "…\"");
}

TEST(Log, LinesOfSeveralThreadsDoNotMix) {
  Fixture f(LogLevel::kInfo);
  {
    std::vector<std::jthread> writers;
    for (int i = 0; i < 4; ++i) {
      writers.emplace_back([&f] {
        for (int n = 0; n < 50; ++n) {
          f.log.info("m", {{"n", 7}});
        }
      });
    }
  }
  EXPECT_EQ(f.lines, std::vector<std::string>(200, "2026-01-31T12:00:00.250Z info  m n=7"));
}

TEST(Log, NamesParse) {
  for (std::size_t i = 0; i < kLogLevelNames.size(); ++i) {
    EXPECT_EQ(*parse_log_level(kLogLevelNames[i]), static_cast<LogLevel>(i));
  }
  EXPECT_EQ(*parse_log_format("text"), LogFormat::kText);
  EXPECT_EQ(*parse_log_format("json"), LogFormat::kJson);
  EXPECT_FALSE(parse_log_level("Info"));
  EXPECT_FALSE(parse_log_format(""));
}

}  // namespace
}  // namespace galley
