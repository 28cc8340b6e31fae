#pragma once

#include <fstream>
#include <gtest/gtest.h>
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

}  // namespace galley::recipe
