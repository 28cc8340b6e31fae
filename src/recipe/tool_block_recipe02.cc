#include <array>
#include <string>

#include "recipe/json.h"
#include "recipe/tool_block.h"

// The state table of spec recipe 3.2, rows ToolCalls to Finished, as deepseek-recipe 0.2.0 has it.
namespace galley::recipe {
namespace {

class Recipe02ToolBlock final : public ToolBlock {
 public:
  Recipe02ToolBlock(bool by_spelling, EventSink& sink)
      : sink_(sink),
        sets_{{MarkerSet(by_spelling), MarkerSet(by_spelling), MarkerSet(by_spelling),
               MarkerSet(by_spelling), MarkerSet(by_spelling), MarkerSet(by_spelling),
               MarkerSet(by_spelling), MarkerSet(by_spelling)}},
        scanner_(true) {
    set(State::kCalls).add(kInvoke, "invoke name=\"");
    set(State::kCalls).add(kBlockEnd, "</｜DSML｜tool_calls>");
    set(State::kCalls).add(kBlockEnd, "</｜DSML｜ calls>");
    set(State::kName).add(kQuote, "\"");
    set(State::kArguments).add(kParameter, "parameter name=");
    set(State::kArguments).add(kClose, "</｜DSML｜");
    set(State::kParameterName).add(kSpace, " ");
    set(State::kParameterType).add(kString, "true\">");
    set(State::kParameterType).add(kJson, "false\">");
    set(State::kStringValue).add(kClose, "</｜DSML｜");
    set(State::kJsonValue).add(kClose, "</｜DSML｜");
    enter(State::kCalls);
  }

  void feed(std::string_view text, ByteKind kind) override {
    while (!text.empty() && state_ != State::kFinished) {
      const auto step =
          scanner_.feed(text, kind, [this](std::string_view piece) { on_text(piece); });
      text.remove_prefix(step.consumed);
      if (step.marker != MarkerScanner::Step::kNone) {
        on_marker(step.marker);
      }
    }
  }

  void finish(std::optional<SourceFinish> /*reason*/) override {
    scanner_.flush([this](std::string_view piece) { on_text(piece); });
  }

  [[nodiscard]] bool broken() const override { return false; }
  [[nodiscard]] std::int64_t calls() const override { return calls_; }

 private:
  enum class State : std::uint8_t {
    kCalls,
    kName,
    kArguments,
    kParameterName,
    kParameterType,
    kStringValue,
    kJsonValue,
    kFinished,
  };
  enum Marker : std::uint8_t {
    kInvoke,
    kBlockEnd,
    kQuote,
    kParameter,
    kClose,
    kSpace,
    kString,
    kJson
  };

  MarkerSet& set(State state) { return sets_[static_cast<std::size_t>(state)]; }
  void enter(State state) {
    state_ = state;
    scanner_.enter(set(state));
  }
  void emit(std::string_view arguments) { sink_.on_event(CallArguments{arguments}); }

  void on_text(std::string_view text) {
    switch (state_) {
      case State::kName:
        name_.append(text);
        break;
      case State::kParameterName:
      case State::kJsonValue:
        emit(text);
        break;
      case State::kStringValue:
        escaped_.clear();
        append_json_escaped(text, escaped_);
        emit(escaped_);
        break;
      default:
        break;
    }
  }

  void on_marker(int marker) {
    switch (state_) {
      case State::kCalls:
        if (marker == kInvoke) {
          name_.clear();
          first_ = true;
          enter(State::kName);
        } else {
          enter(State::kFinished);
        }
        break;
      case State::kName:
        ++calls_;
        sink_.on_event(CallNamed{name_});
        enter(State::kArguments);
        break;
      case State::kArguments:
        if (marker == kParameter) {
          emit(first_ ? "{" : ", ");
          enter(State::kParameterName);
        } else {
          emit(first_ ? "{}" : "}");
          enter(State::kCalls);
        }
        first_ = false;
        break;
      case State::kParameterName:
        emit(": ");
        enter(State::kParameterType);
        break;
      case State::kParameterType:
        if (marker == kString) {
          emit("\"");
        }
        enter(marker == kString ? State::kStringValue : State::kJsonValue);
        break;
      case State::kStringValue:
        emit("\"");
        enter(State::kArguments);
        break;
      case State::kJsonValue:
        enter(State::kArguments);
        break;
      case State::kFinished:
        break;
    }
  }

  EventSink& sink_;
  std::array<MarkerSet, 8> sets_;
  MarkerScanner scanner_;
  State state_ = State::kCalls;
  bool first_ = true;  // no parameter of this call yet
  std::int64_t calls_ = 0;
  std::string name_;
  std::string escaped_;
};

}  // namespace

std::unique_ptr<ToolBlock> make_tool_block_recipe02(bool by_spelling, EventSink& sink) {
  // A block starts alike after its marker and inside it: the rest of the opening tag is skipped
  // like any other text between calls.
  return std::make_unique<Recipe02ToolBlock>(by_spelling, sink);
}

}  // namespace galley::recipe
