#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "gateway/response_store.h"
#include "gateway/sqlite.h"

namespace galley::gateway {

// Responses in an SQLite database: one file, or memory.
class SqliteResponseStore final : public ResponseStore {
 public:
  // `path` as Sqlite::open. `clock` tells dates and must outlive the store. Errors: those of
  // Sqlite, kCorruption for a database that is another program's or a newer version's.
  [[nodiscard]] static Result<std::unique_ptr<SqliteResponseStore>> open(const std::string& path,
                                                                         ResponseLimits limits,
                                                                         const Clock& clock);

  [[nodiscard]] Result<void> put(const StoredResponse& response) override;
  [[nodiscard]] Result<StoredResponse> get(std::string_view tenant, std::string_view id) override;
  [[nodiscard]] Result<void> remove(std::string_view tenant, std::string_view id) override;

  // Of all that are kept.
  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(count_); }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(bytes_); }

 private:
  SqliteResponseStore(Sqlite database, ResponseLimits limits, const Clock& clock)
      : database_(std::move(database)), limits_(limits), clock_(clock) {}

  Result<void> count_rows();
  Result<void> write(const StoredResponse& response, std::int64_t bytes);
  Result<void> use_chain(const StoredResponse& response);
  Result<void> drop_surplus();
  Result<void> drop(std::int64_t row, std::int64_t bytes);
  [[nodiscard]] Result<std::string> largest_tenant(bool by_bytes);
  [[nodiscard]] std::int64_t oldest_s() const;

  Sqlite database_;
  const ResponseLimits limits_;
  const Clock& clock_;
  // What the table holds. Counted again after a write that failed.
  std::int64_t count_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t uses_ = 0;  // the highest `used`
};

}  // namespace galley::gateway
