#pragma once

#include <cstdint>
#include <fstream>
#include <gtest/gtest.h>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/json.h"
#include "recipe/request.h"

// The golden files as tests read them (spec recipe 9). For tests only.
namespace galley::recipe {

inline std::string golden_text(std::string_view name) {
  std::ifstream file(std::string(GALLEY_TESTS_DIR "/golden/") + std::string(name));
  EXPECT_TRUE(file) << name;
  return (std::ostringstream() << file.rdbuf()).str();
}

// Records of recipe_golden.jsonl with this `k`, and this `p` when one is given.
inline std::vector<Json> golden_records(std::string_view kind, std::string_view protocol = {}) {
  std::vector<Json> out;
  std::istringstream lines(golden_text("recipe_golden.jsonl"));
  const std::string has_kind = "\"k\": \"" + std::string(kind) + "\"";
  for (std::string line; std::getline(lines, line);) {
    // Parsing every record for the few that are wanted would dominate the test.
    if (line.find(has_kind) == std::string::npos &&
        line.find("\"k\":\"" + std::string(kind) + "\"") == std::string::npos) {
      continue;
    }
    Result<Json> record = parse_json(line);
    EXPECT_TRUE(record) << line;
    const Json* const p = record->find("p");
    if (*record->find("k")->string() == kind &&
        (protocol.empty() || (p != nullptr && *p->string() == protocol))) {
      out.push_back(std::move(*record));
    }
  }
  EXPECT_FALSE(out.empty()) << kind << " " << protocol;
  return out;
}

inline const std::string& golden_string(const Json& record, std::string_view key) {
  return *record.find(key)->string();
}

// The options a record was made with: model `m` is its version, deviations from the defaults in
// `opt`.
inline CodecOptions golden_options(const Json& record) {
  CodecOptions options{.compat = Compat::kRecipe02};
  options.models["m"] = golden_string(record, "v") == "v4" ? ModelVersion::kV4 : ModelVersion::kV41;
  if (const Json* const changed = record.find("opt")) {
    for (const Json& name : *changed->array()) {
      options.reject_missing_reasoning |= *name.string() == "reasoning=reject";
      options.default_thinking &= *name.string() != "default_thinking=off";
      options.messages_drop_web_search |= *name.string() == "messages_web_search=drop";
      options.responses_reject_web_search |= *name.string() == "responses_web_search=reject";
    }
  }
  return options;
}

// FNV-1a, 16 lower-case hex digits.
inline std::string golden_fnv(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  std::string out(16, '0');
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[15 - i] = "0123456789abcdef"[(hash >> (4 * i)) & 15];
  }
  return out;
}

// The parts `conv`, `infer` and `parse` of a `render` record.
inline void expect_golden_request(const Json& record, const Request& request) {
  const Conversation& conversation = request.conversation;
  const auto name_of = [](auto value, std::initializer_list<const char*> names) {
    return Json(names.begin()[static_cast<std::size_t>(value)]);
  };
  const auto count = [](std::size_t n) { return Json(static_cast<std::int64_t>(n)); };
  const auto expect = [&](const char* part, const char* key, const Json& got) {
    EXPECT_EQ(to_json(got), to_json(*record.find(part)->find(key))) << part << "." << key;
  };
  expect("conv", "thinking", conversation.thinking);
  expect("conv", "effort",
         conversation.effort ? name_of(*conversation.effort, {"low", "high", "xhigh", "max"})
                             : Json{});
  expect("conv", "tool_choice", name_of(conversation.tool_choice, {"auto", "none", "required"}));
  expect("conv", "n_tools", count(conversation.tools.size()));
  expect("conv", "format",
         name_of(conversation.format.kind, {"text", "json_object", "json_schema", "regex"}));
  expect("conv", "stream", request.stream);
  const Sampling& sampling = request.sampling;
  expect("infer", "max_tokens", sampling.max_tokens ? Json(*sampling.max_tokens) : Json{});
  expect("infer", "seed", sampling.seed ? Json(*sampling.seed) : Json{});
  expect("infer", "logprobs", sampling.logprobs);
  expect("infer", "top_logprobs", sampling.top_logprobs ? Json(*sampling.top_logprobs) : Json{});
  const Json& infer = *record.find("infer");
  EXPECT_NEAR(sampling.temperature, *infer.find("temperature")->number(), 1e-6);
  EXPECT_NEAR(sampling.top_p, *infer.find("top_p")->number(), 1e-6);
  const bool constrained = request.constraint.kind != Constraint::Kind::kNone;
  expect("infer", "constraint", constrained ? Json(name(request.constraint.kind)) : Json{});
  expect("infer", "constraint_fnv",
         constrained ? Json(golden_fnv(request.constraint.text)) : Json{});
  const OutputFormat& output = request.output;
  expect("parse", "tool_calls", output.parse_tool_calls);
  expect("parse", "in_tool_block", output.in_tool_block);
  expect("parse", "json", output.json_output);
  expect("parse", "stage",
         output.stage == StartStage::kAnswer
             ? Json{}
             : name_of(output.stage,
                       {"", "reasoning_start", "reasoning_continuation", "content_continuation"}));
  JsonArray stops(output.stop_sequences.begin(), output.stop_sequences.end());
  expect("parse", "stop", Json(std::move(stops)));
}

}  // namespace galley::recipe
