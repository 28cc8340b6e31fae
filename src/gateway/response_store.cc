#include "gateway/response_store.h"

#include <algorithm>
#include <fmt/core.h>
#include <iterator>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "recipe/limits.h"

namespace galley::gateway {
namespace {

using recipe::Json;
using recipe::JsonArray;
using recipe::JsonObject;

constexpr std::size_t kShownBytesMax = 128;

std::unexpected<Error> no_previous(std::string_view id) {
  return fail(Code::kInvalidArgument,
              fmt::format("Previous response with id {} not found.", quoted(id, kShownBytesMax)),
              "previous_response_id", "previous_response_not_found");
}

// `id` and what it goes on from, the newest first.
Result<std::vector<StoredResponse>> chain_of(ResponseStore& store,
                                             std::string_view tenant,
                                             std::string_view id) {
  std::vector<StoredResponse> chain;
  std::size_t bytes = 0;
  for (std::string next(id); !next.empty(); next = chain.back().previous_id) {
    if (chain.size() == kChainLengthMax) {
      return fail(Code::kTooLarge,
                  fmt::format("The conversation has more than {} turns. Send what matters of it as "
                              "`input`.",
                              kChainLengthMax),
                  "previous_response_id");
    }
    auto found = store.get(tenant, next);
    if (!found) {
      return found.error().code == Code::kNotFound ? no_previous(next)
                                                   : std::unexpected(found.error());
    }
    bytes += found->body.size() + found->input.size();
    if (bytes > recipe::kBodyBytesMax) {
      return fail(Code::kTooLarge,
                  fmt::format("The conversation has more than {} bytes. Send what matters of it as "
                              "`input`.",
                              recipe::kBodyBytesMax),
                  "previous_response_id");
    }
    chain.push_back(std::move(*found));
  }
  return chain;
}

// The array a stored text holds.
Result<JsonArray> items_of(std::string_view text, std::string_view key) {
  auto json = recipe::parse_json(text);
  Json* const value = !json ? nullptr : key.empty() ? &*json : json->find(key);
  JsonArray* const items = value == nullptr ? nullptr : value->array();
  if (items == nullptr) {
    return fail(Code::kCorruption, "a stored response is no JSON of the right form");
  }
  return std::move(*items);
}

const std::string* id_of(const Json& item) {
  const Json* const id = item.find("id");
  return id == nullptr ? nullptr : id->string();
}

std::string_view id_prefix(std::string_view type) {
  if (type == "reasoning") {
    return "rs";
  }
  if (type == "function_call" || type == "custom_tool_call") {
    return "fc";
  }
  return type == "message" || type.empty() ? "msg" : "item";
}

// An item as a client reads it: with an id of its own, a type, and its content as blocks. `ids` are
// those before it: a client may have sent one twice, or none that names anything.
Json listed(Json item,
            std::string_view response_id,
            std::size_t index,
            std::unordered_set<std::string>& ids) {
  JsonObject* const object = item.object();
  if (object == nullptr) {
    return item;  // nothing that was answered
  }
  const Json* const type = item.find("type");
  const std::string kind = type != nullptr && type->string() ? *type->string() : "message";
  const std::string* const id = id_of(item);
  if (id == nullptr || id->empty() || !ids.insert(*id).second) {
    std::erase_if(*object, [](const recipe::JsonMember& member) { return member.key == "id"; });
    std::string made = fmt::format("{}_{}_in{}", id_prefix(kind), response_id, index);
    // Somebody may have sent that one before, too.
    while (!ids.insert(made).second) {
      made += '_';
    }
    object->insert(object->begin(), {"id", std::move(made)});
  }
  if (kind != "message") {
    return item;
  }
  recipe::set_member(*object, "type", "message");
  if (item.find("status") == nullptr) {
    recipe::set_member(*object, "status", "completed");
  }
  Json* const content = item.find("content");
  if (content != nullptr && content->string() != nullptr) {
    const Json* const role = item.find("role");
    const bool said = role != nullptr && role->string() && *role->string() == "assistant";
    JsonObject block{{"type", said ? "output_text" : "input_text"},
                     {"text", Json(std::move(*content->string()))}};
    if (said) {
      block.push_back({"annotations", JsonArray{}});
    }
    *content = Json(JsonArray{std::move(block)});
  }
  return item;
}

// Every item that `id` was made from, oldest first, as it is listed.
Result<JsonArray> listed_items(ResponseStore& store, std::string_view tenant, std::string_view id) {
  // The named one must be there; its chain may have lost its beginning since.
  GALLEY_TRY(StoredResponse named, store.get(tenant, id));
  std::vector<StoredResponse> chain;
  if (!named.previous_id.empty()) {
    GALLEY_TRY(chain, chain_of(store, tenant, named.previous_id));
  }
  chain.insert(chain.begin(), std::move(named));
  JsonArray items;
  std::unordered_set<std::string> ids;
  for (auto response = chain.rbegin(); response != chain.rend(); ++response) {
    GALLEY_TRY(JsonArray sent, items_of(response->input, {}));
    for (std::size_t i = 0; i < sent.size(); ++i) {
      items.push_back(listed(std::move(sent[i]), response->id, i, ids));
    }
    if (std::next(response) != chain.rend()) {
      GALLEY_TRY(JsonArray said, items_of(response->body, "output"));
      for (Json& item : said) {
        if (const std::string* const item_id = id_of(item)) {
          ids.insert(*item_id);
        }
        items.push_back(std::move(item));
      }
    }
  }
  return items;
}

}  // namespace

Result<JsonArray> earlier_items(ResponseStore& store,
                                std::string_view tenant,
                                std::string_view id) {
  GALLEY_TRY(const std::vector<StoredResponse> chain, chain_of(store, tenant, id));
  JsonArray items;
  for (auto response = chain.rbegin(); response != chain.rend(); ++response) {
    GALLEY_TRY(JsonArray sent, items_of(response->input, {}));
    std::ranges::move(sent, std::back_inserter(items));
    GALLEY_TRY(JsonArray said, items_of(response->body, "output"));
    std::ranges::move(said, std::back_inserter(items));
  }
  return items;
}

Result<std::string> list_input_items(ResponseStore& store,
                                     std::string_view tenant,
                                     std::string_view id,
                                     const ListPage& page) {
  GALLEY_TRY(JsonArray items, listed_items(store, tenant, id));
  if (page.descending) {
    std::ranges::reverse(items);
  }
  auto first = items.begin();
  if (!page.after.empty()) {
    first = std::ranges::find_if(items, [&](const Json& item) {
      const std::string* const item_id = id_of(item);
      return item_id != nullptr && *item_id == page.after;
    });
    if (first == items.end()) {
      return fail(Code::kInvalidArgument,
                  fmt::format("No item has the id {}.", quoted(page.after, kShownBytesMax)),
                  "after");
    }
    ++first;
  }
  const auto left = static_cast<std::size_t>(items.end() - first);
  const auto last = first + static_cast<std::ptrdiff_t>(std::min(left, page.limit));
  const bool has_more = last != items.end();
  JsonArray data(std::make_move_iterator(first), std::make_move_iterator(last));
  const auto end_id = [&](const Json& item) {
    const std::string* const item_id = id_of(item);
    return item_id == nullptr ? Json{} : Json(*item_id);
  };
  const Json first_id = data.empty() ? Json{} : end_id(data.front());
  const Json last_id = data.empty() ? Json{} : end_id(data.back());
  return recipe::to_json(JsonObject{{"object", "list"},
                                    {"data", std::move(data)},
                                    {"first_id", first_id},
                                    {"last_id", last_id},
                                    {"has_more", has_more}});
}

}  // namespace galley::gateway
