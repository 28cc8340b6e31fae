#include "recipe/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <simdjson.h>
#include <unordered_map>

#include "recipe/limits.h"

namespace galley::recipe {
namespace {

namespace ondemand = simdjson::ondemand;

// Below this many members a linear look for duplicates is faster than a hash table; above it would
// be quadratic.
constexpr std::size_t kLinearMembersMax = 16;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// RFC 8259 number: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
struct NumberShape {
  bool valid = false;
  bool integer = false;
};
NumberShape number_shape(std::string_view text) {
  std::size_t i = 0;
  const auto at = [&](std::size_t k) { return k < text.size() ? text[k] : '\0'; };
  if (at(i) == '-') {
    ++i;
  }
  if (!is_digit(at(i))) {
    return {};
  }
  if (at(i) == '0') {
    ++i;
  } else {
    while (is_digit(at(i))) {
      ++i;
    }
  }
  NumberShape shape{.valid = false, .integer = true};
  if (at(i) == '.') {
    shape.integer = false;
    if (!is_digit(at(++i))) {
      return {};
    }
    while (is_digit(at(i))) {
      ++i;
    }
  }
  if (at(i) == 'e' || at(i) == 'E') {
    shape.integer = false;
    ++i;
    if (at(i) == '+' || at(i) == '-') {
      ++i;
    }
    if (!is_digit(at(i))) {
      return {};
    }
    while (is_digit(at(i))) {
      ++i;
    }
  }
  shape.valid = i == text.size();
  return shape;
}

class Walker {
 public:
  Result<Json> value(ondemand::value value, int depth) {
    ondemand::json_type type{};
    if (const auto error = value.type().get(type)) {
      return wrong(error);
    }
    switch (type) {
      case ondemand::json_type::array:
        return array(value, depth);
      case ondemand::json_type::object:
        return object(value, depth);
      case ondemand::json_type::string:
        return string(value);
      default:
        return scalar(value.raw_json_token());
    }
  }

  static Result<Json> scalar(std::string_view token) {
    while (!token.empty() && (token.back() == ' ' || token.back() == '\n' || token.back() == '\r' ||
                              token.back() == '\t')) {
      token.remove_suffix(1);
    }
    if (token == "null") {
      return Json{};
    }
    if (token == "true") {
      return Json{true};
    }
    if (token == "false") {
      return Json{false};
    }
    return number(token);
  }

  static std::unexpected<Error> wrong(simdjson::error_code error) {
    return fail(Code::kInvalidArgument, simdjson::error_message(error));
  }

 private:
  static Result<Json> number(std::string_view token) {
    const NumberShape shape = number_shape(token);
    if (!shape.valid) {
      return fail(Code::kInvalidArgument, "expected a JSON value");
    }
    const char* const first = token.data();
    const char* const last = first + token.size();
    if (shape.integer && token != "-0") {
      std::int64_t small{};
      if (std::from_chars(first, last, small).ec == std::errc{}) {
        return Json{small};
      }
      std::uint64_t large{};
      if (std::from_chars(first, last, large).ec == std::errc{}) {
        return Json{large};
      }
    }
    double real{};
    if (std::from_chars(first, last, real).ec == std::errc::result_out_of_range) {
      // from_chars reports both ends: what rounds to zero or a subnormal is a number, what
      // overflows is not.
      real = std::strtod(std::string(token).c_str(), nullptr);
      if (!std::isfinite(real)) {
        return fail(Code::kInvalidArgument, "number out of range");
      }
    }
    return Json{real};
  }

  static Result<Json> string(ondemand::value& value) {
    std::string_view text;
    if (const auto error = value.get_string().get(text)) {
      return wrong(error);
    }
    return Json{text};
  }

  Result<Json> array(ondemand::value& value, int depth) {
    if (depth > kJsonDepthMax) {
      return fail(Code::kInvalidArgument, "recursion limit exceeded");
    }
    ondemand::array elements;
    if (const auto error = value.get_array().get(elements)) {
      return wrong(error);
    }
    JsonArray out;
    for (auto element : elements) {
      ondemand::value inner;
      if (const auto error = element.get(inner)) {
        return wrong(error);
      }
      GALLEY_TRY(out.emplace_back(), this->value(inner, depth + 1));
    }
    return Json{std::move(out)};
  }

  Result<Json> object(ondemand::value& value, int depth) {
    if (depth > kJsonDepthMax) {
      return fail(Code::kInvalidArgument, "recursion limit exceeded");
    }
    ondemand::object members;
    if (const auto error = value.get_object().get(members)) {
      return wrong(error);
    }
    JsonObject out;
    for (auto member : members) {
      ondemand::field field;
      if (const auto error = std::move(member).get(field)) {
        return wrong(error);
      }
      std::string_view key;
      if (const auto error = field.unescaped_key().get(key)) {
        return wrong(error);
      }
      out.emplace_back(std::string(key), Json{});
      GALLEY_TRY(out.back().value, this->value(field.value(), depth + 1));
    }
    merge_duplicates(out);
    return Json{std::move(out)};
  }

  // Last value, first position.
  static void merge_duplicates(JsonObject& members) {
    if (members.size() <= kLinearMembersMax) {
      for (std::size_t i = 1; i < members.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
          if (members[i].key == members[j].key) {
            members[j].value = std::move(members[i].value);
            members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
            --i;
            break;
          }
        }
      }
      return;
    }
    std::unordered_map<std::string, std::size_t> position;
    JsonObject kept;
    kept.reserve(members.size());
    for (JsonMember& member : members) {
      const auto [it, fresh] = position.emplace(member.key, kept.size());
      if (fresh) {
        kept.push_back(std::move(member));
      } else {
        kept[it->second].value = std::move(member.value);
      }
    }
    members = std::move(kept);
  }
};

void append_json_at(const Json& value, JsonStyle style, std::string& out);

void append_separator(JsonStyle style, std::string& out) {
  out.append(style.spacing == JsonSpacing::kSpaced ? ", " : ",");
}

template <class Integer>
void append_integer(Integer value, std::string& out) {
  std::array<char, 24> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), end);
}

void append_array(const JsonArray& array, JsonStyle style, std::string& out) {
  out.push_back('[');
  for (std::size_t i = 0; i < array.size(); ++i) {
    if (i != 0) {
      append_separator(style, out);
    }
    append_json_at(array[i], style, out);
  }
  out.push_back(']');
}

void append_object(const JsonObject& object, JsonStyle style, std::string& out) {
  out.push_back('{');
  for (std::size_t i = 0; i < object.size(); ++i) {
    if (i != 0) {
      append_separator(style, out);
    }
    append_json_string(object[i].key, out);
    out.append(style.spacing == JsonSpacing::kSpaced ? ": " : ":");
    append_json_at(object[i].value, style, out);
  }
  out.push_back('}');
}

void append_json_at(const Json& value, JsonStyle style, std::string& out) {
  if (value.is_null()) {
    out.append("null");
  } else if (const bool* const boolean = value.boolean()) {
    out.append(*boolean ? "true" : "false");
  } else if (const std::int64_t* const small = value.int64()) {
    append_integer(*small, out);
  } else if (const std::uint64_t* const large = value.uint64()) {
    append_integer(*large, out);
  } else if (const double* const real = value.real()) {
    append_json_double(*real, style.numbers, out);
  } else if (const std::string* const text = value.string()) {
    append_json_string(*text, out);
  } else if (const JsonArray* const array = value.array()) {
    append_array(*array, style, out);
  } else {
    append_object(*value.object(), style, out);
  }
}

}  // namespace

std::optional<double> Json::number() const {
  if (const std::int64_t* const small = int64()) {
    return static_cast<double>(*small);
  }
  if (const std::uint64_t* const large = uint64()) {
    return static_cast<double>(*large);
  }
  if (const double* const real_value = real()) {
    return *real_value;
  }
  return std::nullopt;
}

const Json* Json::find(std::string_view key) const {
  const JsonObject* const members = object();
  if (members == nullptr) {
    return nullptr;
  }
  const auto it = std::ranges::find(*members, key, &JsonMember::key);
  return it == members->end() ? nullptr : &it->value;
}

Json* Json::find(std::string_view key) {
  return const_cast<Json*>(std::as_const(*this).find(key));
}

std::string_view Json::type_name() const {
  constexpr std::array<std::string_view, 8> kNames = {"null",   "boolean", "integer", "integer",
                                                      "number", "string",  "array",   "object"};
  return kNames[value_.index()];
}

bool operator==(const Json& a, const Json& b) {
  return a.value_ == b.value_;
}

void set_member(JsonObject& object, std::string_view key, Json value) {
  const auto it = std::ranges::find(object, key, &JsonMember::key);
  if (it == object.end()) {
    object.emplace_back(std::string(key), std::move(value));
  } else {
    it->value = std::move(value);
  }
}

Result<Json> parse_json(std::string_view text) {
  const simdjson::padded_string padded(text);
  ondemand::parser parser;
  ondemand::document document;
  const auto place = [&](Error error) {
    const char* location = nullptr;
    if (error.where.empty() && document.current_location().get(location) == simdjson::SUCCESS) {
      error.where = "byte " + std::to_string(location - padded.data());
    }
    return std::unexpected(std::move(error));
  };
  if (const auto error = parser.iterate(padded).get(document)) {
    return Walker::wrong(error);
  }
  bool is_scalar = false;
  if (const auto error = document.is_scalar().get(is_scalar)) {
    return place(Walker::wrong(error).error());
  }
  if (is_scalar) {
    // On-demand wraps a scalar root differently; as the only element of an array it is an ordinary
    // value.
    std::string wrapped;
    wrapped.reserve(text.size() + 2);
    wrapped.append("[").append(text).append("]");
    GALLEY_TRY(Json array, parse_json(wrapped));
    if (array.array()->size() != 1) {
      return fail(Code::kInvalidArgument, "trailing characters");
    }
    return std::move((*array.array())[0]);
  }
  ondemand::value root;
  if (const auto error = document.get_value().get(root)) {
    return place(Walker::wrong(error).error());
  }
  Result<Json> value = Walker{}.value(root, 1);
  if (!value) {
    return place(std::move(value).error());
  }
  if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {  // i.e. not at the end
    return place(Error{Code::kInvalidArgument, "trailing characters", {}});
  }
  return value;
}

void append_json(const Json& value, JsonStyle style, std::string& out) {
  append_json_at(value, style, out);
}

std::string to_json(const Json& value, JsonStyle style) {
  std::string out;
  append_json(value, style, out);
  return out;
}

namespace {

// First position from `from` on whose eight bytes may need an escape, or the last few bytes. A
// streamed reply is escaped token by token: this is the codec's innermost loop.
std::size_t skip_plain(std::string_view text, std::size_t from) {
  constexpr std::uint64_t kOnes = 0x0101010101010101U;
  constexpr std::uint64_t kHighs = 0x8080808080808080U;
  for (; from + sizeof(std::uint64_t) <= text.size(); from += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + from, sizeof(word));
    const std::uint64_t quote = word ^ (kOnes * '"');
    const std::uint64_t backslash = word ^ (kOnes * '\\');
    // The high bit of a byte below n is set in (x - n) & ~x; borrows can only add hits.
    const std::uint64_t hits = ((word - kOnes * 0x20) & ~word) | ((quote - kOnes) & ~quote) |
                               ((backslash - kOnes) & ~backslash);
    if ((hits & kHighs) != 0) {
      break;
    }
  }
  return from;
}

}  // namespace

void append_json_escaped(std::string_view text, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::size_t plain = 0;
  std::size_t checked = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i >= checked) {
      i = skip_plain(text, i);
      checked = i + sizeof(std::uint64_t);
      if (i >= text.size()) {
        break;
      }
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') {
      continue;
    }
    out.append(text, plain, i - plain);
    plain = i + 1;
    switch (byte) {
      case '"':
        out.append("\\\"");
        break;
      case '\\':
        out.append("\\\\");
        break;
      case '\b':
        out.append("\\b");
        break;
      case '\f':
        out.append("\\f");
        break;
      case '\n':
        out.append("\\n");
        break;
      case '\r':
        out.append("\\r");
        break;
      case '\t':
        out.append("\\t");
        break;
      default:
        out.append("\\u00");
        out.push_back(kHex[byte >> 4U]);
        out.push_back(kHex[byte & 15U]);
    }
  }
  out.append(text, plain, text.size() - plain);
}

void append_json_string(std::string_view text, std::string& out) {
  out.push_back('"');
  append_json_escaped(text, out);
  out.push_back('"');
}

void append_json_double(double value, JsonNumbers numbers, std::string& out) {
  // Shortest digits that round-trip, as d[.ddd]e±XX, then laid out.
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific)
                       .ptr;
  std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  if (text.front() == '-') {
    out.push_back('-');
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  int exponent = 0;
  const char* const exponent_first = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(exponent_first, text.data() + text.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 1) {
    digits.append(text.substr(2, e - 2));
  }
  const int plain_exponent_min = numbers == JsonNumbers::kPython ? -4 : -5;
  constexpr int kPlainExponentMax = 15;
  if (exponent < plain_exponent_min || exponent > kPlainExponentMax) {
    out.push_back(digits[0]);
    if (digits.size() > 1) {
      out.append(".").append(digits, 1);
    }
    out.append(exponent < 0 ? "e-" : "e+");
    const int magnitude = exponent < 0 ? -exponent : exponent;
    if (magnitude < 10 && numbers == JsonNumbers::kPython) {
      out.push_back('0');
    }
    append_integer(magnitude, out);
    return;
  }
  if (exponent < 0) {
    out.append("0.").append(static_cast<std::size_t>(-exponent - 1), '0').append(digits);
    return;
  }
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) {
    out.append(digits).append(whole - digits.size(), '0').append(".0");
  } else {
    out.append(digits, 0, whole).append(".").append(digits, whole);
  }
}

}  // namespace galley::recipe
