#include "gateway/file_store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <fmt/core.h>
#include <span>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/new_file.h"
#include "base/quote.h"
#include "recipe/random_ids.h"

namespace galley::gateway {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kShownBytesMax = 64;

// "galf"
constexpr std::int64_t kApplication = 0x67616c66;
constexpr std::int64_t kVersion = 1;
constexpr const char* kSchema =
    "PRAGMA application_id=1734437990;"
    "PRAGMA user_version=1;"
    "CREATE TABLE file("
    " id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL,"
    " bytes INTEGER NOT NULL, created_s INTEGER NOT NULL, expires_s INTEGER NOT NULL);"
    "CREATE INDEX file_by_tenant ON file(tenant);"
    "CREATE TABLE batch("
    " id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, status TEXT NOT NULL, finished INTEGER NOT "
    "NULL,"
    " object TEXT NOT NULL);"
    "CREATE INDEX batch_by_tenant ON batch(finished, tenant);";

std::unexpected<Error> no_file(std::string_view id) {
  return fail(Code::kNotFound, fmt::format("There is no file {}.", quoted(id, kShownBytesMax)), {},
              "file_not_found");
}

std::unexpected<Error> no_batch(std::string_view id) {
  return fail(Code::kNotFound, fmt::format("There is no batch {}.", quoted(id, kShownBytesMax)), {},
              "batch_not_found");
}

// Columns id, tenant, filename, purpose, bytes, created_s, expires_s.
StoredFile file_of(const SqliteStatement& row) {
  return {.id = std::string(row.text(0)),
          .tenant = std::string(row.text(1)),
          .filename = std::string(row.text(2)),
          .purpose = std::string(row.text(3)),
          .bytes = row.number(4),
          .created_s = row.number(5),
          .expires_s = row.number(6)};
}

// Columns id, tenant, status, object.
Result<StoredBatch> batch_of(const SqliteStatement& row) {
  auto object = recipe::parse_json(row.text(3));
  if (!object || object->object() == nullptr) {
    return fail(Code::kCorruption, "a stored batch is no JSON object");
  }
  return StoredBatch{.id = std::string(row.text(0)),
                     .tenant = std::string(row.text(1)),
                     .status = std::string(row.text(2)),
                     .object = std::move(*object)};
}

bool is_alphanumeric(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  });
}

// Whether the server gives files this name: file-ID of an upload, file-batch_ID-output and -error
// of a batch, and NewFile's NAME.<16 hex digits>.part of either.
bool is_own_name(std::string_view name) {
  constexpr std::string_view kPart = ".part";
  constexpr std::size_t kPartBytes = 1 + 16 + kPart.size();
  if (name.ends_with(kPart)) {
    if (name.size() < kPartBytes || name[name.size() - kPartBytes] != '.' ||
        name.substr(name.size() - kPartBytes + 1, 16).find_first_not_of("0123456789abcdef") !=
            std::string_view::npos) {
      return false;
    }
    name.remove_suffix(kPartBytes);
  }
  constexpr std::string_view kFile = "file-";
  if (!name.starts_with(kFile)) {
    return false;
  }
  name.remove_prefix(kFile.size());
  constexpr std::string_view kBatch = "batch_";
  if (name.starts_with(kBatch)) {
    name.remove_prefix(kBatch.size());
    const std::size_t end = name.rfind('-');
    const std::string_view kind = name.substr(std::min(end, name.size()));
    if (kind != "-output" && kind != "-error") {
      return false;
    }
    name = name.substr(0, end);
  }
  return name.size() == recipe::kRandomIdBytes && is_alphanumeric(name);
}

// Bytes that no row knows: a process was killed between the two. What was to be made of them will
// be made again. Only what the server may have made goes: the folder may hold other things.
Result<void> remove_strays(Sqlite& database, const std::string& folder) {
  GALLEY_TRY(SqliteStatement known, database.prepare("SELECT 1 FROM file WHERE id = ?"));
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(folder) / "files", error)) {
    const std::string name = entry.path().filename();
    if (!is_own_name(name) || entry.symlink_status(error).type() != fs::file_type::regular) {
      continue;
    }
    known.bind(1, name);
    GALLEY_TRY(const bool row, known.step());
    known.reset();
    if (!row) {
      fs::remove(entry.path(), error);
    }
  }
  return {};
}

// A new database knows none of the files that lie there: uploads whose database was lost, or what
// somebody else keeps. Neither is the server's to throw away or to hide.
Result<void> check_no_files(const std::string& folder) {
  std::error_code error;
  const fs::path files = fs::path(folder) / "files";
  if (!fs::is_empty(files, error) && !error) {
    return fail(
        Code::kCorruption,
        fmt::format("'{}' holds files, and '{}/files.db', which would name them, is missing "
                    "or empty. Put it back, or move the files away.",
                    files.string(), folder));
  }
  return {};
}

// Whether the same may work in a moment.
bool is_transient(int error_number) {
  constexpr std::array kErrors = {EAGAIN, EINTR, EIO, EMFILE, ENFILE, ENOMEM};
  return std::ranges::find(kErrors, error_number) != kErrors.end();
}

// Names the file as its owner knows it: clients read this, and no path of ours is theirs.
std::unexpected<Error> unreadable(std::string_view id) {
  const int error_number = errno;
  if (error_number == ENOENT) {
    return fail(Code::kNotFound,
                fmt::format("The bytes of file {} are gone.", quoted(id, kShownBytesMax)), {},
                "file_not_found");
  }
  return fail(Code::kUnavailable,
              fmt::format("The bytes of file {} cannot be read: {}.", quoted(id, kShownBytesMax),
                          std::generic_category().message(error_number)),
              {}, is_transient(error_number) ? std::string_view() : kUnreadable);
}

// Of `file`'s row, in SQL: an unfinished batch asks for it.
constexpr const char* kInUse =
    "EXISTS(SELECT 1 FROM batch WHERE finished = 0 AND batch.tenant = file.tenant"
    " AND json_extract(object, '$.input_file_id') = file.id)";

}  // namespace

bool is_finished(std::string_view status) {
  constexpr std::array<std::string_view, 4> kEnds = {"completed", "failed", "cancelled", "expired"};
  return std::ranges::find(kEnds, status) != kEnds.end();
}

Result<std::unique_ptr<FileStore>> FileStore::open(const std::string& folder,
                                                   FileLimits limits,
                                                   const Clock& clock) {
  std::error_code error;
  for (const char* const part : {"files", "batches"}) {
    fs::create_directories(fs::path(folder) / part, error);
    if (error) {
      return fail(Code::kUnavailable,
                  fmt::format("cannot make '{}/{}': {}", folder, part, error.message()));
    }
  }
  const std::string path = folder + "/files.db";
  GALLEY_TRY(Sqlite database, Sqlite::open(path));
  GALLEY_TRY(const bool fresh, database.empty());
  if (fresh) {
    GALLEY_CHECK_OK(check_no_files(folder));
  }
  GALLEY_CHECK_OK(database.take_form({kSchema, kApplication, kVersion}, path));
  GALLEY_CHECK_OK(remove_strays(database, folder));
  return std::unique_ptr<FileStore>(new FileStore(std::move(database), folder, limits, clock));
}

std::string FileStore::path_of(std::string_view file_id) const {
  return fmt::format("{}/files/{}", folder_, file_id);
}

std::string FileStore::answers_path(std::string_view batch_id) const {
  return fmt::format("{}/batches/{}.jsonl", folder_, batch_id);
}

std::size_t FileStore::bytes_left() {
  const MutexLock lock(mutex_);
  return bytes_left_now();
}

std::size_t FileStore::bytes_left_now() {
  const auto used = database_.number("SELECT coalesce(sum(bytes), 0) FROM file");
  const auto bytes = static_cast<std::size_t>(used.value_or(0));
  return limits_.bytes_max - std::min(limits_.bytes_max, bytes);
}

Result<void> FileStore::check_room(const StoredFile& file) {
  if (const std::size_t left = bytes_left_now(); static_cast<std::size_t>(file.bytes) > left) {
    return fail(Code::kTooLarge,
                fmt::format("The file has {} bytes, the server has room for {} of {}. Delete files "
                            "that are not needed.",
                            file.bytes, left, limits_.bytes_max));
  }
  GALLEY_TRY(SqliteStatement count,
             database_.prepare("SELECT count(*) FROM file WHERE tenant = ?"));
  count.bind(1, file.tenant);
  GALLEY_TRY([[maybe_unused]] const bool row, count.step());
  if (static_cast<std::size_t>(count.number(0)) >= limits_.count_max) {
    return fail(Code::kTooLarge,
                fmt::format("There are {} files already, which is the limit. Delete some.",
                            limits_.count_max));
  }
  return {};
}

Result<void> FileStore::record(const StoredFile& file) {
  GALLEY_TRY(SqliteStatement insert,
             database_.prepare("INSERT OR REPLACE INTO file VALUES(?, ?, ?, ?, ?, ?, ?)"));
  insert.bind(1, file.id).bind(2, file.tenant).bind(3, file.filename).bind(4, file.purpose);
  insert.bind(5, file.bytes).bind(6, file.created_s).bind(7, file.expires_s);
  GALLEY_TRY([[maybe_unused]] const bool row, insert.step());
  return {};
}

// The row goes first: bytes without a row cost room until the file is written again, a row without
// bytes would be an error.
Result<void> FileStore::drop_old() {
  const std::int64_t now = clock_.unix_seconds();
  const std::int64_t oldest =
      now - std::chrono::floor<std::chrono::seconds>(limits_.age_max).count();
  GALLEY_TRY(SqliteStatement drop,
             database_.prepare(fmt::format("DELETE FROM file WHERE (created_s < ? OR"
                                           " (expires_s > 0 AND expires_s < ?)) AND NOT {}"
                                           " RETURNING id",
                                           kInUse)));
  drop.bind(1, oldest).bind(2, now);
  std::vector<std::string> ids;
  while (true) {
    GALLEY_TRY(const bool row, drop.step());
    if (!row) {
      break;
    }
    ids.emplace_back(drop.text(0));
  }
  std::error_code error;
  for (const std::string& id : ids) {
    fs::remove(path_of(id), error);
  }
  return {};
}

Result<void> FileStore::write_content(const std::string& path, std::string_view content) {
  GALLEY_TRY(NewFile made, NewFile::create(path, content.size()));
  GALLEY_CHECK_OK(made.write(0, std::as_bytes(std::span(content))));
  return made.commit();
}

Result<void> FileStore::put_file(StoredFile file, std::string_view content) {
  file.bytes = static_cast<std::int64_t>(content.size());
  {
    const MutexLock lock(mutex_);
    GALLEY_CHECK_OK(drop_old());
    GALLEY_CHECK_OK(check_room(file));
  }
  // Without the lock: this takes long, and two files that come at once may exceed the limit by one.
  if (auto written = write_content(path_of(file.id), content); !written) {
    // Without the path, which is the server's own.
    return fail(written.error().code,
                fmt::format("The file cannot be stored: {}.", written.error().what));
  }
  const MutexLock lock(mutex_);
  return record(file);
}

Result<void> FileStore::take_file(StoredFile file, const std::string& path) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (!error) {
    fs::rename(path, path_of(file.id), error);
  }
  if (error) {
    return fail(Code::kUnavailable, fmt::format("'{}': {}", path, error.message()));
  }
  file.bytes = static_cast<std::int64_t>(bytes);
  const MutexLock lock(mutex_);
  return record(file);
}

Result<StoredFile> FileStore::find_file(std::string_view tenant, std::string_view id) {
  GALLEY_CHECK_OK(drop_old());
  GALLEY_TRY(SqliteStatement select,
             database_.prepare("SELECT * FROM file WHERE id = ? AND tenant = ?"));
  select.bind(1, id).bind(2, tenant);
  GALLEY_TRY(const bool row, select.step());
  if (!row) {
    return no_file(id);
  }
  return file_of(select);
}

Result<StoredFile> FileStore::file(std::string_view tenant, std::string_view id) {
  const MutexLock lock(mutex_);
  return find_file(tenant, id);
}

Result<Listed<StoredFile>> FileStore::files(std::string_view tenant,
                                            std::string_view purpose,
                                            const ListPage& page) {
  const MutexLock lock(mutex_);
  GALLEY_CHECK_OK(drop_old());
  if (!page.after.empty()) {
    GALLEY_CHECK_OK(find_file(tenant, page.after));
  }
  GALLEY_TRY(SqliteStatement select,
             database_.prepare(
                 fmt::format("SELECT * FROM file WHERE tenant = ?1 AND (?2 = '' OR purpose "
                             "= ?2) AND (?3 = '' OR rowid {} (SELECT rowid FROM file WHERE "
                             "id = ?3)) ORDER BY rowid {} LIMIT ?4",
                             page.descending ? '<' : '>', page.descending ? "DESC" : "ASC")));
  select.bind(1, tenant).bind(2, purpose).bind(3, page.after);
  select.bind(4, static_cast<std::int64_t>(page.limit) + 1);
  Listed<StoredFile> out;
  while (true) {
    GALLEY_TRY(const bool row, select.step());
    if (!row) {
      return out;
    }
    if (out.entries.size() == page.limit) {
      out.has_more = true;
      return out;
    }
    out.entries.push_back(file_of(select));
  }
}

Result<void> FileStore::remove_file(std::string_view tenant, std::string_view id) {
  const MutexLock lock(mutex_);
  GALLEY_TRY(SqliteStatement used,
             database_.prepare(
                 fmt::format("SELECT 1 FROM file WHERE id = ? AND tenant = ? AND {}", kInUse)));
  used.bind(1, id).bind(2, tenant);
  GALLEY_TRY(const bool in_use, used.step());
  if (in_use) {
    return fail(Code::kInvalidArgument,
                fmt::format("The file {} is the input of a batch that is not finished. Cancel the "
                            "batch first.",
                            quoted(id, kShownBytesMax)),
                {}, kFileInUse);
  }
  GALLEY_TRY(SqliteStatement drop,
             database_.prepare("DELETE FROM file WHERE id = ? AND tenant = ? RETURNING id"));
  drop.bind(1, id).bind(2, tenant);
  GALLEY_TRY(const bool row, drop.step());
  if (!row) {
    return no_file(id);
  }
  GALLEY_TRY([[maybe_unused]] const bool more, drop.step());
  std::error_code error;
  fs::remove(path_of(id), error);
  return {};
}

Result<std::string> FileStore::read_file(std::string_view tenant,
                                         std::string_view id,
                                         std::uint64_t offset,
                                         std::size_t bytes_max) {
  GALLEY_TRY(const StoredFile found, file(tenant, id));
  const auto size = static_cast<std::uint64_t>(found.bytes);
  std::string bytes(std::min<std::uint64_t>(bytes_max, size - std::min(size, offset)), '\0');
  const std::string path = path_of(found.id);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return unreadable(id);
  }
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::pread(descriptor, bytes.data() + done, bytes.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      auto error = got < 0
                       ? unreadable(id)
                       : fail(Code::kCorruption, fmt::format("The file {} is shorter than it was.",
                                                             quoted(id, kShownBytesMax)));
      ::close(descriptor);
      return error;
    }
    done += static_cast<std::size_t>(got);
  }
  ::close(descriptor);
  return bytes;
}

Result<void> FileStore::write_batch(const StoredBatch& batch) {
  const std::string object = to_json(batch.object);
  GALLEY_TRY(SqliteStatement insert,
             database_.prepare("INSERT INTO batch VALUES(?, ?, ?, ?, ?) ON CONFLICT(id) DO UPDATE "
                               "SET status = excluded.status, finished = excluded.finished, object "
                               "= excluded.object"));
  insert.bind(1, batch.id).bind(2, batch.tenant).bind(3, batch.status);
  insert.bind(4, std::int64_t{is_finished(batch.status)}).bind(5, object);
  GALLEY_TRY([[maybe_unused]] const bool row, insert.step());
  return {};
}

Result<void> FileStore::put_batch(const StoredBatch& batch) {
  const MutexLock lock(mutex_);
  GALLEY_TRY(SqliteStatement count,
             database_.prepare("SELECT count(*) FROM batch WHERE finished = 0 AND tenant = ?"));
  count.bind(1, batch.tenant);
  GALLEY_TRY([[maybe_unused]] const bool row, count.step());
  if (static_cast<std::size_t>(count.number(0)) >= limits_.unfinished_batches_max) {
    return fail(Code::kOverloaded, fmt::format("{} batches are not finished yet, which is the "
                                               "limit.",
                                               limits_.unfinished_batches_max));
  }
  GALLEY_CHECK_OK(drop_finished(batch.tenant));
  return write_batch(batch);
}

Result<void> FileStore::drop_finished(std::string_view tenant) {
  GALLEY_TRY(SqliteStatement old, database_.prepare("DELETE FROM batch WHERE finished = 1 AND"
                                                    " json_extract(object, '$.created_at') < ?"));
  old.bind(
      1, clock_.unix_seconds() - std::chrono::floor<std::chrono::seconds>(limits_.age_max).count());
  GALLEY_TRY([[maybe_unused]] const bool none, old.step());
  GALLEY_TRY(SqliteStatement surplus,
             database_.prepare("DELETE FROM batch WHERE finished = 1 AND tenant = ?1 AND rowid <="
                               " (SELECT rowid FROM batch WHERE finished = 1 AND tenant = ?1"
                               " ORDER BY rowid DESC LIMIT 1 OFFSET ?2)"));
  surplus.bind(1, tenant).bind(2, static_cast<std::int64_t>(limits_.finished_batches_max));
  GALLEY_TRY([[maybe_unused]] const bool row, surplus.step());
  return {};
}

Result<StoredBatch> FileStore::find_batch(std::string_view tenant, std::string_view id) {
  GALLEY_TRY(SqliteStatement select,
             database_.prepare("SELECT id, tenant, status, object FROM batch WHERE id = ? AND "
                               "tenant = ?"));
  select.bind(1, id).bind(2, tenant);
  GALLEY_TRY(const bool row, select.step());
  if (!row) {
    return no_batch(id);
  }
  return batch_of(select);
}

Result<StoredBatch> FileStore::batch(std::string_view tenant, std::string_view id) {
  const MutexLock lock(mutex_);
  return find_batch(tenant, id);
}

Result<Listed<StoredBatch>> FileStore::batches(std::string_view tenant, const ListPage& page) {
  const MutexLock lock(mutex_);
  if (!page.after.empty()) {
    GALLEY_CHECK_OK(find_batch(tenant, page.after));
  }
  GALLEY_TRY(SqliteStatement select,
             database_.prepare("SELECT id, tenant, status, object FROM batch WHERE tenant = ?1 AND "
                               "(?2 = '' OR rowid < (SELECT rowid FROM batch WHERE id = ?2)) ORDER "
                               "BY rowid DESC LIMIT ?3"));
  select.bind(1, tenant).bind(2, page.after);
  select.bind(3, static_cast<std::int64_t>(page.limit) + 1);
  Listed<StoredBatch> out;
  while (true) {
    GALLEY_TRY(const bool row, select.step());
    if (!row) {
      return out;
    }
    if (out.entries.size() == page.limit) {
      out.has_more = true;
      return out;
    }
    GALLEY_TRY(out.entries.emplace_back(), batch_of(select));
  }
}

Result<StoredBatch> FileStore::change_batch(std::string_view tenant,
                                            std::string_view id,
                                            const std::function<void(StoredBatch& batch)>& change) {
  const MutexLock lock(mutex_);
  GALLEY_TRY(StoredBatch batch, find_batch(tenant, id));
  change(batch);
  GALLEY_CHECK_OK(write_batch(batch));
  return batch;
}

Result<std::optional<StoredBatch>> FileStore::next_batch(std::string_view tenant,
                                                         std::span<const std::string> but) {
  recipe::JsonArray ids;
  for (const std::string& id : but) {
    ids.emplace_back(id);
  }
  const std::string left_out = recipe::to_json(recipe::Json(std::move(ids)));
  const MutexLock lock(mutex_);
  GALLEY_TRY(SqliteStatement select,
             database_.prepare("SELECT id, tenant, status, object FROM batch WHERE finished = 0 "
                               "AND id NOT IN (SELECT value FROM json_each(?2)) "
                               "ORDER BY tenant <= ?1, tenant, rowid LIMIT 1"));
  select.bind(1, tenant).bind(2, left_out);
  GALLEY_TRY(const bool row, select.step());
  if (!row) {
    return std::nullopt;
  }
  GALLEY_TRY(StoredBatch batch, batch_of(select));
  return batch;
}

}  // namespace galley::gateway
