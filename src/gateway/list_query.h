#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.h"
#include "gateway/list_page.h"

namespace galley::gateway {

// `limit`, `order` and `after` of a query; `initial` is the limit where none is asked for. Error:
// kInvalidArgument that names the parameter and what it may be.
[[nodiscard]] Result<ListPage> list_page(std::string_view query,
                                         std::size_t initial,
                                         std::size_t limit_max);

}  // namespace galley::gateway
