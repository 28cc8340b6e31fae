#include "recipe/guided.h"

#include <string>
#include <utility>

#include "recipe/limits.h"
#include "recipe/schema.h"

namespace galley::recipe {
namespace {

Result<GuidedFormat> read_schema(Json& value, const Path& at) {
  GuidedFormat out{.kind = GuidedFormat::Kind::kSchema, .place = at.text()};
  if (const std::string* const text = value.string()) {
    auto parsed = parse_json(*text);
    if (!parsed) {
      return invalid("is a string that is not JSON: " + parsed.error().what, at);
    }
    out.schema = *std::move(parsed);
  } else {
    out.schema = std::move(value);
  }
  if (Result<void> valid = check_schema(out.schema); !valid) {
    return fail(Code::kInvalidArgument, "Invalid json schema: " + valid.error().what,
                out.place + valid.error().where);
  }
  return out;
}

Result<GuidedFormat> read_choices(const Json& value, const Path& at) {
  const JsonArray* const list = value.array();
  if (list == nullptr || list->empty() || list->size() > kGuidedChoiceCountMax) {
    return wrong_type(value,
                      "an array of 1 to " + std::to_string(kGuidedChoiceCountMax) + " strings", at);
  }
  GuidedFormat out{.kind = GuidedFormat::Kind::kChoice, .place = at.text()};
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string* const text = (*list)[i].string();
    if (text == nullptr || text->empty()) {
      return wrong_type((*list)[i], "a string that is not empty", at.element(i));
    }
    out.choices.push_back(*text);
  }
  return out;
}

class Reader {
 public:
  // `prefix`: of the members' names.
  Result<void> read(const Fields& fields, const std::string& prefix) {
    const std::string schema = prefix + "json";
    if (Json* const value = fields.find(schema)) {
      const Path at = fields.at().member(schema);
      GALLEY_TRY(GuidedFormat one, read_schema(*value, at));
      GALLEY_CHECK_OK(take(std::move(one), at));
    }
    const std::string object = prefix + "json_object";
    GALLEY_TRY(const auto wants_object, fields.boolean(object));
    if (wants_object.value_or(false)) {
      const Path at = fields.at().member(object);
      GALLEY_CHECK_OK(take({.kind = GuidedFormat::Kind::kSchema,
                            .schema = Json(JsonObject{{"type", "object"}}),
                            .place = at.text()},
                           at));
    }
    for (const auto& [name, kind] : {std::pair("regex", GuidedFormat::Kind::kRegex),
                                     std::pair("grammar", GuidedFormat::Kind::kGrammar)}) {
      const std::string key = prefix + name;
      GALLEY_TRY(auto text, fields.text(key));
      if (text) {
        const Path at = fields.at().member(key);
        GALLEY_CHECK_OK(take({.kind = kind, .text = *std::move(text), .place = at.text()}, at));
      }
    }
    const std::string choice = prefix + "choice";
    if (const Json* const value = fields.find(choice)) {
      const Path at = fields.at().member(choice);
      GALLEY_TRY(GuidedFormat one, read_choices(*value, at));
      GALLEY_CHECK_OK(take(std::move(one), at));
    }
    return {};
  }

  std::optional<GuidedFormat> out;

 private:
  Result<void> take(GuidedFormat one, const Path& at) {
    if (out) {
      return invalid("cannot be used with `" + out->place + "`", at);
    }
    out = std::move(one);
    return {};
  }
};

}  // namespace

Result<std::optional<GuidedFormat>> read_guided(const Fields& body,
                                                std::vector<std::string>& notes) {
  Reader reader;
  GALLEY_CHECK_OK(reader.read(body, "guided_"));
  body.expect({"guided_decoding_backend"});
  if (Json* const value = body.find("structured_outputs")) {
    const Path at = body.at().member("structured_outputs");
    GALLEY_TRY(const Fields fields, Fields::open(*value, at));
    GALLEY_CHECK_OK(reader.read(fields, ""));
    fields.note_unread(notes);
  }
  return std::move(reader.out);
}

}  // namespace galley::recipe
