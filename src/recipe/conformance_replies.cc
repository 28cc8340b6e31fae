#include <algorithm>
#include <fmt/core.h>
#include <utility>

#include "recipe/conformance_parts.h"
#include "recipe/event_tee.h"
#include "recipe/names.h"
#include "recipe/reply.h"

// Golden records of replies (spec recipe 9.2).
namespace galley::recipe {
namespace {

class FixedIds final : public IdSource {
 public:
  std::string next_id() override { return "00000000000000000000"; }
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

}  // namespace

std::optional<SourceFinish> finish_of(const Json& value) {
  if (value.string() == nullptr) {
    return std::nullopt;
  }
  return named<SourceFinish>(*value.string()).value_or(SourceFinish::kStop);
}

RecordedReply reply_to(const Request& request,
                       std::span<const Piece> pieces,
                       std::optional<SourceFinish> finish,
                       std::shared_ptr<const Tokenizer> tokenizer,
                       const Started& started) {
  FixedIds ids;
  std::string sse;
  const ReplyInfo info{.id = "r1", .created_s = 1, .call_ids = &ids};
  const auto stream = StreamEncoder::create(request, info, sse);
  const auto whole = WholeEncoder::create(request, info);
  EventTee tee(*stream, *whole);
  const auto parser = OutputParser::create(request, std::move(tokenizer), tee);
  RecordedReply reply;
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

namespace {

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

}  // namespace

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

namespace {

void expect_reply(const Json& want, RecordedReply reply, const std::string& how, Differences& out) {
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

}  // namespace

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
  RecordedReply reply = reply_to(*request, pieces, finish_of(member_of(record, "finish")),
                                 tokenizers.v41, golden_start());
  if (record.find("read") != nullptr && !member_of(record, "read").is_null()) {
    expect_json(member_of(record, "read"), Json(static_cast<std::int64_t>(reply.pieces_read)),
                "read", out);
  }
  expect_reply(record, std::move(reply), "tokens", out);
}

namespace {

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

}  // namespace

void check_cuts(const Json& record, Differences& out) {
  const Result<Request> request = request_of(record);
  if (!request) {
    out.push_back("refused: " + to_string(request.error()));
    return;
  }
  const std::string text = text_of(record, "text");
  const auto expect_digest = [&](std::span<const Piece> pieces, SourceFinish finish,
                                 std::string_view want, const std::string& how) {
    const RecordedReply reply = reply_to(*request, pieces, finish, nullptr, golden_start());
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

}  // namespace galley::recipe
