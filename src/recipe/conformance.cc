#include "recipe/conformance.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <fmt/core.h>
#include <optional>
#include <span>
#include <utility>

#include "base/file.h"
#include "base/units.h"
#include "recipe/control.h"
#include "recipe/image_size.h"
#include "recipe/output_parser.h"
#include "recipe/prompt.h"
#include "recipe/prompt_encoder.h"
#include "recipe/reply.h"
#include "recipe/request.h"

namespace galley::recipe {
namespace {

using Differences = std::vector<std::string>;

// ---- small helpers on JSON
// --------------------------------------------------------------------------------------

// Values of a record that is not what the formats say are read as empty or 0: such a record fails
// its checks, it cannot break the checker.
std::string string_of(const Json& value) {
  return value.string() == nullptr ? std::string() : *value.string();
}

std::int64_t int_of(const Json& value) {
  return value.int64() == nullptr ? 0 : *value.int64();
}

std::span<const JsonMember> members_of(const Json& value) {
  return value.object() == nullptr ? std::span<const JsonMember>()
                                   : std::span<const JsonMember>(*value.object());
}

std::string text_of(const Json& object, std::string_view key) {
  const Json* const value = object.find(key);
  return value == nullptr ? std::string() : string_of(*value);
}

std::int64_t integer_of(const Json& object, std::string_view key) {
  const Json* const value = object.find(key);
  return value == nullptr ? 0 : int_of(*value);
}

bool flag_of(const Json& object, std::string_view key) {
  const Json* const value = object.find(key);
  return value != nullptr && value->boolean() != nullptr && *value->boolean();
}

const Json& member_of(const Json& object, std::string_view key) {
  static const Json kNull;
  const Json* const value = object.find(key);
  return value == nullptr ? kNull : *value;
}

std::span<const Json> elements_of(const Json& value) {
  return value.array() == nullptr ? std::span<const Json>() : std::span<const Json>(*value.array());
}

std::string shorten(std::string text) {
  constexpr std::size_t kShownMax = 160;
  if (text.size() > kShownMax) {
    text.resize(kShownMax);
    text.append("...");
  }
  return text;
}

// First place where two JSON values differ, key order free; nullopt when equal.
std::optional<std::string> first_difference(const Json& want,
                                            const Json& got,
                                            const std::string& path) {
  if (want.is_number() && got.is_number()) {
    if (*want.number() == *got.number()) {
      return std::nullopt;
    }
  } else if (want.object() != nullptr && got.object() != nullptr) {
    for (const JsonMember& member : *want.object()) {
      const Json* const other = got.find(member.key);
      if (other == nullptr) {
        return fmt::format("{}.{}: missing, want {}", path, member.key,
                           shorten(to_json(member.value)));
      }
      if (auto difference = first_difference(member.value, *other, path + "." + member.key)) {
        return difference;
      }
    }
    for (const JsonMember& member : *got.object()) {
      if (want.find(member.key) == nullptr) {
        return fmt::format("{}.{}: not wanted, got {}", path, member.key,
                           shorten(to_json(member.value)));
      }
    }
    return std::nullopt;
  } else if (want.array() != nullptr && got.array() != nullptr) {
    const JsonArray& a = *want.array();
    const JsonArray& b = *got.array();
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (auto difference = first_difference(a[i], b[i], fmt::format("{}[{}]", path, i))) {
        return difference;
      }
    }
    if (a.size() == b.size()) {
      return std::nullopt;
    }
    return fmt::format("{}: want {} elements, got {}; first extra {}", path, a.size(), b.size(),
                       shorten(to_json(a.size() > b.size() ? a[b.size()] : b[a.size()])));
  } else if (want == got) {
    return std::nullopt;
  }
  return fmt::format("{}: want {}, got {}", path, shorten(to_json(want)), shorten(to_json(got)));
}

void expect_json(const Json& want, const Json& got, const std::string& what, Differences& out) {
  if (auto difference = first_difference(want, got, what)) {
    out.push_back(std::move(*difference));
  }
}

// Texts are compared byte for byte; the report shows the first difference with some context,
// escaped.
void expect_text(std::string_view want,
                 std::string_view got,
                 std::string_view what,
                 Differences& out) {
  if (want == got) {
    return;
  }
  const auto at = static_cast<std::size_t>(std::ranges::mismatch(want, got).in1 - want.begin());
  constexpr std::size_t kContext = 40;
  const std::size_t from = at > kContext ? at - kContext : 0;
  const auto excerpt = [&](std::string_view text) {
    return to_json(Json(text.substr(std::min(from, text.size()), 2 * kContext)));
  };
  out.push_back(fmt::format("{}: differs at byte {}: want {}, got {}", what, at, excerpt(want),
                            excerpt(got)));
}

// ---- hashes (spec recipe 9.2)
// -----------------------------------------------------------------------------------

class Fnv1a {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) {
      hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    }
  }
  void add(TokenId id) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
      hash_ = (hash_ ^ ((id >> shift) & 0xffU)) * 0x100000001b3U;
    }
  }
  [[nodiscard]] std::string hex() const { return fmt::format("{:016x}", hash_); }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325U;
};

std::string fnv(std::string_view text) {
  Fnv1a hash;
  hash.add(text);
  return hash.hex();
}

void expect_ids(const Json& record, std::span<const TokenId> got, Differences& out) {
  Fnv1a hash;
  JsonArray ids;
  for (const TokenId id : got) {
    hash.add(id);
    ids.emplace_back(static_cast<std::int64_t>(id));
  }
  bool compared = false;
  for (const std::string_view key : {"ids", "prompt_token_ids"}) {
    if (const Json* const want = record.find(key)) {
      expect_json(*want, Json(ids), "ids", out);
      compared = true;
    }
  }
  for (const std::string_view key : {"n_ids", "n", "prompt_tokens"}) {
    if (const Json* const want = record.find(key)) {
      expect_json(*want, Json(static_cast<std::int64_t>(got.size())), std::string(key), out);
      compared = true;
    }
  }
  for (const std::string_view key : {"ids_fnv", "fnv"}) {
    if (record.find(key) != nullptr) {
      expect_text(text_of(record, key), hash.hex(), key, out);
      compared = true;
    }
  }
  if (!compared) {
    out.emplace_back("ids: neither they nor their number or hash, so there is nothing to check");
  }
}

// ---- requests
// ---------------------------------------------------------------------------------------------------

std::optional<Protocol> protocol_of(std::string_view name) {
  if (name == "chat" || name == "chat_completions") {
    return Protocol::kChat;
  }
  if (name == "responses") {
    return Protocol::kResponses;
  }
  if (name == "messages") {
    return Protocol::kMessages;
  }
  return std::nullopt;
}

ModelVersion version_of(std::string_view name) {
  return name == "v4" ? ModelVersion::kV4 : ModelVersion::kV41;
}

// Options every golden was made with, plus what the record's `opt` names.
Result<CodecOptions> options_of(const Json& record, ModelVersion version) {
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
  const std::optional<Protocol> protocol = protocol_of(text_of(record, "p"));
  if (!protocol) {
    return fail(Code::kInvalidArgument, "unknown protocol " + text_of(record, "p"));
  }
  GALLEY_TRY(const CodecOptions options, options_of(record, version_of(text_of(record, "v"))));
  return parse_request(*protocol, text_of(record, "body"), options);
}

// Six decimals, as the goldens print single-precision values.
Json rounded(float value) {
  return Json(std::round(static_cast<double>(value) * 1e6) / 1e6);
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

std::string_view name(std::optional<Effort> effort) {
  constexpr std::array<std::string_view, 4> kNames = {"low", "high", "xhigh", "max"};
  return kNames[static_cast<std::size_t>(*effort)];
}
std::string_view name(ToolChoice choice) {
  constexpr std::array<std::string_view, 3> kNames = {"auto", "none", "required"};
  return kNames[static_cast<std::size_t>(choice)];
}
std::string_view name(ResponseFormat::Kind kind) {
  constexpr std::array<std::string_view, 4> kNames = {"text", "json_object", "json_schema",
                                                      "regex"};
  return kNames[static_cast<std::size_t>(kind)];
}
Json name(StartStage stage) {
  constexpr std::array<std::string_view, 4> kNames = {
      "", "reasoning_start", "reasoning_continuation", "content_continuation"};
  return stage == StartStage::kAnswer ? Json() : Json(kNames[static_cast<std::size_t>(stage)]);
}
std::string_view name(ImageDetail detail) {
  constexpr std::array<std::string_view, 4> kNames = {"low", "high", "original", "auto"};
  return kNames[static_cast<std::size_t>(detail)];
}

Json conv_of(const Request& request) {
  const Conversation& conversation = request.conversation;
  return Json(JsonObject{
      {"thinking", conversation.thinking},
      {"effort", conversation.effort ? Json(name(conversation.effort)) : Json()},
      {"tool_choice", name(conversation.tool_choice)},
      {"n_tools", static_cast<std::int64_t>(conversation.tools.size())},
      {"format", name(conversation.format.kind)},
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
      {"constraint", constrained ? Json(name(request.constraint.kind)) : Json()},
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
      {"stage", name(output.stage)},
      {"stop", Json(std::move(stops))},
  });
}

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
    images.emplace_back(JsonObject{{"kind", image.kind == Image::Kind::kUrl ? "url" : "data_url"},
                                   {"detail", name(image.detail)},
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

// ---- replies
// ----------------------------------------------------------------------------------------------------

class FixedIds final : public IdSource {
 public:
  std::string next_id() override { return "00000000000000000000"; }
};

// A piece of a recorded reply: text that counts `tokens`, or ids.
struct Piece {
  std::string text;
  std::vector<TokenId> ids;
  std::int64_t tokens = 0;
};

struct Reply {
  std::vector<Json> events;  // as sent, not yet canonical
  Json body;
  std::size_t pieces_read = 0;
  std::string problem;
};

std::vector<Json> frames_of(std::string_view sse, std::string& problem) {
  std::vector<Json> events;
  constexpr std::string_view kData = "data: ";
  while (!sse.empty()) {
    const std::size_t end = sse.find("\n\n");
    if (end == std::string_view::npos) {
      problem = "an SSE frame without its empty line";
      break;
    }
    std::string_view frame = sse.substr(0, end);
    sse.remove_prefix(end + 2);
    std::string_view event_name;
    constexpr std::string_view kEvent = "event: ";
    if (frame.starts_with(kEvent)) {
      const std::size_t line = frame.find('\n');
      event_name = frame.substr(kEvent.size(), line - kEvent.size());
      frame.remove_prefix(line == std::string_view::npos ? frame.size() : line + 1);
    }
    if (!frame.starts_with(kData)) {
      problem = "an SSE frame without data";
      break;
    }
    frame.remove_prefix(kData.size());
    if (frame == "[DONE]") {
      if (!sse.empty()) {
        problem = "frames after [DONE]";
      }
      events.emplace_back("[DONE]");
      continue;
    }
    Result<Json> event = parse_json(frame);
    if (!event) {
      problem = "an SSE frame that is not JSON: " + std::string(frame);
      break;
    }
    if (!event_name.empty() && event_name != text_of(*event, "type")) {
      problem = "event name differs from type: " + std::string(event_name);
    }
    events.push_back(std::move(*event));
  }
  return events;
}

class Tee final : public EventSink {
 public:
  Tee(EventSink& first, EventSink& second) : first_(first), second_(second) {}
  void on_event(const Event& event) override {
    first_.on_event(event);
    second_.on_event(event);
  }

 private:
  EventSink& first_;
  EventSink& second_;
};

std::optional<SourceFinish> finish_of(const Json& value) {
  const std::string* const text = value.string();
  if (text == nullptr) {
    return std::nullopt;
  }
  return *text == "length"           ? SourceFinish::kLength
         : *text == "content_filter" ? SourceFinish::kContentFilter
                                     : SourceFinish::kStop;
}

Reply reply_to(const Request& request,
               std::span<const Piece> pieces,
               std::optional<SourceFinish> finish,
               std::shared_ptr<const Tokenizer> tokenizer,
               const Started& started) {
  FixedIds ids;
  std::string sse;
  const ReplyInfo info{.id = "r1", .created_s = 1, .call_ids = &ids};
  const auto stream = StreamEncoder::create(request, info, sse);
  const auto whole = WholeEncoder::create(request, info);
  Tee tee(*stream, *whole);
  const auto parser = OutputParser::create(request, std::move(tokenizer), tee);
  Reply reply;
  parser->start(started);
  for (const Piece& piece : pieces) {
    ++reply.pieces_read;
    if (piece.ids.empty()) {
      parser->feed_text(piece.text, piece.tokens);
    } else if (const auto fed = parser->feed_tokens(piece.ids); !fed) {
      reply.problem = to_string(fed.error());
      return reply;
    }
    if (parser->finished()) {
      break;
    }
  }
  if (!parser->finished()) {
    parser->finish(finish);
  }
  reply.events = frames_of(sse, reply.problem);
  const bool done = !reply.events.empty() && reply.events.back().string() != nullptr;
  if (done != (request.protocol == Protocol::kChat)) {
    reply.problem = "a stream ends in [DONE] in chat and nowhere else";
  }
  Result<Json> body = parse_json(whole->body());
  if (!body) {
    reply.problem = "the whole reply is not JSON: " + to_string(body.error());
  } else {
    reply.body = std::move(*body);
  }
  return reply;
}

// created..completed_at -> 0, generated call ids -> call_NN_# or call_NN_ET_#, everywhere in the
// value.
void canonicalise(Json& value) {
  if (JsonArray* const array = value.array()) {
    for (Json& element : *array) {
      canonicalise(element);
    }
  } else if (JsonObject* const object = value.object()) {
    for (JsonMember& member : *object) {
      const bool time =
          member.key == "created" || member.key == "created_at" || member.key == "completed_at";
      if (time && !member.value.is_null()) {
        member.value = 0;
      } else {
        canonicalise(member.value);
      }
    }
  } else if (std::string* const text = value.string()) {
    constexpr std::size_t kGenerated = 24;  // 20 random characters and the checksum
    const auto digit = [&](std::size_t i) { return (*text)[i] >= '0' && (*text)[i] <= '9'; };
    if (text->size() > kGenerated && text->starts_with("call_") && digit(5) && digit(6)) {
      const std::string head = text->substr(0, text->size() - kGenerated);
      if (head.ends_with("_") && head.size() <= std::string_view("call_NN_ET_").size()) {
        *text = head + "#";
      }
    }
  }
}

// Where the joinable delta text of an event is, or nullptr.
std::string* delta_text(Json& event) {
  const auto text_at = [](Json* value, std::string_view key) -> std::string* {
    Json* const found = value == nullptr ? nullptr : value->find(key);
    return found == nullptr ? nullptr : found->string();
  };
  const std::string type = text_of(event, "type");
  if (type.starts_with("response.") && type.ends_with(".delta")) {
    return text_at(&event, "delta");
  }
  if (type == "content_block_delta") {
    for (const char* const key : {"text", "thinking", "partial_json"}) {
      if (std::string* const text = text_at(event.find("delta"), key)) {
        return text;
      }
    }
    return nullptr;
  }
  Json* const choices = event.find("choices");
  if (choices == nullptr || choices->array() == nullptr || choices->array()->empty()) {
    return nullptr;
  }
  Json& choice = (*choices->array())[0];
  Json* const delta = choice.find("delta");
  if (delta == nullptr || delta->find("role") != nullptr ||
      !member_of(choice, "finish_reason").is_null() || !member_of(choice, "logprobs").is_null()) {
    return nullptr;
  }
  if (Json* const calls = delta->find("tool_calls")) {
    if (calls->array() == nullptr || calls->array()->empty()) {
      return nullptr;
    }
    Json& call = (*calls->array())[0];
    return call.find("id") != nullptr ? nullptr : text_at(call.find("function"), "arguments");
  }
  for (const char* const key : {"content", "reasoning_content"}) {
    if (std::string* const text = text_at(delta, key)) {
      return text;
    }
  }
  return nullptr;
}

// The canonical stream of spec recipe 9.2; `terminal` gets the response of the terminal event.
JsonArray canonical_stream(std::span<const Json> events, Json& terminal, Differences& out) {
  JsonArray joined;
  std::int64_t sequence = 0;
  Json created;
  for (Json event : events) {
    if (event.string() != nullptr) {
      continue;  // [DONE], which records leave out
    }
    canonicalise(event);
    const std::string type = text_of(event, "type");
    if (type.starts_with("response.")) {
      if (event.find("sequence_number") != nullptr &&
          integer_of(event, "sequence_number") != sequence++) {
        out.push_back(fmt::format("sequence_number: want {}, got {}", sequence - 1,
                                  integer_of(event, "sequence_number")));
      }
      std::erase_if(*event.object(),
                    [](const JsonMember& m) { return m.key == "sequence_number"; });
      if (Json* const response = event.find("response")) {
        if (type == "response.created") {
          created = *response;
        } else {
          if (type == "response.in_progress") {
            expect_json(created, *response, "response.in_progress.response", out);
          } else {
            terminal = *response;
          }
          std::erase_if(*event.object(), [](const JsonMember& m) { return m.key == "response"; });
        }
      }
    }
    std::string* const text = delta_text(event);
    if (text != nullptr && !joined.empty()) {
      Json& last = joined.back();
      if (std::string* const last_text = delta_text(last)) {
        std::string piece = std::exchange(*text, {});
        std::string so_far = std::exchange(*last_text, {});
        const bool same = !first_difference(last, event, "");
        *delta_text(last) = std::move(so_far);
        *delta_text(event) = piece;
        if (same) {
          delta_text(last)->append(piece);
          continue;
        }
      }
    }
    joined.push_back(std::move(event));
  }
  std::erase_if(joined, [](Json& event) {
    const std::string* const text = delta_text(event);
    return text != nullptr && text->empty();
  });
  return joined;
}

void expect_reply(const Json& want, Reply reply, const std::string& how, Differences& out) {
  if (!reply.problem.empty()) {
    out.push_back(how + ": " + reply.problem);
    return;
  }
  Json terminal;
  Json ignored;
  Differences problems;
  const JsonArray got = canonical_stream(reply.events, terminal, problems);
  const JsonArray expected =
      canonical_stream(elements_of(member_of(want, "events")), ignored, problems);
  expect_json(Json(expected), Json(got), how + " events", problems);
  canonicalise(reply.body);
  expect_json(member_of(want, "response"), reply.body, how + " response", problems);
  if (!terminal.is_null()) {
    expect_json(member_of(want, "response"), terminal, how + " terminal response", problems);
  }
  out.insert(out.end(), problems.begin(), problems.end());
}

// Text cut at the given byte lengths; the first piece counts 7 tokens, the others 0 (spec
// recipe 9.2).
std::vector<Piece> cut(std::string_view text, std::span<const Json> lengths) {
  std::vector<Piece> pieces;
  if (text.empty()) {
    return pieces;
  }
  for (const Json& length : lengths) {
    const auto bytes =
        std::min(static_cast<std::size_t>(std::max<std::int64_t>(0, int_of(length))), text.size());
    pieces.push_back(
        {.text = std::string(text.substr(0, bytes)), .tokens = pieces.empty() ? 7 : 0});
    text.remove_prefix(bytes);
  }
  if (!text.empty()) {
    pieces.push_back({.text = std::string(text), .tokens = pieces.empty() ? 7 : 0});
  }
  return pieces;
}

JsonArray code_point_lengths(std::string_view text) {
  JsonArray lengths;
  std::int64_t length = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    ++length;
    const bool last =
        i + 1 == text.size() || (static_cast<unsigned char>(text[i + 1]) & 0xc0U) != 0x80U;
    if (last) {
      lengths.emplace_back(std::exchange(length, 0));
    }
  }
  return lengths;
}

Started golden_start() {
  return {.prompt_tokens = 21, .cached_tokens = 16, .fingerprint = "fp"};
}

void check_parse(const Json& record, Differences& out) {
  const Result<Request> request = request_of(record);
  if (!request) {
    out.push_back("refused: " + to_string(request.error()));
    return;
  }
  const std::string text = text_of(record, "text");
  std::vector<std::pair<std::string, JsonArray>> ways = {
      {"whole", JsonArray{static_cast<std::int64_t>(text.size())}},
      {"by code point", code_point_lengths(text)}};
  const std::span<const Json> splits = elements_of(member_of(record, "splits"));
  for (std::size_t i = 0; i < splits.size(); ++i) {
    const std::span<const Json> lengths = elements_of(splits[i]);
    ways.emplace_back(fmt::format("splits[{}]", i), JsonArray(lengths.begin(), lengths.end()));
  }
  const std::span<const Json> per_split = elements_of(member_of(record, "per_split"));
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const Json& want =
        flag_of(record, "invariant") || i >= per_split.size() ? record : per_split[i];
    expect_reply(want,
                 reply_to(*request, cut(text, ways[i].second),
                          finish_of(member_of(record, "finish")), nullptr, golden_start()),
                 ways[i].first, out);
  }
}

void check_tokens(const Json& record, const ConformanceTokenizers& tokenizers, Differences& out) {
  const Result<Request> request = request_of(record);
  if (!request) {
    out.push_back("refused: " + to_string(request.error()));
    return;
  }
  std::vector<Piece> pieces;
  for (const Json& chunk : elements_of(member_of(record, "chunks"))) {
    Piece& piece = pieces.emplace_back();
    for (const Json& id : elements_of(chunk)) {
      piece.ids.push_back(static_cast<TokenId>(int_of(id)));
    }
    piece.tokens = std::ssize(piece.ids);
  }
  Reply reply = reply_to(*request, pieces, finish_of(member_of(record, "finish")), tokenizers.v41,
                         golden_start());
  if (record.find("read") != nullptr && !member_of(record, "read").is_null()) {
    expect_json(member_of(record, "read"), Json(static_cast<std::int64_t>(reply.pieces_read)),
                "read", out);
  }
  expect_reply(record, std::move(reply), "tokens", out);
}

std::string chat_digest(const Json& body) {
  const std::span<const Json> choices = elements_of(member_of(body, "choices"));
  const Json& choice = choices.empty() ? member_of(body, "choices") : choices[0];
  const Json& message = member_of(choice, "message");
  std::string text =
      "R=" + text_of(message, "reasoning_content") + "\x1fT=" + text_of(message, "content");
  for (const Json& call : elements_of(member_of(message, "tool_calls"))) {
    const Json& function = member_of(call, "function");
    text +=
        "\x1f"
        "C=" +
        text_of(function, "name") +
        "\x1f"
        "A=" +
        text_of(function, "arguments");
  }
  return fnv(text +
             "\x1f"
             "F=" +
             text_of(choice, "finish_reason"));
}

void check_cuts(const Json& record, Differences& out) {
  const Result<Request> request = request_of(record);
  if (!request) {
    out.push_back("refused: " + to_string(request.error()));
    return;
  }
  const std::string text = text_of(record, "text");
  const auto expect_digest = [&](std::span<const Piece> pieces, SourceFinish finish,
                                 std::string_view want, const std::string& how) {
    const Reply reply = reply_to(*request, pieces, finish, nullptr, golden_start());
    if (!reply.problem.empty()) {
      out.push_back(how + ": " + reply.problem);
    }
    expect_text(want, chat_digest(reply.body), how, out);
  };
  if (elements_of(member_of(record, "cuts")).empty()) {
    out.emplace_back("cuts: none, so there is nothing to check");
  }
  for (const Json& entry : elements_of(member_of(record, "cuts"))) {
    const std::span<const Json> pair = elements_of(entry);
    if (pair.size() != 2) {
      out.push_back("cuts: want pairs of a byte count and a hash");
      return;
    }
    const auto bytes =
        std::min(static_cast<std::size_t>(std::max<std::int64_t>(0, int_of(pair[0]))), text.size());
    const std::array<Piece, 2> parts = {Piece{.text = text.substr(0, bytes), .tokens = 7},
                                        Piece{.text = text.substr(bytes)}};
    expect_digest(std::span(parts).first(1), SourceFinish::kLength, string_of(pair[1]),
                  fmt::format("cut after byte {}", bytes));
    expect_digest(parts, SourceFinish::kStop, text_of(record, "whole_stop"),
                  fmt::format("in two pieces at byte {}", bytes));
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

// ---- tokenizer
// --------------------------------------------------------------------------------------------------

constexpr std::size_t kRepeatedBytesMax = std::size_t{16} << 20U;  // of a `rep` record

// nullopt: the record has no text in any form.
std::optional<std::string> golden_text(const Json& record) {
  if (record.find("hex") != nullptr) {
    const std::string hex = text_of(record, "hex");
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
      unsigned char byte = 0;
      std::from_chars(hex.data() + i, hex.data() + i + 2, byte, 16);
      bytes.push_back(static_cast<char>(byte));
    }
    return bytes;
  }
  if (record.find("text") != nullptr) {
    return text_of(record, "text");
  }
  if (record.find("rep") == nullptr) {
    return std::nullopt;
  }
  const std::string unit = text_of(record, "rep");
  std::string text;
  for (std::int64_t i = 0; i < integer_of(record, "times") && text.size() < kRepeatedBytesMax;
       ++i) {
    text.append(unit);
  }
  return text;
}

void check_encode(const Json& record, bool added, const Tokenizer& tokenizer, Differences& out) {
  const std::optional<std::string> text = golden_text(record);
  if (!text) {
    out.emplace_back("text: missing, so there is nothing to check");
    return;
  }
  std::vector<TokenId> ids;
  if (added) {
    tokenizer.encode_with_added(*text, ids);
  } else {
    tokenizer.encode(*text, ids);
  }
  expect_ids(record, ids, out);
}

void check_encode_record(const Json& record,
                         const ConformanceTokenizers& tokenizers,
                         Differences& out) {
  check_encode(record, flag_of(record, "special"), *tokenizers.v4, out);
}

void check_decode(const Json& record, const ConformanceTokenizers& tokenizers, Differences& out) {
  std::vector<TokenId> ids;
  for (const Json& id : elements_of(member_of(record, "ids"))) {
    ids.push_back(static_cast<TokenId>(int_of(id)));
  }
  expect_text(text_of(record, "text"), tokenizers.v4->decode(ids), "text", out);
}

// ---- the vectors file
// -------------------------------------------------------------------------------------------

// A vector entry as the golden record it corresponds to.
Json record_from_vector(const Json& entry, const Json& request, std::string_view protocol) {
  const std::span<const JsonMember> members = members_of(entry);
  JsonObject record(members.begin(), members.end());
  set_member(record, "p", protocol == "chat_completions" ? Json("chat") : Json(protocol));
  set_member(record, "v", text_of(entry, "model_version") == "v4" ? "v4" : "v4.1");
  set_member(record, "body", to_json(request));
  return Json(std::move(record));
}

void check_render_vector(const Json& entry,
                         const ConformanceTokenizers& tokenizers,
                         Differences& out) {
  const Json record =
      record_from_vector(entry, member_of(entry, "request"), text_of(entry, "protocol"));
  const Result<Request> request = request_of(record);
  if (!request) {
    out.push_back("refused: " + to_string(request.error()));
    return;
  }
  const Prompt prompt = render(request->conversation, request->version);
  expect_text(text_of(entry, "prompt"), prompt.text, "prompt", out);
  expect_prompt_ids(entry, prompt, request->version, tokenizers, out);
}

void check_tokenize_vector(const Json& entry,
                           const ConformanceTokenizers& tokenizers,
                           Differences& out) {
  check_encode(entry, flag_of(entry, "added_tokens_recognized"), *tokenizers.v4, out);
}

void check_injection_vector(const Json& entry,
                            const ConformanceTokenizers& tokenizers,
                            Differences& out) {
  const Json message(JsonObject{{"role", "user"}, {"content", text_of(entry, "user_content")}});
  const Json request(JsonObject{
      {"model", "m"},
      {"messages", JsonArray{message}},
      {"thinking", JsonObject{{"type", flag_of(entry, "thinking") ? "enabled" : "disabled"}}}});
  const Result<Request> parsed = request_of(record_from_vector(entry, request, "chat"));
  if (!parsed) {
    out.push_back("refused: " + to_string(parsed.error()));
    return;
  }
  expect_prompt_ids(entry, render(parsed->conversation, parsed->version), parsed->version,
                    tokenizers, out);
}

// The formatter scripts of the checkpoints; only what a public API can express is checked.
void check_formatter_vector(const Json& entry,
                            const ConformanceTokenizers& /*tokenizers*/,
                            RecordCheck& check) {
  for (const Json& message : elements_of(member_of(entry, "messages"))) {
    if (message.find("task") != nullptr) {
      check.not_applicable = "task tokens are not reachable through any public API";
      return;
    }
  }
  JsonObject request = {
      {"model", "m"},
      {"messages", member_of(entry, "messages")},
      {"thinking",
       JsonObject{
           {"type", text_of(entry, "thinking_mode") == "thinking" ? "enabled" : "disabled"}}}};
  if (const Json* const effort = entry.find("reasoning_effort")) {
    request.emplace_back("reasoning_effort", *effort);
  }
  Json record = record_from_vector(entry, Json(std::move(request)), "chat");
  set_member(*record.object(), "v", text_of(entry, "formatter") == "hf-v4" ? "v4" : "v4.1");
  const Result<Request> parsed = request_of(record);
  if (!parsed) {
    check.differences.push_back("refused: " + to_string(parsed.error()));
    return;
  }
  expect_text(text_of(entry, "prompt"), render(parsed->conversation, parsed->version).text,
              "prompt", check.differences);
}

// Joins events to what a client ends up with.
class Joined final : public EventSink {
 public:
  void on_event(const Event& event) override {
    if (const auto* const reasoning = std::get_if<ReasoningText>(&event)) {
      reasoning_.append(reasoning->text);
    } else if (const auto* const content = std::get_if<ContentText>(&event)) {
      text_.append(content->text);
    } else if (const auto* const call = std::get_if<CallNamed>(&event)) {
      calls_.emplace_back(std::string(call->name), std::string());
    } else if (const auto* const arguments = std::get_if<CallArguments>(&event)) {
      calls_.back().second.append(arguments->text);
    } else if (const auto* const finished = std::get_if<Finished>(&event)) {
      reason_ = finished->reason;
      stop_sequence_ = finished->stop_sequence;
    }
  }

  [[nodiscard]] Json result() const {
    JsonArray calls;
    for (const auto& [name, arguments] : calls_) {
      calls.emplace_back(JsonObject{{"name", name}, {"arguments", arguments}});
    }
    JsonObject result = {
        {"reasoning", reasoning_}, {"text", text_}, {"tool_calls", std::move(calls)}};
    return Json(std::move(result));
  }
  [[nodiscard]] std::string_view reason() const {
    constexpr std::array<std::string_view, 6> kNames = {
        "stop", "stop_sequence", "tool_calls", "length", "content_filter", "end_of_stream"};
    return kNames[static_cast<std::size_t>(reason_)];
  }
  [[nodiscard]] const std::string& stop_sequence() const { return stop_sequence_; }

 private:
  std::string reasoning_;
  std::string text_;
  std::vector<std::pair<std::string, std::string>> calls_;
  FinishReason reason_{};
  std::string stop_sequence_;
};

void check_parse_vector(const Json& entry, Differences& out) {
  const Json& options = member_of(entry, "options");
  Request request;
  request.compat = Compat::kRecipe02;
  const std::string stage = text_of(options, "start_stage");
  request.output = {
      .thinking = stage != "answer",
      .parse_tool_calls = flag_of(options, "parse_tool_calls"),
      .in_tool_block = flag_of(options, "start_in_tool_block"),
      .json_output = flag_of(options, "json_output"),
      .stage = stage == "start"       ? StartStage::kReasoningStart
               : stage == "reasoning" ? StartStage::kReasoningContinuation
               : stage == "content"   ? StartStage::kContentContinuation
                                      : StartStage::kAnswer,
  };
  for (const Json& stop : elements_of(member_of(options, "stop_sequences"))) {
    request.output.stop_sequences.push_back(string_of(stop));
  }
  Joined joined;
  const auto parser = OutputParser::create(request, nullptr, joined);
  for (const Json& chunk : elements_of(member_of(entry, "chunks"))) {
    parser->feed_text(string_of(chunk), 1);
  }
  if (!parser->finished()) {
    parser->finish(finish_of(member_of(entry, "backend_finish")));
  }
  const Json& want = member_of(entry, "result");
  expect_json(want, joined.result(), "result", out);
  expect_text(text_of(entry, "finish_reason"), joined.reason(), "finish_reason", out);
  expect_text(text_of(entry, "stop_sequence"), joined.stop_sequence(), "stop_sequence", out);
}

void check_events_vector(const Json& entry, Differences& out) {
  std::vector<Piece> pieces;
  const std::span<const Json> counts = elements_of(member_of(entry, "token_counts"));
  for (const Json& chunk : elements_of(member_of(entry, "chunks"))) {
    pieces.push_back({.text = string_of(chunk),
                      .tokens = pieces.size() < counts.size() ? int_of(counts[pieces.size()]) : 0});
  }
  if (members_of(member_of(entry, "requests")).empty()) {
    out.emplace_back("requests: none, so there is nothing to check");
  }
  for (const JsonMember& member : members_of(member_of(entry, "requests"))) {
    const Result<Request> request = request_of(record_from_vector(entry, member.value, member.key));
    if (!request) {
      out.push_back(member.key + " refused: " + to_string(request.error()));
      continue;
    }
    const Started started{.prompt_tokens = 21, .cached_tokens = 16, .fingerprint = std::nullopt};
    const Reply reply =
        reply_to(*request, pieces, finish_of(member_of(entry, "backend_finish")), nullptr, started);
    if (!reply.problem.empty()) {
      out.push_back(member.key + ": " + reply.problem);
    }
    Json want_terminal;
    Json got_terminal;
    const JsonArray want =
        canonical_stream(elements_of(member_of(entry, member.key)), want_terminal, out);
    const JsonArray got = canonical_stream(reply.events, got_terminal, out);
    expect_json(Json(want), Json(got), member.key, out);
    expect_json(want_terminal, got_terminal, member.key + " terminal response", out);
  }
}

void check_error_vector(const Json& entry, Differences& out) {
  const Json record =
      record_from_vector(entry, member_of(entry, "request"), text_of(entry, "protocol"));
  const Result<Request> request = request_of(record);
  if (request) {
    out.push_back("accepted, want error: " + text_of(entry, "message"));
  } else {
    expect_error(record, true, request.error(), out);
  }
}

// ---- kinds
// ------------------------------------------------------------------------------------------------------

// One kind of record or vector: what it has to have, since what is not there compares equal to
// anything, and the check.
struct Format {
  std::string_view name;
  std::array<std::string_view, 4> wanted;  // empty names fill up
  void (*check)(const Json&, const ConformanceTokenizers&, RecordCheck&);
};

template <void (*check)(const Json&, Differences&)>
void plain(const Json& record, const ConformanceTokenizers& /*tokenizers*/, RecordCheck& out) {
  check(record, out.differences);
}
template <void (*check)(const Json&, const ConformanceTokenizers&, Differences&)>
void with_tokenizers(const Json& record,
                     const ConformanceTokenizers& tokenizers,
                     RecordCheck& out) {
  check(record, tokenizers, out.differences);
}

constexpr std::array<Format, 9> kRecordFormats = {{
    {"render", {"body", "prompt"}, with_tokenizers<check_render>},
    {"error", {"body", "status", "message"}, plain<check_error>},
    {"parse", {"body", "text"}, plain<check_parse>},
    {"tokens", {"body", "chunks", "events", "response"}, with_tokenizers<check_tokens>},
    {"cuts", {"body", "text", "cuts", "whole_stop"}, plain<check_cuts>},
    {"max_tokens", {"body", "prompt_tokens", "context_limit", "result"}, plain<check_max_tokens>},
    {"image", {"w", "h", "tokens"}, plain<check_image>},
    {"enc", {}, with_tokenizers<check_encode_record>},
    {"dec", {"ids", "text"}, with_tokenizers<check_decode>},
}};

constexpr std::array<Format, 8> kVectorFormats = {{
    {"render", {"request", "prompt"}, with_tokenizers<check_render_vector>},
    {"hf_formatter", {"messages", "prompt"}, check_formatter_vector},
    {"tokenize", {"text"}, with_tokenizers<check_tokenize_vector>},
    {"injection", {"user_content"}, with_tokenizers<check_injection_vector>},
    {"parse", {"chunks", "result", "finish_reason"}, plain<check_parse_vector>},
    {"protocol_events", {"chunks", "requests"}, plain<check_events_vector>},
    {"image_tokens", {"width", "height", "tokens"}, plain<check_image>},
    {"errors", {"request", "message"}, plain<check_error_vector>},
}};

void run(const Format& format,
         const Json& record,
         const ConformanceTokenizers& tokenizers,
         RecordCheck& check) {
  for (const std::string_view member : format.wanted) {
    if (!member.empty() && record.find(member) == nullptr) {
      check.differences.push_back(fmt::format("{}: missing, so there is nothing to check", member));
    }
  }
  if (check.differences.empty()) {
    format.check(record, tokenizers, check);
  }
}

std::vector<RecordCheck> check_vectors(const Json& file, const ConformanceTokenizers& tokenizers) {
  std::vector<RecordCheck> checks;
  for (const JsonMember& member : members_of(file)) {
    const auto format = std::ranges::find(kVectorFormats, member.key, &Format::name);
    const bool is_list = member.value.array() != nullptr;
    const bool is_known = format != kVectorFormats.end();
    if (is_list != is_known) {
      checks.push_back(
          {.id = member.key,
           .differences = {is_known ? "not a list of vectors" : "unknown kind of vector"},
           .not_applicable = {}});
    }
    if (!is_list || !is_known) {  // what says what the file is
      continue;
    }
    const std::span<const Json> entries = elements_of(member.value);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      RecordCheck check{.id = fmt::format("{}[{}] {}", member.key, i, text_of(entries[i], "name"))};
      run(*format, entries[i], tokenizers, check);
      checks.push_back(std::move(check));
    }
  }
  return checks;
}

}  // namespace

RecordCheck check_record(const Json& record, const ConformanceTokenizers& tokenizers) {
  RecordCheck check{.id = text_of(record, "id")};
  const std::string kind = text_of(record, "k");
  const auto format = std::ranges::find(kRecordFormats, kind, &Format::name);
  if (format == kRecordFormats.end()) {
    check.differences.push_back("unknown kind of record: " + kind);
  } else {
    run(*format, record, tokenizers, check);
  }
  return check;
}

Result<std::vector<RecordCheck>> check_file(const std::string& path,
                                            const ConformanceTokenizers& tokenizers) {
  GALLEY_TRY(const std::string text, read_file(path, Bytes{kGoldenBytesMax}));
  if (!path.ends_with(".jsonl")) {
    const Result<Json> file = parse_json(text);
    if (!file || file->object() == nullptr) {
      return fail(Code::kInvalidArgument, path + ": want a JSON object of vectors" +
                                              (file ? "" : ": " + to_string(file.error())));
    }
    return check_vectors(*file, tokenizers);
  }
  std::vector<RecordCheck> checks;
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.empty()) {
      continue;
    }
    const Result<Json> record = parse_json(line);
    if (!record) {
      return fail(Code::kInvalidArgument,
                  fmt::format("{}:{}: {}", path, number, to_string(record.error())));
    }
    checks.push_back(check_record(*record, tokenizers));
  }
  return checks;
}

}  // namespace galley::recipe
