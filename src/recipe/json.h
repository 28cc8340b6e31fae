#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

// JSON as the prompts need it: member order kept, duplicate keys resolved as "last value at the
// first position", integers kept apart from doubles, and the two number spellings the models were
// trained on (spec recipe 2.5).
namespace galley::recipe {

class Json;
struct JsonMember;
using JsonArray = std::vector<Json>;
using JsonObject = std::vector<JsonMember>;

class Json {
 public:
  // Defined below JsonMember, which a destructor of the members needs whole.
  Json() noexcept;  // null
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();
  Json(std::nullptr_t);          // NOLINT(google-explicit-constructor)
  Json(bool value);              // NOLINT(google-explicit-constructor)
  Json(int value);               // NOLINT(google-explicit-constructor)
  Json(std::int64_t value);      // NOLINT(google-explicit-constructor)
  Json(std::uint64_t value);     // NOLINT(google-explicit-constructor)
  Json(double value);            // NOLINT(google-explicit-constructor)
  Json(std::string value);       // NOLINT(google-explicit-constructor)
  Json(std::string_view value);  // NOLINT(google-explicit-constructor)
  Json(const char* value);       // NOLINT(google-explicit-constructor)
  Json(JsonArray value);         // NOLINT(google-explicit-constructor)
  Json(JsonObject value);        // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  [[nodiscard]] bool is_number() const { return number().has_value(); }

  // The value when it has that type, else nullptr.
  [[nodiscard]] const bool* boolean() const { return std::get_if<bool>(&value_); }
  [[nodiscard]] const std::string* string() const { return std::get_if<std::string>(&value_); }
  [[nodiscard]] const JsonArray* array() const { return std::get_if<JsonArray>(&value_); }
  [[nodiscard]] const JsonObject* object() const { return std::get_if<JsonObject>(&value_); }
  [[nodiscard]] std::string* string() { return std::get_if<std::string>(&value_); }
  [[nodiscard]] JsonArray* array() { return std::get_if<JsonArray>(&value_); }
  [[nodiscard]] JsonObject* object() { return std::get_if<JsonObject>(&value_); }
  // Integers are stored as int64 when they fit, else as uint64; everything else is a double.
  [[nodiscard]] const std::int64_t* int64() const { return std::get_if<std::int64_t>(&value_); }
  [[nodiscard]] const std::uint64_t* uint64() const { return std::get_if<std::uint64_t>(&value_); }
  [[nodiscard]] const double* real() const { return std::get_if<double>(&value_); }
  [[nodiscard]] std::optional<double> number() const;  // any numeric kind, rounded to double

  // Member of an object; nullptr when absent or when this is no object. A null member is returned
  // as such.
  [[nodiscard]] const Json* find(std::string_view key) const;
  [[nodiscard]] Json* find(std::string_view key);

  // "null", "boolean", "integer", "number", "string", "array", "object", for error texts.
  [[nodiscard]] std::string_view type_name() const;

  friend bool operator==(const Json&, const Json&);

 private:
  std::variant<std::monostate,
               bool,
               std::int64_t,
               std::uint64_t,
               double,
               std::string,
               JsonArray,
               JsonObject>
      value_;
};

struct JsonMember {
  std::string key;
  Json value;
  friend bool operator==(const JsonMember&, const JsonMember&) = default;
};

inline Json::Json() noexcept = default;
inline Json::Json(const Json& other) = default;
inline Json::Json(Json&& other) noexcept = default;
inline Json& Json::operator=(const Json& other) = default;
inline Json& Json::operator=(Json&& other) noexcept = default;
inline Json::~Json() = default;
inline Json::Json(std::nullptr_t) {}
inline Json::Json(bool value) : value_(value) {}
inline Json::Json(int value) : value_(std::int64_t{value}) {}
inline Json::Json(std::int64_t value) : value_(value) {}
inline Json::Json(std::uint64_t value) : value_(value) {}
inline Json::Json(double value) : value_(value) {}
inline Json::Json(std::string value) : value_(std::move(value)) {}
inline Json::Json(std::string_view value) : value_(std::string(value)) {}
inline Json::Json(const char* value) : value_(std::string(value)) {}
inline Json::Json(JsonArray value) : value_(std::move(value)) {}
inline Json::Json(JsonObject value) : value_(std::move(value)) {}

// Appends or replaces (keeping the position) a member of `object`.
void set_member(JsonObject& object, std::string_view key, Json value);

// Strict RFC 8259 plus the reference's limits: whole input is one value; UTF-8 must be well formed;
// no lone surrogate escapes; no number that overflows a double; nesting at most kJsonDepthMax
// (recipe/limits.h). Integers outside [-2^63, 2^64) become doubles and "-0" becomes -0.0. Linear in
// the input. Error: kInvalidArgument, `what` names the problem, `where` is "byte N".
[[nodiscard]] Result<Json> parse_json(std::string_view text);

enum class JsonNumbers : std::uint8_t {
  kRust,    // V4 prompts and every compact text: 0.00001, 2.5e-7
  kPython,  // V4.1 prompts: 1e-05, 2.5e-07
};

enum class JsonSpacing : std::uint8_t {
  kCompact,  // {"a":1,"b":2}
  kSpaced,   // {"a": 1, "b": 2}, what prompts contain
};

struct JsonStyle {
  JsonNumbers numbers = JsonNumbers::kRust;
  JsonSpacing spacing = JsonSpacing::kCompact;
};

// Appends the text of `value`. Non-ASCII, '/', DEL and U+2028 stay unescaped; control characters
// become
// \b \f \n \r \t or \u00xx in lower-case hex (spec recipe 2.5).
void append_json(const Json& value, JsonStyle style, std::string& out);
[[nodiscard]] std::string to_json(const Json& value, JsonStyle style = {});

// Appends `text` escaped as above, without (append_json_escaped) or with (append_json_string) the
// quotes.
void append_json_escaped(std::string_view text, std::string& out);
void append_json_string(std::string_view text, std::string& out);
void append_json_double(double value, JsonNumbers numbers, std::string& out);

}  // namespace galley::recipe
