#include "recipe/answer_grammar.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "recipe/call_grammar.h"
#include "recipe/limits.h"
#include "recipe/request_fields.h"
#include "recipe/schema_enforce.h"

namespace galley::recipe {
namespace {

using Kind = AnswerGrammar::Kind;

// The member that asks for the answer's format.
std::string format_place(const Request& request) {
  switch (request.protocol) {
    case Protocol::kResponses:
      return "text.format";
    case Protocol::kMessages:
      return "output_config.format";
    default:
      return "response_format";
  }
}

Result<AnswerGrammar> of_schema(const Json& schema, std::string place) {
  if (Result<void> enforced = check_enforced(schema); !enforced) {
    Error error = std::move(enforced).error();
    error.what = "Invalid json schema: " + error.what;
    error.where = place + error.where;
    return std::unexpected(std::move(error));
  }
  if (schema.boolean() != nullptr && !*schema.boolean()) {
    return fail(Code::kInvalidArgument, "Invalid json schema: no answer can satisfy it",
                std::move(place));
  }
  return AnswerGrammar{
      .kind = Kind::kJsonSchema, .text = grammar_schema(schema), .place = std::move(place)};
}

Result<AnswerGrammar> of_text(Kind kind, std::string text, std::string place) {
  if (text.size() > kGuidedTextBytesMax) {
    return fail(Code::kInvalidArgument,
                "has " + std::to_string(text.size()) + " bytes, " +
                    std::to_string(kGuidedTextBytesMax) + " are the most that are enforced",
                std::move(place));
  }
  return AnswerGrammar{.kind = kind, .text = std::move(text), .place = std::move(place)};
}

// Outside of strings, regular expressions and comments, where it means something else: a schema in
// the grammar would pass by every check of schemas, and a control token would end the answer, or
// open a call, where no text can.
std::optional<std::string_view> forbidden_in_lark(std::string_view text) {
  constexpr std::array<std::string_view, 3> kForbidden = {"%json", "%lark", "%llguidance"};
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' || (c == '/' && !text.substr(i).starts_with("//"))) {
      for (++i; i < text.size() && text[i] != c; ++i) {
        i += text[i] == '\\' ? 1 : 0;
      }
    } else if (c == '/' || c == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else if (c == '<') {
      return "<...>";
    }
    for (const std::string_view word : kForbidden) {
      if (i < text.size() && text.substr(i).starts_with(word)) {
        return word;
      }
    }
  }
  return std::nullopt;
}

Result<AnswerGrammar> of_guided(const GuidedFormat& guided) {
  switch (guided.kind) {
    case GuidedFormat::Kind::kSchema:
      return of_schema(guided.schema, guided.place);
    case GuidedFormat::Kind::kRegex:
      return of_text(Kind::kRegex, guided.text, guided.place);
    case GuidedFormat::Kind::kGrammar:
      if (const auto word = forbidden_in_lark(guided.text)) {
        return fail(Code::kInvalidArgument,
                    "`" + std::string(*word) + "` is not allowed in a request's grammar",
                    guided.place);
      }
      return of_text(Kind::kLark, guided.text, guided.place);
    case GuidedFormat::Kind::kChoice:
      break;
  }
  // One terminal: alternatives of a rule would each be an item of every mask.
  std::string text = "start: CHOICE\nCHOICE: ";
  for (const std::string& choice : guided.choices) {
    text.append(&choice == guided.choices.data() ? "" : " | ").append(lark_literal(choice));
  }
  return of_text(Kind::kLark, text + "\n", guided.place);
}

Result<AnswerGrammar> of_format(const Request& request) {
  const ResponseFormat& format = request.conversation.format;
  switch (format.kind) {
    case ResponseFormat::Kind::kText:
      return AnswerGrammar{};
    case ResponseFormat::Kind::kJsonObject:
      return of_schema(Json(JsonObject{{"type", "object"}}), format_place(request));
    case ResponseFormat::Kind::kJsonSchema:
      return of_schema(format.constraint_schema, format_place(request));
    case ResponseFormat::Kind::kRegex:
      return of_text(Kind::kRegex, format.regex, format_place(request));
  }
  std::unreachable();
}

class Builder {
 public:
  Builder(const Request& request, const ControlIds& controls, const Tokenizer& tokenizer)
      : request_(request), controls_(controls), tokenizer_(tokenizer) {}

  Result<AnswerGrammar> build() {
    if (request_.conversation.has_tools()) {
      return tools();
    }
    GALLEY_TRY(AnswerGrammar out,
               request_.guided ? of_guided(*request_.guided) : of_format(request_));
    if (out.kind != Kind::kNone) {
      out.demanded_by = out.place;
      begin_behind_thinking(out);
    }
    return out;
  }

 private:
  [[nodiscard]] bool thinks() const {
    return request_.output.stage == StartStage::kReasoningStart ||
           request_.output.stage == StartStage::kReasoningContinuation;
  }

  // At once, or once the model has thought; or behind what the prompt has of the answer.
  void begin_behind_thinking(AnswerGrammar& out) const {
    if (thinks()) {
      out.trigger = {controls_[Control::kThinkClose]};
      out.forbidden = {controls_[Control::kEos]};
      return;
    }
    const std::vector<Message>& messages = request_.conversation.messages;
    if (!messages.empty() && messages.back().prefix) {
      tokenizer_.encode(messages.back().content.text, out.begun);
    }
  }

  [[nodiscard]] Result<AnswerGrammar> tools() const {
    const Conversation& conversation = request_.conversation;
    const TokenId mark = controls_[Control::kDsml];
    GALLEY_TRY(const CallGrammar calls, call_grammar(conversation.tools, request_.version,
                                                     request_.parallel_tool_calls, mark));
    const std::string tag = lark_literal(std::string(block_tag(request_.version)).append(">\n"));
    const std::string opener =
        lark_literal("\n\n<") + " <[" + std::to_string(mark) + "]> " + tag + " ";
    AnswerGrammar out{.kind = Kind::kLark, .place = "tools"};
    const auto start = [&](const std::string& body) {
      out.text = "start: " + body + "\n" + calls.rules;
    };
    const bool required = request_.constraint.kind == Constraint::Kind::kToolCallRequired;
    out.demanded_by = required ? "tool_choice" : "";
    if (required && thinks()) {
      // A block that opens within the reasoning ends it.
      start(tag + " " + calls.calls);
      tokenizer_.encode("\n\n<", out.trigger);
      out.trigger.push_back(mark);
      out.bound = controls_[Control::kThinkClose];
      out.forbidden = {controls_[Control::kEos]};
      out.guarded = true;
    } else if (required) {
      start(request_.output.in_tool_block ? calls.calls : opener + calls.calls);
    } else if (request_.guided || conversation.format.kind != ResponseFormat::Kind::kText) {
      GALLEY_TRY(const AnswerGrammar format,
                 request_.guided ? of_guided(*request_.guided) : of_format(request_));
      if (format.kind != Kind::kJsonSchema) {
        return fail(Code::kInvalidArgument, "beside tools only a format of JSON can be enforced",
                    format.place);
      }
      start("the_format | " + opener + calls.calls);
      out.demanded_by = format.place;
      out.text.append("the_format: %json ").append(format.text).append("\n");
      begin_behind_thinking(out);
    } else {
      // Lazily: text is free until a block opens, wherever that is.
      start(tag + " " + calls.calls);
      out.trigger = {mark};
      out.behind = "<";
    }
    return out;
  }

  const Request& request_;
  const ControlIds& controls_;
  const Tokenizer& tokenizer_;
};

}  // namespace

Result<AnswerGrammar> answer_grammar(const Request& request,
                                     const ControlIds& controls,
                                     const Tokenizer& tokenizer) {
  return Builder(request, controls, tokenizer).build();
}

}  // namespace galley::recipe
