#include "recipe/schema_enforce.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "recipe/schema_limits.h"

namespace galley::recipe {
namespace {

using enum KeywordUse;

// Where a keyword holds schemas.
enum class Holds : std::uint8_t { kNothing, kSchema, kList, kByKey };

struct Entry {
  SchemaKeyword keyword;
  Holds holds = Holds::kNothing;
};

constexpr std::array kEntries = {
    Entry{{"type", kEnforced}},
    Entry{{"enum", kEnforced}},
    Entry{{"const", kEnforced}},
    Entry{{"$ref", kEnforced}},
    Entry{{"anyOf", kEnforced}, Holds::kList},
    Entry{{"oneOf", kEnforced}, Holds::kList},
    Entry{{"allOf", kEnforced}, Holds::kList},
    Entry{{"properties", kEnforced}, Holds::kByKey},
    Entry{{"patternProperties", kEnforced}, Holds::kByKey},
    Entry{{"additionalProperties", kEnforced}, Holds::kSchema},
    Entry{{"required", kEnforced}},
    Entry{{"minProperties", kEnforced}},
    Entry{{"maxProperties", kEnforced}},
    Entry{{"items", kEnforced}, Holds::kSchema},
    Entry{{"additionalItems", kEnforced}, Holds::kSchema},
    Entry{{"prefixItems", kEnforced}, Holds::kList},
    Entry{{"minItems", kEnforced}},
    Entry{{"maxItems", kEnforced}},
    Entry{{"minLength", kEnforced}},
    Entry{{"maxLength", kEnforced}},
    Entry{{"pattern", kEnforced}},
    Entry{{"format", kEnforced}},
    Entry{{"minimum", kEnforced}},
    Entry{{"maximum", kEnforced}},
    Entry{{"exclusiveMinimum", kEnforced}},
    Entry{{"exclusiveMaximum", kEnforced}},
    Entry{{"multipleOf", kEnforced}},
    Entry{{"$defs", kAnnotation}, Holds::kByKey},
    Entry{{"definitions", kAnnotation}, Holds::kByKey},
    Entry{{"$schema", kAnnotation}},
    Entry{{"$id", kAnnotation}},
    Entry{{"id", kAnnotation}},
    Entry{{"$anchor", kAnnotation}},
    Entry{{"$comment", kAnnotation}},
    Entry{{"title", kAnnotation}},
    Entry{{"description", kAnnotation}},
    Entry{{"default", kAnnotation}},
    Entry{{"examples", kAnnotation}},
    Entry{{"readOnly", kAnnotation}},
    Entry{{"writeOnly", kAnnotation}},
    Entry{{"contentMediaType", kAnnotation}},
    Entry{{"contentEncoding", kAnnotation}},
    Entry{{"deprecated", kAnnotation}},
    Entry{{"contentSchema", kAnnotation}},
    Entry{{"not", kRefused}},
    Entry{{"if", kRefused}},
    Entry{{"then", kRefused}},
    Entry{{"else", kRefused}},
    Entry{{"dependencies", kRefused}},
    Entry{{"dependentRequired", kRefused}},
    Entry{{"dependentSchemas", kRefused}},
    Entry{{"contains", kRefused}},
    Entry{{"minContains", kRefused}},
    Entry{{"maxContains", kRefused}},
    Entry{{"uniqueItems", kRefused}},
    Entry{{"propertyNames", kRefused}},
    Entry{{"unevaluatedItems", kRefused}},
    Entry{{"unevaluatedProperties", kRefused}},
    Entry{{"$dynamicRef", kRefused}},
    Entry{{"$dynamicAnchor", kRefused}},
    Entry{{"$recursiveRef", kRefused}},
    Entry{{"$recursiveAnchor", kRefused}},
    Entry{{"$vocabulary", kRefused}},
    // The grammar library's own options: a client could switch off the refusals with them.
    Entry{{"x-guidance", kRefused}},
};

constexpr auto kKeywords = [] {
  std::array<SchemaKeyword, kEntries.size()> out;
  std::ranges::transform(kEntries, out.begin(), &Entry::keyword);
  return out;
}();

class Walk {
 public:
  Result<void> schema(const Json& value) {
    const JsonObject* const members = value.object();
    if (++nodes_ > kSchemaNodesMax) {
      return refuse("has more than " + std::to_string(kSchemaNodesMax) + " schemas");
    }
    if (members == nullptr) {
      return {};
    }
    for (const JsonMember& member : *members) {
      const auto entry = std::ranges::find(kEntries, member.key,
                                           [](const Entry& one) { return one.keyword.name; });
      if (entry == kEntries.end()) {
        continue;
      }
      const Step step(*this, "." + member.key);
      if (entry->keyword.use == kRefused && !says_nothing(member)) {
        return refuse("`" + member.key + "` cannot be enforced");
      }
      const bool outer = std::exchange(in_all_of_, in_all_of_ || member.key == "allOf");
      GALLEY_CHECK_OK(below(member, entry->holds));
      in_all_of_ = outer;
    }
    if (auto refused = limits_.check(*members, in_all_of_)) {
      path_.append(".").append(refused->keyword);
      return refuse(std::move(refused->what));
    }
    return {};
  }

 private:
  // Takes back what it adds to the path.
  class Step {
   public:
    Step(Walk& walk, std::string_view part) : walk_(walk), length_(walk.path_.size()) {
      walk.path_.append(part);
    }
    ~Step() {
      if (!walk_.failed_) {
        walk_.path_.resize(length_);
      }
    }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    Walk& walk_;
    const std::size_t length_;
  };

  // `uniqueItems: false`, `unevaluatedProperties: true` and their like ask for nothing.
  static bool says_nothing(const JsonMember& member) {
    const bool* const flag = member.value.boolean();
    return flag != nullptr && ((member.key == "uniqueItems" && !*flag) ||
                               (member.key.starts_with("unevaluated") && *flag) ||
                               (member.key == "propertyNames" && *flag));
  }

  std::unexpected<Error> refuse(std::string what) {
    failed_ = true;
    return fail(Code::kInvalidArgument, std::move(what), path_);
  }

  Result<void> below(const JsonMember& member, Holds holds) {
    if (holds == Holds::kNothing) {
      return {};
    }
    if (const JsonArray* const list = member.value.array()) {
      for (std::size_t i = 0; i < list->size(); ++i) {
        const Step step(*this, "[" + std::to_string(i) + "]");
        GALLEY_CHECK_OK(schema((*list)[i]));
      }
      return {};
    }
    if (holds == Holds::kSchema) {
      return schema(member.value);
    }
    if (const JsonObject* const by_key = member.value.object()) {
      if (member.key == "properties" && by_key->size() > kSchemaPropertiesMax) {
        return refuse("has more than " + std::to_string(kSchemaPropertiesMax) + " properties");
      }
      for (const JsonMember& one : *by_key) {
        const Step step(*this, "." + one.key);
        GALLEY_CHECK_OK(schema(one.value));
      }
    }
    return {};
  }

  std::string path_;
  std::size_t nodes_ = 0;
  SchemaLimits limits_;
  bool in_all_of_ = false;
  bool failed_ = false;
};

}  // namespace

std::span<const SchemaKeyword> schema_keywords() {
  return kKeywords;
}

Result<void> check_enforced(const Json& schema) {
  return Walk().schema(schema);
}

}  // namespace galley::recipe
