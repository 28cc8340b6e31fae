#include "recipe/schema_pointer.h"

#include <cstddef>

namespace galley::recipe {
namespace {

// "%20" of a URI's fragment. Before the pointer is split (RFC 6901, part 6): "%2F" is a '/'.
std::string without_percents(std::string_view fragment) {
  const auto hex = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < fragment.size(); ++i) {
    if (fragment[i] == '%' && i + 2 < fragment.size() && hex(fragment[i + 1]) >= 0 &&
        hex(fragment[i + 2]) >= 0) {
      out.push_back(static_cast<char>(hex(fragment[i + 1]) * 16 + hex(fragment[i + 2])));
      i += 2;
    } else {
      out.push_back(fragment[i]);
    }
  }
  return out;
}

// "~1" and "~0" of a JSON pointer.
std::string without_tildes(std::string_view part) {
  std::string out(part);
  for (std::size_t i = 0; (i = out.find('~', i)) != std::string::npos; ++i) {
    if (i + 1 < out.size() && (out[i + 1] == '0' || out[i + 1] == '1')) {
      out.replace(i, 2, 1, out[i + 1] == '0' ? '~' : '/');
    }
  }
  return out;
}

}  // namespace

const Json* SchemaPointers::find(std::string_view fragment) {
  const std::string pointer = without_percents(fragment);
  const Json* place = &root_;
  std::string_view rest = pointer;
  while (!rest.empty() && place != nullptr) {
    rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(part.size());
    place = child(*place, without_tildes(part));
  }
  return place;
}

const Json* SchemaPointers::child(const Json& place, std::string_view key) {
  if (const JsonArray* const array = place.array()) {
    std::size_t index = 0;
    for (const char c : key) {
      if (c < '0' || c > '9' || index >= array->size()) {
        return nullptr;
      }
      index = index * 10 + static_cast<std::size_t>(c - '0');
    }
    return key.empty() || index >= array->size() ? nullptr : &(*array)[index];
  }
  const JsonObject* const members = place.object();
  if (members == nullptr) {
    return nullptr;
  }
  auto& index = members_[members];
  if (index.empty()) {
    for (const JsonMember& member : *members) {
      index.emplace(member.key, &member.value);
    }
  }
  const auto it = index.find(key);
  return it == index.end() ? nullptr : it->second;
}

}  // namespace galley::recipe
