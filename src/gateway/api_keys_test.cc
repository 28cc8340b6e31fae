// Goal: a file of keys is read as written or refused by line, and a key is found by its hash alone.
// Method: small files.
#include "gateway/api_keys.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace galley::gateway {
namespace {

std::string line(std::string_view name, std::string_view key, std::string_view limits = "") {
  return fmt::format("{} {}\n", api_key_line(name, Secret(std::string(key))), limits);
}

TEST(ApiKeys, FindsAKeyByItsHash) {
  const auto keys = ApiKeys::parse(
      "# who may\n\n" + line("alice", "one", "concurrency=2 requests=30") +
      line("bob", "two", "\t tokens=5") + line("alice", "three", "requests=30 concurrency=2"));
  ASSERT_TRUE(keys.has_value()) << to_string(keys.error());
  ASSERT_NE(keys->find("one"), nullptr);
  EXPECT_EQ(keys->find("one")->name, "alice");
  EXPECT_EQ(keys->find("one")->limits, (KeyLimits{.concurrency = 2, .requests_per_minute = 30}));
  EXPECT_EQ(keys->find("two")->limits, (KeyLimits{.tokens_per_minute = 5}));
  EXPECT_EQ(keys->find("three")->name, "alice");
  EXPECT_EQ(keys->find("four"), nullptr);
  EXPECT_EQ(keys->find(""), nullptr);
  // The file itself lets nobody in.
  EXPECT_EQ(keys->find(api_key_line("", Secret("one")).substr(1)), nullptr);
}

TEST(ApiKeys, AKeyOfTheEnvironment) {
  ApiKeys keys;
  EXPECT_TRUE(keys.empty());
  ASSERT_TRUE(keys.add({.name = "default", .hash = cache::sha256("one")}));
  EXPECT_FALSE(keys.empty());
  EXPECT_EQ(keys.find("one")->name, "default");
  EXPECT_EQ(keys.find("One"), nullptr);
  // It must not lift the limits of one that is there, nor mix with a tenant that has some.
  auto file = ApiKeys::parse(line("alice", "one", "requests=1"));
  ASSERT_TRUE(file.has_value());
  EXPECT_FALSE(file->add({.name = "default", .hash = cache::sha256("one")}));
  EXPECT_FALSE(file->add({.name = "alice", .hash = cache::sha256("two")}));
  EXPECT_TRUE(file->add({.name = "default", .hash = cache::sha256("two")}));
}

TEST(ApiKeys, BadLinesAreNamedAndNotRepeated) {
  const std::string good = line("alice", "one");
  for (const auto& [text, where] : std::initializer_list<std::pair<std::string, std::string_view>>{
           {"alice", "line 1"},
           {good + "bob 1234", "line 2"},
           {good + good, "line 2"},
           {"a/b " + good, "line 1"},
           {"\n\nbob sk-secret", "line 3"},
           {line("alice", "one", "requests"), "line 1"},
           {line("alice", "one", "requests="), "line 1"},
           {line("alice", "one", "requests=0"), "line 1"},
           {line("alice", "one", "requests=-1"), "line 1"},
           {line("alice", "one", "requests=99999999999999999999"), "line 1"},
           {line("alice", "one", "request=1"), "line 1"},
           {good + line("alice", "two", "requests=1"), "line 2"},
       }) {
    const auto keys = ApiKeys::parse(text);
    ASSERT_FALSE(keys.has_value()) << text;
    EXPECT_EQ(keys.error().where, where) << text;
    EXPECT_EQ(to_string(keys.error()).find("secret"), std::string::npos);
  }
}

}  // namespace
}  // namespace galley::gateway
