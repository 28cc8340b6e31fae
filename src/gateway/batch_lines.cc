#include "gateway/batch_lines.h"

#include <algorithm>
#include <array>
#include <fmt/core.h>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

using recipe::Json;
using recipe::Protocol;

constexpr std::size_t kShownBytesMax = 128;  // of what a line holds, in an error that repeats it
constexpr std::string_view kIdPrefix = "batch_req_";
// How every answer begins. A torn one is known by it.
constexpr std::string_view kAnswerBegin = R"({"id":"batch_req_)";

struct Url {
  std::string_view path;
  Protocol protocol{};
};
constexpr std::array kUrls{
    Url{"/v1/chat/completions", Protocol::kChat},
    Url{"/v1/responses", Protocol::kResponses},
    Url{"/v1/messages", Protocol::kMessages},
    Url{"/v1/completions", Protocol::kCompletions},
};

std::string at_line(std::size_t number) {
  return fmt::format("line {}", number);
}

Result<Json> parse_line(std::string_view text) {
  if (text.size() > kBatchLineBytesMax) {
    return fail(Code::kTooLarge, fmt::format("the line has {} bytes, more than {}", text.size(),
                                             kBatchLineBytesMax));
  }
  auto json = recipe::parse_json(text);
  if (!json) {
    const Error& error = json.error();
    return fail(Code::kInvalidArgument,
                fmt::format("the line is no JSON: {}{}", error.what,
                            error.where.empty() ? "" : fmt::format(" (at {})", error.where)));
  }
  if (json->object() == nullptr) {
    return fail(Code::kInvalidArgument, "the line is no JSON object");
  }
  return json;
}

// A member that is a text; nullptr when it is missing or something else.
const std::string* text_of(const Json& json, std::string_view key) {
  const Json* const member = json.find(key);
  return member == nullptr ? nullptr : member->string();
}

// nullptr when there is no good one.
const std::string* custom_id_of(const Json& line) {
  const std::string* const id = text_of(line, "custom_id");
  return id == nullptr || id->empty() || id->size() > kCustomIdBytesMax ? nullptr : id;
}

Result<Protocol> protocol_of(const Json& line) {
  const std::string* const url = text_of(line, "url");
  if (url == nullptr) {
    return fail(Code::kInvalidArgument, "`url` must be a string", "url");
  }
  const auto* const found = std::ranges::find(kUrls, *url, &Url::path);
  if (found == kUrls.end()) {
    return fail(
        Code::kNotFound,
        fmt::format("`url` {} is none of /v1/chat/completions, /v1/responses, /v1/messages and "
                    "/v1/completions",
                    quoted(*url, kShownBytesMax)),
        "url");
  }
  return found->protocol;
}

// Of a line whose url is good.
Result<std::string> body_of(const Json& line) {
  if (custom_id_of(line) == nullptr) {
    return fail(Code::kInvalidArgument,
                fmt::format("`custom_id` must be a string of 1 to {} bytes", kCustomIdBytesMax),
                "custom_id");
  }
  const std::string* const method = text_of(line, "method");
  if (method == nullptr || *method != "POST") {
    return fail(Code::kInvalidArgument, "`method` must be \"POST\"", "method");
  }
  const Json* const body = line.find("body");
  if (body == nullptr || body->object() == nullptr) {
    return fail(Code::kInvalidArgument, "`body` must be an object", "body");
  }
  const Json* const stream = body->find("stream");
  if (stream != nullptr && stream->boolean() != nullptr && *stream->boolean()) {
    return fail(Code::kInvalidArgument, "`stream` is not supported in a batch", "stream");
  }
  return recipe::to_json(*body);
}

}  // namespace

std::optional<Protocol> batch_protocol(std::string_view url) {
  const auto* const found = std::ranges::find(kUrls, url, &Url::path);
  return found == kUrls.end() ? std::nullopt : std::optional(found->protocol);
}

Result<std::vector<BatchEntry>> index_batch(std::string_view jsonl) {
  std::vector<BatchEntry> entries;
  std::unordered_map<std::string, std::size_t> lines;  // by custom_id
  for (std::size_t number = 1; !jsonl.empty(); ++number) {
    if (number > kBatchLinesMax) {
      return fail(Code::kTooLarge, fmt::format("has more than {} lines", kBatchLinesMax),
                  at_line(number));
    }
    const std::size_t end = std::min(jsonl.find('\n'), jsonl.size());
    const std::string_view text = jsonl.substr(0, end);
    jsonl.remove_prefix(std::min(end + 1, jsonl.size()));
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    BatchEntry& entry = entries.emplace_back();
    entry.number = number;
    entry.text = text;
    const auto json = parse_line(text);
    const std::string* const id = json ? custom_id_of(*json) : nullptr;
    if (id == nullptr) {
      continue;
    }
    entry.custom_id = *id;
    if (const auto [first, added] = lines.try_emplace(*id, number); !added) {
      return fail(Code::kInvalidArgument,
                  fmt::format("custom_id {} is that of line {} too", quoted(*id, kShownBytesMax),
                              first->second),
                  at_line(number));
    }
  }
  return entries;
}

BatchRequest parse_batch_line(std::string_view text) {
  const auto json = parse_line(text);
  if (!json) {
    return {.body = std::unexpected(json.error())};
  }
  const auto protocol = protocol_of(*json);
  if (!protocol) {
    return {.body = std::unexpected(protocol.error())};
  }
  return {.protocol = *protocol, .body = body_of(*json)};
}

std::string batch_answer_line(const BatchAnswer& answer) {
  GALLEY_ASSERT(answer.body.find('\n') == std::string::npos);
  std::string out = R"({"id":)";
  recipe::append_json_string(std::string(kIdPrefix).append(answer.id), out);
  out += R"(,"custom_id":)";
  if (answer.custom_id.empty()) {
    out += fmt::format(R"(null,"line":{})", answer.number);
  } else {
    recipe::append_json_string(answer.custom_id, out);
  }
  out += fmt::format(R"(,"response":{{"status_code":{},"request_id":)", answer.status);
  recipe::append_json_string(answer.request_id, out);
  if (!answer.note.empty()) {
    out += R"(,"note":)";
    recipe::append_json_string(answer.note, out);
  }
  out.append(R"(,"body":)").append(answer.body).append("},\"error\":null}\n");
  return out;
}

Result<BatchMark> parse_batch_answer(std::string_view line) {
  if (line.size() > kBatchAnswerBytesMax) {
    return fail(Code::kTooLarge, fmt::format("has more than {} bytes", kBatchAnswerBytesMax));
  }
  const auto json = recipe::parse_json(line);
  const std::string* const id = json ? text_of(*json, "id") : nullptr;
  const Json* const response = json ? json->find("response") : nullptr;
  const Json* const status = response == nullptr ? nullptr : response->find("status_code");
  const std::string* const custom_id = json ? custom_id_of(*json) : nullptr;
  const Json* const number = json ? json->find("line") : nullptr;
  const bool names_line = number != nullptr && number->int64() != nullptr && *number->int64() > 0;
  if (id == nullptr || !id->starts_with(kIdPrefix) || status == nullptr ||
      status->int64() == nullptr || (custom_id == nullptr && !names_line)) {
    return fail(Code::kCorruption, "is no answer of a batch");
  }
  return BatchMark{
      .custom_id = custom_id == nullptr ? "" : *custom_id,
      .number = custom_id == nullptr ? static_cast<std::size_t>(*number->int64()) : 0,
      .failed = *status->int64() < 200 || *status->int64() > 299,
  };
}

std::string BatchDoneReader::here() const {
  return at_line(number_);
}

Result<void> BatchDoneReader::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    if (line_.size() > kBatchAnswerBytesMax) {
      return fail(Code::kTooLarge, fmt::format("has more than {} bytes", kBatchAnswerBytesMax),
                  here());
    }
    if (end == std::string_view::npos) {
      return {};
    }
    bytes.remove_prefix(end + 1);
    GALLEY_CHECK_OK(add(line_));
    done_.bytes += line_.size() + 1;
    line_.clear();
    ++number_;
  }
  return {};
}

Result<void> BatchDoneReader::add(std::string_view line) {
  auto mark = parse_batch_answer(line);
  if (!mark) {
    mark.error().where = here();
    return std::unexpected(std::move(mark).error());
  }
  const bool first = mark->custom_id.empty() ? done_.numbers.insert(mark->number).second
                                             : done_.custom_ids.insert(mark->custom_id).second;
  if (!first) {
    return fail(Code::kCorruption, "is a second answer to one request", here());
  }
  done_.failed += mark->failed ? 1 : 0;
  return {};
}

Result<BatchDone> BatchDoneReader::finish() {
  const std::string_view torn = std::string_view(line_).substr(0, kAnswerBegin.size());
  if (!kAnswerBegin.starts_with(torn)) {
    return fail(Code::kCorruption, "has no end and is not the beginning of an answer", here());
  }
  return std::move(done_);
}

Result<std::vector<BatchEntry>> entries_left(std::vector<BatchEntry> entries,
                                             const BatchDone& done) {
  std::unordered_set<std::string_view> ids;
  std::unordered_set<std::size_t> numbers;
  for (const BatchEntry& entry : entries) {
    if (entry.custom_id.empty()) {
      numbers.insert(entry.number);
    } else {
      ids.insert(entry.custom_id);
    }
  }
  for (const std::string& id : done.custom_ids) {
    if (!ids.contains(id)) {
      return fail(Code::kInvalidArgument,
                  fmt::format("answers custom_id {}, which is not in the batch",
                              quoted(id, kShownBytesMax)));
    }
  }
  for (const std::size_t number : done.numbers) {
    if (!numbers.contains(number)) {
      return fail(Code::kInvalidArgument,
                  fmt::format("answers line {} as one without custom_id, which it is not", number));
    }
  }
  std::erase_if(entries, [&done](const BatchEntry& entry) {
    return entry.custom_id.empty() ? done.numbers.contains(entry.number)
                                   : done.custom_ids.contains(entry.custom_id);
  });
  return entries;
}

}  // namespace galley::gateway
