#include "gateway/response_routes.h"

#include <utility>

#include "gateway/generation_reply.h"
#include "gateway/http_text.h"
#include "gateway/list_query.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

using recipe::JsonObject;
using recipe::Protocol;

// `work` on the store's thread makes the JSON text of the reply.
template <typename Work>
void answer(ResponseRoute route, const std::shared_ptr<Exchange>& exchange, Work work) {
  const recipe::Compat compat = route.compat;
  ResponseDesk& desk = route.desk;
  const bool posted =
      desk.post([route = std::move(route), exchange, work = std::move(work)](ResponseStore& store) {
        if (exchange->gone()) {
          return;
        }
        Result<std::string> made = work(store, route);
        exchange->post([exchange, compat = route.compat, made = std::move(made)]() mutable {
          if (!made) {
            exchange->respond(error_response(Protocol::kResponses, compat, made.error()));
            return;
          }
          exchange->respond(
              {.headers = {{"content-type", "application/json"}}, .body = std::move(*made)});
        });
      });
  if (!posted) {
    exchange->respond(error_response(
        Protocol::kResponses, compat,
        {.code = Code::kOverloaded, .what = "Too many requests wait for the disk. Retry later."}));
  }
}

}  // namespace

void get_response(ResponseRoute route, const std::shared_ptr<Exchange>& exchange) {
  if (query_value(exchange->request().query, "stream") == "true") {
    return exchange->respond(
        error_response(Protocol::kResponses, route.compat,
                       {.code = Code::kInvalidArgument,
                        .what = "Only a response that runs in the background can be streamed.",
                        .where = "stream"}));
  }
  answer(std::move(route), exchange,
         [](ResponseStore& store, const ResponseRoute& asked) -> Result<std::string> {
           GALLEY_TRY(StoredResponse found, store.get(asked.tenant, asked.id));
           return std::move(found.body);
         });
}

void delete_response(ResponseRoute route, const std::shared_ptr<Exchange>& exchange) {
  answer(std::move(route), exchange,
         [](ResponseStore& store, const ResponseRoute& asked) -> Result<std::string> {
           GALLEY_CHECK_OK(store.remove(asked.tenant, asked.id));
           return to_json(JsonObject{{"id", asked.id}, {"object", "response"}, {"deleted", true}});
         });
}

void get_response_items(ResponseRoute route, const std::shared_ptr<Exchange>& exchange) {
  auto page = list_page(exchange->request().query, ListPage().limit, kItemPageMax);
  if (!page) {
    return exchange->respond(error_response(Protocol::kResponses, route.compat, page.error()));
  }
  answer(std::move(route), exchange,
         [page = std::move(*page)](ResponseStore& store, const ResponseRoute& asked) {
           return list_input_items(store, asked.tenant, asked.id, page);
         });
}

void cancel_response(ResponseRoute route, const std::shared_ptr<Exchange>& exchange) {
  answer(std::move(route), exchange,
         [](ResponseStore& store, const ResponseRoute& asked) -> Result<std::string> {
           GALLEY_TRY([[maybe_unused]] const auto found, store.get(asked.tenant, asked.id));
           return fail(Code::kInvalidArgument, "Cannot cancel a synchronous response.");
         });
}

}  // namespace galley::gateway
