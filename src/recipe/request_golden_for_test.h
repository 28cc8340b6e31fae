#pragma once

#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include <string>
#include <string_view>

#include "recipe/golden_for_test.h"
#include "recipe/prompt.h"
#include "recipe/request.h"

// Golden records that concern requests (spec recipe 9.2), checked for one protocol. For tests only.
namespace galley::recipe {

inline std::string fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out(16, '0');
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = kHex[(hash >> (60 - 4 * i)) & 15U];
  }
  return out;
}

inline Json golden_conv(const Request& request) {
  constexpr std::array<const char*, 4> kEfforts = {"low", "high", "xhigh", "max"};
  constexpr std::array<const char*, 3> kChoices = {"auto", "none", "required"};
  constexpr std::array<const char*, 4> kFormats = {"text", "json_object", "json_schema", "regex"};
  const Conversation& c = request.conversation;
  return JsonObject{
      {"thinking", c.thinking},
      {"effort", c.effort ? Json(kEfforts[static_cast<std::size_t>(*c.effort)]) : Json()},
      {"tool_choice", kChoices[static_cast<std::size_t>(c.tool_choice)]},
      {"n_tools", static_cast<std::int64_t>(c.tools.size())},
      {"format", kFormats[static_cast<std::size_t>(c.format.kind)]},
      {"stream", request.stream}};
}

inline Json golden_infer(const Request& request) {
  const auto rounded = [](float value) { return std::round(double{value} * 1e6) / 1e6; };
  const Sampling& s = request.sampling;
  const bool constrained = request.constraint.kind != Constraint::Kind::kNone;
  return JsonObject{
      {"max_tokens", s.max_tokens ? Json(*s.max_tokens) : Json()},
      {"temperature", rounded(s.temperature)},
      {"top_p", rounded(s.top_p)},
      {"logprobs", s.logprobs},
      {"top_logprobs", s.top_logprobs ? Json(*s.top_logprobs) : Json()},
      {"seed", s.seed ? Json(*s.seed) : Json()},
      {"constraint", constrained ? Json(name(request.constraint.kind)) : Json()},
      {"constraint_fnv", constrained ? Json(fnv1a(request.constraint.text)) : Json()}};
}

inline Json golden_parse(const Request& request) {
  constexpr std::array<const char*, 4> kStages = {"none", "reasoning_start",
                                                  "reasoning_continuation", "content_continuation"};
  const OutputFormat& o = request.output;
  JsonArray stops;
  for (const std::string& stop : o.stop_sequences) {
    stops.emplace_back(stop);
  }
  return JsonObject{
      {"tool_calls", o.parse_tool_calls},
      {"in_tool_block", o.in_tool_block},
      {"json", o.json_output},
      {"stage", o.thinking ? Json(kStages[static_cast<std::size_t>(o.stage)]) : Json()},
      {"stop", std::move(stops)}};
}

inline Json golden_images(const Prompt& prompt) {
  constexpr std::array<const char*, 2> kKinds = {"url", "data_url"};
  constexpr std::array<const char*, 4> kDetails = {"low", "high", "original", "auto"};
  JsonArray out;
  for (const Image& image : prompt.images) {
    out.emplace_back(JsonObject{{"kind", kKinds[static_cast<std::size_t>(image.kind)]},
                                {"detail", kDetails[static_cast<std::size_t>(image.detail)]},
                                {"path", image.path},
                                {"ref", image.reference}});
  }
  return out;
}

// Every `render` record: typed request and prompt, in the compatible mode; and the same prompt in
// Galley mode, unless `excused` knows the outcome as a documented exception. `excused_count` of
// them are expected.
template <class Excused>
void check_render_goldens(std::string_view protocol_name,
                          Protocol protocol,
                          Excused excused,
                          int excused_count) {
  for (const Json& record : golden_records("render", protocol_name)) {
    const std::string& id = golden_string(record, "id");
    const std::string& body = golden_string(record, "body");
    CodecOptions options = golden_options(record);
    const Result<Request> request = parse_request(protocol, body, options);
    ASSERT_TRUE(request) << id << " " << to_string(request.error());
    EXPECT_EQ(to_json(golden_conv(*request)), to_json(*record.find("conv"))) << id;
    EXPECT_EQ(to_json(golden_infer(*request)), to_json(*record.find("infer"))) << id;
    EXPECT_EQ(to_json(golden_parse(*request)), to_json(*record.find("parse"))) << id;
    const Prompt prompt = render(request->conversation, request->version);
    EXPECT_EQ(to_json(golden_images(prompt)), to_json(*record.find("images"))) << id;
    EXPECT_TRUE(prompt.text == golden_string(record, "prompt")) << id;

    options.compat = Compat::kGalley;
    const Result<Request> ours = parse_request(protocol, body, options);
    if (excused(body, ours)) {
      --excused_count;
      continue;
    }
    ASSERT_TRUE(ours) << id << " " << to_string(ours.error());
    EXPECT_TRUE(render(ours->conversation, ours->version).text == prompt.text) << id;
  }
  EXPECT_EQ(excused_count, 0);
}

// Every `error` record: status (all are 400) and, where it is exact, the message.
inline void check_error_goldens(std::string_view protocol_name, Protocol protocol) {
  for (const Json& record : golden_records("error", protocol_name)) {
    const std::string& id = golden_string(record, "id");
    const Result<Request> request =
        parse_request(protocol, golden_string(record, "body"), golden_options(record));
    ASSERT_FALSE(request) << id;
    EXPECT_EQ(request.error().code, Code::kInvalidArgument) << id;
    EXPECT_FALSE(request.error().where.empty()) << id;
    if (*record.find("exact")->boolean()) {
      EXPECT_EQ(request.error().what, golden_string(record, "message")) << id;
    }
  }
}

// "ok", or "WHERE: WHAT" of the error.
inline std::string outcome(Protocol protocol, std::string_view body, const CodecOptions& options) {
  const Result<Request> request = parse_request(protocol, body, options);
  return request ? "ok" : request.error().where + ": " + request.error().what;
}

}  // namespace galley::recipe
