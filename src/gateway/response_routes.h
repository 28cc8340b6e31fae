#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "gateway/exchange.h"
#include "gateway/response_desk.h"
#include "recipe/request.h"

// The routes about a Response that is kept: read it, list what it was made from, delete it, cancel
// it. `id` is as the path spells it, decoded; each answers through `exchange`, later.
namespace galley::gateway {

struct ResponseRoute {
  ResponseDesk& desk;
  recipe::Compat compat{};
  std::string tenant;
  std::string id;
};

void get_response(ResponseRoute route, const std::shared_ptr<Exchange>& exchange);
void delete_response(ResponseRoute route, const std::shared_ptr<Exchange>& exchange);
void get_response_items(ResponseRoute route, const std::shared_ptr<Exchange>& exchange);
// Nothing that is kept runs any more: an error that says so, as the protocol has it for a response
// that was not made in the background.
void cancel_response(ResponseRoute route, const std::shared_ptr<Exchange>& exchange);

}  // namespace galley::gateway
