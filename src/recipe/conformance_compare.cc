#include <algorithm>
#include <fmt/core.h>
#include <string>
#include <utility>

#include "base/fnv1a.h"
#include "recipe/conformance_parts.h"

// Golden records: reading and comparing values.
namespace galley::recipe {
std::string string_of(const Json& value) {
  return value.string() == nullptr ? std::string() : *value.string();
}

std::int64_t int_of(const Json& value) {
  return value.int64() == nullptr ? 0 : *value.int64();
}

std::span<const JsonMember> members_of(const Json& value) {
  return value.object() == nullptr ? std::span<const JsonMember>()
                                   : std::span<const JsonMember>(*value.object());
}

std::string text_of(const Json& object, std::string_view key) {
  const Json* const value = object.find(key);
  return value == nullptr ? std::string() : string_of(*value);
}

std::int64_t integer_of(const Json& object, std::string_view key) {
  const Json* const value = object.find(key);
  return value == nullptr ? 0 : int_of(*value);
}

bool flag_of(const Json& object, std::string_view key) {
  const Json* const value = object.find(key);
  return value != nullptr && value->boolean() != nullptr && *value->boolean();
}

const Json& member_of(const Json& object, std::string_view key) {
  static const Json null;
  const Json* const value = object.find(key);
  return value == nullptr ? null : *value;
}

std::span<const Json> elements_of(const Json& value) {
  return value.array() == nullptr ? std::span<const Json>() : std::span<const Json>(*value.array());
}

namespace {

std::string shorten(std::string text) {
  constexpr std::size_t kShownMax = 160;
  if (text.size() > kShownMax) {
    text.resize(kShownMax);
    text.append("...");
  }
  return text;
}

}  // namespace

std::optional<std::string> first_difference(const Json& want,
                                            const Json& got,
                                            const std::string& path) {
  if (want.is_number() && got.is_number()) {
    if (*want.number() == *got.number()) {
      return std::nullopt;
    }
  } else if (want.object() != nullptr && got.object() != nullptr) {
    for (const JsonMember& member : *want.object()) {
      const Json* const other = got.find(member.key);
      if (other == nullptr) {
        return fmt::format("{}.{}: missing, want {}", path, member.key,
                           shorten(to_json(member.value)));
      }
      if (auto difference = first_difference(member.value, *other, path + "." + member.key)) {
        return difference;
      }
    }
    for (const JsonMember& member : *got.object()) {
      if (want.find(member.key) == nullptr) {
        return fmt::format("{}.{}: not wanted, got {}", path, member.key,
                           shorten(to_json(member.value)));
      }
    }
    return std::nullopt;
  } else if (want.array() != nullptr && got.array() != nullptr) {
    const JsonArray& a = *want.array();
    const JsonArray& b = *got.array();
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (auto difference = first_difference(a[i], b[i], fmt::format("{}[{}]", path, i))) {
        return difference;
      }
    }
    if (a.size() == b.size()) {
      return std::nullopt;
    }
    return fmt::format("{}: want {} elements, got {}; first extra {}", path, a.size(), b.size(),
                       shorten(to_json(a.size() > b.size() ? a[b.size()] : b[a.size()])));
  } else if (want == got) {
    return std::nullopt;
  }
  return fmt::format("{}: want {}, got {}", path, shorten(to_json(want)), shorten(to_json(got)));
}

void expect_json(const Json& want, const Json& got, const std::string& what, Differences& out) {
  if (auto difference = first_difference(want, got, what)) {
    out.push_back(std::move(*difference));
  }
}

void expect_text(std::string_view want,
                 std::string_view got,
                 std::string_view what,
                 Differences& out) {
  if (want == got) {
    return;
  }
  const auto at = static_cast<std::size_t>(std::ranges::mismatch(want, got).in1 - want.begin());
  constexpr std::size_t kContext = 40;
  const std::size_t from = at > kContext ? at - kContext : 0;
  const auto excerpt = [&](std::string_view text) {
    return to_json(Json(text.substr(std::min(from, text.size()), 2 * kContext)));
  };
  out.push_back(fmt::format("{}: differs at byte {}: want {}, got {}", what, at, excerpt(want),
                            excerpt(got)));
}

std::string fnv(std::string_view text) {
  Fnv1a hash;
  hash.add(text);
  return hash.hex();
}

void expect_ids(const Json& record, std::span<const TokenId> got, Differences& out) {
  Fnv1a hash;
  JsonArray ids;
  for (const TokenId id : got) {
    hash.add(id);
    ids.emplace_back(static_cast<std::int64_t>(id));
  }
  bool compared = false;
  for (const std::string_view key : {"ids", "prompt_token_ids"}) {
    if (const Json* const want = record.find(key)) {
      expect_json(*want, Json(ids), "ids", out);
      compared = true;
    }
  }
  for (const std::string_view key : {"n_ids", "n", "prompt_tokens"}) {
    if (const Json* const want = record.find(key)) {
      expect_json(*want, Json(static_cast<std::int64_t>(got.size())), std::string(key), out);
      compared = true;
    }
  }
  for (const std::string_view key : {"ids_fnv", "fnv"}) {
    if (record.find(key) != nullptr) {
      expect_text(text_of(record, key), hash.hex(), key, out);
      compared = true;
    }
  }
  if (!compared) {
    out.emplace_back("ids: neither they nor their number or hash, so there is nothing to check");
  }
}

}  // namespace galley::recipe
