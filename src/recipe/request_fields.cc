#include "recipe/request_fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "recipe/limits.h"
#include "recipe/request_text.h"

namespace galley::recipe {
namespace {

constexpr std::size_t kClipBytes = 64;

// "a string", "an object", "null".
std::string with_article(std::string_view type) {
  if (type == "null") {
    return "null";
  }
  const bool vowel = type.front() == 'a' || type.front() == 'i' || type.front() == 'o';
  return std::string(vowel ? "an " : "a ").append(type);
}

}  // namespace
// --- paths and errors --------------------------------------------------------------------------

std::string Path::text() const {
  return spelled(true);
}

std::string Path::pattern() const {
  return spelled(false);
}

std::string Path::spelled(bool with_indices) const {
  if (parent_ == nullptr) {
    return {};
  }
  std::string out = parent_->spelled(with_indices);
  if (key_.empty()) {
    return out.append("[").append(with_indices ? std::to_string(index_) : "").append("]");
  }
  if (!out.empty()) {
    out.push_back('.');
  }
  return out.append(key_);
}

std::unexpected<Error> invalid(std::string what, const Path& at) {
  std::string where = at.text();
  return fail(Code::kInvalidArgument, std::move(what), where.empty() ? "body" : std::move(where));
}

std::unexpected<Error> wrong_type(const Json& value, std::string_view expected, const Path& at) {
  std::string what = "Invalid type for '";
  std::string where = at.text();
  what.append(where.empty() ? "body" : where).append("': expected ").append(expected);
  what.append(", but got ").append(with_article(value.type_name())).append(" instead.");
  return invalid(std::move(what), at);
}

std::unexpected<Error> missing(const Path& at) {
  return invalid("Missing required parameter: '" + at.text() + "'.", at);
}

std::unexpected<Error> unknown_value(std::string_view value,
                                     std::span<const std::string_view> known,
                                     const Path& at) {
  std::string what = "Invalid value: '";
  what.append(clipped(value)).append("'. Supported values are: ");
  for (std::size_t i = 0; i < known.size(); ++i) {
    what.append(i == 0 ? "'" : ", '").append(known[i]).append("'");
  }
  return invalid(what.append("."), at);
}

std::string_view clipped(std::string_view text) {
  if (text.size() <= kClipBytes) {
    return text;
  }
  std::size_t end = kClipBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  return text.substr(0, end);
}

// --- members -----------------------------------------------------------------------------------

Result<Fields> Fields::open(Json& value, const Path& at) {
  JsonObject* const object = value.object();
  if (object == nullptr) {
    return wrong_type(value, "an object", at);
  }
  return Fields(*object, at);
}

Json* Fields::find(std::string_view key) const {
  Json* const value = find_any(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Json* Fields::find_any(std::string_view key) const {
  const auto it = std::ranges::find(*object_, key, &JsonMember::key);
  if (it == object_->end()) {
    return nullptr;
  }
  const auto index = static_cast<std::size_t>(it - object_->begin());
  if (index < kTrackedMax) {
    read_.set(index);
  }
  return &it->value;
}

void Fields::expect(std::initializer_list<std::string_view> keys) const {
  for (const std::string_view key : keys) {
    std::ignore = find_any(key);
  }
}

void Fields::note_unread(std::vector<std::string>& notes) const {
  const std::size_t count = std::min(object_->size(), kTrackedMax);
  for (std::size_t i = 0; i < count && notes.size() < kNoteCountMax; ++i) {
    const auto& [key, value] = (*object_)[i];
    const bool asks = !value.is_null() && (value.array() == nullptr || !value.array()->empty());
    if (asks && !read_.test(i)) {
      std::string place = at_->pattern();
      place.append(place.empty() ? "" : ".").append(clipped(key));
      add_note(notes, "`" + place + "` is ignored");
    }
  }
}

Result<std::optional<std::string>> Fields::text(std::string_view key) const {
  Json* const value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (std::string* const string = value->string()) {
    return std::move(*string);
  }
  return wrong_type(*value, "a string", at_->member(key));
}

Result<std::string> Fields::required_text(std::string_view key) const {
  GALLEY_TRY(std::optional<std::string> value, text(key));
  if (!value) {
    return missing(at_->member(key));
  }
  return std::move(*value);
}

Result<std::optional<bool>> Fields::boolean(std::string_view key) const {
  const Json* const value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (const bool* const boolean = value->boolean()) {
    return *boolean;
  }
  return wrong_type(*value, "a boolean", at_->member(key));
}

Result<std::optional<std::uint64_t>> Fields::natural(std::string_view key,
                                                     std::uint64_t max) const {
  const Json* const value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::int64_t* const small = value->int64();
  const std::uint64_t* const large = value->uint64();
  if (small == nullptr && large == nullptr) {
    return wrong_type(*value, "an integer", at_->member(key));
  }
  const std::uint64_t number = small != nullptr ? static_cast<std::uint64_t>(*small) : *large;
  if ((small != nullptr && *small < 0) || number > max) {
    return invalid("Invalid value for '" + at_->member(key).text() +
                       "': expected an integer from 0 to " + std::to_string(max) + ", but got " +
                       to_json(*value) + " instead.",
                   at_->member(key));
  }
  return number;
}

Result<std::optional<float>> Fields::real(std::string_view key) const {
  const Json* const value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::optional<double> number = value->number();
  if (!number) {
    return wrong_type(*value, "a number", at_->member(key));
  }
  if (std::abs(*number) > double{std::numeric_limits<float>::max()}) {
    return std::copysign(std::numeric_limits<float>::infinity(), *number > 0 ? 1.0F : -1.0F);
  }
  return static_cast<float>(*number);
}

Result<JsonArray*> Fields::array(std::string_view key) const {
  Json* const value = find(key);
  if (value == nullptr) {
    return nullptr;
  }
  if (JsonArray* const array = value->array()) {
    return array;
  }
  return wrong_type(*value, "an array", at_->member(key));
}

Result<JsonArray*> Fields::required_array(std::string_view key) const {
  GALLEY_TRY(JsonArray* const value, array(key));
  if (value == nullptr) {
    return missing(at_->member(key));
  }
  return value;
}

Result<std::optional<std::size_t>> Fields::choice(std::string_view key,
                                                  std::span<const std::string_view> known) const {
  const Json* const value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::string* const text = value->string();
  if (text == nullptr) {
    return wrong_type(*value, "a string", at_->member(key));
  }
  const auto it = std::ranges::find(known, *text);
  if (it == known.end()) {
    return unknown_value(*text, known, at_->member(key));
  }
  return static_cast<std::size_t>(it - known.begin());
}

Result<std::size_t> Fields::required_choice(std::string_view key,
                                            std::span<const std::string_view> known) const {
  GALLEY_TRY(const std::optional<std::size_t> value, choice(key, known));
  if (!value) {
    return missing(at_->member(key));
  }
  return *value;
}

// --- notes -------------------------------------------------------------------------------------

void add_note(std::vector<std::string>& notes, std::string note) {
  if (notes.size() < kNoteCountMax && std::ranges::find(notes, note) == notes.end()) {
    notes.push_back(std::move(note));
  }
}

Result<void> refuse_fields(const Fields& body, std::span<const RefusedField> refused) {
  for (const RefusedField& field : refused) {
    if (body.find(field.name) != nullptr) {
      return invalid(
          "Unsupported parameter: '" + std::string(field.name) + "'. " + std::string(field.advice),
          body.at().member(field.name));
    }
  }
  return {};
}

// --- body, model, user -------------------------------------------------------------------------

Result<Json> parse_body(std::string_view body) {
  if (body.size() > kBodyBytesMax) {
    return fail(Code::kTooLarge,
                "The request body has " + std::to_string(body.size()) + " bytes, the limit is " +
                    std::to_string(kBodyBytesMax) + ".",
                "body");
  }
  Result<Json> value = parse_json(body);
  if (!value) {
    Error error = std::move(value).error();
    if (error.where.empty()) {
      error.where = "body";
    }
    return in_step("invalid JSON request", std::move(error));
  }
  if (value->object() == nullptr) {
    return wrong_type(*value, "an object", Path());
  }
  return value;
}

Result<ModelVersion> find_model(const CodecOptions& options, std::string_view name) {
  if (const auto it = options.models.find(name); it != options.models.end()) {
    return it->second;
  }
  std::string names;
  for (const auto& [known, version] : options.models) {  // the map is sorted
    names.append(names.empty() ? "" : ", ").append(known);
  }
  const Path body;
  // The reference repeats the name in full.
  const std::string_view shown = options.compat == Compat::kGalley ? clipped(name) : name;
  return invalid(
      "The supported API model names are " + names + ", but you passed " + std::string(shown) + ".",
      body.member("model"));
}

Result<void> check_user(std::string_view user, bool strict, const Path& at) {
  if (user.size() > kUserIdBytesMax || (strict && user.empty()) ||
      (strict && !std::ranges::all_of(user, is_name_byte))) {
    return invalid("Invalid '" + at.text() + "': expected " + (strict ? "1 to " : "at most ") +
                       std::to_string(kUserIdBytesMax) +
                       (strict ? " characters of '^[a-zA-Z0-9_-]+$'." : " bytes."),
                   at);
  }
  return {};
}

Result<std::string> read_user(const Fields& body) {
  GALLEY_TRY(std::optional<std::string> user_id, body.text("user_id"));
  GALLEY_TRY(std::optional<std::string> user, body.text("user"));
  if (user_id) {
    GALLEY_CHECK_OK(check_user(*user_id, true, body.at().member("user_id")));
  } else if (user) {
    GALLEY_CHECK_OK(check_user(*user, false, body.at().member("user")));
  }
  return std::move(user_id).value_or(std::move(user).value_or(""));
}

}  // namespace galley::recipe
