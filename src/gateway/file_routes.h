#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "gateway/batch_worker.h"
#include "gateway/exchange.h"
#include "gateway/file_store.h"
#include "recipe/reply.h"
#include "recipe/request.h"

// The routes of files and batches. Each answers through `exchange`, later: the store waits for its
// disk on a thread of its own.
namespace galley::gateway {

// What the routes need; outlives every exchange.
struct FileDesk {
  FileStore& store;
  BatchWorker& worker;
  const Clock& clock;
  recipe::IdSource& ids;  // used on the connections' thread only
  recipe::Compat compat{};
  // Runs a task later; false when too many wait.
  std::function<bool(std::move_only_function<void()>&&)> run;
};

struct FileRoute {
  FileDesk& desk;
  std::string tenant;
  std::string id;  // as the path spells it, decoded; empty where it has none
};

void upload_file(FileRoute route, const std::shared_ptr<Exchange>& exchange);
void list_files(FileRoute route, const std::shared_ptr<Exchange>& exchange);
void get_file(FileRoute route, const std::shared_ptr<Exchange>& exchange);
void get_file_content(FileRoute route, const std::shared_ptr<Exchange>& exchange);
void delete_file(FileRoute route, const std::shared_ptr<Exchange>& exchange);

void create_batch(FileRoute route, const std::shared_ptr<Exchange>& exchange);
void list_batches(FileRoute route, const std::shared_ptr<Exchange>& exchange);
void get_batch(FileRoute route, const std::shared_ptr<Exchange>& exchange);
void cancel_batch(FileRoute route, const std::shared_ptr<Exchange>& exchange);

}  // namespace galley::gateway
