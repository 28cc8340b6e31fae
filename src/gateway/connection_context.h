#pragma once

#include <atomic>
#include <set>

#include <boost/asio/io_context.hpp>

#include "base/clock.h"
#include "base/task_pool.h"
#include "gateway/byte_budget.h"
#include "gateway/exchange.h"
#include "gateway/http_options.h"
#include "recipe/reply.h"

namespace galley::gateway {

class HttpConnection;

// What the connections of one server share. Belongs to the one thread that runs `io`, except what
// is thread-safe by itself.
struct ConnectionContext {
  const HttpOptions options;
  HttpHandler& handler;
  const Clock& clock;
  recipe::IdSource& ids;
  boost::asio::io_context& io;
  TaskPool& codec_pool;
  ByteBudget bodies{options.bodies_bytes_max};
  std::set<HttpConnection*> open{};
  std::set<HttpConnection*> serving{};           // those of them that may still answer
  bool accepting = true;                         // also the next request of an open connection
  bool stopping = false;                         // answers under way end with an error
  std::atomic<bool> close_after_answers{false};  // every answer ends its connection
  // Called when a connection was added to or taken from one of the sets.
  std::move_only_function<void()> on_sets_changed{};
};

}  // namespace galley::gateway
