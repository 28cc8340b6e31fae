#include "recipe/output_stages.h"

#include <algorithm>
#include <utility>

namespace galley::recipe {
namespace {

constexpr MarkerSet::Options kNewlinesBefore{.newlines_before = true};

}  // namespace

StageMarkers::StageMarkers(const Request& request, bool by_spelling, const MarkerRules& rules)
    : reasoning_(by_spelling),
      answer_(by_spelling),
      json_search_(by_spelling),
      json_body_(by_spelling),
      json_after_(by_spelling) {
  const bool json = request.output.json_output;
  for (const std::string& stop : request.output.stop_sequences) {
    if (stop.empty()) {
      continue;
    }
    const int id = kFirstStop + static_cast<int>(stops_.size());
    const bool only_newlines = stop.find_first_not_of('\n') == std::string::npos;
    (json ? json_body_ : answer_).add(id, stop, only_newlines ? rules.newline_stop : rules.stop);
    stops_.push_back(stop);
  }
  if (json) {
    json_search_.add(kFence, "```json\n");
    json_search_.add(kFence, "```\n");
    json_search_.add(kBrace, "{");
    json_search_.add(kBracket, "[");
    json_body_.add(kFenceEnd, "\n```");
  }
  const auto add_markup = [&rules](MarkerSet& set) {
    if (rules.markup) {
      set.add(kBlockOpen, "<｜DSML｜", kNewlinesBefore);
    }
    if (rules.stray_markup) {
      set.add(kStrayClose, "</｜DSML｜");
      set.add(kStrayMarker, "｜DSML｜");
    }
  };
  add_markup(json ? json_search_ : answer_);
  if (json) {
    add_markup(json_after_);
    if (rules.stray_markup) {
      add_markup(json_body_);
    }
  }
  if (request.output.parse_tool_calls) {
    reasoning_.add(kBlockOpen, "<｜DSML｜", kNewlinesBefore);
  }
  if (!request.completion) {  // which shows what it gets
    (json ? json_search_ : answer_).add(kThinkClose, "</think>");
  }
  reasoning_.add(kThinkClose, "</think>", kNewlinesBefore);
}

const MarkerSet& StageMarkers::of(Stage stage) const {
  switch (stage) {
    case Stage::kReasoning:
      return reasoning_;
    case Stage::kAnswer:
      return answer_;
    case Stage::kJsonSearch:
      return json_search_;
    case Stage::kJsonBody:
      return json_body_;
    case Stage::kJsonAfter:
      return json_after_;
    case Stage::kStrayTag:
    case Stage::kToolBlock:
    case Stage::kDropped:
      break;
  }
  std::unreachable();
}

const std::string& StageMarkers::stop(int marker) const {
  return stops_[static_cast<std::size_t>(marker - kFirstStop)];
}

bool StageMarkers::has_stop(std::string_view text) const {
  return std::ranges::find(stops_, text) != stops_.end();
}

Result<void> check_tokens(const Tokenizer* tokenizer,
                          std::span<const TokenId> ids,
                          std::span<const TokenLogprob> logprobs) {
  if (tokenizer == nullptr) {
    return fail(Code::kInvalidArgument, "token ids need a tokenizer");
  }
  if (!logprobs.empty() && logprobs.size() != ids.size()) {
    return fail(Code::kInvalidArgument, "log-probabilities must be one a token");
  }
  return {};
}

FinishReason finish_reason(std::optional<SourceFinish> reason, std::int64_t calls) {
  if (!reason) {
    return FinishReason::kEndOfStream;
  }
  switch (*reason) {
    case SourceFinish::kLength:
      return FinishReason::kLength;
    case SourceFinish::kContentFilter:
      return FinishReason::kContentFilter;
    case SourceFinish::kStop:
      break;
  }
  return calls > 0 ? FinishReason::kToolCalls : FinishReason::kStop;
}

}  // namespace galley::recipe
