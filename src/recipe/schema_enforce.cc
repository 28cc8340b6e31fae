#include "recipe/schema_enforce.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "recipe/schema_limits.h"
#include "recipe/schema_pointer.h"

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
    // Says nothing, but its anchors can be referred to.
    Entry{{"contentSchema", kAnnotation}, Holds::kSchema},
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

const Entry* entry_of(std::string_view key) {
  const auto entry =
      std::ranges::find(kEntries, key, [](const Entry& one) { return one.keyword.name; });
  return entry == kEntries.end() ? nullptr : &*entry;
}

class Walk {
 public:
  explicit Walk(const Json& root) : root_(root) {}

  Result<void> check() {
    GALLEY_CHECK_OK(schema(root_));
    SchemaPointers pointers(root_);
    for (const Json* const reference : references_) {
      if (!leads_to_walked(*reference->string(), pointers)) {
        // Once more, for its place: paths of all would cost their lengths.
        Walk again(root_);
        again.culprit_ = reference;
        return again.schema(root_);
      }
    }
    return {};
  }

 private:
  Result<void> schema(const Json& value) {
    const JsonObject* const members = value.object();
    if (++nodes_ > kSchemaNodesMax) {
      return refuse("has more than " + std::to_string(kSchemaNodesMax) + " schemas");
    }
    if (members == nullptr) {
      return {};
    }
    walked_.insert(&value);
    for (const JsonMember& member : *members) {
      const Entry* const entry = entry_of(member.key);
      if (entry == nullptr) {
        continue;
      }
      const Step step(*this, "." + member.key);
      if (&member.value == culprit_) {
        return refuse("`$ref` to a place where no keyword puts a schema cannot be enforced");
      }
      note(member, value);
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

  // References and what they name. Whether `id` is one depends on the draft; taken for one, it
  // refuses more.
  void note(const JsonMember& member, const Json& node) {
    const std::string* const text = member.value.string();
    if (text == nullptr) {
      return;
    }
    if (member.key == "$ref") {
      references_.push_back(&member.value);
    } else if (member.key == "$anchor") {
      anchors_.insert(*text);
    } else if (member.key == "$id" || member.key == "id") {
      ids_.insert(SchemaReference(*text).base);
      id_below_ = id_below_ || &node != &root_;
    }
  }

  // Below an id of its own a pointer begins there, not at the top: what it would lead to is not
  // known here. Anchors and ids are found by the library where keywords put schemas only.
  bool leads_to_walked(std::string_view text, SchemaPointers& pointers) const {
    const SchemaReference reference(text);
    if (!reference.base.empty() && !ids_.contains(reference.base)) {
      return false;
    }
    if (!reference.is_pointer()) {
      return anchors_.contains(reference.fragment);
    }
    if (!reference.base.empty() && reference.fragment.empty()) {
      return true;
    }
    const Json* const target = id_below_ ? nullptr : pointers.find(reference.fragment);
    return target != nullptr && (target->boolean() != nullptr || walked_.contains(target));
  }

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

  const Json& root_;
  const Json* culprit_ = nullptr;  // the reference to refuse
  std::string path_;
  std::size_t nodes_ = 0;
  SchemaLimits limits_;
  bool in_all_of_ = false;
  std::unordered_set<const Json*> walked_;  // all schemas but true and false
  std::vector<const Json*> references_;
  std::unordered_set<std::string_view> anchors_;
  std::unordered_set<std::string_view> ids_;
  bool id_below_ = false;  // one that is not the whole document's
  bool failed_ = false;
};

}  // namespace

std::span<const SchemaKeyword> schema_keywords() {
  return kKeywords;
}

Result<void> check_enforced(const Json& schema) {
  return Walk(schema).check();
}

void visit_references(Json& schema, const std::function<void(std::string&)>& visit) {
  if (schema.object() == nullptr) {
    return;
  }
  for (JsonMember& member : *schema.object()) {
    const Entry* const entry = entry_of(member.key);
    if (member.key == "$ref" && member.value.string() != nullptr) {
      visit(*member.value.string());
    }
    if (entry == nullptr || entry->holds == Holds::kNothing) {
      continue;
    }
    if (JsonArray* const list = member.value.array()) {
      for (Json& one : *list) {
        visit_references(one, visit);
      }
    } else if (entry->holds == Holds::kSchema) {
      visit_references(member.value, visit);
    } else if (JsonObject* const by_key = member.value.object()) {
      for (JsonMember& one : *by_key) {
        visit_references(one.value, visit);
      }
    }
  }
}

}  // namespace galley::recipe
