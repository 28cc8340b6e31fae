#include "gateway/sqlite.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/core.h>
#include <sqlite3.h>
#include <unistd.h>

namespace galley::gateway {
namespace {

constexpr int kFileMode = 0600;  // it holds what people said

std::unexpected<Error> failure(int code, const char* message) {
  const int kind = code & 0xff;  // without SQLite's details
  const bool broken = kind == SQLITE_CORRUPT || kind == SQLITE_NOTADB;
  return fail(broken ? Code::kCorruption : Code::kUnavailable,
              kind == SQLITE_BUSY ? "the database is in use by another process"
                                  : fmt::format("the database says: {}", message));
}

std::unexpected<Error> failure(sqlite3* database) {
  return failure(sqlite3_extended_errcode(database), sqlite3_errmsg(database));
}

}  // namespace

SqliteStatement& SqliteStatement::operator=(SqliteStatement&& other) noexcept {
  std::swap(statement_, other.statement_);
  return *this;
}

SqliteStatement::~SqliteStatement() {
  sqlite3_finalize(statement_);
}

// A bind fails for a wrong number only, and then the statement fails too.
SqliteStatement& SqliteStatement::bind(int parameter, std::string_view text) {
  // Not null where the view is: that would be SQL's NULL.
  sqlite3_bind_text64(statement_, parameter, text.data() == nullptr ? "" : text.data(), text.size(),
                      SQLITE_STATIC, SQLITE_UTF8);
  return *this;
}

SqliteStatement& SqliteStatement::bind(int parameter, std::int64_t number) {
  sqlite3_bind_int64(statement_, parameter, number);
  return *this;
}

Result<bool> SqliteStatement::step() {
  switch (sqlite3_step(statement_)) {
    case SQLITE_ROW:
      return true;
    case SQLITE_DONE:
      return false;
    default:
      break;
  }
  auto error = failure(sqlite3_db_handle(statement_));
  reset();
  return error;
}

std::string_view SqliteStatement::text(int column) const {
  const void* const bytes = sqlite3_column_text(statement_, column);
  if (bytes == nullptr) {
    return {};
  }
  return {static_cast<const char*>(bytes),
          static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
}

std::int64_t SqliteStatement::number(int column) const {
  return sqlite3_column_int64(statement_, column);
}

void SqliteStatement::reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

void Sqlite::Close::operator()(sqlite3* database) const {
  sqlite3_close_v2(database);  // once the last statement is gone
}

Result<Sqlite> Sqlite::open(const std::string& path) {
  if (path != ":memory:") {
    // SQLite would make the file readable for everybody; its other files follow this one.
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kFileMode);
    if (file < 0) {
      return fail(Code::kUnavailable,
                  fmt::format("cannot open '{}': {}", path, std::strerror(errno)));
    }
    ::close(file);
  }
  sqlite3* opened = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &opened,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Sqlite database(opened);
  if (code != SQLITE_OK) {
    return failure(code, opened == nullptr ? "out of memory" : sqlite3_errmsg(opened));
  }
  sqlite3_extended_result_codes(opened, 1);
  // The lock comes first: it is taken with the first access. With it the write-ahead log needs no
  // shared memory. Deleted text is overwritten.
  if (auto done = database.run("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL;"
                               "PRAGMA synchronous=NORMAL; PRAGMA secure_delete=ON;"
                               "PRAGMA journal_size_limit=16777216; PRAGMA temp_store=MEMORY;"
                               "BEGIN EXCLUSIVE; COMMIT;");
      !done) {
    return in_step(path, std::move(done).error());
  }
  return database;
}

Result<void> Sqlite::run(const char* sql) {
  if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) {
    return failure(database_.get());
  }
  return {};
}

Result<SqliteStatement> Sqlite::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v3(database_.get(), sql.data(), static_cast<int>(sql.size()),
                         SQLITE_PREPARE_PERSISTENT, &statement, nullptr) != SQLITE_OK) {
    return failure(database_.get());
  }
  return SqliteStatement(statement);
}

Result<std::int64_t> Sqlite::number(std::string_view sql) {
  GALLEY_TRY(SqliteStatement statement, prepare(sql));
  GALLEY_TRY(const bool row, statement.step());
  return row ? statement.number(0) : 0;
}

Result<bool> Sqlite::empty() {
  GALLEY_TRY(const std::int64_t tables, number("SELECT count(*) FROM sqlite_master"));
  return tables == 0;
}

Result<void> Sqlite::take_form(const SqliteForm& form, std::string_view path) {
  GALLEY_TRY(const bool fresh, empty());
  if (fresh) {
    GALLEY_TRY(SqliteTransaction change, SqliteTransaction::begin(*this));
    GALLEY_CHECK_OK(run(form.schema));
    GALLEY_CHECK_OK(change.commit());
  }
  GALLEY_TRY(const std::int64_t application, number("PRAGMA application_id"));
  GALLEY_TRY(const std::int64_t version, number("PRAGMA user_version"));
  if (application != form.application || version != form.version) {
    return fail(Code::kCorruption,
                fmt::format("'{}' is a database of another program or version", path));
  }
  return {};
}

std::int64_t Sqlite::changed() const {
  return sqlite3_changes64(database_.get());
}

Result<SqliteTransaction> SqliteTransaction::begin(Sqlite& database) {
  GALLEY_CHECK_OK(database.run("BEGIN IMMEDIATE"));
  return SqliteTransaction(database);
}

SqliteTransaction::~SqliteTransaction() {
  if (database_ != nullptr) {
    // A failing disk may have ended the transaction already.
    [[maybe_unused]] const auto undone = database_->run("ROLLBACK");
  }
}

Result<void> SqliteTransaction::commit() {
  GALLEY_CHECK_OK(database_->run("COMMIT"));
  database_ = nullptr;
  return {};
}

}  // namespace galley::gateway
