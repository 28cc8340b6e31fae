#include "gateway/list_query.h"

#include <charconv>
#include <fmt/core.h>
#include <string>

#include "base/quote.h"
#include "gateway/http_text.h"

namespace galley::gateway {
namespace {

constexpr std::size_t kShownBytesMax = 64;

std::unexpected<Error> bad(std::string_view name, std::string_view value, std::string_view wanted) {
  return fail(
      Code::kInvalidArgument,
      fmt::format("{} is no value of `{}`: {}", quoted(value, kShownBytesMax), name, wanted),
      std::string(name));
}

}  // namespace

Result<ListPage> list_page(std::string_view query, std::size_t initial, std::size_t limit_max) {
  ListPage page{.limit = initial};
  if (const auto limit = query_value(query, "limit")) {
    const char* const end = limit->data() + limit->size();
    const auto [rest, error] = std::from_chars(limit->data(), end, page.limit);
    if (error != std::errc() || rest != end || page.limit < 1 || page.limit > limit_max) {
      return bad("limit", *limit, fmt::format("a number from 1 to {}", limit_max));
    }
  }
  if (const auto order = query_value(query, "order")) {
    if (*order != "asc" && *order != "desc") {
      return bad("order", *order, "asc or desc");
    }
    page.descending = *order == "desc";
  }
  page.after = query_value(query, "after").value_or("");
  return page;
}

}  // namespace galley::gateway
