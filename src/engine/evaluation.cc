#include "engine/evaluation.h"

#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <initializer_list>
#include <utility>
#include <variant>

#include "base/quote.h"

namespace galley::engine {
namespace {

using recipe::Json;

constexpr std::size_t kKeyBytesShown = 64;

std::unexpected<Error> broken(std::string what) {
  return fail(Code::kInvalidArgument, std::move(what));
}

// A member that must be a string where it is given.
Result<std::optional<std::string>> text_member(const Json& object, std::string_view key) {
  const Json* const member = object.find(key);
  if (member == nullptr) {
    return std::nullopt;
  }
  if (member->string() == nullptr) {
    return broken(fmt::format("{} is no string", key));
  }
  return *member->string();
}

Result<std::vector<EvalCall>> read_calls(const recipe::JsonArray& items) {
  std::vector<EvalCall> out;
  for (const Json& item : items) {
    GALLEY_TRY(auto name, text_member(item, "name"));
    const Json* const arguments = item.find("arguments");
    if (!name || arguments == nullptr || arguments->object() == nullptr) {
      return broken("a call wants a name, and arguments that are an object");
    }
    out.push_back({.name = *std::move(name), .arguments = *arguments});
  }
  return out;
}

Result<std::vector<std::string>> read_words(const recipe::JsonArray& items) {
  std::vector<std::string> out;
  for (const Json& item : items) {
    if (item.string() == nullptr) {
      return broken("contains holds something that is no string");
    }
    out.push_back(*item.string());
  }
  return out;
}

// A list member; nothing when it is not there.
Result<const recipe::JsonArray*> list_member(const Json& object, std::string_view key) {
  const Json* const member = object.find(key);
  if (member != nullptr && member->array() == nullptr) {
    return broken(fmt::format("{} is no list", key));
  }
  return member == nullptr ? nullptr : member->array();
}

Result<void> only_members(const Json& object, std::initializer_list<std::string_view> known) {
  for (const recipe::JsonMember& member : *object.object()) {
    if (std::ranges::find(known, member.key) == known.end()) {
      return broken(fmt::format("has an unknown member {}", quoted(member.key, kKeyBytesShown)));
    }
  }
  return {};
}

Result<EvalCase> read_case(std::string_view line) {
  GALLEY_TRY(const Json json, recipe::parse_json(line));
  EvalCase out;
  GALLEY_TRY(auto kind, text_member(json, "kind"));
  const Json* const request = json.find("request");
  const Json* const expect = json.find("expect");
  if (!kind || kind->empty() || request == nullptr || request->object() == nullptr ||
      expect == nullptr || expect->object() == nullptr) {
    return broken("want a kind, a request and what to expect");
  }
  if (*kind == kAllKinds) {
    return broken(fmt::format("{} is no kind, it names them all", kAllKinds));
  }
  GALLEY_CHECK_OK(only_members(json, {"kind", "request", "expect"}));
  GALLEY_CHECK_OK(only_members(*expect, {"text", "reasoning", "calls", "contains"}));
  out.kind = *std::move(kind);
  out.request = *request->object();
  GALLEY_TRY(out.text, text_member(*expect, "text"));
  GALLEY_TRY(out.reasoning, text_member(*expect, "reasoning"));
  GALLEY_TRY(const auto* const calls, list_member(*expect, "calls"));
  if (calls != nullptr) {
    GALLEY_TRY(out.calls, read_calls(*calls));
    if (out.calls.empty()) {
      return broken("calls holds none");
    }
  }
  GALLEY_TRY(const auto* const words, list_member(*expect, "contains"));
  if (words != nullptr) {
    GALLEY_TRY(out.contains, read_words(*words));
  }
  const int expectations =
      (out.text ? 1 : 0) + (calls != nullptr ? 1 : 0) + (words != nullptr ? 1 : 0);
  if (expectations != 1 || (out.reasoning && !out.text)) {
    return broken("want one of text, calls and contains to expect, and reasoning with text only");
  }
  return out;
}

// Arguments are compared by value: the order of their members is the model's, and 1.0 is 1.
Json sorted(Json json) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: every integer below is a double
  if (json.real() != nullptr && std::fabs(*json.real()) < kExact &&
      std::trunc(*json.real()) == *json.real()) {
    return static_cast<std::int64_t>(*json.real());
  }
  if (recipe::JsonArray* const array = json.array()) {
    std::ranges::transform(*array, array->begin(), sorted);
  } else if (recipe::JsonObject* const object = json.object()) {
    for (recipe::JsonMember& member : *object) {
      member.value = sorted(std::move(member.value));
    }
    std::ranges::sort(*object, {}, &recipe::JsonMember::key);
  }
  return json;
}

std::optional<Json> object_of(const std::string& text) {
  auto json = recipe::parse_json(text);
  return json && json->object() != nullptr ? std::optional(*std::move(json)) : std::nullopt;
}

Verdict judge_calls(const EvalCase& question, const EvalAnswer& answer) {
  Verdict out{.right = answer.calls.size() == question.calls.size(),
              .well_formed = answer.reason == recipe::FinishReason::kToolCalls};
  for (std::size_t i = 0; i < answer.calls.size(); ++i) {
    const auto arguments = object_of(answer.calls[i].arguments);
    out.well_formed = out.well_formed && arguments.has_value();
    out.right = out.right && arguments && answer.calls[i].name == question.calls[i].name &&
                sorted(*arguments) == sorted(question.calls[i].arguments);
  }
  out.right = out.right && out.well_formed;
  return out;
}

bool wants_json(const EvalCase& question) {
  const Json request(question.request);
  const Json* const format = request.find("response_format");
  const Json* const type = format == nullptr ? nullptr : format->find("type");
  return type != nullptr && type->string() != nullptr && type->string()->starts_with("json");
}

}  // namespace

Result<std::vector<EvalCase>> parse_eval_suite(std::string_view jsonl) {
  std::vector<EvalCase> out;
  for (std::size_t number = 1; !jsonl.empty(); ++number) {
    const std::size_t end = std::min(jsonl.find('\n'), jsonl.size());
    const std::string_view line = jsonl.substr(0, end);
    jsonl.remove_prefix(std::min(end + 1, jsonl.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    auto one = read_case(line);
    if (one && out.size() == kEvalCasesMax) {
      one = broken(fmt::format("more than {} cases", kEvalCasesMax));
    }
    if (!one) {
      Error error = std::move(one).error();
      error.where = error.where.empty() ? fmt::format("line {}", number)
                                        : fmt::format("line {}, {}", number, error.where);
      return std::unexpected(std::move(error));
    }
    one->line = number;
    out.push_back(*std::move(one));
  }
  if (out.empty()) {
    return broken("holds no cases");
  }
  return out;
}

void EvalAnswer::on_event(const recipe::Event& event) {
  if (const auto* piece = std::get_if<recipe::ReasoningText>(&event)) {
    reasoning += piece->text;
  } else if (const auto* text = std::get_if<recipe::ContentText>(&event)) {
    content += text->text;
  } else if (const auto* named = std::get_if<recipe::CallNamed>(&event)) {
    calls.push_back({.name = std::string(named->name), .arguments = {}});
  } else if (const auto* arguments = std::get_if<recipe::CallArguments>(&event)) {
    calls.back().arguments += arguments->text;
  } else if (const auto* finished = std::get_if<recipe::Finished>(&event)) {
    reason = finished->reason;
  }
}

Verdict judge(const EvalCase& question, const EvalAnswer& answer) {
  if (!question.calls.empty()) {
    return judge_calls(question, answer);
  }
  const bool ended = (answer.reason == recipe::FinishReason::kStop ||
                      answer.reason == recipe::FinishReason::kStopSequence) &&
                     answer.calls.empty();
  const bool formed = ended && (!wants_json(question) || recipe::parse_json(answer.content));
  bool right = formed;
  if (question.text) {
    right = right && answer.content == *question.text &&
            (!question.reasoning || answer.reasoning == *question.reasoning);
  }
  for (const std::string& word : question.contains) {
    right = right && answer.content.find(word) != std::string::npos;
  }
  return {.right = right, .well_formed = formed};
}

std::vector<EvalGroup> groups_of(std::span<const EvalCase> suite) {
  std::vector<EvalGroup> out;
  EvalGroup all{.name = std::string(kAllKinds), .questions = {}};
  for (std::size_t i = 0; i < suite.size(); ++i) {
    auto group = std::ranges::find(out, suite[i].kind, &EvalGroup::name);
    if (group == out.end()) {
      group = out.insert(out.end(), {.name = suite[i].kind, .questions = {}});
    }
    group->questions.push_back(i);
    all.questions.push_back(i);
  }
  out.push_back(std::move(all));
  return out;
}

EvalScore score(const EvalGroup& group,
                std::span<const EvalResult> results,
                std::span<const EvalResult> other) {
  const auto count = [&](const auto& holds) {
    return std::ranges::count_if(group.questions, holds);
  };
  const double percent =
      group.questions.empty() ? 0.0 : 100.0 / static_cast<double>(group.questions.size());
  const auto right = count([&](std::size_t i) { return results[i].verdict.right; });
  const auto formed = count([&](std::size_t i) { return results[i].verdict.well_formed; });
  return {
      .right = percent * static_cast<double>(right),
      .formed = percent * static_cast<double>(formed),
      .differ = count([&](std::size_t i) { return results[i].answer != other[i].answer; }),
  };
}

}  // namespace galley::engine
