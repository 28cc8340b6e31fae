#include <cmath>
#include <fmt/core.h>
#include <utility>

#include "recipe/conformance_parts.h"
#include "recipe/control.h"
#include "recipe/image_size.h"
#include "recipe/names.h"
#include "recipe/prompt_encoder.h"
#include "recipe/reply.h"

// Golden records of requests: prompts, errors, lengths, images (spec recipe 9.2).
namespace galley::recipe {
Result<CodecOptions> golden_options(const Json& record) {
  const ModelVersion version =
      named<ModelVersion>(text_of(record, "v")).value_or(ModelVersion::kV41);
  CodecOptions options;
  options.compat = Compat::kRecipe02;
  options.models.insert_or_assign("m", version);
  if (record.find("k") == nullptr) {  // vectors use names of their own
    for (const char* const name : {"x", "deepseek-flash", "deepseek-v4-pro"}) {
      options.models.insert_or_assign(name, version);
    }
  }
  for (const Json& option : elements_of(member_of(record, "opt"))) {
    const std::string name = option.string() == nullptr ? to_json(option) : *option.string();
    if (name == "reasoning=reject") {
      options.reject_missing_reasoning = true;
    } else if (name == "default_thinking=off") {
      options.default_thinking = false;
    } else if (name == "messages_web_search=drop") {
      options.messages_drop_web_search = true;
    } else if (name == "responses_web_search=reject") {
      options.responses_reject_web_search = true;
    } else {
      return fail(Code::kInvalidArgument, "unknown opt " + name);
    }
  }
  return options;
}

Result<Request> request_of(const Json& record) {
  const std::optional<Protocol> protocol = named<Protocol>(text_of(record, "p"));
  if (!protocol) {
    return fail(Code::kInvalidArgument, "unknown protocol " + text_of(record, "p"));
  }
  GALLEY_TRY(const CodecOptions options, golden_options(record));
  return parse_request(*protocol, text_of(record, "body"), options);
}

namespace {

// Six decimals, as the goldens print single-precision values.
Json rounded(float value) {
  return Json(std::round(static_cast<double>(value) * 1e6) / 1e6);
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json conv_of(const Request& request) {
  const Conversation& conversation = request.conversation;
  return Json(JsonObject{
      {"thinking", conversation.thinking},
      {"effort", conversation.effort ? Json(name_of(*conversation.effort)) : Json()},
      {"tool_choice", name_of(conversation.tool_choice)},
      {"n_tools", static_cast<std::int64_t>(conversation.tools.size())},
      {"format", name_of(conversation.format.kind)},
      {"stream", request.stream},
  });
}

Json infer_of(const Request& request) {
  const Sampling& sampling = request.sampling;
  const bool constrained = request.constraint.kind != Constraint::Kind::kNone;
  return Json(JsonObject{
      {"max_tokens", or_null(sampling.max_tokens)},
      {"temperature", rounded(sampling.temperature)},
      {"top_p", rounded(sampling.top_p)},
      {"logprobs", sampling.logprobs},
      {"top_logprobs", or_null(sampling.top_logprobs)},
      {"seed", or_null(sampling.seed)},
      {"constraint", constrained ? Json(name_of(request.constraint.kind)) : Json()},
      {"constraint_fnv", constrained ? Json(fnv(request.constraint.text)) : Json()},
  });
}

Json parse_of(const Request& request) {
  const OutputFormat& output = request.output;
  JsonArray stops(output.stop_sequences.begin(), output.stop_sequences.end());
  return Json(JsonObject{
      {"tool_calls", output.parse_tool_calls},
      {"in_tool_block", output.in_tool_block},
      {"json", output.json_output},
      {"stage", output.stage == StartStage::kAnswer ? Json() : Json(name_of(output.stage))},
      {"stop", Json(std::move(stops))},
  });
}

}  // namespace

void expect_prompt_ids(const Json& record,
                       const Prompt& prompt,
                       ModelVersion version,
                       const ConformanceTokenizers& tokenizers,
                       Differences& out) {
  const auto& tokenizer = version == ModelVersion::kV4 ? tokenizers.v4 : tokenizers.v41;
  const Result<ControlIds> controls = ControlIds::find(*tokenizer, version);
  if (!controls) {
    out.push_back(to_string(controls.error()));
    return;
  }
  PromptEncoder encoder(tokenizer, *controls);
  expect_ids(record, encoder.encode(prompt), out);
}

void check_render(const Json& record, const ConformanceTokenizers& tokenizers, Differences& out) {
  const Result<Request> request = request_of(record);
  if (!request) {
    out.push_back("refused: " + to_string(request.error()));
    return;
  }
  const Prompt prompt = render(request->conversation, request->version);
  expect_text(text_of(record, "prompt"), prompt.text, "prompt", out);
  JsonArray spans;
  for (const ControlSpan& span : prompt.controls) {
    spans.emplace_back(
        JsonArray{static_cast<std::int64_t>(span.begin), static_cast<std::int64_t>(span.end)});
  }
  expect_json(member_of(record, "special"), Json(std::move(spans)), "special", out);
  JsonArray images;
  for (const Image& image : prompt.images) {
    images.emplace_back(JsonObject{{"kind", name_of(image.kind)},
                                   {"detail", name_of(image.detail)},
                                   {"path", image.path},
                                   {"ref", image.reference}});
  }
  expect_json(member_of(record, "images"), Json(std::move(images)), "images", out);
  expect_prompt_ids(record, prompt, request->version, tokenizers, out);
  expect_json(member_of(record, "conv"), conv_of(*request), "conv", out);
  expect_json(member_of(record, "infer"), infer_of(*request), "infer", out);
  expect_json(member_of(record, "parse"), parse_of(*request), "parse", out);
}

void expect_error(const Json& record, bool exact, const Error& error, Differences& out) {
  if (http_status(error.code) != integer_of(record, "status")) {
    out.push_back(fmt::format("status: want {}, got {} ({})", integer_of(record, "status"),
                              http_status(error.code), error.what));
  }
  const std::string want = text_of(record, "message");
  // Of several open calls the reference names an arbitrary one (spec recipe 5.3): any id of the
  // body will do.
  constexpr std::string_view kOpenCall = "No tool output found for tool call ";
  if (want.starts_with(kOpenCall) && std::string_view(error.what).starts_with(kOpenCall)) {
    std::string_view id = std::string_view(error.what).substr(kOpenCall.size());
    id.remove_suffix(id.ends_with('.') ? 1 : 0);
    if (id.empty() || !text_of(record, "body").contains(id)) {
      out.push_back(fmt::format("message: names {}, which the body does not hold", id));
    }
  } else if (exact) {
    expect_text(want, error.what, "message", out);
  }
}

void check_error(const Json& record, Differences& out) {
  const Result<Request> request = request_of(record);
  if (request) {
    out.push_back("accepted, want error: " + text_of(record, "message"));
    return;
  }
  expect_error(record, flag_of(record, "exact"), request.error(), out);
}

void check_max_tokens(const Json& record, Differences& out) {
  const Result<Request> request = request_of(record);
  if (!request) {
    out.push_back("refused: " + to_string(request.error()));
    return;
  }
  const Result<std::int64_t> result = effective_max_tokens(
      *request, integer_of(record, "prompt_tokens"), integer_of(record, "context_limit"));
  if (member_of(record, "result").is_null()) {
    if (result) {
      out.push_back(fmt::format("accepted with {}, want an error", *result));
    } else {
      expect_error(record, true, result.error(), out);
    }
    return;
  }
  if (!result) {
    out.push_back("refused: " + to_string(result.error()));
  } else {
    expect_json(member_of(record, "result"), Json(*result), "result", out);
  }
}

void check_image(const Json& record, Differences& out) {
  const bool vector = record.find("width") != nullptr;
  const Result<ImageGrid> grid = image_grid(integer_of(record, vector ? "width" : "w"),
                                            integer_of(record, vector ? "height" : "h"));
  if (!grid) {
    out.push_back("refused: " + to_string(grid.error()));
    return;
  }
  const std::pair<const char*, std::int64_t> fields[] = {{"tokens", grid->tokens},
                                                         {"resized_width", grid->width},
                                                         {"resized_height", grid->height},
                                                         {"grid_rows", grid->rows},
                                                         {"grid_cols", grid->columns}};
  for (const auto& [key, got] : fields) {
    if (const Json* const want = record.find(key)) {
      expect_json(*want, Json(got), key, out);
    }
  }
}

}  // namespace galley::recipe
