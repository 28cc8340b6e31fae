#include "recipe/tool_block.h"

#include <string>
#include <unordered_set>
#include <utility>

#include "recipe/json.h"
#include "recipe/limits.h"

namespace galley::recipe {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kSpaces) == std::string_view::npos;
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(kSpaces);
  return begin == std::string_view::npos
             ? std::string_view{}
             : text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

DeclaredParameters::Kind kind_of_schema(const Json& schema) {
  const Json* type = schema.find("type");
  if (type == nullptr) {
    return DeclaredParameters::Kind::kString;  // anything is allowed, or it takes guessing to tell
  }
  if (const std::string* one = type->string()) {
    return *one == "string" ? DeclaredParameters::Kind::kString : DeclaredParameters::Kind::kOther;
  }
  if (const JsonArray* several = type->array()) {
    for (const Json& one : *several) {
      if (one.string() != nullptr && *one.string() == "string") {
        return DeclaredParameters::Kind::kString;
      }
    }
    return DeclaredParameters::Kind::kOther;
  }
  return DeclaredParameters::Kind::kString;
}

// The inside of `<｜DSML｜ invoke name="f">` or `<｜DSML｜ parameter name="p" string="true">`.
struct Tag {
  std::string_view word;
  std::optional<std::string_view> name;
  std::string_view string;
};

// `text` is what stands between the marker and `>`. nullopt: not of the form word (key="value")*.
std::optional<Tag> parse_tag(std::string_view text) {
  text = trimmed(text);
  Tag tag{.word = text.substr(0, text.find_first_of(kSpaces))};
  text.remove_prefix(tag.word.size());
  if (tag.word.find_first_of("<>\"'=") != std::string_view::npos) {
    return std::nullopt;
  }
  while (!is_blank(text)) {
    text.remove_prefix(text.find_first_not_of(kSpaces));
    const auto equals = text.find_first_of("=\"<");
    if (equals == std::string_view::npos || !text.substr(equals).starts_with("=\"")) {
      return std::nullopt;
    }
    const std::string_view key = text.substr(0, equals);
    text.remove_prefix(equals + 2);
    const auto quote = text.find('"');
    if (quote == std::string_view::npos) {
      return std::nullopt;
    }
    if (key == "name") {
      tag.name = text.substr(0, quote);
    } else if (key == "string") {
      tag.string = text.substr(0, quote);
    }
    text.remove_prefix(quote + 1);
  }
  return tag;
}

class GalleyToolBlock final : public ToolBlock {
 public:
  GalleyToolBlock(const Request& request, bool by_spelling, BlockStart start, EventSink& sink)
      : sink_(sink),
        declared_(request.conversation),
        between_(by_spelling),
        arguments_(by_spelling),
        value_end_(by_spelling),
        scanner_(false) {
    for (MarkerSet* set : {&between_, &arguments_}) {
      set->add(kOpen, "<｜DSML｜");
      set->add(kClose, "</｜DSML｜");
    }
    between_.add(kUnmarked, "invoke name=\"");
    arguments_.add(kUnmarked, "<parameter name=\"");
    arguments_.add(kUnmarked, "< parameter name=\"");  // V4.1 spelling
    value_end_.add(kClose, "</｜DSML｜");
    if (start == BlockStart::kAfterMarker) {
      state_ = State::kOpenTag;
    } else {
      enter(State::kBetween);
    }
  }

  void feed(std::string_view text, ByteKind kind) override {
    while (!text.empty() && state_ != State::kClosed && state_ != State::kBroken) {
      if (state_ == State::kOpenTag || state_ == State::kCloseTag) {
        text.remove_prefix(read_tag(text, kind));
        continue;
      }
      const auto step =
          scanner_.feed(text, kind, [this](std::string_view piece) { on_text(piece); });
      text.remove_prefix(step.consumed);
      if (step.marker != MarkerScanner::Step::kNone && state_ != State::kBroken) {
        on_marker(step.marker);
      }
    }
  }

  void finish(std::optional<SourceFinish> reason) override {
    if (reason == SourceFinish::kLength || reason == SourceFinish::kContentFilter) {
      return;  // a call that is still open stays so: half a call must not parse as a whole one
    }
    if (reason.has_value()) {
      complete();
    }
    if (state_ != State::kClosed && (state_ != State::kBetween || calls_ == 0)) {
      state_ = State::kBroken;
    }
  }

  [[nodiscard]] bool broken() const override { return state_ == State::kBroken; }
  [[nodiscard]] std::int64_t calls() const override { return calls_; }

 private:
  enum class State : std::uint8_t {
    kBetween,    // in the block, no call open
    kArguments,  // in a call, no value open
    kOpenTag,    // after `<｜DSML｜`
    kCloseTag,   // after `</｜DSML｜`
    kText,       // in a value that is passed on as it comes
    kBuffered,   // in a value that must be seen whole
    kClosed,     // the block has ended
    kBroken,
  };
  enum class Place : std::uint8_t { kBetween, kArguments, kValue };  // where a tag began
  enum Marker : std::uint8_t { kOpen, kClose, kUnmarked };

  void enter(State state) {
    state_ = state;
    if (state == State::kBetween) {
      scanner_.enter(between_);
    } else if (state == State::kArguments) {
      scanner_.enter(arguments_);
    } else {
      scanner_.enter(value_end_);
    }
  }

  void emit(std::string_view arguments) { sink_.on_event(CallArguments{arguments}); }

  void on_text(std::string_view text) {
    if (state_ == State::kArguments && !is_blank(text)) {
      state_ = State::kBroken;  // whatever it was meant to be, the call would lack it
    } else if (state_ == State::kText && !repeated_) {
      scratch_.clear();
      append_json_escaped(text, scratch_);
      emit(scratch_);
    } else if (state_ == State::kBuffered && !repeated_) {
      value_.append(text);
    }
  }

  void on_marker(int marker) {
    place_ = state_ == State::kBetween     ? Place::kBetween
             : state_ == State::kArguments ? Place::kArguments
                                           : Place::kValue;
    tag_.clear();
    quoted_ = false;
    unmarked_ = false;
    if (marker == kClose) {
      state_ = State::kCloseTag;
    } else if (marker == kOpen) {
      state_ = State::kOpenTag;
    } else if (place_ == Place::kArguments) {
      unmarked_ = true;
      tag_ = "parameter name=\"";
      quoted_ = true;
      state_ = State::kOpenTag;
    } else {
      state_ = State::kBroken;  // a call without its marker
    }
  }

  // Reads up to the `>` that ends a tag. Returns how many bytes it took.
  std::size_t read_tag(std::string_view text, ByteKind kind) {
    std::size_t taken = 0;
    while (taken < text.size()) {
      const char byte = text[taken++];
      if (byte == '>' && !quoted_) {
        state_ == State::kOpenTag ? begin_tag() : end_tag(trimmed(tag_));
        return taken;
      }
      quoted_ = quoted_ != (byte == '"' && state_ == State::kOpenTag);
      tag_.push_back(byte);
      if (kind == ByteKind::kControl || tag_.size() > kTagBytesMax) {
        state_ = State::kBroken;
        return text.size();
      }
    }
    return taken;
  }

  void begin_tag() {
    const std::optional<Tag> tag = parse_tag(tag_);
    const bool whole = tag && tag_.find("｜DSML｜") == std::string::npos;
    const std::string_view word = whole ? tag->word : std::string_view();
    if (word == "invoke" && tag->name) {
      if (place_ == Place::kArguments) {
        end_call();  // its closing tag was forgotten; every argument is there
      }
      call_name_ = *tag->name;
      parameters_ = 0;
      names_.clear();
      enter(State::kArguments);
    } else if (word == "parameter" && tag->name && place_ == Place::kArguments) {
      begin_parameter(*tag);
    } else if ((word == "calls" || word == "tool_calls") && place_ == Place::kBetween) {
      enter(State::kBetween);
    } else {
      state_ = State::kBroken;
    }
  }

  void begin_parameter(const Tag& tag) {
    json_ = tag.string == "false";
    if (unmarked_ || (!json_ && tag.string != "true")) {
      const auto declared = declared_.find(call_name_, *tag.name);
      if (unmarked_ && declared == DeclaredParameters::Kind::kUndeclared) {
        state_ = State::kBroken;
        return;
      }
      json_ = json_ || (tag.string != "true" && declared == DeclaredParameters::Kind::kOther);
    }
    repeated_ = !names_.emplace(*tag.name).second;
    value_.clear();
    if (!repeated_) {
      name_call();
      scratch_ = parameters_ == 0 ? "{" : ", ";
      append_json_string(*tag.name, scratch_);
      scratch_.append(": ");
      if (!json_) {
        scratch_.push_back('"');
      }
      emit(scratch_);
      ++parameters_;
    }
    enter(json_ || unmarked_ ? State::kBuffered : State::kText);
  }

  void end_tag(std::string_view word) {
    const bool block_end = word == "calls" || word == "tool_calls";
    const bool cut = word.empty();  // the stream ended inside the tag
    if (place_ == Place::kValue && (word == "parameter" || cut)) {
      end_value();
    } else if (place_ == Place::kArguments && word == "parameter") {
      enter(State::kArguments);
    } else if (place_ == Place::kArguments && (word == "invoke" || block_end || cut)) {
      end_call();
      state_ = block_end ? State::kClosed : state_;
    } else if (place_ == Place::kBetween && (block_end || cut)) {
      state_ = calls_ > 0 ? State::kClosed : State::kBroken;
    } else if (place_ == Place::kBetween && (word == "invoke" || word == "parameter")) {
      enter(State::kBetween);
    } else {
      state_ = State::kBroken;
    }
  }

  void end_value() {
    if (unmarked_ && (value_.find("parameter>") != std::string::npos ||
                      value_.find("parameter name=") != std::string::npos)) {
      state_ = State::kBroken;  // other tags may lack their markers too: where does it end?
      return;
    }
    if (!repeated_) {
      if (!json_) {
        scratch_.clear();
        append_json_escaped(value_, scratch_);  // empty unless it was buffered
        scratch_.push_back('"');
        emit(scratch_);
      } else if (parse_json(value_)) {
        emit(value_);
      } else {
        scratch_.clear();
        append_json_string(value_, scratch_);
        emit(scratch_);
      }
    }
    enter(State::kArguments);
  }

  // The model ended its turn without closing what it had opened.
  void complete() {
    if (state_ == State::kText || state_ == State::kBuffered) {
      if (scanner_.held().find_first_not_of("</") != std::string_view::npos) {
        scanner_.drop_held();  // the beginning of a closing tag, not text
      }
      scanner_.flush([this](std::string_view piece) { on_text(piece); });
      end_value();
    } else if (state_ == State::kCloseTag) {
      end_tag("");
    }
    if (state_ == State::kArguments && parameters_ > 0 && scanner_.held().empty()) {
      end_call();
    }
  }

  // A call is announced once its first parameter or its end is there, so that a tag that cannot be
  // read leaves nothing behind.
  void name_call() {
    if (parameters_ == 0) {
      ++calls_;
      sink_.on_event(CallNamed{call_name_});
    }
  }

  void end_call() {
    name_call();
    emit(parameters_ == 0 ? "{}" : "}");
    enter(State::kBetween);
  }

  EventSink& sink_;
  DeclaredParameters declared_;
  MarkerSet between_;
  MarkerSet arguments_;
  MarkerSet value_end_;
  MarkerScanner scanner_;
  State state_ = State::kBetween;
  Place place_ = Place::kBetween;
  std::int64_t calls_ = 0;

  std::string tag_;  // so far, without marker and `>`
  bool quoted_ = false;
  bool unmarked_ = false;  // a parameter tag without its marker

  std::string call_name_;
  std::size_t parameters_ = 0;             // emitted, of this call
  std::unordered_set<std::string> names_;  // of this call
  bool json_ = false;                      // the value is JSON, as far as its tag says
  bool repeated_ = false;                  // the value belongs to a name that was there before
  std::string value_;
  std::string scratch_;
};

}  // namespace

DeclaredParameters::DeclaredParameters(const Conversation& conversation) {
  const auto declare = [this](const std::vector<Tool>& tools) {
    for (const Tool& tool : tools) {
      const Json* properties = tool.parameters ? tool.parameters->find("properties") : nullptr;
      if (properties == nullptr || properties->object() == nullptr) {
        continue;
      }
      Declaration& declaration = declarations_.emplace_back(Declaration{tool.name, {}});
      for (const JsonMember& member : *properties->object()) {
        declaration.parameters.push_back({member.key, kind_of_schema(member.value)});
      }
    }
  };
  declare(conversation.tools);
  for (const Message& message : conversation.messages) {
    declare(message.announced_tools);
  }
}

DeclaredParameters::Kind DeclaredParameters::find(std::string_view tool,
                                                  std::string_view parameter) const {
  for (const Declaration& declaration : declarations_) {
    if (declaration.tool != tool) {
      continue;
    }
    for (const Parameter& candidate : declaration.parameters) {
      if (candidate.name == parameter) {
        return candidate.kind;
      }
    }
  }
  return Kind::kUndeclared;
}

std::unique_ptr<ToolBlock> make_tool_block(const Request& request,
                                           bool by_spelling,
                                           BlockStart start,
                                           EventSink& sink) {
  return std::make_unique<GalleyToolBlock>(request, by_spelling, start, sink);
}

}  // namespace galley::recipe
