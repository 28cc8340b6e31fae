#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

struct sqlite3;
struct sqlite3_stmt;

// SQLite without exceptions or macros: what the stores of the server need of it. One thread at a
// time. Errors: kCorruption for a file that is no database or a broken one, kUnavailable with
// SQLite's reason for a disk that is full, read-only or failing.
namespace galley::gateway {

// A prepared statement. Parameters count from 1, columns from 0, as SQLite has it.
class SqliteStatement {
 public:
  SqliteStatement(SqliteStatement&& other) noexcept
      : statement_(std::exchange(other.statement_, nullptr)) {}
  SqliteStatement& operator=(SqliteStatement&& other) noexcept;
  ~SqliteStatement();

  // The text must live until reset().
  SqliteStatement& bind(int parameter, std::string_view text);
  SqliteStatement& bind(int parameter, std::int64_t number);

  // True: a row is there. The first call runs the statement.
  [[nodiscard]] Result<bool> step();
  // Views end with the next step() or reset().
  [[nodiscard]] std::string_view text(int column) const;
  [[nodiscard]] std::int64_t number(int column) const;
  // Ready to be bound and run again.
  void reset();

 private:
  friend class Sqlite;
  explicit SqliteStatement(sqlite3_stmt* statement) : statement_(statement) {}
  sqlite3_stmt* statement_;
};

// Whose a database is. The schema sets both pragmas.
struct SqliteForm {
  const char* schema;
  std::int64_t application;  // PRAGMA application_id
  std::int64_t version;      // PRAGMA user_version
};

class Sqlite {
 public:
  // Makes the file, for its owner's eyes only, where there is none; ":memory:" is none. The file is
  // this process's alone until the database is closed: another one gets kUnavailable. What was
  // committed survives the end of the process in any way; a machine that loses power may forget the
  // last moments, and breaks nothing.
  [[nodiscard]] static Result<Sqlite> open(const std::string& path);

  [[nodiscard]] Result<bool> empty();
  // Makes the schema where the database is empty. kCorruption when it is of another program or
  // version; `path` is for the error.
  [[nodiscard]] Result<void> take_form(const SqliteForm& form, std::string_view path);

  [[nodiscard]] Result<void> run(const char* sql);
  [[nodiscard]] Result<SqliteStatement> prepare(std::string_view sql);
  // The one number that `sql` selects.
  [[nodiscard]] Result<std::int64_t> number(std::string_view sql);
  // Rows that the last statement changed.
  [[nodiscard]] std::int64_t changed() const;

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  explicit Sqlite(sqlite3* database) : database_(database) {}
  std::unique_ptr<sqlite3, Close> database_;
};

// A transaction that is undone unless it is committed.
class SqliteTransaction {
 public:
  [[nodiscard]] static Result<SqliteTransaction> begin(Sqlite& database);
  SqliteTransaction(SqliteTransaction&& other) noexcept
      : database_(std::exchange(other.database_, nullptr)) {}
  SqliteTransaction& operator=(SqliteTransaction&&) = delete;
  ~SqliteTransaction();
  [[nodiscard]] Result<void> commit();

 private:
  explicit SqliteTransaction(Sqlite& database) : database_(&database) {}
  Sqlite* database_;
};

}  // namespace galley::gateway
