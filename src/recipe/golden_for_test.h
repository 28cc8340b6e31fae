#pragma once

#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/conformance.h"
#include "recipe/json.h"
#include "recipe/prompt.h"
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

// What a record was made with (conformance.h), of a record that says so rightly.
inline CodecOptions options_of(const Json& record) {
  Result<CodecOptions> options = golden_options(record);
  EXPECT_TRUE(options) << golden_string(record, "id");
  return options.value_or(CodecOptions{});
}

// Every `render` record gives the same prompt in Galley mode, unless `excused` knows the outcome as
// a documented exception. `excused_count` of them are expected. (In the compatible mode
// conformance_test checks all of a record.)
template <class Excused>
void check_galley_prompts(std::string_view protocol_name,
                          Protocol protocol,
                          const Excused& excused,
                          int excused_count) {
  for (const Json& record : golden_records("render", protocol_name)) {
    const std::string& id = golden_string(record, "id");
    const std::string& body = golden_string(record, "body");
    CodecOptions options = options_of(record);
    options.compat = Compat::kGalley;
    const Result<Request> request = parse_request(protocol, body, options);
    if (excused(body, request)) {
      --excused_count;
      continue;
    }
    ASSERT_TRUE(request) << id << " " << to_string(request.error());
    EXPECT_TRUE(render(request->conversation, request->version).text ==
                golden_string(record, "prompt"))
        << id;
  }
  EXPECT_EQ(excused_count, 0);
}

// Every `error` record is refused with a place, which the records do not have.
inline void check_error_places(std::string_view protocol_name, Protocol protocol) {
  for (const Json& record : golden_records("error", protocol_name)) {
    const std::string& id = golden_string(record, "id");
    const Result<Request> request =
        parse_request(protocol, golden_string(record, "body"), options_of(record));
    ASSERT_FALSE(request) << id;
    EXPECT_FALSE(request.error().where.empty()) << id;
  }
}

// "ok", or "WHERE: WHAT" of the error.
inline std::string outcome(Protocol protocol, std::string_view body, const CodecOptions& options) {
  const Result<Request> request = parse_request(protocol, body, options);
  return request ? "ok" : request.error().where + ": " + request.error().what;
}

}  // namespace galley::recipe
