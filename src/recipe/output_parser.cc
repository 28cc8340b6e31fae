#include "recipe/output_parser.h"

#include <algorithm>
#include <deque>
#include <simdjson.h>
#include <string>
#include <utility>
#include <vector>

#include "recipe/marker_scanner.h"
#include "recipe/text_decoder.h"
#include "recipe/tool_block.h"

namespace galley::recipe {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";
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

enum class Stage : std::uint8_t {
  kReasoning,
  kAnswer,
  kJsonSearch,  // JSON mode, before the JSON
  kJsonBody,
  kJsonAfter,
  kStrayTag,  // after a closing tag that closes nothing
  kToolBlock,
  kDropped,  // after markup that the request did not ask for
};

enum Marker : int {
  kBlockOpen,
  kThinkClose,
  kStrayClose,
  kStrayMarker,
  kFence,
  kBrace,
  kBracket,
  kFenceEnd,
  kFirstStop,
};

constexpr MarkerSet::Options kNewlinesBefore{.newlines_before = true};

// How deepseek-recipe 0.2.0 cuts a reply: every piece of its decoder (a text chunk, the plain
// tokens of a chunk, or one control token) gives one event for each stretch of one kind of text,
// and all of them carry the piece's whole list of log-probabilities.
struct Recipe02Piece {
  std::size_t end{};  // position
  std::vector<TokenLogprob> logprobs;
};

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
  [[nodiscard]] bool recipe02() const { return compat_ == Compat::kRecipe02; }
  void build_sets(const Request& request);
  void enter(Stage stage, bool leading);
  void feed_token(TokenId id, const TokenLogprob* logprob);
  void feed_tokens_recipe02(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs);
  void feed_piece_recipe02(std::string_view text, ByteKind kind, std::int64_t token_count);
  void close_stretch_recipe02();
  void decode(std::string_view bytes, ByteKind kind);
  void consume(std::string_view text, ByteKind kind);
  void skip_leading_recipe02(std::string_view& text);
  void skip_stray_tag(std::string_view& text);
  void on_text(std::string_view text);
  void on_text_recipe02(std::string_view text);
  void on_marker(int marker);
  void move_cursor(std::size_t position);
  void emit_unclaimed();
  void emit(std::string_view text, std::span<const TokenLogprob> logprobs);
  void end(FinishReason reason, std::string_view stop_sequence);

  EventSink& sink_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Compat compat_;
  bool thinking_;
  bool parse_tool_calls_;
  bool drop_markup_ = false;  // tool markup that the request did not ask for is dropped
  bool json_output_;
  std::vector<std::string> stops_;
  bool newline_is_stop_ = false;

  MarkerSet reasoning_;
  MarkerSet answer_;
  MarkerSet json_search_;
  MarkerSet json_body_;
  MarkerSet json_after_;
  MarkerScanner scanner_;
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

  std::deque<Recipe02Piece> pieces_recipe02_;  // that end after the cursor
  std::string stretch_recipe02_;               // text of the first piece, not emitted yet
  std::string held_recipe02_;                  // decoded but not released (spec 1.4)
  std::vector<TokenLogprob> held_logprobs_recipe02_;
  std::int64_t held_tokens_recipe02_ = 0;
  std::string reasoning_text_recipe02_;

  Usage usage_;
};

Parser::Parser(const Request& request, std::shared_ptr<const Tokenizer> tokenizer, EventSink& sink)
    : sink_(sink),
      tokenizer_(std::move(tokenizer)),
      compat_(request.compat),
      thinking_(request.output.thinking),
      parse_tool_calls_(request.output.parse_tool_calls),
      json_output_(request.output.json_output),
      reasoning_(tokenizer_ == nullptr),
      answer_(tokenizer_ == nullptr),
      json_search_(tokenizer_ == nullptr),
      json_body_(tokenizer_ == nullptr),
      json_after_(tokenizer_ == nullptr),
      scanner_(recipe02()) {
  const bool by_spelling = tokenizer_ == nullptr;
  drop_markup_ =
      !recipe02() && !parse_tool_calls_ && (!by_spelling || !request.conversation.tools.empty());
  build_sets(request);
  if (parse_tool_calls_ || request.output.in_tool_block) {
    block_ = recipe02() ? make_tool_block_recipe02(by_spelling, sink_)
                        : make_tool_block(request, by_spelling,
                                          request.output.in_tool_block ? BlockStart::kInside
                                                                       : BlockStart::kAfterMarker,
                                          sink_);
  }
  if (thinking_ && tokenizer_ != nullptr) {
    usage_.reasoning_tokens = 0;
  }
  if (request.output.in_tool_block) {
    enter(Stage::kToolBlock, false);
    return;
  }
  const Stage answer = json_output_ ? Stage::kJsonSearch : Stage::kAnswer;
  switch (request.output.stage) {
    case StartStage::kReasoningStart:
      enter(Stage::kReasoning, true);
      break;
    case StartStage::kReasoningContinuation:
      enter(Stage::kReasoning, false);
      break;
    case StartStage::kContentContinuation:
      enter(answer, false);
      break;
    case StartStage::kAnswer: {
      const auto& messages = request.conversation.messages;
      const bool continued = !messages.empty() && messages.back().prefix;
      enter(answer, recipe02() || !continued);
      break;
    }
  }
}

void Parser::build_sets(const Request& request) {
  for (const std::string& stop : request.output.stop_sequences) {
    if (stop.empty()) {
      continue;
    }
    const int id = kFirstStop + static_cast<int>(stops_.size());
    const bool only_newlines = stop.find_first_not_of('\n') == std::string::npos;
    const MarkerSet::Options options{.any_kind = !recipe02(),
                                     .plain_only = recipe02(),
                                     .needs_text = only_newlines && !recipe02()};
    (json_output_ ? json_body_ : answer_).add(id, stop, options);
    newline_is_stop_ = newline_is_stop_ || stop == "\n";
    stops_.push_back(stop);
  }
  const std::vector<MarkerSet*> answer_sets =
      json_output_ ? std::vector<MarkerSet*>{&json_search_, &json_after_}
                   : std::vector<MarkerSet*>{&answer_};
  if (json_output_) {
    json_search_.add(kFence, "```json\n");
    json_search_.add(kFence, "```\n");
    json_search_.add(kBrace, "{");
    json_search_.add(kBracket, "[");
    json_body_.add(kFenceEnd, "\n```");
  }
  if (parse_tool_calls_ || drop_markup_) {
    const auto add_markup = [this](MarkerSet& set) {
      set.add(kBlockOpen, "<｜DSML｜", kNewlinesBefore);
      if (!recipe02()) {
        set.add(kStrayClose, "</｜DSML｜");
        set.add(kStrayMarker, "｜DSML｜");
      }
    };
    std::ranges::for_each(answer_sets, add_markup,
                          [](MarkerSet* set) -> MarkerSet& { return *set; });
    if (json_output_ && !recipe02()) {
      add_markup(json_body_);
    }
  }
  if (parse_tool_calls_) {
    reasoning_.add(kBlockOpen, "<｜DSML｜", kNewlinesBefore);
  }
  answer_sets.front()->add(kThinkClose, "</think>");
  reasoning_.add(kThinkClose, "</think>", kNewlinesBefore);
}

void Parser::enter(Stage stage, bool leading) {
  stage_ = stage;
  leading_ = leading;
  switch (stage) {
    case Stage::kReasoning:
      scanner_.enter(reasoning_);
      break;
    case Stage::kAnswer:
      scanner_.enter(answer_, !leading);
      break;
    case Stage::kJsonSearch:
      scanner_.enter(json_search_);
      break;
    case Stage::kJsonBody:
      scanner_.enter(json_body_);
      break;
    case Stage::kJsonAfter:
      scanner_.enter(json_after_);
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
  sink_.on_event(started);
}

void Parser::feed_text(std::string_view text, std::int64_t token_count) {
  if (finished_) {
    return;
  }
  start(Started{});
  usage_.completion_tokens += token_count;
  if (recipe02()) {
    decoded_.clear();
    decoder_.feed(text, decoded_);
    feed_piece_recipe02(decoded_, ByteKind::kPlain, 0);
  } else {
    decode(text, ByteKind::kPlain);
  }
}

Result<void> Parser::feed_tokens(std::span<const TokenId> ids,
                                 std::span<const TokenLogprob> logprobs) {
  if (tokenizer_ == nullptr) {
    return fail(Code::kInvalidArgument, "token ids need a tokenizer");
  }
  if (!logprobs.empty() && logprobs.size() != ids.size()) {
    return fail(Code::kInvalidArgument, "log-probabilities must be one a token");
  }
  start(Started{});
  if (recipe02()) {
    feed_tokens_recipe02(ids, logprobs);
    return {};
  }
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

void Parser::feed_tokens_recipe02(std::span<const TokenId> ids,
                                  std::span<const TokenLogprob> logprobs) {
  const auto release = [this] {
    const std::string text = std::exchange(held_recipe02_, {});
    feed_piece_recipe02(text, ByteKind::kPlain, std::exchange(held_tokens_recipe02_, 0));
  };
  for (std::size_t i = 0; i < ids.size() && !finished_; ++i) {
    const bool control = tokenizer_->is_added(ids[i]);
    if (control) {
      decoder_.flush(held_recipe02_);
      if (!held_recipe02_.empty()) {
        release();
      }
    }
    if (!logprobs.empty()) {
      held_logprobs_recipe02_.push_back(logprobs[i]);
    }
    if (control) {
      feed_piece_recipe02(tokenizer_->bytes(ids[i]), ByteKind::kControl, 1);
    } else {
      ++held_tokens_recipe02_;
      decoder_.feed(tokenizer_->bytes(ids[i]), held_recipe02_);
    }
  }
  if (!finished_ && !held_recipe02_.empty() && !decoder_.pending() &&
      !held_recipe02_.ends_with(kReplacementCharacter)) {
    release();
  }
}

void Parser::feed_piece_recipe02(std::string_view text, ByteKind kind, std::int64_t token_count) {
  if (finished_) {
    return;
  }
  usage_.completion_tokens += token_count;
  if (!text.empty()) {
    pieces_recipe02_.push_back(
        {position_ + text.size(), std::exchange(held_logprobs_recipe02_, {})});
  }
  consume(text, kind);
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
    if (recipe02() && leading_) {
      skip_leading_recipe02(text);
      move_cursor(end - text.size());
      continue;
    }
    const auto step = scanner_.feed(text, kind, [this](std::string_view piece) { on_text(piece); });
    text.remove_prefix(step.consumed);
    if (step.marker != MarkerScanner::Step::kNone) {
      close_stretch_recipe02();
      on_marker(step.marker);
      move_cursor(end - text.size());
    }
  }
  position_ = end;
  if (stage_ == Stage::kToolBlock || stage_ == Stage::kDropped || stage_ == Stage::kStrayTag) {
    move_cursor(end);
  }
}

void Parser::move_cursor(std::size_t position) {
  cursor_ = position;
  while (!pieces_recipe02_.empty() && pieces_recipe02_.front().end <= position) {
    pieces_recipe02_.pop_front();
  }
}

// Only the very first bytes of a state count, and a stop string of one newline comes before.
void Parser::skip_leading_recipe02(std::string_view& text) {
  if (stage_ == Stage::kAnswer && newline_is_stop_) {
    leading_ = false;
    return;
  }
  while (text.starts_with('\n')) {
    text.remove_prefix(1);
  }
  leading_ = text.empty();
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
  if (recipe02()) {
    on_text_recipe02(text);
    return;
  }
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

void Parser::on_text_recipe02(std::string_view text) {
  while (!text.empty()) {
    const std::size_t piece_end = pieces_recipe02_.front().end;
    const std::string_view part = text.substr(0, piece_end - cursor_);
    stretch_recipe02_.append(part);
    text.remove_prefix(part.size());
    if (cursor_ + part.size() == piece_end) {
      close_stretch_recipe02();
    }
    move_cursor(cursor_ + part.size());
  }
}

void Parser::close_stretch_recipe02() {
  if (stretch_recipe02_.empty()) {
    return;
  }
  const bool around_json = stage_ == Stage::kJsonSearch || stage_ == Stage::kJsonAfter;
  emit(around_json ? std::string_view(" ") : std::string_view(stretch_recipe02_),
       pieces_recipe02_.front().logprobs);
  stretch_recipe02_.clear();
}

void Parser::on_marker(int marker) {
  const Stage answer = json_output_ ? Stage::kJsonSearch : Stage::kAnswer;
  switch (marker) {
    case kBlockOpen:
      emit_unclaimed();
      enter(parse_tool_calls_ ? Stage::kToolBlock : Stage::kDropped, false);
      break;
    case kThinkClose:
      enter(answer, stage_ == Stage::kReasoning);
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
        emit(marker == kBrace ? "{" : "[",
             recipe02() ? std::span<const TokenLogprob>(pieces_recipe02_.front().logprobs)
                        : logprobs_.take(cursor_, cursor_ + 1));
      }
      break;
    case kFenceEnd:
      enter(Stage::kJsonAfter, false);
      break;
    default:
      end(FinishReason::kStopSequence, stops_[static_cast<std::size_t>(marker - kFirstStop)]);
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
    if (recipe02() && usage_.reasoning_tokens) {
      reasoning_text_recipe02_.append(text);
    }
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
  if (!recipe02() && decoder_.pending() &&
      (stage_ != Stage::kToolBlock || reason == SourceFinish::kStop)) {
    decoded_.clear();
    decoder_.flush(decoded_);
    consume(decoded_, ByteKind::kPlain);
  }
  if (recipe02() && tokenizer_ == nullptr) {  // of ids it loses the last, incomplete ones
    decoded_.clear();
    decoder_.flush(decoded_);
    feed_piece_recipe02(decoded_, ByteKind::kPlain, 0);
  }
  if (finished_) {
    return;
  }
  const std::int64_t calls_before = block_ == nullptr ? 0 : block_->calls();
  if (stage_ == Stage::kToolBlock) {
    block_->finish(reason);
  } else if (stage_ != Stage::kDropped && stage_ != Stage::kStrayTag) {
    scanner_.flush([this](std::string_view piece) { on_text(piece); });
    close_stretch_recipe02();
  }
  emit_unclaimed();
  const std::int64_t calls = recipe02() || block_ == nullptr ? calls_before : block_->calls();
  if (stage_ == Stage::kToolBlock && block_->broken()) {
    end(FinishReason::kBrokenCall, {});
  } else if (!reason) {
    end(FinishReason::kEndOfStream, {});
  } else if (*reason == SourceFinish::kLength) {
    end(FinishReason::kLength, {});
  } else if (*reason == SourceFinish::kContentFilter) {
    end(FinishReason::kContentFilter, {});
  } else {
    end(calls > 0 ? FinishReason::kToolCalls : FinishReason::kStop, {});
  }
}

void Parser::end(FinishReason reason, std::string_view stop_sequence) {
  finished_ = true;
  if (recipe02() && usage_.reasoning_tokens) {
    std::vector<TokenId> ids;
    tokenizer_->encode_with_added(reasoning_text_recipe02_, ids);
    usage_.reasoning_tokens = static_cast<std::int64_t>(ids.size());
  }
  sink_.on_event(Finished{reason, stop_sequence, usage_});
}

}  // namespace

std::unique_ptr<OutputParser> OutputParser::create(const Request& request,
                                                   std::shared_ptr<const Tokenizer> tokenizer,
                                                   EventSink& sink) {
  return std::make_unique<Parser>(request, std::move(tokenizer), sink);
}

}  // namespace galley::recipe
