#include "gateway/sources/scripted.h"

#include <fmt/core.h>
#include <utility>

#include "base/fnv1a.h"
#include "gateway/sources/delivery.h"
#include "recipe/json.h"
#include "recipe/names.h"

namespace galley::gateway {
namespace {

using recipe::Json;
using recipe::SourceFinish;

Result<SourceFinish> parse_finish(const Json& value) {
  const std::string* text = value.string();
  if (text != nullptr) {
    if (const auto finish = recipe::named<SourceFinish>(*text)) {
      return *finish;
    }
  }
  return fail(Code::kInvalidArgument, "must be stop, length or content_filter", "finish");
}

Result<std::vector<TokenId>> parse_ids(const Json& value, const recipe::Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  if (value.array() == nullptr) {
    return fail(Code::kInvalidArgument, "must be an array of token ids", "tokens");
  }
  for (const Json& item : *value.array()) {
    const std::int64_t* id = item.int64();
    if (id == nullptr || *id < 0 || std::cmp_greater_equal(*id, tokenizer.vocabulary_size())) {
      return fail(Code::kInvalidArgument, "must hold ids of the vocabulary", "tokens");
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

Result<std::string> parse_string(std::string_view key, const Json& value) {
  if (value.string() == nullptr) {
    return fail(Code::kInvalidArgument, "must be a string", std::string(key));
  }
  return *value.string();
}

}  // namespace

std::string prompt_hash(std::span<const TokenId> prompt) {
  Fnv1a hash;
  for (const TokenId id : prompt) {
    hash.add(id);
  }
  return hash.hex();
}

Result<ScriptedSource::Line> ScriptedSource::parse_line(std::string_view text,
                                                        const recipe::Tokenizer& tokenizer) {
  GALLEY_TRY(const Json json, recipe::parse_json(text));
  if (json.object() == nullptr) {
    return fail(Code::kInvalidArgument, "must be an object");
  }
  Line line;
  for (const auto& [key, value] : *json.object()) {
    if (key == "text") {
      GALLEY_TRY(const std::string answer, parse_string(key, value));
      tokenizer.encode_with_added(answer, line.tokens);
    } else if (key == "tokens") {
      GALLEY_TRY(line.tokens, parse_ids(value, tokenizer));
    } else if (key == "prompt_hash") {
      GALLEY_TRY(line.prompt_hash, parse_string(key, value));
    } else if (key == "finish") {
      GALLEY_TRY(line.finish, parse_finish(value));
    } else if (key == "error") {
      GALLEY_TRY(line.error, parse_string(key, value));
    } else if (key == "cached_tokens" && value.int64() != nullptr && *value.int64() >= 0) {
      line.cached_tokens = *value.int64();
    } else {
      return fail(Code::kInvalidArgument, "is unknown or has a wrong value", key);
    }
  }
  return line;
}

Result<std::unique_ptr<ScriptedSource>> ScriptedSource::from_jsonl(
    std::string_view jsonl, const recipe::Tokenizer& tokenizer, Loop& loop) {
  std::vector<Line> lines;
  for (std::size_t number = 1; !jsonl.empty(); ++number) {
    const std::size_t end = jsonl.find('\n');
    const std::string_view text = jsonl.substr(0, end);
    jsonl.remove_prefix(end == std::string_view::npos ? jsonl.size() : end + 1);
    if (text.empty()) {
      continue;
    }
    auto line = parse_line(text, tokenizer);
    if (!line) {
      return in_step(fmt::format("script line {}", number), std::move(line).error());
    }
    lines.push_back(std::move(*line));
  }
  return std::unique_ptr<ScriptedSource>(new ScriptedSource(std::move(lines), loop));
}

const ScriptedSource::Line* ScriptedSource::pick(std::span<const TokenId> prompt) {
  const std::string hash = prompt_hash(prompt);
  for (const Line& line : lines_) {
    if (line.prompt_hash == hash) {
      return &line;
    }
  }
  const MutexLock lock(mutex_);
  while (next_ < lines_.size()) {
    if (const Line& line = lines_[next_++]; line.prompt_hash.empty()) {
      return &line;
    }
  }
  return nullptr;
}

Result<std::unique_ptr<recipe::ActiveGeneration>> ScriptedSource::start(
    recipe::Generation generation, recipe::TokenSink& sink) {
  if (generation.sampling.logprobs) {
    return fail(Code::kUnimplemented, "scripted answers have no logprobs", "logprobs");
  }
  const Line* line = pick(generation.prompt);
  if (line == nullptr) {
    return fail(Code::kUnavailable, "the script has no answer left");
  }
  KnownAnswer answer{
      .started = {.prompt_tokens = static_cast<std::int64_t>(generation.prompt.size()),
                  .cached_tokens = std::min(line->cached_tokens,
                                            static_cast<std::int64_t>(generation.prompt.size()))},
      .ids = line->tokens,
      .end = line->finish};
  if (line->error) {
    answer.end = Error{.code = Code::kUnavailable, .what = *line->error};
  }
  return deliver(loop_, limited(std::move(answer), generation), sink);
}

}  // namespace galley::gateway
