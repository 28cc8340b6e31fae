#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "recipe/limits.h"
#include "recipe/request.h"
#include "recipe/request_fields.h"
#include "recipe/responses_input.h"
#include "recipe/responses_tools.h"
#include "recipe/schema.h"

// Responses bodies (spec recipe 6.4).
namespace galley::recipe {
namespace {

// The double that prints as `value` does: 0.3F is 0.3, not 0.30000001192092896.
double shortest(float value) {
  char digits[32];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), value);
  double out{};
  std::from_chars(std::begin(digits), end.ptr, out);
  return out;
}

// The body, typed but not judged.
struct Body {
  std::string model;
  std::optional<std::string> text_input;
  std::optional<std::vector<InputItem>> items;
  std::size_t earlier_count = 0;  // of `items`: not sent with this request
  bool empty_input = false;       // `input` is an array without items
  std::string input_items;        // `input` as a JSON array, where it is kept
  std::optional<std::string> instructions;
  std::optional<RequestedEffort> effort;
  SamplingFields sampling;
  ResponseFormat format;
  bool strict_schema = false;
  ToolChoiceEntry tool_choice;
  std::vector<ToolEntry> tools;
  bool stream = false;
  bool parallel_tool_calls = true;
  bool store = false;
  std::optional<std::string> user;
  std::optional<std::string> previous_response_id;
  JsonObject echo;
};

class Reader {
 public:
  Reader(const Fields& body,
         JsonArray earlier,
         const CodecOptions& options,
         std::vector<std::string>& notes)
      : body_(body),
        earlier_(std::move(earlier)),
        compat_(options.compat),
        keeps_(options.keeps_responses),
        notes_(notes),
        context_{compat_, notes} {}

  Result<Body> read() {
    if (compat_ == Compat::kGalley) {
      GALLEY_CHECK_OK(refuse_foreign());
      GALLEY_TRY(const auto store, body_.boolean("store"));
      out_.store = store.value_or(keeps_);
    }
    GALLEY_TRY(out_.model, body_.required_text("model"));
    GALLEY_CHECK_OK(read_input());
    GALLEY_TRY(out_.instructions, body_.text("instructions"));
    echo("instructions", out_.instructions ? Json(*out_.instructions) : Json{});
    GALLEY_TRY(out_.sampling.max_tokens, body_.natural("max_output_tokens", kWordMax));
    out_.sampling.max_tokens_key = "max_output_tokens";
    echo("max_output_tokens", out_.sampling.max_tokens ? *body_.find("max_output_tokens") : Json{});
    GALLEY_CHECK_OK(read_reasoning());
    GALLEY_TRY(const auto stream, body_.boolean("stream"));
    out_.stream = stream.value_or(false);
    GALLEY_TRY(out_.sampling.temperature, body_.real("temperature"));
    echo_float("temperature", out_.sampling.temperature);
    GALLEY_CHECK_OK(read_text());
    GALLEY_TRY(out_.tool_choice, read_tool_choice(body_, context_));
    echo("tool_choice", std::move(out_.tool_choice.echo));
    GALLEY_CHECK_OK(read_tool_list());
    GALLEY_TRY(out_.sampling.top_logprobs, body_.natural("top_logprobs", kByteMax));
    out_.sampling.logprobs = out_.sampling.top_logprobs.has_value();
    echo("top_logprobs", Json(out_.sampling.top_logprobs.value_or(0)));
    GALLEY_TRY(out_.sampling.top_p, body_.real("top_p"));
    echo_float("top_p", out_.sampling.top_p);
    GALLEY_TRY(out_.user, body_.text("user"));
    echo("user", out_.user ? Json(*out_.user) : Json{});
    if (compat_ == Compat::kGalley) {
      GALLEY_CHECK_OK(read_extensions());
    }
    return std::move(out_);
  }

 private:
  // A stream repeats it three times, so Galley bounds it.
  void echo(std::string_view key, Json value) {
    if (compat_ == Compat::kGalley && to_json(value).size() > kEchoBytesMax) {
      add_note(notes_, "`" + std::string(key) + "` is too long to be repeated in the reply");
      return;
    }
    out_.echo.push_back({std::string(key), std::move(value)});
  }

  void echo_float(std::string_view key, std::optional<float> value) {
    if (!value) {
      echo(key, Json(1.0));
    } else if (compat_ == Compat::kRecipe02) {
      echo(key, Json(shortest(*value)));
    } else {
      echo(key, *body_.find(key));
    }
  }

  // What belongs to another protocol, or needs state that a codec does not have.
  Result<void> refuse_foreign() const {
    if (body_.find("messages") != nullptr) {
      return invalid("Unsupported parameter: messages", body_.at().member("messages"));
    }
    GALLEY_TRY(const auto background, body_.boolean("background"));
    if (background.value_or(false)) {
      return invalid("background is not supported", body_.at().member("background"));
    }
    for (const std::string_view key : {"conversation", "prompt"}) {
      if (body_.find(key) != nullptr) {
        return invalid(std::string(key) + " is not supported; replay full input instead",
                       body_.at().member(key));
      }
    }
    return {};
  }

  // `input`, a text or items, as a JSON array of items.
  static std::string as_items(const Json& input) {
    const std::string* const text = input.string();
    return text == nullptr ? to_json(input) : to_json(Json(JsonArray{text_item(*text)}));
  }

  static Json text_item(std::string text) {
    return JsonObject{{"type", "message"},
                      {"role", "user"},
                      {"content", JsonArray{JsonObject{{"type", "input_text"},
                                                       {"text", Json(std::move(text))}}}}};
  }

  Result<void> read_input() {
    Json* const input = body_.find("input");
    if (keeps_ && out_.store) {
      out_.input_items = input == nullptr ? "[]" : as_items(*input);
    }
    GALLEY_CHECK_OK(read_earlier());
    if (input == nullptr) {
      return {};
    }
    const Path at = body_.at().member("input");
    if (std::string* const text = input->string()) {
      if (out_.items) {
        out_.items->push_back(user_message(std::move(*text)));
      } else {
        out_.text_input = std::move(*text);
      }
      return {};
    }
    JsonArray* const items = input->array();
    if (items == nullptr) {
      return wrong_type(*input, "a string or an array", at);
    }
    out_.empty_input = items->empty();
    GALLEY_TRY(std::vector<InputItem> read, read_items(*items, context_, at));
    if (out_.items) {
      std::ranges::move(read, std::back_inserter(*out_.items));
    } else {
      out_.items = std::move(read);
    }
    return {};
  }

  static InputItem user_message(std::string text) {
    InputItem item{.kind = InputItem::Kind::kMessage, .type = "message"};
    item.content.blocks.push_back({.kind = InputBlock::Kind::kText, .text = std::move(text)});
    return item;
  }

  Result<void> read_earlier() {
    if (earlier_.empty()) {
      return {};
    }
    const Path at = body_.at().member("previous_response_id");
    GALLEY_TRY(out_.items, read_items(earlier_, context_, at));
    out_.earlier_count = out_.items->size();
    return {};
  }

  Result<void> read_reasoning() {
    constexpr std::array<std::string_view, 3> kSummaries = {"auto", "concise", "detailed"};
    Json effort;
    Json summary;
    if (Json* const value = body_.find("reasoning")) {
      const Path at = body_.at().member("reasoning");
      GALLEY_TRY(const Fields fields, Fields::open(*value, at));
      GALLEY_TRY(out_.effort, read_effort(fields, "effort"));
      if (out_.effort) {
        effort = *fields.find("effort");
      }
      for (const std::string_view key : {"summary", "generate_summary"}) {
        GALLEY_TRY(const auto index, fields.choice(key, kSummaries));
        if (index && summary.is_null()) {
          summary = kSummaries[*index];
          add_note(notes_, "reasoning is not summarised: `reasoning.summary` is ignored");
        }
      }
      context_.note_unread(fields);
    }
    echo("reasoning",
         Json(JsonObject{{"effort", std::move(effort)}, {"summary", std::move(summary)}}));
    return {};
  }

  Result<void> read_text() {
    constexpr std::array<std::string_view, 3> kVerbosities = {"low", "medium", "high"};
    Json format(JsonObject{{"type", "text"}});
    Json verbosity;
    if (Json* const value = body_.find("text")) {
      const Path at = body_.at().member("text");
      GALLEY_TRY(const Fields fields, Fields::open(*value, at));
      GALLEY_TRY(const auto index, fields.choice("verbosity", kVerbosities));
      if (index) {
        verbosity = kVerbosities[*index];
        add_note(notes_, "`text.verbosity` is ignored");
      }
      if (Json* const sent = fields.find("format")) {
        GALLEY_TRY(format, read_format(*sent, at.member("format")));
      }
      context_.note_unread(fields);
    }
    echo("text",
         Json(JsonObject{{"format", std::move(format)}, {"verbosity", std::move(verbosity)}}));
    return {};
  }

  // Returns the format as a reply repeats it.
  Result<Json> read_format(Json& value, const Path& at) {
    constexpr std::array<std::string_view, 3> kTypes = {"text", "json_object", "json_schema"};
    GALLEY_TRY(const Fields fields, Fields::open(value, at));
    GALLEY_TRY(const std::size_t type, fields.required_choice("type", kTypes));
    JsonObject echo{{"type", kTypes[type]}};
    if (type == 1) {
      out_.format.kind = ResponseFormat::Kind::kJsonObject;
    }
    if (type != 2) {
      context_.note_unread(fields);
      return Json(std::move(echo));
    }
    out_.format.kind = ResponseFormat::Kind::kJsonSchema;
    GALLEY_TRY(std::string name, fields.required_text("name"));
    GALLEY_TRY(std::optional<std::string> description, fields.text("description"));
    GALLEY_TRY(const std::optional<bool> strict, fields.boolean("strict"));
    Json* const schema = fields.find("schema");
    if (schema == nullptr) {
      return missing(at.member("schema"));
    }
    context_.note_unread(fields);
    out_.strict_schema = strict.value_or(false);
    echo.push_back({"name", Json(std::move(name))});
    echo.push_back({"schema", *schema});
    echo.push_back({"description", description ? Json(std::move(*description)) : Json{}});
    echo.push_back({"strict", strict ? Json(*strict) : Json{}});
    out_.format.schema = std::move(*schema);
    return Json(std::move(echo));
  }

  Result<void> read_tool_list() {
    JsonArray echoed;
    GALLEY_TRY(JsonArray* const tools, body_.array("tools"));
    if (tools != nullptr) {
      const Path at = body_.at().member("tools");
      GALLEY_TRY(out_.tools, read_tools(*tools, context_, at));
      for (const ToolEntry& tool : out_.tools) {
        if (tool.kind != ToolEntry::Kind::kUnsupported) {
          echoed.push_back(tool_echo(tool));
        }
      }
    }
    echo("tools", Json(std::move(echoed)));
    return {};
  }

  // The reply repeats it, so it is small.
  [[nodiscard]] Result<void> check_metadata(const JsonObject& metadata) const {
    const Path at = body_.at().member("metadata");
    if (metadata.size() > kMetadataCountMax) {
      return invalid("`metadata` has at most " + std::to_string(kMetadataCountMax) + " members",
                     at);
    }
    for (const JsonMember& member : metadata) {
      const std::string* const text = member.value.string();
      if (member.key.size() > kMetadataBytesMax || text == nullptr ||
          text->size() > kMetadataBytesMax) {
        return invalid(
            "`metadata` holds strings of at most " + std::to_string(kMetadataBytesMax) + " bytes",
            at);
      }
    }
    return {};
  }

  // What the reference ignores.
  Result<void> read_extensions() {
    constexpr std::array<std::string_view, 2> kTruncations = {"disabled", "auto"};
    GALLEY_TRY(const auto parallel, body_.boolean("parallel_tool_calls"));
    out_.parallel_tool_calls = parallel.value_or(true);
    GALLEY_TRY(const auto truncation, body_.choice("truncation", kTruncations));
    if (truncation == 1) {
      add_note(notes_, "input is never cut: `truncation` is ignored");
    }
    GALLEY_TRY(out_.previous_response_id, body_.text("previous_response_id"));
    if (out_.user) {
      GALLEY_CHECK_OK(check_user(*out_.user, false, body_.at().member("user")));
    }
    if (const Json* const metadata = body_.find("metadata")) {
      if (metadata->object() == nullptr) {
        return wrong_type(*metadata, "an object", body_.at().member("metadata"));
      }
      GALLEY_CHECK_OK(check_metadata(*metadata->object()));
      echo("metadata", *metadata);
    }
    if (parallel) {
      echo("parallel_tool_calls", Json(*parallel));
    }
    if (keeps_) {
      echo("store", Json(out_.store));
    }
    if (out_.previous_response_id) {
      echo("previous_response_id", Json(*out_.previous_response_id));
    }
    for (const std::string_view key : {"prompt_cache_key", "safety_identifier"}) {
      GALLEY_TRY(auto text, body_.text(key));
      if (text) {
        echo(key, Json(std::move(*text)));
      }
    }
    // Ask for what happens anyway, since the prefix cache needs no key, or for parts of the reply
    // that are always there or never.
    body_.expect({"prompt_cache_retention", "include"});
    context_.note_unread(body_);
    return {};
  }

  const Fields& body_;
  JsonArray earlier_;
  Compat compat_;
  bool keeps_;
  std::vector<std::string>& notes_;
  ReadContext context_;
  Body out_;
};

// Declarations in the order they are judged: `tools`, then on V4.1 what tool searches found.
// Returns the names found, per input item.
Result<std::vector<std::vector<std::string>>> declare_tools(Body& body,
                                                            ModelVersion version,
                                                            ResponsesTools& tools,
                                                            std::vector<std::string>& notes) {
  std::vector<std::vector<std::string>> found(body.items ? body.items->size() : 0);
  const ItemPlaces places{.earlier_count = body.earlier_count};
  const auto searched = [&](const InputItem& item) {
    return item.kind == InputItem::Kind::kSearchOutput && version == ModelVersion::kV41;
  };
  tools.reserve_names(body.tools);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (searched((*body.items)[i])) {
      tools.reserve_names((*body.items)[i].tools);
    }
  }
  GALLEY_TRY(const auto names, tools.declare(std::move(body.tools), "tools", false, notes));
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (searched((*body.items)[i])) {
      const Path at = places.of(i);
      GALLEY_TRY(found[i],
                 tools.declare((*body.items)[i].tools, at.text() + ".tools", true, notes));
    }
  }
  return found;
}

Result<void> convert_input(Body& body,
                           Request& request,
                           ResponsesTools& tools,
                           const std::vector<std::vector<std::string>>& found) {
  std::vector<Message>& messages = request.conversation.messages;
  if (body.instructions && !body.instructions->empty()) {
    messages.push_back({.role = Role::kSystem, .content = {.text = std::move(*body.instructions)}});
  }
  const Path at;
  const Path input = at.member("input");
  if (body.empty_input) {
    return invalid("Input items array must not be empty", input);
  }
  if (body.text_input) {
    messages.push_back({.role = Role::kUser, .content = {.text = std::move(*body.text_input)}});
  } else if (body.items) {
    return convert_items(std::move(*body.items), body.earlier_count, request.version,
                         request.compat, tools, found, messages, request.notes);
  } else if (messages.empty()) {
    return invalid("Either input or instructions must be provided", input);
  }
  return {};
}

Result<void> settle_tool_choice(const ToolChoiceEntry& choice,
                                std::vector<DeclaredTool> declared,
                                const CodecOptions& options,
                                Request& request) {
  if (choice.web_search && options.responses_reject_web_search) {
    const Path at;
    return invalid("Server tools are not supported", at.member("tool_choice"));
  }
  GALLEY_CHECK_OK(settle_tools(std::move(declared), choice.choice, options.compat,
                               request.conversation, request.notes));
  return settle_announced_tools(request.conversation);
}

Result<void> settle_format(Body& body, Conversation& conversation, Compat compat) {
  conversation.format = std::move(body.format);
  if (conversation.format.kind == ResponseFormat::Kind::kJsonSchema) {
    return settle_response_schema(conversation.format, body.strict_schema, compat,
                                  "text.format.schema");
  }
  if (conversation.format.kind == ResponseFormat::Kind::kJsonObject &&
      !mentions_json(conversation.messages)) {
    const Path at;
    return invalid(
        "Response input messages must contain the word 'json' in some form to use 'text.format' of "
        "type 'json_object'.",
        at.member("input"));
  }
  return {};
}

}  // namespace

std::optional<std::string> named_response(std::string_view body) {
  // Most bodies have no such member, and parsing megabytes twice takes time.
  constexpr std::string_view kKey = "previous_response_id";
  if (body.find(kKey) == std::string_view::npos) {
    return std::nullopt;
  }
  const Result<Json> json = parse_json(body);
  const Json* const value = json ? json->find(kKey) : nullptr;
  const std::string* const id = value == nullptr ? nullptr : value->string();
  return id == nullptr ? std::nullopt : std::optional(*id);
}

Result<Request> parse_responses_request(std::string_view text,
                                        const CodecOptions& options,
                                        JsonArray earlier) {
  const Path at;
  GALLEY_TRY(Json json, parse_body(text));
  GALLEY_TRY(const Fields fields, Fields::open(json, at));
  Request request{.protocol = Protocol::kResponses, .compat = options.compat};
  Conversation& conversation = request.conversation;
  GALLEY_TRY(Body body, Reader(fields, std::move(earlier), options, request.notes).read());

  GALLEY_TRY(request.version, find_model(options, body.model));
  settle_thinking(std::nullopt, body.effort, options.default_thinking, conversation);
  ResponsesTools tools(request.version, options);
  GALLEY_TRY(const auto found, declare_tools(body, request.version, tools, request.notes));
  GALLEY_CHECK_OK(convert_input(body, request, tools, found));
  if (settle_reasoning(conversation.messages, conversation.thinking, !tools.declared.empty(),
                       options.reject_missing_reasoning)) {
    return invalid(missing_reasoning_text("reasoning_text"), at.member("input"));
  }
  GALLEY_CHECK_OK(
      settle_tool_choice(body.tool_choice, std::move(tools.declared), options, request));
  GALLEY_CHECK_OK(settle_format(body, conversation, options.compat));
  const bool has_format = conversation.format.kind != ResponseFormat::Kind::kText;
  const std::string_view format_key =
      options.compat == Compat::kGalley ? "text.format" : "response_format";
  GALLEY_TRY(request.constraint, make_constraint(conversation, has_format ? format_key : ""));
  GALLEY_TRY(request.sampling, settle_sampling(body.sampling, conversation, request.version,
                                               options.compat, request.notes));
  request.output = make_output_format(conversation, {});
  if (options.compat == Compat::kGalley) {
    GALLEY_CHECK_OK(check_image_limits(conversation));
  }
  request.model = std::move(body.model);
  request.stream = body.stream;
  request.parallel_tool_calls = body.parallel_tool_calls;
  request.user = std::move(body.user).value_or("");
  request.responses_echo = Json(std::move(body.echo));
  request.namespaced_tools = std::move(tools.namespaced);
  request.custom_tools = std::move(tools.custom);
  request.client_tool_search = tools.client_tool_search;
  request.previous_response_id = std::move(body.previous_response_id);
  request.store = body.store;
  request.input_items = std::move(body.input_items);
  return request;
}

}  // namespace galley::recipe
