#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "recipe/json.h"
#include "recipe/prompt.h"
#include "recipe/tokenizer.h"

namespace galley::recipe {
namespace {

// What differs between the versions in the same place (spec 2.2).
struct Dialect {
  std::string_view block;  // tag names behind ｜DSML｜; V4.1's leading space is part of the name
  std::string_view call;
  std::string_view parameter;
  JsonNumbers numbers;
};
constexpr Dialect kDialectV4 = {"tool_calls", "invoke", "parameter", JsonNumbers::kRust};
constexpr Dialect kDialectV41 = {" calls", " invoke", " parameter", JsonNumbers::kPython};

// Effort texts (spec 2.4), each with its closing blank line.
constexpr std::string_view kEffortHighV4 =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n\n";
constexpr std::string_view kEffortMaxV4 =
    "Reasoning Effort: Beyond maximum \u2014 exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles "
    "and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n";

constexpr std::string_view kFormatIntroduction =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
constexpr std::string_view kJsonObjectV4 =
    "You are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON "
    "object ONLY.";
constexpr std::string_view kUnsupportedImage = "[Unsupported Image]";
constexpr std::string_view kBlankLine = "\n\n";

// The spellings that assistant text may carry as control tokens (spec 4).
constexpr std::array<Control, 8> kGrounding = {
    Control::kRefOpen,   Control::kRefClose,   Control::kBoxOpen,     Control::kBoxClose,
    Control::kPointOpen, Control::kPointClose, Control::kPolygonOpen, Control::kPolygonClose};
constexpr std::string_view kGroundingStart = "<\uff5c";

// Writes text and control tokens behind each other into one prompt.
class Writer {
 public:
  explicit Writer(bool images) : images_(images) {}

  void reserve(std::size_t bytes) { prompt_.text.reserve(bytes); }

  void text(std::string_view text) { prompt_.text.append(text); }

  void control(Control control) {
    const std::size_t begin = prompt_.text.size();
    prompt_.text.append(spelling(control));
    prompt_.controls.push_back({begin, prompt_.text.size(), control});
  }

  // "<｜DSML｜tag" or "</｜DSML｜tag"; the rest of the tag is the caller's.
  void open_tag(std::string_view tag) { dsml("<", tag); }
  void close_tag(std::string_view tag) {
    dsml("</", tag);
    text(">");
  }

  void content(const Content& content) {
    std::size_t done = 0;
    for (const Image& image : content.images) {
      GALLEY_ASSERT(image.offset >= done && image.offset <= content.text.size());
      text(std::string_view(content.text).substr(done, image.offset - done));
      done = image.offset;
      if (images_) {
        control(Control::kImage);
        prompt_.images.push_back(image);
      } else {
        text(kUnsupportedImage);
      }
    }
    text(std::string_view(content.text).substr(done));
  }

  void assistant_text(std::string_view source) {
    std::size_t done = 0;
    for (std::size_t at = source.find(kGroundingStart); at != std::string_view::npos;
         at = source.find(kGroundingStart, at)) {
      const auto found = std::ranges::find_if(kGrounding, [&](Control control) {
        return source.substr(at).starts_with(spelling(control));
      });
      if (found == kGrounding.end()) {
        at += kGroundingStart.size();
        continue;
      }
      text(source.substr(done, at - done));
      control(*found);
      at += spelling(*found).size();
      done = at;
    }
    text(source.substr(done));
  }

  void json(const Json& value, JsonNumbers numbers) {
    append_json(value, {numbers, JsonSpacing::kSpaced}, prompt_.text);
  }
  void json_string(std::string_view value) { append_json_string(value, prompt_.text); }

  Prompt finish() { return std::move(prompt_); }

 private:
  void dsml(std::string_view bracket, std::string_view tag) {
    text(bracket);
    control(Control::kDsml);
    text(tag);
  }

  bool images_;
  Prompt prompt_;
};

// One turn of the prompt: messages [begin, end) of the renderer's sequence. Only user turns hold
// more than one.
struct Turn {
  Role role{};
  std::size_t begin{};
  std::size_t end{};
};

class Renderer {
 public:
  Renderer(const Conversation& conversation, ModelVersion version)
      : conversation_(conversation),
        v41_(version == ModelVersion::kV41),
        dialect_(v41_ ? kDialectV41 : kDialectV4),
        out_(v41_) {}

  Prompt run() {
    reserve();
    out_.control(Control::kBos);
    if (v41_) {
      arrange_v41();
      render_v41();
    } else {
      arrange_v4();
      render_v4();
    }
    const bool continues =
        !turns_.empty() && turns_.back().role == Role::kAssistant && message(turns_.back()).prefix;
    if (!continues) {
      out_.control(Control::kAssistant);
      out_.control(conversation_.thinking ? Control::kThinkOpen : Control::kThinkClose);
    }
    // A forced call opens its block in the prompt, except in thinking mode: there the model thinks
    // first, and only the constraint can force.
    if (conversation_.tool_choice == ToolChoice::kRequired && conversation_.has_tools() &&
        !conversation_.thinking) {
      out_.text(kBlankLine);
      out_.open_tag(dialect_.block);
      out_.text(">\n");
    }
    return out_.finish();
  }

 private:
  const Message& message(const Turn& turn) const { return *sequence_[turn.begin]; }

  // Large enough for almost every prompt, so that the text is written once.
  void reserve() {
    constexpr std::size_t kFixedBytes = 4'096;  // effort, tool instructions
    constexpr std::size_t kTurnBytes = 96;      // control tokens and joins of a turn
    constexpr std::size_t kCallBytes = 256;     // tags of a call
    constexpr std::size_t kToolBytes = 1'024;   // a schema
    std::size_t bytes = kFixedBytes + conversation_.tools.size() * kToolBytes;
    for (const Message& m : conversation_.messages) {
      bytes += kTurnBytes + m.content.text.size() + (m.reasoning ? m.reasoning->size() : 0) +
               m.announced_tools.size() * kToolBytes;
      for (const ToolCall& call : m.tool_calls) {
        bytes += kCallBytes + call.name.size() + call.arguments.size();
      }
    }
    out_.reserve(bytes);
    sequence_.reserve(conversation_.messages.size() + 1);
    turns_.reserve(conversation_.messages.size() + 1);
  }

  void add_turn(const Message& m) {
    if (m.role == Role::kUser && !turns_.empty() && turns_.back().role == Role::kUser) {
      ++turns_.back().end;
    } else {
      turns_.push_back({m.role, sequence_.size(), sequence_.size() + 1});
    }
    sequence_.push_back(&m);
  }

  // -- V4.1 (spec 2.3) --------------------------------------------------------------------------

  void arrange_v41() {
    // Tools and a format are announced by a first system turn, which need not have been sent.
    static const Message no_system{.role = Role::kSystem};
    const std::vector<Message>& messages = conversation_.messages;
    if ((conversation_.has_tools() || has_format()) &&
        (messages.empty() || messages.front().role != Role::kSystem)) {
      add_turn(no_system);
    }
    for (const Message& m : messages) {
      if (m.role != Role::kLatestReminder || turns_.empty() ||
          turns_.back().role != Role::kLatestReminder) {
        add_turn(m);
      }
    }
    order_results_v41();
  }

  // In each run of user and tool turns, results take the order of the calls they answer. Their
  // places stay, and so does everything else.
  void order_results_v41() {
    const Message* caller = nullptr;
    std::unordered_map<std::string_view, std::size_t> position;  // of the calls of `caller`
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < turns_.size();) {
      const Role role = turns_[i].role;
      if (role != Role::kUser && role != Role::kTool) {
        if (role == Role::kAssistant && !message(turns_[i]).tool_calls.empty()) {
          caller = &message(turns_[i]);
          position.clear();
        }
        ++i;
        continue;
      }
      places.clear();
      for (; i < turns_.size() && (turns_[i].role == Role::kUser || turns_[i].role == Role::kTool);
           ++i) {
        if (turns_[i].role == Role::kTool && message(turns_[i]).tool_call_id) {
          places.push_back(i);
        }
      }
      if (places.size() < 2 || caller == nullptr) {
        continue;
      }
      if (position.empty()) {
        for (std::size_t call = 0; call < caller->tool_calls.size(); ++call) {
          position.emplace(caller->tool_calls[call].id, call);
        }
      }
      sort_results(places, position);
    }
  }

  // A result of an unknown call counts as one of the first.
  void sort_results(const std::vector<std::size_t>& places,
                    const std::unordered_map<std::string_view, std::size_t>& position) {
    std::vector<std::pair<std::size_t, Turn>> results;
    results.reserve(places.size());
    for (const std::size_t place : places) {
      const auto it = position.find(*message(turns_[place]).tool_call_id);
      results.emplace_back(it == position.end() ? 0 : it->second, turns_[place]);
    }
    std::ranges::stable_sort(results, {}, &std::pair<std::size_t, Turn>::first);
    for (std::size_t k = 0; k < places.size(); ++k) {
      turns_[places[k]] = results[k].second;
    }
  }

  void render_v41() {
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      const Turn& turn = turns_[i];
      if (i == 0 && (conversation_.thinking || turn.role == Role::kSystem)) {
        out_.control(Control::kSystem);
      }
      if (i == 0 && conversation_.thinking) {
        out_.text("Reasoning Effort: ");
        out_.text(effort_score());
        out_.text(" (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
      }
      const bool follows_user =
          i > 0 && (turns_[i - 1].role == Role::kUser || turns_[i - 1].role == Role::kTool);
      switch (turn.role) {
        case Role::kSystem:
          system_v41(i, message(turn));
          break;
        case Role::kUser:
          user_header(follows_user);
          user_v41(turn);
          break;
        case Role::kTool:
          user_header(follows_user);
          tool_result(message(turn));
          break;
        case Role::kLatestReminder:
          reminder(message(turn));
          break;
        case Role::kAssistant:
          assistant_v41(i, message(turn));
          break;
      }
    }
  }

  std::string_view effort_score() const {
    switch (conversation_.effort.value_or(Effort::kHigh)) {
      case Effort::kLow:
        return "50";
      case Effort::kMax:
        return "100";
      default:
        return "75";
    }
  }

  void system_v41(std::size_t index, const Message& m) {
    if (index > 0) {
      out_.control(Control::kSystem);
    }
    out_.content(m.content);
    if (index == 0) {
      if (conversation_.has_tools()) {
        out_.text(kBlankLine);
        tool_prompt();
      }
      if (has_format()) {
        out_.text(kBlankLine);
        out_.text(kFormatIntroduction);
        if (conversation_.format.kind == ResponseFormat::Kind::kJsonObject) {
          out_.text(R"({"type": "json_object"})");
        } else {
          out_.json(conversation_.format.schema, dialect_.numbers);
        }
      }
    }
    if (!m.announced_tools.empty()) {
      out_.text("\n\n### Updated Tool Schemas\n\n");
      for (std::size_t i = 0; i < m.announced_tools.size(); ++i) {
        out_.text(i == 0 ? "" : "\n");
        tool_schema(m.announced_tools[i]);
      }
    }
  }

  void user_v41(const Turn& turn) {
    for (std::size_t k = turn.begin; k < turn.end; ++k) {
      out_.text(k == turn.begin ? "" : kBlankLine);
      out_.content(sequence_[k]->content);
    }
  }

  void assistant_v41(std::size_t index, const Message& m) {
    out_.control(Control::kAssistant);
    if (conversation_.thinking && index > 0 && (conversation_.has_tools() || m.prefix)) {
      out_.control(Control::kThinkOpen);
      out_.assistant_text(m.reasoning ? std::string_view(*m.reasoning) : "");
      if (!m.prefix || !m.content.empty() || !m.tool_calls.empty()) {
        out_.control(Control::kThinkClose);
      }
    } else {
      out_.control(Control::kThinkClose);
    }
    assistant_rest(m);
  }

  // -- V4 (spec 2.3) ----------------------------------------------------------------------------

  void arrange_v4() {
    for (const Message& m : conversation_.messages) {
      if (m.role != Role::kSystem) {
        add_turn(m);
      } else if (!m.content.empty()) {
        systems_.push_back(&m);
      }
    }
    // The turns behind an assistant's calls, as many as it made, go by the id of the call; calls
    // are sorted the same way when they are written.
    const auto key = [this](const Turn& turn) {
      const bool is_result = turn.role == Role::kTool;
      const bool has_id = is_result && message(turn).tool_call_id.has_value();
      return std::tuple(!is_result, has_id,
                        has_id ? std::string_view(*message(turn).tool_call_id) : "");
    };
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      const std::size_t count = message(turns_[i]).tool_calls.size();
      if (count > 0 && count < turns_.size() - i) {
        ranges.emplace_back(i + 1, i + 1 + count);
      }
    }
    for (const auto& [begin, end] : ranges) {
      std::ranges::stable_sort(turns_.begin() + static_cast<std::ptrdiff_t>(begin),
                               turns_.begin() + static_cast<std::ptrdiff_t>(end), {}, key);
    }
  }

  void render_v4() {
    if (conversation_.thinking) {
      const Effort effort = conversation_.effort.value_or(Effort::kHigh);
      out_.text(effort == Effort::kMax   ? kEffortMaxV4
                : effort == Effort::kLow ? std::string_view{}
                                         : kEffortHighV4);
    }
    systems_v4();
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      const Turn& turn = turns_[i];
      const bool follows_tool = i > 0 && turns_[i - 1].role == Role::kTool;
      switch (turn.role) {
        case Role::kUser:
          user_header(follows_tool || (i > 0 && turns_[i - 1].role == Role::kUser));
          user_v4(turn);
          break;
        case Role::kTool:
          user_header(follows_tool);
          tool_result(message(turn));
          break;
        case Role::kLatestReminder:
          reminder(message(turn));
          break;
        default:
          assistant_v4(message(turn));
          break;
      }
    }
  }

  // All system texts stand first. Without one, what is added still begins with its blank line.
  void systems_v4() {
    for (std::size_t i = 0; i < systems_.size(); ++i) {
      out_.text(i == 0 ? "" : kBlankLine);
      out_.content(systems_[i]->content);
    }
    if (conversation_.has_tools()) {
      out_.text(kBlankLine);
      tool_prompt();
    }
    if (has_format()) {
      out_.text(kBlankLine);
      if (conversation_.format.kind == ResponseFormat::Kind::kJsonObject) {
        out_.text(kJsonObjectV4);
      } else {
        out_.text(kFormatIntroduction);
        out_.json(conversation_.format.schema, dialect_.numbers);
      }
    }
  }

  void user_v4(const Turn& turn) {
    bool written = false;
    for (std::size_t k = turn.begin; k < turn.end; ++k) {
      if (!sequence_[k]->content.empty()) {
        out_.text(written ? kBlankLine : "");
        out_.content(sequence_[k]->content);
        written = true;
      }
    }
  }

  void assistant_v4(const Message& m) {
    out_.control(Control::kAssistant);
    if (conversation_.thinking && m.reasoning && (conversation_.has_tools() || m.prefix)) {
      out_.control(Control::kThinkOpen);
      out_.assistant_text(*m.reasoning);
    }
    if (!conversation_.thinking || !m.prefix || !m.content.empty()) {
      out_.control(Control::kThinkClose);
    }
    assistant_rest(m);
  }

  // -- Both versions ----------------------------------------------------------------------------

  bool has_format() const {
    return conversation_.format.kind == ResponseFormat::Kind::kJsonObject ||
           conversation_.format.kind == ResponseFormat::Kind::kJsonSchema;
  }

  void user_header(bool continues) {
    if (continues) {
      out_.text(kBlankLine);
    } else {
      out_.control(Control::kUser);
    }
  }

  void tool_result(const Message& m) {
    out_.text("<tool_result>");
    out_.content(m.content);
    out_.text("</tool_result>");
  }

  void reminder(const Message& m) {
    out_.control(Control::kLatestReminder);
    out_.content(m.content);
  }

  // What follows the thinking part of an assistant turn.
  void assistant_rest(const Message& m) {
    out_.assistant_text(m.content.text);
    if (!m.tool_calls.empty()) {
      out_.text(kBlankLine);
      calls(m.tool_calls);
    }
    if (!m.prefix) {
      out_.control(Control::kEos);
    }
  }

  void calls(const std::vector<ToolCall>& sent) {
    std::vector<const ToolCall*> ordered;
    ordered.reserve(sent.size());
    for (const ToolCall& call : sent) {
      ordered.push_back(&call);
    }
    if (!v41_) {
      std::ranges::stable_sort(ordered, {},
                               [](const ToolCall* call) -> const std::string& { return call->id; });
    }
    out_.open_tag(dialect_.block);
    out_.text(">\n");
    for (const ToolCall* const call : ordered) {
      out_.open_tag(dialect_.call);
      out_.text(" name=\"");
      out_.text(call->name);
      out_.text("\">\n");
      arguments(call->arguments);
      out_.close_tag(dialect_.call);
      out_.text("\n");
    }
    out_.close_tag(dialect_.block);
  }

  // Arguments that are no JSON object become one parameter with the raw text (spec 2.6).
  void arguments(const std::string& text) {
    const Result<Json> parsed = parse_json(text);
    const JsonObject* const members = parsed ? parsed->object() : nullptr;
    if (members == nullptr) {
      parameter_open("arguments", true);
      out_.text(text);
      parameter_close();
      return;
    }
    for (const JsonMember& member : *members) {
      const std::string* const plain = member.value.string();
      parameter_open(member.key, plain != nullptr);
      if (plain != nullptr) {
        out_.text(*plain);
      } else {
        out_.json(member.value, dialect_.numbers);
      }
      parameter_close();
    }
    if (members->empty() && v41_) {
      out_.text("\n");
    }
  }

  void parameter_open(std::string_view name, bool is_string) {
    out_.open_tag(dialect_.parameter);
    out_.text(" name=\"");
    out_.text(name);
    out_.text(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
  }
  void parameter_close() {
    out_.close_tag(dialect_.parameter);
    out_.text("\n");
  }

  void tool_schema(const Tool& tool) {
    out_.text(R"({"name": )");
    out_.json_string(tool.name);
    out_.text(R"(, "description": )");
    out_.json_string(tool.description ? std::string_view(*tool.description) : "");
    out_.text(R"(, "parameters": )");
    if (tool.parameters) {
      out_.json(*tool.parameters, dialect_.numbers);
    } else {
      out_.text("{}");
    }
    out_.text("}");
  }

  // Spec 2.5. Deferred tools appear where they are announced; V4 knows no such thing.
  void tool_prompt() {
    tool_instructions();
    bool any = false;
    for (const Tool& tool : conversation_.tools) {
      if (v41_ && tool.defer_loading) {
        continue;
      }
      tool_schema(tool);
      out_.text("\n");
      any = true;
    }
    out_.text(any || !v41_ ? "\n" : "\n\n");
    out_.text(
        "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
        "calls.\n");
  }

  void tool_instructions() {
    out_.text(
        "## Tools\n\nYou have access to a set of tools to help answer the user's question. You can "
        "invoke tools by writing a \"");
    out_.open_tag(dialect_.block);
    out_.text(">\" block like the following:\n\n");
    out_.open_tag(dialect_.block);
    out_.text(">\n");
    out_.open_tag(dialect_.call);
    out_.text(" name=\"$TOOL_NAME\">\n");
    out_.open_tag(dialect_.parameter);
    out_.text(" name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE");
    parameter_close();
    out_.text("...\n");
    out_.close_tag(dialect_.call);
    out_.text("\n");
    out_.open_tag(dialect_.call);
    out_.text(" name=\"$TOOL_NAME2\">\n...\n");
    out_.close_tag(dialect_.call);
    out_.text("\n");
    out_.close_tag(dialect_.block);
    out_.text(
        "\n\nString parameters should be specified as is and set `string=\"true\"`. For all other "
        "types (numbers, booleans, arrays, objects), pass the value in JSON format and set "
        "`string=\"false\"`.\n\nIf thinking_mode is enabled (triggered by ");
    out_.control(Control::kThinkOpen);
    out_.text("), you MUST output your complete reasoning inside ");
    out_.control(Control::kThinkOpen);
    out_.text("...");
    out_.control(Control::kThinkClose);
    out_.text(" BEFORE any tool calls or final response.\n\nOtherwise, output directly after ");
    out_.control(Control::kThinkClose);
    out_.text(" with tool calls or final response.\n\n### Available Tool Schemas\n\n");
  }

  const Conversation& conversation_;
  const bool v41_;
  const Dialect dialect_;
  Writer out_;
  std::vector<const Message*> sequence_;  // messages in the order sent, V4 without systems
  std::vector<Turn> turns_;
  std::vector<const Message*> systems_;  // V4 only
};

}  // namespace

Prompt render(const Conversation& conversation, ModelVersion version) {
  return Renderer(conversation, version).run();
}

Prompt render(const Request& request) {
  if (!request.completion) {
    return render(request.conversation, request.version);
  }
  const Completion& completion = *request.completion;
  return completion.prompt_ids.empty() ? render_fim(completion.prompt, completion.suffix)
                                       : Prompt{.ids = completion.prompt_ids};
}

std::vector<TokenId> stop_ids(const Request& request,
                              const ControlIds& controls,
                              const Tokenizer& tokenizer) {
  std::vector<TokenId> stops = {controls[Control::kEos]};
  if (!request.completion) {
    return stops;
  }
  if (const auto end_of_text = tokenizer.find_added("<|EOT|>")) {
    stops.push_back(*end_of_text);
  }
  for (const Control token : kGapControls) {
    if (controls[token] != ControlIds::kAbsent) {
      stops.push_back(controls[token]);
    }
  }
  return stops;
}

Prompt render_fim(std::string_view prefix, std::string_view suffix) {
  Writer out(false);
  out.reserve(prefix.size() + suffix.size() + 128);
  out.control(Control::kBos);
  if (suffix.empty()) {
    out.text(prefix);
    return out.finish();
  }
  out.control(Control::kFimBegin);
  out.text(prefix);
  out.control(Control::kFimHole);
  out.text(suffix);
  out.control(Control::kFimEnd);
  return out.finish();
}

}  // namespace galley::recipe
