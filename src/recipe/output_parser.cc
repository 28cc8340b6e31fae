#include "recipe/output_parser.h"

#include <algorithm>
#include <simdjson.h>
#include <string>
#include <utility>
#include <vector>

#include "recipe/marker_scanner.h"
#include "recipe/output_parser_recipe02.h"
#include "recipe/output_stages.h"
#include "recipe/text_decoder.h"
#include "recipe/tool_block.h"

namespace galley::recipe {
namespace {

constexpr std::size_t kStrayTagBytesMax = 32;  // `parameter>` is the longest real one

bool is_well_formed(std::string_view text) {
  constexpr std::size_t kShort = 16;  // where the call costs more than the loop
  if (text.size() <= kShort &&
      std::ranges::all_of(text, [](char byte) { return static_cast<signed char>(byte) >= 0; })) {
    return true;
  }
  return simdjson::validate_utf8(text.data(), text.size());
}

// Log-probabilities that wait for the text their tokens belong to. Positions count the decoded
// bytes of the reply.
class PendingLogprobs {
 public:
  void push(const TokenLogprob& entry, std::size_t begin, std::size_t end) {
    entries_.push_back(entry);
    ranges_.push_back({begin, end});
  }
  [[nodiscard]] bool empty() const { return ranges_.empty(); }

  // Takes the entries of tokens that begin before `end`; those that lie wholly before `begin` were
  // markup and are dropped. Valid until the next call.
  std::span<const TokenLogprob> take(std::size_t begin, std::size_t end) {
    discard(taken_);
    std::size_t passed = 0;
    while (passed < ranges_.size() && ranges_[passed].is_before(begin)) {
      ++passed;
    }
    discard(passed);
    while (taken_ < ranges_.size() && ranges_[taken_].begin < end) {
      ++taken_;
    }
    return std::span(entries_).first(taken_);
  }

 private:
  struct Range {
    std::size_t begin;
    std::size_t end;  // equal to `begin` for a token whose character is not complete yet
    [[nodiscard]] bool is_before(std::size_t position) const {
      return end <= position && begin < position;
    }
  };
  void discard(std::size_t count) {
    entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(count));
    ranges_.erase(ranges_.begin(), ranges_.begin() + static_cast<std::ptrdiff_t>(count));
    taken_ = 0;
  }

  std::vector<TokenLogprob> entries_;
  std::vector<Range> ranges_;
  std::size_t taken_ = 0;
};

// An answer that continues a prefix may begin in mid-text: its first newlines belong to it.
bool begins_anew(const Request& request) {
  const auto& messages = request.conversation.messages;
  return messages.empty() || !messages.back().prefix;
}

// Stop strings match whatever spells them. Tool markup is more than text where the request has to
// do with tools, or comes as ids; what it did not ask for is dropped. A completion is plain text.
MarkerRules marker_rules(const Request& request, bool by_spelling) {
  const bool markup = !request.completion && (request.output.parse_tool_calls || !by_spelling ||
                                              !request.conversation.tools.empty());
  return {.stop = {.any_kind = true},
          .newline_stop = {.any_kind = true, .needs_text = true},
          .markup = markup,
          .stray_markup = markup};
}

class Parser final : public OutputParser {
 public:
  Parser(const Request& request, std::shared_ptr<const Tokenizer> tokenizer, EventSink& sink);

  void start(const Started& started) override;
  void feed_text(std::string_view text, std::int64_t token_count) override;
  Result<void> feed_tokens(std::span<const TokenId> ids,
                           std::span<const TokenLogprob> logprobs) override;
  void finish(std::optional<SourceFinish> reason) override;
  [[nodiscard]] bool finished() const override { return finished_; }

 private:
  void enter(Stage stage, bool leading);
  void feed_token(TokenId id, const TokenLogprob* logprob);
  void decode(std::string_view bytes, ByteKind kind);
  void consume(std::string_view text, ByteKind kind);
  void skip_stray_tag(std::string_view& text);
  void on_text(std::string_view text);
  void on_marker(int marker);
  void emit_unclaimed();
  void emit(std::string_view text, std::span<const TokenLogprob> logprobs);
  void end(FinishReason reason, std::string_view stop_sequence);

  EventSink& sink_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool parse_tool_calls_;
  Stage answer_stage_;  // what comes after the reasoning
  StageMarkers markers_;
  MarkerScanner scanner_{false};
  std::unique_ptr<ToolBlock> block_;

  Stage stage_ = Stage::kAnswer;
  bool leading_ = false;  // newlines are dropped until something else comes
  bool started_ = false;
  bool finished_ = false;
  Stage stray_in_ = Stage::kAnswer;  // where the stray tag stands
  std::size_t stray_bytes_ = 0;      // of it, so far
  std::string unclaimed_;            // text before the JSON: the answer when no JSON comes
  std::size_t unclaimed_begin_ = 0;  // its position

  TextDecoder decoder_;
  std::string decoded_;
  std::size_t position_ = 0;  // decoded bytes before what is consumed now
  std::size_t cursor_ = 0;    // position of the next byte to become text or markup
  PendingLogprobs logprobs_;

  Usage usage_;
};

Parser::Parser(const Request& request, std::shared_ptr<const Tokenizer> tokenizer, EventSink& sink)
    : sink_(sink),
      tokenizer_(std::move(tokenizer)),
      parse_tool_calls_(request.output.parse_tool_calls),
      answer_stage_(request.output.json_output ? Stage::kJsonSearch : Stage::kAnswer),
      markers_(request, tokenizer_ == nullptr, marker_rules(request, tokenizer_ == nullptr)) {
  if (parse_tool_calls_ || request.output.in_tool_block) {
    block_ = make_tool_block(
        request, tokenizer_ == nullptr,
        request.output.in_tool_block ? BlockStart::kInside : BlockStart::kAfterMarker, sink_);
  }
  if (request.output.thinking && tokenizer_ != nullptr) {
    usage_.reasoning_tokens = 0;
  }
  if (request.output.in_tool_block) {
    enter(Stage::kToolBlock, false);
    return;
  }
  switch (request.output.stage) {
    case StartStage::kReasoningStart:
      enter(Stage::kReasoning, true);
      break;
    case StartStage::kReasoningContinuation:
      enter(Stage::kReasoning, false);
      break;
    case StartStage::kContentContinuation:
      enter(answer_stage_, false);
      break;
    case StartStage::kAnswer:
      enter(answer_stage_, begins_anew(request));
      break;
  }
}

void Parser::enter(Stage stage, bool leading) {
  stage_ = stage;
  leading_ = leading;
  switch (stage) {
    case Stage::kReasoning:
    case Stage::kJsonSearch:
    case Stage::kJsonBody:
    case Stage::kJsonAfter:
      scanner_.enter(markers_.of(stage));
      break;
    case Stage::kAnswer:
      scanner_.enter(markers_.of(stage), !leading);
      break;
    case Stage::kStrayTag:
      stray_bytes_ = 0;
      break;
    case Stage::kToolBlock:
    case Stage::kDropped:
      break;
  }
}

void Parser::start(const Started& started) {
  if (started_) {
    return;
  }
  started_ = true;
  usage_.prompt_tokens = started.prompt_tokens;
  usage_.cached_tokens = started.cached_tokens;
  usage_.cache_miss = started.cache_miss;
  sink_.on_event(started);
}

void Parser::feed_text(std::string_view text, std::int64_t token_count) {
  if (finished_) {
    return;
  }
  start(Started{});
  usage_.completion_tokens += token_count;
  decode(text, ByteKind::kPlain);
}

Result<void> Parser::feed_tokens(std::span<const TokenId> ids,
                                 std::span<const TokenLogprob> logprobs) {
  GALLEY_CHECK_OK(check_tokens(tokenizer_.get(), ids, logprobs));
  start(Started{});
  for (std::size_t i = 0; i < ids.size() && !finished_; ++i) {
    feed_token(ids[i], logprobs.empty() ? nullptr : &logprobs[i]);
  }
  return {};
}

void Parser::feed_token(TokenId id, const TokenLogprob* logprob) {
  ++usage_.completion_tokens;
  if (stage_ == Stage::kReasoning && usage_.reasoning_tokens) {
    ++*usage_.reasoning_tokens;
  }
  const std::string_view bytes = tokenizer_->bytes(id);
  const bool control = tokenizer_->is_added(id);
  if (logprob != nullptr && stage_ != Stage::kToolBlock && stage_ != Stage::kDropped) {
    // The text is decoded twice, here only to learn how long it is: with log-probabilities on,
    // copying their lists costs more.
    TextDecoder ahead = decoder_;
    std::string text;
    if (control) {
      ahead.flush(text);
    }
    ahead.feed(bytes, text);
    logprobs_.push(*logprob, position_, position_ + text.size());
  }
  decode(bytes, control ? ByteKind::kControl : ByteKind::kPlain);
}

void Parser::decode(std::string_view bytes, ByteKind kind) {
  if (kind == ByteKind::kControl && decoder_.pending()) {
    decoded_.clear();
    decoder_.flush(decoded_);
    consume(decoded_, ByteKind::kPlain);
  }
  if (!decoder_.pending() && is_well_formed(bytes)) {
    consume(bytes, kind);
    return;
  }
  decoded_.clear();
  decoder_.feed(bytes, decoded_);
  consume(decoded_, kind);
}

void Parser::consume(std::string_view text, ByteKind kind) {
  const std::size_t end = position_ + text.size();
  while (!text.empty() && !finished_) {
    if (stage_ == Stage::kDropped) {
      break;
    }
    if (stage_ == Stage::kToolBlock) {
      block_->feed(text, kind);
      if (block_->broken()) {
        this->end(FinishReason::kBrokenCall, {});
      }
      break;
    }
    if (stage_ == Stage::kStrayTag) {
      skip_stray_tag(text);
      continue;
    }
    const auto step = scanner_.feed(text, kind, [this](std::string_view piece) { on_text(piece); });
    text.remove_prefix(step.consumed);
    if (step.marker != MarkerScanner::Step::kNone) {
      on_marker(step.marker);
      cursor_ = end - text.size();
    }
  }
  position_ = end;
  if (stage_ == Stage::kToolBlock || stage_ == Stage::kDropped || stage_ == Stage::kStrayTag) {
    cursor_ = end;
  }
}

// `</｜DSML｜ parameter>` in the answer closes nothing: the rest of the tag goes with its marker. A
// tag name has no line break and few bytes, so what is no tag costs little.
void Parser::skip_stray_tag(std::string_view& text) {
  while (!text.empty()) {
    const char byte = text.front();
    ++stray_bytes_;
    const bool continues_character = (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
    if (byte == '\n' || (stray_bytes_ > kStrayTagBytesMax && !continues_character)) {
      enter(stray_in_, false);
      return;
    }
    text.remove_prefix(1);
    if (byte == '>') {
      enter(stray_in_, false);
      return;
    }
  }
}

void Parser::on_text(std::string_view text) {
  const std::size_t whole = text.size();
  if (leading_) {
    text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
    leading_ = text.empty();
  }
  const std::size_t begin = cursor_ + whole - text.size();
  cursor_ += whole;
  if (text.empty() || stage_ == Stage::kJsonAfter) {
    return;
  }
  if (stage_ == Stage::kJsonSearch) {
    unclaimed_begin_ = unclaimed_.empty() ? begin : unclaimed_begin_;
    unclaimed_.append(text);
    return;
  }
  emit(text, logprobs_.empty() ? std::span<const TokenLogprob>{} : logprobs_.take(begin, cursor_));
}

void Parser::on_marker(int marker) {
  switch (marker) {
    case kBlockOpen:
      emit_unclaimed();
      enter(parse_tool_calls_ ? Stage::kToolBlock : Stage::kDropped, false);
      break;
    case kThinkClose:
      enter(answer_stage_, stage_ == Stage::kReasoning);
      break;
    case kStrayClose:
      stray_in_ = stage_;
      enter(Stage::kStrayTag, false);
      break;
    case kStrayMarker:
      break;
    case kFence:
    case kBrace:
    case kBracket:
      unclaimed_.clear();
      enter(Stage::kJsonBody, false);
      if (marker != kFence) {
        emit(marker == kBrace ? "{" : "[", logprobs_.take(cursor_, cursor_ + 1));
      }
      break;
    case kFenceEnd:
      enter(Stage::kJsonAfter, false);
      break;
    default:
      end(FinishReason::kStopSequence, markers_.stop(marker));
  }
}

// JSON mode, and no JSON came: what was said instead is better than nothing.
void Parser::emit_unclaimed() {
  if (!unclaimed_.empty()) {
    emit(unclaimed_, logprobs_.take(unclaimed_begin_, cursor_));
    unclaimed_.clear();
  }
}

void Parser::emit(std::string_view text, std::span<const TokenLogprob> logprobs) {
  if (stage_ == Stage::kReasoning) {
    sink_.on_event(ReasoningText{text, logprobs});
  } else {
    sink_.on_event(ContentText{text, logprobs});
  }
}

void Parser::finish(std::optional<SourceFinish> reason) {
  if (finished_) {
    return;
  }
  start(Started{});
  // Half a character at the end of half a call is no use: it may be half of a marker.
  if (decoder_.pending() && (stage_ != Stage::kToolBlock || reason == SourceFinish::kStop)) {
    decoded_.clear();
    decoder_.flush(decoded_);
    consume(decoded_, ByteKind::kPlain);
  }
  if (finished_) {
    return;
  }
  if (stage_ == Stage::kToolBlock) {
    block_->finish(reason);
  } else if (stage_ != Stage::kDropped && stage_ != Stage::kStrayTag) {
    scanner_.flush([this](std::string_view piece) { on_text(piece); });
  }
  emit_unclaimed();
  const bool broken = stage_ == Stage::kToolBlock && block_->broken();
  const std::int64_t calls = block_ == nullptr ? 0 : block_->calls();
  end(broken ? FinishReason::kBrokenCall : finish_reason(reason, calls), {});
}

void Parser::end(FinishReason reason, std::string_view stop_sequence) {
  finished_ = true;
  sink_.on_event(Finished{reason, stop_sequence, usage_});
}

}  // namespace

std::unique_ptr<OutputParser> OutputParser::create(const Request& request,
                                                   std::shared_ptr<const Tokenizer> tokenizer,
                                                   EventSink& sink) {
  if (request.compat == Compat::kRecipe02) {
    return make_output_parser_recipe02(request, std::move(tokenizer), sink);
  }
  return std::make_unique<Parser>(request, std::move(tokenizer), sink);
}

}  // namespace galley::recipe
