// Goal: each engine is asked for what the client wanted and nothing of its own defaults, and every
// token of its answer is found, whatever form its events have.
// Method: bodies as JSON, and events as the engines' releases send them.
#include "gateway/sources/dialect.h"

#include <algorithm>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <iterator>

#include "gateway/fakes_for_test.h"

namespace galley::gateway {
namespace {

using recipe::Json;
using recipe::SourceFinish;

Json json_of(std::string_view text) {
  return recipe::parse_json(text).value();
}

recipe::Generation some_generation() {
  recipe::Generation generation;
  generation.prompt = {5, 6, 7};
  generation.max_tokens = 10;
  generation.stop_ids = {1};
  generation.sampling.temperature = 0.5F;
  generation.sampling.seed = 41;
  generation.choice = 1;
  generation.sampling.logit_bias = {{9, 1.5F}};
  return generation;
}

Json body_of(std::string_view dialect, const recipe::Generation& generation) {
  const std::vector<TokenId> delivered{8, 9};
  return json_of(make_dialect(dialect, small_tokenizer())->body(generation, delivered));
}

std::string member(const Json& body, std::string_view key) {
  const Json* const found = body.find(key);
  return found == nullptr ? "(none)" : to_json(*found);
}

TEST(Dialect, WhatIsAskedOfLlamaCpp) {
  const Json body = body_of("llama.cpp", some_generation());
  EXPECT_EQ(member(body, "prompt"), "[5,6,7,8,9]");
  EXPECT_EQ(member(body, "n_predict"), "8");
  EXPECT_EQ(member(body, "stream"), "true");
  EXPECT_EQ(member(body, "return_tokens"), "true");
  EXPECT_EQ(member(body, "temperature"), "0.5");
  EXPECT_EQ(member(body, "top_k"), "0");
  EXPECT_EQ(member(body, "min_p"), "0.0");
  EXPECT_EQ(member(body, "seed"), "42");
  EXPECT_EQ(member(body, "logit_bias"), "[[9,1.5]]");
  recipe::Generation negative = some_generation();
  negative.sampling.seed = -3;
  EXPECT_EQ(member(body_of("llama.cpp", negative), "seed"), "4294967293");
}

TEST(Dialect, WhatIsAskedOfVllm) {
  recipe::Generation generation = some_generation();
  Json body = body_of("vllm", generation);
  EXPECT_EQ(member(body, "prompt"), "[5,6,7,8,9]");
  EXPECT_EQ(member(body, "max_tokens"), "8");
  EXPECT_EQ(member(body, "return_token_ids"), "true");
  EXPECT_EQ(member(body, "top_k"), "-1");
  EXPECT_EQ(member(body, "stop_token_ids"), "[1]");
  EXPECT_EQ(member(body, "seed"), "42");
  EXPECT_EQ(member(body, "logit_bias"), R"({"9":1.5})");
  EXPECT_EQ(member(body, "cache_salt"), "(none)");
  generation.tenant = "kitchen";
  const std::string salt = member(body_of("vllm", generation), "cache_salt");
  EXPECT_EQ(salt.size(), 34U) << salt;
  generation.tenant = "kitche";
  generation.user = "n";
  EXPECT_NE(member(body_of("vllm", generation), "cache_salt"), salt);
}

TEST(Dialect, WhatIsAskedOfSglang) {
  recipe::Generation generation = some_generation();
  generation.sampling.top_k = 3;
  generation.tenant = "kitchen";
  const Json body = body_of("sglang", generation);
  EXPECT_EQ(member(body, "input_ids"), "[5,6,7,8,9]");
  EXPECT_EQ(member(body, "stream"), "true");
  EXPECT_EQ(member(body, "extra_key").size(), 34U);
  const Json& parameters = *body.find("sampling_params");
  EXPECT_EQ(member(parameters, "max_new_tokens"), "8");
  EXPECT_EQ(member(parameters, "top_k"), "3");
  EXPECT_EQ(member(parameters, "stop_token_ids"), "[1]");
  EXPECT_EQ(member(parameters, "sampling_seed"), "42");
}

TEST(Dialect, WhatIsNotAskedIsRefusedByName) {
  const auto refused = [](const recipe::Generation& generation) {
    const auto checked = check_for_dialects(generation);
    return checked ? std::string() : checked.error().where;
  };
  recipe::Generation generation;
  EXPECT_EQ(refused(generation), "");
  generation.sampling.logprobs = true;
  EXPECT_EQ(refused(generation), "logprobs");
  generation = {};
  generation.images.emplace_back();
  EXPECT_EQ(refused(generation), "messages");
}

// Reads events one after the other.
struct Reading {
  explicit Reading(std::string_view dialect_name, const recipe::Generation& generation = {})
      : dialect(make_dialect(dialect_name, small_tokenizer())),
        reader(dialect->reader(generation)) {}
  Result<DialectPiece> operator()(std::string_view event) { return reader->read(json_of(event)); }
  std::unique_ptr<const Dialect> dialect;
  std::unique_ptr<DialectReader> reader;
};

// The id of the token that is `byte` alone.
TokenId byte_id(unsigned char byte) {
  for (TokenId id = 0; id < small_tokenizer()->vocabulary_size(); ++id) {
    if (small_tokenizer()->bytes(id) == std::string(1, static_cast<char>(byte))) {
      return id;
    }
  }
  return 0;
}

std::string llama_event(TokenId id, int total, std::string_view bytes) {
  std::string numbers;
  for (const char c : bytes) {
    fmt::format_to(std::back_inserter(numbers), "{}{}", numbers.empty() ? "" : ",",
                   static_cast<unsigned char>(c));
  }
  return fmt::format(R"({{"tokens":[{}],"stop":false,"tokens_predicted":{},)"
                     R"("completion_probabilities":[{{"bytes":[{}]}}]}})",
                     id, total, numbers);
}

TEST(LlamaCpp, TokensThatEndWithinACharacterAreFound) {
  // A snowman in three tokens, of which the stream has the last.
  const std::vector<TokenId> snowman{byte_id(0xE2), byte_id(0x98), byte_id(0x83)};
  Reading read("llama.cpp");
  EXPECT_EQ(read(llama_event(byte_id('a'), 1, "a"))->ids, std::vector{byte_id('a')});
  EXPECT_EQ(read(llama_event(snowman[2], 4, "\xE2\x98\x83"))->ids, snowman);
  // What never becomes one comes with what follows it.
  EXPECT_EQ(read(llama_event(byte_id('b'), 6,
                             "\xE2"
                             "b"))
                ->ids,
            (std::vector{byte_id(0xE2), byte_id('b')}));
  // The end tells of two more, whose bytes nobody has.
  const auto end = read(R"({"tokens":[],"stop":true,"stop_type":"limit","tokens_predicted":8})");
  ASSERT_TRUE(end) << end.error().what;
  EXPECT_TRUE(end->ids.empty());
  EXPECT_EQ(end->finish, SourceFinish::kLength);
}

TEST(LlamaCpp, TokensThatCannotBeFoundAreAnError) {
  for (const std::string& event :
       {llama_event(byte_id(0x83), 4, "\xE2\x98\x83"), llama_event(byte_id(0x83), 2, "\x98\x84"),
        llama_event(byte_id('b'), 2, "b"), llama_event(byte_id('b'), 100, "aaaaab"),
        std::string(R"({"tokens":[2],"stop":false,"tokens_predicted":2})"),
        std::string(R"({"tokens":[2,3],"stop":false,"tokens_predicted":1})")}) {
    const auto read = Reading("llama.cpp")(event);
    ASSERT_FALSE(read) << event;
    EXPECT_EQ(read.error().code, Code::kInternal) << event;
  }
}

TEST(LlamaCpp, ProgressHasNoTokens) {
  Reading read("llama.cpp");
  const auto piece = read(
      R"({"tokens":[0],"stop":false,"tokens_predicted":0,"prompt_progress":{"total":4,"cache":3}})");
  ASSERT_TRUE(piece);
  EXPECT_TRUE(piece->ids.empty());
  EXPECT_EQ(piece->cached_tokens, 3);
}

TEST(LlamaCpp, WhoIsNamedNeitherSharesItsCacheNorLearnsOfIt) {
  recipe::Generation tenants = some_generation();
  tenants.tenant = "kitchen";
  recipe::Generation users = some_generation();
  users.user = "ann";
  EXPECT_EQ(member(body_of("llama.cpp", some_generation()), "cache_prompt"), "true");
  for (const recipe::Generation& named : {tenants, users}) {
    EXPECT_EQ(member(body_of("llama.cpp", named), "cache_prompt"), "false");
    Reading read("llama.cpp", named);
    const auto piece = read(
        R"({"tokens":[0],"stop":false,"tokens_predicted":0,"prompt_progress":{"total":4,"cache":3}})");
    EXPECT_EQ(piece->cached_tokens, 0);
  }
}

TEST(LlamaCpp, Ends) {
  const auto end = [](std::string_view type) {
    return Reading("llama.cpp")(
        fmt::format(R"({{"tokens":[],"stop":true,"stop_type":"{}","tokens_predicted":0}})", type));
  };
  EXPECT_EQ(end("eos")->finish, SourceFinish::kStop);
  EXPECT_EQ(end("limit")->finish, SourceFinish::kLength);
  EXPECT_EQ(end("none").error().code, Code::kUnavailable);
}

TEST(Vllm, Events) {
  Reading read("vllm");
  const auto first = read(
      R"({"choices":[{"index":0,"text":"x","finish_reason":null,"prompt_token_ids":[5],"token_ids":[7,8]}]})");
  EXPECT_EQ(first->ids, (std::vector<TokenId>{7, 8}));
  EXPECT_FALSE(first->finish);
  const auto last = read(R"({"choices":[{"text":"","finish_reason":"stop","token_ids":[1]}]})");
  EXPECT_EQ(last->ids, std::vector<TokenId>{1});
  EXPECT_EQ(last->finish, SourceFinish::kStop);
  EXPECT_TRUE(read(R"({"choices":[],"usage":{"prompt_tokens":1}})")->ids.empty());
  EXPECT_EQ(read(R"({"choices":[{"finish_reason":"length","token_ids":[]}]})")->finish,
            SourceFinish::kLength);
  EXPECT_EQ(read(R"({"choices":[{"finish_reason":"abort","token_ids":[]}]})").error().code,
            Code::kUnavailable);
  // A release that has no ids yet.
  EXPECT_EQ(read(R"({"choices":[{"text":"x","finish_reason":null}]})").error().what,
            "its event has no `token_ids`");
}

TEST(Sglang, AllIdsOrNewOnes) {
  const std::string about = R"("meta_info":{"finish_reason":null,"cached_tokens":2,)";
  for (const bool incremental : {false, true}) {
    Reading read("sglang");
    const auto first =
        read(fmt::format(R"({{"output_ids":[7],{}"completion_tokens":1}}}})", about));
    ASSERT_TRUE(first) << first.error().what;
    EXPECT_EQ(first->ids, std::vector<TokenId>{7});
    EXPECT_EQ(first->cached_tokens, 2);
    const auto second = read(fmt::format(R"({{"output_ids":[{}],{}"completion_tokens":3}}}})",
                                         incremental ? "8,9" : "7,8,9", about));
    EXPECT_EQ(second->ids, (std::vector<TokenId>{8, 9}));
    const auto last = read(fmt::format(
        R"({{"output_ids":[{}],"meta_info":{{"finish_reason":{{"type":"length"}},"completion_tokens":4}}}})",
        incremental ? "3" : "7,8,9,3"));
    EXPECT_EQ(last->ids, std::vector<TokenId>{3});
    EXPECT_EQ(last->finish, SourceFinish::kLength);
    EXPECT_FALSE(read(fmt::format(R"({{"output_ids":[1,2],{}"completion_tokens":5}}}})", about)));
  }
}

TEST(Sglang, AbortSaysWhy) {
  const auto read = Reading("sglang")(
      R"({"output_ids":[],"meta_info":{"completion_tokens":0,"finish_reason":{"type":"abort","message":"too hot"}}})");
  EXPECT_EQ(read.error().code, Code::kUnavailable);
  EXPECT_NE(read.error().what.find("too hot"), std::string::npos);
}

TEST(Dialect, ErrorsInAStreamKeepWhatTheEngineSays) {
  for (const std::string_view name : kDialectNames) {
    const auto refused = Reading(name)(R"({"error":{"message":"bad\u001b prompt","code":400}})");
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
    EXPECT_EQ(refused.error().what, "bad\xEF\xBF\xBD prompt");
    EXPECT_EQ(Reading(name)(R"({"error":{"message":"x","code":500}})").error().code,
              Code::kUnavailable);
    EXPECT_EQ(Reading(name)(R"({"error":"x"})").error().code, Code::kUnavailable);
    EXPECT_EQ(Reading(name)("[]").error().code, Code::kInternal);
    EXPECT_EQ(Reading(name)("{}").error().code, Code::kInternal);
  }
}

}  // namespace
}  // namespace galley::gateway
