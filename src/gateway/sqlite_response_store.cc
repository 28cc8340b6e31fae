#include "gateway/sqlite_response_store.h"

#include <chrono>
#include <fmt/core.h>
#include <utility>

#include "base/quote.h"

namespace galley::gateway {
namespace {

constexpr std::size_t kShownBytesMax = 128;
// Bytes of a row beside its texts, about.
constexpr std::int64_t kRowBytes = 256;
// Rows that one put() drops at most, so that a lowered limit costs many calls a little each.
constexpr int kDropsMax = 1'000;

// "galr"; a number other programs' databases do not have.
constexpr std::int64_t kApplication = 0x67616c72;
constexpr std::int64_t kVersion = 1;

// `used` orders rows by their last use: what a response goes on from has a higher one than the
// response itself, so that a conversation loses its end before its beginning.
constexpr const char* kSchema =
    "PRAGMA application_id=1734438002;"
    "PRAGMA user_version=1;"
    "CREATE TABLE response("
    " id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, previous TEXT NOT NULL,"
    " created_s INTEGER NOT NULL, used_s INTEGER NOT NULL, used INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL, body TEXT NOT NULL, input TEXT NOT NULL);"
    "CREATE INDEX response_by_use ON response(used, used_s, bytes);";

std::unexpected<Error> not_found(std::string_view id) {
  return fail(Code::kNotFound,
              fmt::format("Response with id {} not found.", quoted(id, kShownBytesMax)));
}

std::int64_t bytes_of(const StoredResponse& response) {
  return kRowBytes + static_cast<std::int64_t>(response.body.size() + response.input.size());
}

}  // namespace

Result<std::unique_ptr<SqliteResponseStore>> SqliteResponseStore::open(const std::string& path,
                                                                       ResponseLimits limits,
                                                                       const Clock& clock) {
  GALLEY_TRY(Sqlite database, Sqlite::open(path));
  GALLEY_CHECK_OK(database.take_form({kSchema, kApplication, kVersion}, path));
  // Which tenant has most, and of it what was used longest ago, without a look at the texts. Not of
  // the schema: databases of earlier versions have it not.
  GALLEY_CHECK_OK(
      database.run("CREATE INDEX IF NOT EXISTS response_by_tenant ON"
                   " response(tenant, used, bytes)"));
  std::unique_ptr<SqliteResponseStore> store(
      new SqliteResponseStore(std::move(database), limits, clock));
  GALLEY_CHECK_OK(store->count_rows());
  return store;
}

Result<void> SqliteResponseStore::count_rows() {
  GALLEY_TRY(SqliteStatement totals,
             database_.prepare("SELECT count(*), coalesce(sum(bytes), 0), coalesce(max(used), 0) "
                               "FROM response"));
  GALLEY_TRY([[maybe_unused]] const bool row, totals.step());
  count_ = totals.number(0);
  bytes_ = totals.number(1);
  uses_ = totals.number(2);
  return {};
}

std::int64_t SqliteResponseStore::oldest_s() const {
  return clock_.unix_seconds() - std::chrono::floor<std::chrono::seconds>(limits_.age_max).count();
}

Result<void> SqliteResponseStore::put(const StoredResponse& response) {
  const std::int64_t bytes = bytes_of(response);
  if (static_cast<std::size_t>(bytes) > limits_.bytes_max) {
    return fail(Code::kTooLarge, fmt::format("The response has {} bytes, all that are kept may "
                                             "have {}.",
                                             bytes, limits_.bytes_max));
  }
  auto written = write(response, bytes);
  if (!written) {
    // What was undone was counted already.
    if (const auto counted = count_rows(); !counted) {
      return counted;
    }
  }
  return written;
}

Result<void> SqliteResponseStore::write(const StoredResponse& response, std::int64_t bytes) {
  GALLEY_TRY(SqliteTransaction change, SqliteTransaction::begin(database_));
  GALLEY_TRY(SqliteStatement insert,
             database_.prepare("INSERT INTO response VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  insert.bind(1, response.id).bind(2, response.tenant).bind(3, response.previous_id);
  insert.bind(4, response.created_s).bind(5, clock_.unix_seconds()).bind(6, ++uses_);
  insert.bind(7, bytes).bind(8, response.body).bind(9, response.input);
  GALLEY_TRY([[maybe_unused]] const bool row, insert.step());
  ++count_;
  bytes_ += bytes;
  if (!response.previous_id.empty()) {
    GALLEY_CHECK_OK(use_chain(response));
  }
  GALLEY_CHECK_OK(drop_surplus());
  return change.commit();
}

Result<void> SqliteResponseStore::use_chain(const StoredResponse& response) {
  GALLEY_TRY(SqliteStatement use,
             database_.prepare(
                 "WITH RECURSIVE chain(id, depth) AS (VALUES(?1, 1) UNION ALL"
                 " SELECT r.previous, depth + 1 FROM chain JOIN response r ON r.id = chain.id"
                 " WHERE r.tenant = ?2 AND r.previous <> '' AND depth < ?5)"
                 "UPDATE response SET used = ?3, used_s = ?4"
                 " WHERE tenant = ?2 AND id IN (SELECT id FROM chain)"));
  use.bind(1, response.previous_id).bind(2, response.tenant).bind(3, ++uses_);
  use.bind(4, clock_.unix_seconds()).bind(5, static_cast<std::int64_t>(kChainLengthMax));
  GALLEY_TRY([[maybe_unused]] const bool row, use.step());
  return {};
}

// Old ones and, where there are too many, those of the tenant that has most whose last use is
// longest ago: who stores much pushes out their own.
Result<void> SqliteResponseStore::drop_surplus() {
  GALLEY_TRY(SqliteStatement oldest, database_.prepare("SELECT rowid, bytes, used_s FROM response"
                                                       " ORDER BY used, rowid DESC LIMIT 1"));
  GALLEY_TRY(SqliteStatement surplus,
             database_.prepare("SELECT rowid, bytes FROM response WHERE tenant = ?"
                               " ORDER BY used, rowid DESC LIMIT 1"));
  for (int dropped = 0; dropped < kDropsMax; ++dropped) {
    GALLEY_TRY(const bool row, oldest.step());
    if (!row) {
      break;
    }
    const bool old = oldest.number(2) < oldest_s();
    if (old) {
      GALLEY_CHECK_OK(drop(oldest.number(0), oldest.number(1)));
    }
    oldest.reset();
    if (old) {
      continue;
    }
    const bool bytes = static_cast<std::size_t>(bytes_) > limits_.bytes_max;
    if (!bytes && static_cast<std::size_t>(count_) <= limits_.count_max) {
      break;
    }
    GALLEY_TRY(const std::string tenant, largest_tenant(bytes));
    surplus.bind(1, tenant);
    GALLEY_TRY(const bool found, surplus.step());
    if (found) {
      GALLEY_CHECK_OK(drop(surplus.number(0), surplus.number(1)));
    }
    surplus.reset();
  }
  return {};
}

Result<void> SqliteResponseStore::drop(std::int64_t row, std::int64_t bytes) {
  GALLEY_TRY(SqliteStatement statement, database_.prepare("DELETE FROM response WHERE rowid = ?"));
  statement.bind(1, row);
  GALLEY_TRY([[maybe_unused]] const bool more, statement.step());
  --count_;
  bytes_ -= bytes;
  return {};
}

Result<std::string> SqliteResponseStore::largest_tenant(bool by_bytes) {
  GALLEY_TRY(SqliteStatement largest,
             database_.prepare(fmt::format("SELECT tenant FROM response GROUP BY tenant"
                                           " ORDER BY {} DESC, tenant LIMIT 1",
                                           by_bytes ? "sum(bytes)" : "count(*)")));
  GALLEY_TRY([[maybe_unused]] const bool row, largest.step());
  return std::string(largest.text(0));
}

Result<StoredResponse> SqliteResponseStore::get(std::string_view tenant, std::string_view id) {
  GALLEY_TRY(SqliteStatement select,
             database_.prepare("SELECT previous, created_s, body, input FROM response"
                               " WHERE id = ? AND tenant = ? AND used_s >= ?"));
  select.bind(1, id).bind(2, tenant).bind(3, oldest_s());
  GALLEY_TRY(const bool row, select.step());
  if (!row) {
    return not_found(id);
  }
  return StoredResponse{.id = std::string(id),
                        .tenant = std::string(tenant),
                        .previous_id = std::string(select.text(0)),
                        .created_s = select.number(1),
                        .body = std::string(select.text(2)),
                        .input = std::string(select.text(3))};
}

Result<void> SqliteResponseStore::remove(std::string_view tenant, std::string_view id) {
  GALLEY_TRY(SqliteStatement drop,
             database_.prepare("DELETE FROM response WHERE id = ? AND tenant = ? RETURNING bytes"));
  drop.bind(1, id).bind(2, tenant);
  GALLEY_TRY(const bool row, drop.step());
  if (!row) {
    return not_found(id);
  }
  const std::int64_t bytes = drop.number(0);
  GALLEY_TRY([[maybe_unused]] const bool more, drop.step());
  --count_;
  bytes_ -= bytes;
  return {};
}

}  // namespace galley::gateway
