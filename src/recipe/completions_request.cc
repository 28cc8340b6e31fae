#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "recipe/guided.h"
#include "recipe/limits.h"
#include "recipe/request.h"
#include "recipe/request_fields.h"

// Completions bodies: text to go on with, or a gap to fill (spec recipe 6.9).
namespace galley::recipe {
namespace {

Result<std::vector<TokenId>> read_ids(const JsonArray& array, const Path& at) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (const Json& element : array) {
    const std::int64_t* const id = element.int64();
    if (id == nullptr || *id < 0 || *id > std::numeric_limits<TokenId>::max()) {
      return wrong_type(element, "a token id", at.element(ids.size()));
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

// A text, a list of one text, or a list of token ids: one prompt in each case.
Result<void> read_prompt(const Fields& body, Completion& out) {
  const Path at = body.at().member("prompt");
  Json* const value = body.find("prompt");
  if (value == nullptr) {
    return missing(at);
  }
  if (std::string* const text = value->string()) {
    out.prompt = std::move(*text);
    return {};
  }
  JsonArray* const array = value->array();
  if (array == nullptr || array->empty()) {
    return wrong_type(*value, "a string or a non-empty array of token ids", at);
  }
  if (array->front().string() == nullptr && array->front().array() == nullptr) {
    GALLEY_TRY(out.prompt_ids, read_ids(*array, at));
    return {};
  }
  if (array->size() > 1) {
    return invalid(
        "Only one prompt a request is supported, got " + std::to_string(array->size()) + ".", at);
  }
  const Path first = at.element(0);
  if (std::string* const text = array->front().string()) {
    out.prompt = std::move(*text);
    return {};
  }
  const JsonArray& ids = *array->front().array();
  if (ids.empty()) {
    return wrong_type(array->front(), "a non-empty array of token ids", first);
  }
  GALLEY_TRY(out.prompt_ids, read_ids(ids, first));
  return {};
}

Result<Completion> read_completion(const Fields& body, bool logprobs) {
  Completion completion;
  GALLEY_CHECK_OK(read_prompt(body, completion));
  GALLEY_TRY(std::optional<std::string> suffix, body.text("suffix"));
  completion.suffix = std::move(suffix).value_or("");
  GALLEY_TRY(const auto echo, body.boolean("echo"));
  completion.echo = echo.value_or(false);
  const Path at = body.at().member("echo");
  if (!completion.suffix.empty() && !completion.prompt_ids.empty()) {
    return invalid("`suffix` needs a prompt that is text", body.at().member("suffix"));
  }
  if (completion.echo && !completion.suffix.empty()) {
    return invalid("`echo` cannot be used with `suffix`", at);
  }
  if (completion.echo && !completion.prompt_ids.empty()) {
    return invalid("`echo` needs a prompt that is text", at);
  }
  if (completion.echo && logprobs) {
    return invalid("`echo` cannot be used with `logprobs`: those of a prompt are not computed", at);
  }
  return completion;
}

Result<SamplingFields> read_sampling(const Fields& body) {
  SamplingFields s;
  GALLEY_TRY(s.frequency_penalty, body.real("frequency_penalty"));
  GALLEY_TRY(s.presence_penalty, body.real("presence_penalty"));
  GALLEY_TRY(s.top_logprobs, body.natural("logprobs", kByteMax));
  if (s.top_logprobs && *s.top_logprobs > kTopLogprobsMax) {
    return invalid("logprobs must lie in [0, " + std::to_string(kTopLogprobsMax) + "]",
                   body.at().member("logprobs"));
  }
  s.logprobs = s.top_logprobs.has_value();
  GALLEY_TRY(s.max_tokens, body.natural("max_tokens", kWordMax));
  GALLEY_TRY(s.n, read_choice_count(body));
  GALLEY_TRY(const auto best_of, body.natural("best_of", kByteMax));
  if (best_of && *best_of != s.n.value_or(1)) {
    return invalid("`best_of` is not supported, only as many as `n`", body.at().member("best_of"));
  }
  GALLEY_TRY(s.seed, read_seed(body));
  GALLEY_TRY(s.temperature, body.real("temperature"));
  GALLEY_TRY(s.top_p, body.real("top_p"));
  GALLEY_TRY(s.top_k, body.natural("top_k", kWordMax));
  GALLEY_TRY(s.min_p, body.real("min_p"));
  return s;
}

Result<void> read_stream(const Fields& body, Request& out) {
  GALLEY_TRY(const auto stream, body.boolean("stream"));
  out.stream = stream.value_or(false);
  Json* const value = body.find("stream_options");
  if (value == nullptr) {
    return {};
  }
  const Path at = body.at().member("stream_options");
  if (!out.stream) {
    return invalid("stream_options should be set along with stream = true", at);
  }
  GALLEY_TRY(const Fields options, Fields::open(*value, at));
  GALLEY_TRY(const auto include_usage, options.boolean("include_usage"));
  out.include_usage = include_usage.value_or(false);
  options.note_unread(out.notes);
  return {};
}

}  // namespace

Result<Request> parse_completions_request(std::string_view text, const CodecOptions& options) {
  const Path at;
  GALLEY_TRY(Json json, parse_body(text));
  GALLEY_TRY(const Fields body, Fields::open(json, at));
  Request request{.protocol = Protocol::kCompletions, .compat = options.compat};
  request.conversation.thinking = false;
  GALLEY_TRY(request.model, body.required_text("model"));
  GALLEY_TRY(const SamplingFields sampling, read_sampling(body));
  GALLEY_TRY(request.completion, read_completion(body, sampling.logprobs));
  GALLEY_TRY(Stops stops, read_stops(body, "stop"));
  GALLEY_CHECK_OK(read_stream(body, request));
  GALLEY_TRY(request.user, read_user(body));
  GALLEY_TRY(auto bias, read_logit_bias(body));
  if (options.compat == Compat::kGalley) {
    GALLEY_TRY(request.guided, read_guided(body, request.notes));
  }
  body.note_unread(request.notes);

  GALLEY_TRY(request.version, find_model(options, request.model));
  GALLEY_CHECK_OK(check_stops(stops, options.compat, at.member("stop")));
  GALLEY_TRY(request.sampling, settle_sampling(sampling, request.conversation, request.version,
                                               options.compat, request.notes));
  request.sampling.logit_bias = std::move(bias);
  // What comes continues the prompt: nothing at its start is cut.
  request.output = {.stage = StartStage::kContentContinuation,
                    .stop_sequences = std::move(stops.strings)};
  return request;
}

}  // namespace galley::recipe
