#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gateway/file_store.h"
#include "recipe/json.h"

// Files and batches as the protocol shows them (OpenAI's Files and Batch APIs).
namespace galley::gateway {

inline constexpr std::string_view kBatchPurpose = "batch";
inline constexpr std::string_view kBatchOutputPurpose = "batch_output";
// How long a batch may take, as the protocol has it; then it ends with what there is.
inline constexpr std::int64_t kBatchSeconds = std::int64_t{24} * 3600;

[[nodiscard]] recipe::Json file_object(const StoredFile& file);

// The batch a body of POST /batches asks for. Error: kInvalidArgument with the member in `where`.
[[nodiscard]] Result<StoredBatch> new_batch(std::string_view body,
                                            std::string id,
                                            std::string tenant,
                                            std::int64_t now_s);

// Goes into `status`, at that time.
void set_status(StoredBatch& batch, std::string_view status, std::int64_t now_s);
void set_counts(StoredBatch& batch, std::size_t total, std::size_t completed, std::size_t failed);
[[nodiscard]] std::size_t total_of(const StoredBatch& batch);  // of its counts
// Why a batch failed as a whole.
void set_error(StoredBatch& batch, const Error& error);

[[nodiscard]] std::string member_text(const StoredBatch& batch, std::string_view key);  // or empty
[[nodiscard]] std::int64_t member_number(const StoredBatch& batch, std::string_view key);  // or 0

}  // namespace galley::gateway
