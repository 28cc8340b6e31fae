#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"
#include "gateway/list_page.h"
#include "gateway/sqlite.h"
#include "recipe/json.h"

namespace galley::gateway {

// A file a client left here, or one a batch made for it.
struct StoredFile {
  std::string id;
  std::string tenant;  // nobody else can see it
  std::string filename;
  std::string purpose;
  std::int64_t bytes{};
  std::int64_t created_s{};
  std::int64_t expires_s{};  // 0: with the age that the operator allows
};

// An offline batch. `object` is what its client sees (docs/formats/batch.md); `status` stands there
// too, and here for whoever looks for work.
struct StoredBatch {
  std::string id;
  std::string tenant;
  std::string status;
  recipe::Json object;
};

// What keeps a store small. More is refused: what somebody left is not dropped for others.
struct FileLimits {
  std::size_t bytes_max = std::size_t{4} << 30U;  // all files together
  std::size_t count_max = 10'000;                 // of one tenant
  std::size_t unfinished_batches_max = 100;       // of one tenant
  // Of one tenant: past it those made first are dropped, their files stay.
  std::size_t finished_batches_max = 1'000;
  // Of files, and of batches that are finished, from when they were made.
  Duration age_max = std::chrono::hours(30 * 24);
};

// Reasons of errors: the file is the input of an unfinished batch; its bytes cannot be read, and
// will not be in a moment.
inline constexpr std::string_view kFileInUse = "file_in_use";
inline constexpr std::string_view kUnreadable = "file_unreadable";

template <class T>
struct Listed {
  std::vector<T> entries;
  bool has_more = false;
};

// Files and batches of all tenants in one folder: bytes in files of their own, the rest in an
// SQLite database. Any thread; calls may wait for the disk, so none is made on the connections'
// thread. Errors of all: kUnavailable when the disk fails, kCorruption; kNotFound where an id is
// not there or another tenant's.
class FileStore {
 public:
  // Makes `folder` where it is missing. Removes what a killed process left half-made, by the names
  // the store gives, and nothing else. `clock` tells dates and must outlive the store. Error:
  // kCorruption also where files lie and there is no database that names them.
  [[nodiscard]] static Result<std::unique_ptr<FileStore>> open(const std::string& folder,
                                                               FileLimits limits,
                                                               const Clock& clock);

  // Once this has returned the file is there whatever happens. A file of that id is replaced.
  // Error: kTooLarge past a limit.
  [[nodiscard]] Result<void> put_file(StoredFile file, std::string_view content);
  // The same for content that lies at `path`, in the folder of the store; it is moved.
  [[nodiscard]] Result<void> take_file(StoredFile file, const std::string& path);
  [[nodiscard]] Result<StoredFile> file(std::string_view tenant, std::string_view id);
  // `purpose`: only those; empty: all.
  [[nodiscard]] Result<Listed<StoredFile>> files(std::string_view tenant,
                                                 std::string_view purpose,
                                                 const ListPage& page);
  // Error: kInvalidArgument with the reason kFileInUse. Such a file does not go with its age
  // either.
  [[nodiscard]] Result<void> remove_file(std::string_view tenant, std::string_view id);
  // At most `bytes_max` bytes from `offset` on; fewer at the end only. Errors: kNotFound also when
  // the bytes are gone, kUnavailable with the reason kUnreadable when they stay unreadable.
  [[nodiscard]] Result<std::string> read_file(std::string_view tenant,
                                              std::string_view id,
                                              std::uint64_t offset,
                                              std::size_t bytes_max);

  // Drops finished ones past a limit. Error: kOverloaded when the tenant has too many that are not
  // finished.
  [[nodiscard]] Result<void> put_batch(const StoredBatch& batch);
  [[nodiscard]] Result<StoredBatch> batch(std::string_view tenant, std::string_view id);
  [[nodiscard]] Result<Listed<StoredBatch>> batches(std::string_view tenant, const ListPage& page);
  // Changes one between two looks of anybody else, and returns what it is then.
  [[nodiscard]] Result<StoredBatch> change_batch(
      std::string_view tenant,
      std::string_view id,
      const std::function<void(StoredBatch& batch)>& change);
  // An unfinished one: the oldest of the tenant that follows `tenant` in the order of names, around
  // the end to `tenant` itself, so that each has its turn. None of the ids `but`.
  [[nodiscard]] Result<std::optional<StoredBatch>> next_batch(
      std::string_view tenant, std::span<const std::string> but = {});

  // Where a batch's answers are while it runs.
  [[nodiscard]] std::string answers_path(std::string_view batch_id) const;
  // Room for more files.
  [[nodiscard]] std::size_t bytes_left();
  [[nodiscard]] const FileLimits& limits() const { return limits_; }

 private:
  FileStore(Sqlite database, std::string folder, FileLimits limits, const Clock& clock)
      : folder_(std::move(folder)),
        limits_(limits),
        clock_(clock),
        database_(std::move(database)) {}

  [[nodiscard]] std::string path_of(std::string_view file_id) const;
  [[nodiscard]] std::size_t bytes_left_now() GALLEY_REQUIRES(mutex_);
  Result<void> check_room(const StoredFile& file) GALLEY_REQUIRES(mutex_);
  static Result<void> write_content(const std::string& path, std::string_view content);
  Result<void> drop_finished(std::string_view tenant) GALLEY_REQUIRES(mutex_);
  Result<void> record(const StoredFile& file) GALLEY_REQUIRES(mutex_);
  Result<void> drop_old() GALLEY_REQUIRES(mutex_);
  Result<void> write_batch(const StoredBatch& batch) GALLEY_REQUIRES(mutex_);
  [[nodiscard]] Result<StoredFile> find_file(std::string_view tenant, std::string_view id)
      GALLEY_REQUIRES(mutex_);
  [[nodiscard]] Result<StoredBatch> find_batch(std::string_view tenant, std::string_view id)
      GALLEY_REQUIRES(mutex_);

  const std::string folder_;
  const FileLimits limits_;
  const Clock& clock_;
  Mutex mutex_;
  Sqlite database_ GALLEY_GUARDED_BY(mutex_);
};

// Whether a batch of that status has an end.
[[nodiscard]] bool is_finished(std::string_view status);

}  // namespace galley::gateway
