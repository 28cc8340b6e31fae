#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"
#include "gateway/list_page.h"
#include "recipe/json.h"

// Responses that are kept, so that a client can name one instead of sending a conversation again
// (spec recipe 6.4, 6.5).
namespace galley::gateway {

struct StoredResponse {
  std::string id;
  std::string tenant;       // nobody else can see it
  std::string previous_id;  // the one it goes on from; empty: none
  std::int64_t created_s{};
  std::string body;   // the Response object, JSON text
  std::string input;  // what was sent with it: the text of a JSON array of items
};

// Calls may wait for a disk, so none is made on the connections' thread. One thread at a time.
// Errors of all: kUnavailable when the disk fails, kCorruption.
class ResponseStore {
 public:
  virtual ~ResponseStore() = default;
  // Once this has returned, the response survives the end of the process. Others may have been
  // dropped for it: those of the tenant that has most of what there is too much of, bytes or
  // responses, and of them those nobody has used for the longest time first; what a kept response
  // goes on from counts as used with it. Error: kTooLarge for more than the store may hold.
  [[nodiscard]] virtual Result<void> put(const StoredResponse& response) = 0;
  // Error: kNotFound, also for another tenant's and for one that is too old.
  [[nodiscard]] virtual Result<StoredResponse> get(std::string_view tenant,
                                                   std::string_view id) = 0;
  // Error: as get().
  [[nodiscard]] virtual Result<void> remove(std::string_view tenant, std::string_view id) = 0;
};

// What keeps a store small.
struct ResponseLimits {
  std::size_t bytes_max = std::size_t{256} << 20U;  // of bodies and inputs together
  std::size_t count_max = 100'000;
  Duration age_max = std::chrono::hours(30 * 24);  // since it was last used
};

// A conversation of more turns, or with more text, cannot be gone on with by name.
inline constexpr std::size_t kChainLengthMax = 1'000;

// Everything that `id` goes on from and what it said, as items a client could send, oldest first.
// Errors: kInvalidArgument where a Response of the chain is not there or has gone, kTooLarge past a
// bound, those of the store.
[[nodiscard]] Result<recipe::JsonArray> earlier_items(ResponseStore& store,
                                                      std::string_view tenant,
                                                      std::string_view id);

inline constexpr std::size_t kItemPageMax = 100;

// A page of what `id` was made from, its whole chain, as GET /responses/{id}/input_items lists it:
// the JSON text. Errors: as earlier_items(), kNotFound for `id` itself,
// kInvalidArgument for an `after` that is no item's.
[[nodiscard]] Result<std::string> list_input_items(ResponseStore& store,
                                                   std::string_view tenant,
                                                   std::string_view id,
                                                   const ListPage& page);

}  // namespace galley::gateway
