#include "gateway/multipart.h"

#include <algorithm>
#include <fmt/core.h>
#include <optional>
#include <utility>

#include "gateway/http_text.h"

namespace galley::gateway {
namespace {

constexpr std::size_t kBoundaryBytesMax = 70;  // RFC 2046

std::unexpected<Error> bad(std::string what) {
  return fail(Code::kInvalidArgument, std::move(what), "body");
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) {
    text.remove_suffix(1);
  }
  return text;
}

// A parameter of a header's value: `form-data; name="a b"; filename=x`. In quotes a backslash
// stands before a quote or a backslash; browsers write %22 for a quote.
std::optional<std::string> parameter(std::string_view value, std::string_view wanted) {
  std::size_t at = value.find(';');
  while (at < value.size()) {
    ++at;
    const std::size_t equals = value.find('=', at);
    if (equals == std::string_view::npos) {
      return std::nullopt;
    }
    const std::string_view name = trimmed(value.substr(at, equals - at));
    at = equals + 1;
    std::string text;
    if (at < value.size() && value[at] == '"') {
      for (++at; at < value.size() && value[at] != '"'; ++at) {
        if (value[at] == '\\' && at + 1 < value.size() &&
            (value[at + 1] == '"' || value[at + 1] == '\\')) {
          ++at;
        }
        text += value[at];
      }
      if (at == value.size()) {
        return std::nullopt;  // no end
      }
      at = std::min(value.find(';', at), value.size());
    } else {
      const std::size_t end = std::min(value.find(';', at), value.size());
      text = trimmed(value.substr(at, end - at));
      at = end;
    }
    if (same_ignoring_case(name, wanted)) {
      return text;
    }
  }
  return std::nullopt;
}

Result<FormPart> parse_part(std::string_view part, std::size_t index) {
  const std::size_t head_bytes = part.substr(0, kFormPartHeadBytesMax + 4).find("\r\n\r\n");
  if (head_bytes == std::string_view::npos) {
    return bad(
        fmt::format("part {} has no head that ends within {} bytes", index, kFormPartHeadBytesMax));
  }
  FormPart out{.name = {}, .filename = {}, .content = part.substr(head_bytes + 4)};
  std::string_view head = part.substr(0, head_bytes);
  while (!head.empty()) {
    const std::size_t end = std::min(head.find("\r\n"), head.size());
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(end + 2, head.size()));
    const std::size_t colon = line.find(':');
    if (colon != std::string_view::npos &&
        same_ignoring_case(line.substr(0, colon), "content-disposition")) {
      const std::string_view value = line.substr(colon + 1);
      out.name = parameter(value, "name").value_or("");
      out.filename = parameter(value, "filename").value_or("");
    }
  }
  if (out.name.empty()) {
    return bad(fmt::format("part {} has no name", index));
  }
  if (out.filename.size() > kFilenameBytesMax) {
    return fail(Code::kTooLarge,
                fmt::format("The file name has {} bytes, the limit is {}.", out.filename.size(),
                            kFilenameBytesMax),
                out.name);
  }
  return out;
}

}  // namespace

Result<std::vector<FormPart>> parse_multipart(std::string_view content_type,
                                              std::string_view body) {
  if (!same_ignoring_case(trimmed(content_type.substr(0, content_type.find(';'))),
                          "multipart/form-data")) {
    return fail(Code::kInvalidArgument, "must be multipart/form-data", "content-type");
  }
  const auto boundary = parameter(content_type, "boundary");
  if (!boundary || boundary->empty() || boundary->size() > kBoundaryBytesMax) {
    return fail(Code::kInvalidArgument,
                fmt::format("needs a boundary of 1 to {} bytes", kBoundaryBytesMax),
                "content-type");
  }
  const std::string first = "--" + *boundary;
  const std::string next = "\r\n" + first;
  std::size_t at = body.starts_with(first) ? first.size() : body.find(next);
  if (at == std::string_view::npos) {
    return bad("does not have the boundary that content-type names");
  }
  at += body.starts_with(first) ? 0 : next.size();
  std::vector<FormPart> parts;
  while (!body.substr(at).starts_with("--")) {
    if (!body.substr(at).starts_with("\r\n")) {
      return bad("has a boundary that its line does not end with");
    }
    at += 2;
    const std::size_t end = body.find(next, at);
    if (end == std::string_view::npos) {
      return bad("ends within a part");
    }
    if (parts.size() == kFormPartsMax) {
      return fail(Code::kTooLarge, fmt::format("has more than {} parts", kFormPartsMax), "body");
    }
    GALLEY_TRY(FormPart part, parse_part(body.substr(at, end - at), parts.size()));
    parts.push_back(std::move(part));
    at = end + next.size();
  }
  return parts;
}

}  // namespace galley::gateway
