#include "recipe/output_parser_recipe02.h"

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "recipe/output_stages.h"
#include "recipe/text_decoder.h"
#include "recipe/tool_block.h"

// How deepseek-recipe 0.2.0 reads a reply (spec recipe 1.4, 3.2), so that every golden can be
// checked. docs/decisions says where Galley's own reading differs, and why.
//
// It cuts a reply like this: every piece of its decoder (a text chunk, the plain tokens of a chunk,
// or one control token) gives one event for each stretch of one kind of text, and all of them carry
// the piece's whole list of log-probabilities.
namespace galley::recipe {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

class Recipe02Parser final : public OutputParser {
 public:
  Recipe02Parser(const Request& request,
                 std::shared_ptr<const Tokenizer> tokenizer,
                 EventSink& sink);

  void start(const Started& started) override;
  void feed_text(std::string_view text, std::int64_t token_count) override;
  Result<void> feed_tokens(std::span<const TokenId> ids,
                           std::span<const TokenLogprob> logprobs) override;
  void finish(std::optional<SourceFinish> reason) override;
  [[nodiscard]] bool finished() const override { return finished_; }

 private:
  struct Piece {
    std::size_t end{};  // position
    std::vector<TokenLogprob> logprobs;
  };

  void enter(Stage stage, bool leading);
  void release_held();
  void feed_piece(std::string_view text, ByteKind kind, std::int64_t token_count);
  void consume(std::string_view text, ByteKind kind);
  void skip_leading(std::string_view& text);
  void on_text(std::string_view text);
  void on_marker(int marker);
  void close_stretch();
  void move_cursor(std::size_t position);
  void emit(std::string_view text, std::span<const TokenLogprob> logprobs);
  void end(FinishReason reason, std::string_view stop_sequence);

  EventSink& sink_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Stage answer_stage_;  // what comes after the reasoning
  StageMarkers markers_;
  bool newline_is_stop_;
  MarkerScanner scanner_{true};
  std::unique_ptr<ToolBlock> block_;

  Stage stage_ = Stage::kAnswer;
  bool leading_ = false;  // newlines are dropped until something else comes
  bool started_ = false;
  bool finished_ = false;

  TextDecoder decoder_;
  std::string decoded_;
  std::size_t position_ = 0;  // decoded bytes before what is consumed now
  std::size_t cursor_ = 0;    // position of the next byte to become text or markup
  std::deque<Piece> pieces_;  // that end after the cursor
  std::string stretch_;       // text of the first piece, not emitted yet
  std::string held_;          // decoded but not released (spec 1.4)
  std::vector<TokenLogprob> held_logprobs_;
  std::int64_t held_tokens_ = 0;
  std::string reasoning_text_;

  Usage usage_;
};

Recipe02Parser::Recipe02Parser(const Request& request,
                               std::shared_ptr<const Tokenizer> tokenizer,
                               EventSink& sink)
    : sink_(sink),
      tokenizer_(std::move(tokenizer)),
      answer_stage_(request.output.json_output ? Stage::kJsonSearch : Stage::kAnswer),
      markers_(request,
               tokenizer_ == nullptr,
               {.stop = {.plain_only = true},
                .newline_stop = {.plain_only = true},
                .markup = request.output.parse_tool_calls}),
      newline_is_stop_(markers_.has_stop("\n")) {
  if (request.output.parse_tool_calls || request.output.in_tool_block) {
    block_ = make_tool_block_recipe02(tokenizer_ == nullptr, sink_);
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
      enter(answer_stage_, true);
      break;
  }
}

void Recipe02Parser::enter(Stage stage, bool leading) {
  stage_ = stage;
  leading_ = leading;
  if (stage != Stage::kToolBlock) {
    scanner_.enter(markers_.of(stage));
  }
}

void Recipe02Parser::start(const Started& started) {
  if (started_) {
    return;
  }
  started_ = true;
  usage_.prompt_tokens = started.prompt_tokens;
  usage_.cached_tokens = started.cached_tokens;
  sink_.on_event(started);
}

void Recipe02Parser::feed_text(std::string_view text, std::int64_t token_count) {
  if (finished_) {
    return;
  }
  start(Started{});
  decoded_.clear();
  decoder_.feed(text, decoded_);
  feed_piece(decoded_, ByteKind::kPlain, token_count);
}

Result<void> Recipe02Parser::feed_tokens(std::span<const TokenId> ids,
                                         std::span<const TokenLogprob> logprobs) {
  GALLEY_CHECK_OK(check_tokens(tokenizer_.get(), ids, logprobs));
  start(Started{});
  for (std::size_t i = 0; i < ids.size() && !finished_; ++i) {
    const bool control = tokenizer_->is_added(ids[i]);
    if (control) {
      decoder_.flush(held_);
      if (!held_.empty()) {
        release_held();
      }
    }
    if (!logprobs.empty()) {
      held_logprobs_.push_back(logprobs[i]);
    }
    if (control) {
      feed_piece(tokenizer_->bytes(ids[i]), ByteKind::kControl, 1);
    } else {
      ++held_tokens_;
      decoder_.feed(tokenizer_->bytes(ids[i]), held_);
    }
  }
  if (!finished_ && !held_.empty() && !decoder_.pending() &&
      !held_.ends_with(kReplacementCharacter)) {
    release_held();
  }
  return {};
}

void Recipe02Parser::release_held() {
  const std::string text = std::exchange(held_, {});
  feed_piece(text, ByteKind::kPlain, std::exchange(held_tokens_, 0));
}

void Recipe02Parser::feed_piece(std::string_view text, ByteKind kind, std::int64_t token_count) {
  if (finished_) {
    return;
  }
  usage_.completion_tokens += token_count;
  if (!text.empty()) {
    pieces_.push_back({position_ + text.size(), std::exchange(held_logprobs_, {})});
  }
  consume(text, kind);
}

void Recipe02Parser::consume(std::string_view text, ByteKind kind) {
  const std::size_t end = position_ + text.size();
  while (!text.empty() && !finished_) {
    if (stage_ == Stage::kToolBlock) {
      block_->feed(text, kind);
      break;
    }
    if (leading_) {
      skip_leading(text);
      move_cursor(end - text.size());
      continue;
    }
    const auto step = scanner_.feed(text, kind, [this](std::string_view piece) { on_text(piece); });
    text.remove_prefix(step.consumed);
    if (step.marker != MarkerScanner::Step::kNone) {
      close_stretch();
      on_marker(step.marker);
      move_cursor(end - text.size());
    }
  }
  position_ = end;
  if (stage_ == Stage::kToolBlock) {
    move_cursor(end);
  }
}

// Only the very first bytes of a stage count, and a stop string of one newline comes before.
void Recipe02Parser::skip_leading(std::string_view& text) {
  if (stage_ == Stage::kAnswer && newline_is_stop_) {
    leading_ = false;
    return;
  }
  while (text.starts_with('\n')) {
    text.remove_prefix(1);
  }
  leading_ = text.empty();
}

void Recipe02Parser::on_text(std::string_view text) {
  while (!text.empty()) {
    const std::size_t piece_end = pieces_.front().end;
    const std::string_view part = text.substr(0, piece_end - cursor_);
    stretch_.append(part);
    text.remove_prefix(part.size());
    if (cursor_ + part.size() == piece_end) {
      close_stretch();
    }
    move_cursor(cursor_ + part.size());
  }
}

void Recipe02Parser::on_marker(int marker) {
  switch (marker) {
    case kBlockOpen:
      enter(Stage::kToolBlock, false);
      break;
    case kThinkClose:
      enter(answer_stage_, stage_ == Stage::kReasoning);
      break;
    case kFence:
      enter(Stage::kJsonBody, false);
      break;
    case kBrace:
    case kBracket:
      enter(Stage::kJsonBody, false);
      emit(marker == kBrace ? "{" : "[", pieces_.front().logprobs);
      break;
    case kFenceEnd:
      enter(Stage::kJsonAfter, false);
      break;
    default:
      end(FinishReason::kStopSequence, markers_.stop(marker));
  }
}

void Recipe02Parser::close_stretch() {
  if (stretch_.empty()) {
    return;
  }
  const bool around_json = stage_ == Stage::kJsonSearch || stage_ == Stage::kJsonAfter;
  emit(around_json ? std::string_view(" ") : std::string_view(stretch_), pieces_.front().logprobs);
  stretch_.clear();
}

void Recipe02Parser::move_cursor(std::size_t position) {
  cursor_ = position;
  while (!pieces_.empty() && pieces_.front().end <= position) {
    pieces_.pop_front();
  }
}

void Recipe02Parser::emit(std::string_view text, std::span<const TokenLogprob> logprobs) {
  if (stage_ != Stage::kReasoning) {
    sink_.on_event(ContentText{text, logprobs});
    return;
  }
  if (usage_.reasoning_tokens) {
    reasoning_text_.append(text);
  }
  sink_.on_event(ReasoningText{text, logprobs});
}

void Recipe02Parser::finish(std::optional<SourceFinish> reason) {
  if (finished_) {
    return;
  }
  start(Started{});
  if (tokenizer_ == nullptr) {  // of ids it loses the last, incomplete ones
    decoded_.clear();
    decoder_.flush(decoded_);
    feed_piece(decoded_, ByteKind::kPlain, 0);
  }
  if (finished_) {
    return;
  }
  if (stage_ == Stage::kToolBlock) {
    block_->finish(reason);
  } else {
    scanner_.flush([this](std::string_view piece) { on_text(piece); });
    close_stretch();
  }
  end(finish_reason(reason, block_ == nullptr ? 0 : block_->calls()), {});
}

// It counts reasoning tokens by encoding the reasoning again.
void Recipe02Parser::end(FinishReason reason, std::string_view stop_sequence) {
  finished_ = true;
  if (usage_.reasoning_tokens) {
    std::vector<TokenId> ids;
    tokenizer_->encode_with_added(reasoning_text_, ids);
    usage_.reasoning_tokens = static_cast<std::int64_t>(ids.size());
  }
  sink_.on_event(Finished{reason, stop_sequence, usage_});
}

}  // namespace

std::unique_ptr<OutputParser> make_output_parser_recipe02(
    const Request& request, std::shared_ptr<const Tokenizer> tokenizer, EventSink& sink) {
  return std::make_unique<Recipe02Parser>(request, std::move(tokenizer), sink);
}

}  // namespace galley::recipe
