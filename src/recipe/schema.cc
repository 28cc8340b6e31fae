#include "recipe/schema.h"

#include <string>
#include <utility>

#include "recipe/request_fields.h"

namespace galley::recipe {
namespace {

std::unexpected<Error> placed(Error error, std::string_view introduction, std::string_view where) {
  error.what.insert(0, introduction);
  error.where.insert(0, where);
  return std::unexpected(std::move(error));
}

std::string schema_introduction(const Tool& tool) {
  return "Invalid schema for function '" + tool.name + "': ";
}

Result<void> check_tool_schema(const Tool& tool, std::string_view where) {
  if (Result<void> valid = check_schema(*tool.parameters); !valid) {
    return placed(std::move(valid).error(), schema_introduction(tool), where);
  }
  return {};
}

}  // namespace

Result<void> settle_tool_schema(Tool& tool,
                                Compat compat,
                                std::string_view where,
                                std::vector<std::string>& notes) {
  if (tool.strict == true) {
    const Json empty_object(JsonObject{{"type", "object"}});
    auto strict = normalise_strict(tool.parameters ? *tool.parameters : empty_object,
                                   StrictUse::kToolParameters);
    if (!strict) {
      return placed(std::move(strict.error().error),
                    strict.error().misfit ? "Invalid tool parameters schema : " : "", where);
    }
    if (compat == Compat::kGalley && tool.parameters) {
      GALLEY_CHECK_OK(check_tool_schema(tool, where));
    }
    tool.parameters = std::move(strict->rendered);
    if (compat == Compat::kGalley && !strict->lost.empty()) {
      tool.constraint_parameters = std::move(strict->complete);
      std::string note =
          "tool '" + tool.name + "': the strict schema shown to the model leaves out";
      for (const std::string& keyword : strict->lost) {
        note.append(&keyword == strict->lost.data() ? " `" : ", `").append(keyword).append("`");
      }
      add_note(notes, std::move(note));
    }
    return {};
  }
  if (!tool.parameters) {
    return {};
  }
  GALLEY_CHECK_OK(check_tool_schema(tool, where));
  const Json* const type = tool.parameters->find("type");
  if (type == nullptr || type->string() == nullptr || *type->string() != "object") {
    return fail(Code::kInvalidArgument,
                schema_introduction(tool) +
                    "schema must be a JSON Schema of 'type: \"object\"', got 'type: " +
                    (type == nullptr ? std::string("null") : std::string(clipped(to_json(*type)))) +
                    "'.",
                std::string(where));
  }
  return {};
}

Result<void> settle_response_schema(ResponseFormat& format,
                                    bool strict,
                                    Compat compat,
                                    std::string_view where) {
  constexpr std::string_view kIntroduction = "Invalid json schema: ";
  const auto check = [&]() -> Result<void> {
    if (Result<void> valid = check_schema(format.schema); !valid) {
      return placed(std::move(valid).error(), kIntroduction, where);
    }
    return {};
  };
  if (!strict) {
    GALLEY_CHECK_OK(check());
    format.constraint_schema = format.schema;
    return {};
  }
  auto normal = normalise_strict(format.schema, StrictUse::kResponseFormat);
  if (!normal) {
    return placed(std::move(normal.error().error), normal.error().misfit ? kIntroduction : "",
                  where);
  }
  if (compat == Compat::kGalley) {  // the reference only looks at the shape
    GALLEY_CHECK_OK(check());
  }
  format.constraint_schema = compat == Compat::kGalley && !normal->lost.empty()
                                 ? std::move(normal->complete)
                                 : std::move(normal->rendered);
  return {};
}

}  // namespace galley::recipe
