#include "gateway/batch_object.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/core.h>
#include <optional>
#include <utility>

#include "base/quote.h"
#include "gateway/batch_lines.h"
#include "recipe/limits.h"

namespace galley::gateway {
namespace {

using recipe::Json;
using recipe::JsonArray;
using recipe::JsonMember;
using recipe::JsonObject;

constexpr std::size_t kShownBytesMax = 64;
constexpr std::size_t kBodyBytesMax = std::size_t{64} << 10U;  // metadata and little else

Result<std::string> required_text(const Json& json, std::string_view key) {
  const Json* const value = json.find(key);
  const std::string* const text = value == nullptr ? nullptr : value->string();
  if (text == nullptr) {
    return fail(Code::kInvalidArgument, fmt::format("`{}` must be a string", key),
                std::string(key));
  }
  return *text;
}

Result<Json> metadata_of(const Json& json) {
  const Json* const metadata = json.find("metadata");
  if (metadata == nullptr || metadata->is_null()) {
    return Json{};
  }
  const JsonObject* const members = metadata->object();
  bool good = members != nullptr && members->size() <= recipe::kMetadataCountMax;
  for (std::size_t i = 0; good && i < members->size(); ++i) {
    const JsonMember& member = (*members)[i];
    good = member.key.size() <= recipe::kMetadataBytesMax && member.value.string() != nullptr &&
           member.value.string()->size() <= recipe::kMetadataBytesMax;
  }
  if (!good) {
    return fail(Code::kInvalidArgument,
                fmt::format("`metadata` holds at most {} strings of at most {} bytes",
                            recipe::kMetadataCountMax, recipe::kMetadataBytesMax),
                "metadata");
  }
  return *metadata;
}

// The number in a place that is called "line 7".
std::optional<std::int64_t> line_of(std::string_view where) {
  constexpr std::string_view kLine = "line ";
  if (!where.starts_with(kLine)) {
    return std::nullopt;
  }
  where.remove_prefix(kLine.size());
  std::int64_t number = 0;
  const char* const end = where.data() + where.size();
  const auto [rest, error] = std::from_chars(where.data(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

}  // namespace

Json file_object(const StoredFile& file) {
  return JsonObject{{"id", file.id},
                    {"object", "file"},
                    {"bytes", file.bytes},
                    {"created_at", file.created_s},
                    {"expires_at", file.expires_s > 0 ? Json(file.expires_s) : Json{}},
                    {"filename", file.filename},
                    {"purpose", file.purpose},
                    {"status", "processed"}};
}

Result<StoredBatch> new_batch(std::string_view body,
                              std::string id,
                              std::string tenant,
                              std::int64_t now_s) {
  if (body.size() > kBodyBytesMax) {
    return fail(Code::kTooLarge,
                fmt::format("the body has {} bytes, the limit is {}", body.size(), kBodyBytesMax),
                "body");
  }
  GALLEY_TRY(const Json json, recipe::parse_json(body));
  if (json.object() == nullptr) {
    return fail(Code::kInvalidArgument, "is not a JSON object", "body");
  }
  GALLEY_TRY(std::string input, required_text(json, "input_file_id"));
  GALLEY_TRY(std::string endpoint, required_text(json, "endpoint"));
  GALLEY_TRY(std::string window, required_text(json, "completion_window"));
  GALLEY_TRY(Json metadata, metadata_of(json));
  if (!batch_protocol(endpoint)) {
    return fail(Code::kInvalidArgument,
                fmt::format("`endpoint` {} is none of /v1/chat/completions, /v1/responses, "
                            "/v1/messages and /v1/completions",
                            quoted(endpoint, kShownBytesMax)),
                "endpoint");
  }
  if (window != "24h") {
    return fail(Code::kInvalidArgument, "`completion_window` must be 24h", "completion_window");
  }
  StoredBatch batch{.id = id, .tenant = std::move(tenant), .status = "validating", .object = {}};
  batch.object =
      JsonObject{{"id", std::move(id)},
                 {"object", "batch"},
                 {"endpoint", std::move(endpoint)},
                 {"errors", {}},
                 {"input_file_id", std::move(input)},
                 {"completion_window", std::move(window)},
                 {"status", "validating"},
                 {"output_file_id", {}},
                 {"error_file_id", {}},
                 {"created_at", now_s},
                 {"in_progress_at", {}},
                 {"expires_at", now_s + kBatchSeconds},
                 {"finalizing_at", {}},
                 {"completed_at", {}},
                 {"failed_at", {}},
                 {"expired_at", {}},
                 {"cancelling_at", {}},
                 {"cancelled_at", {}},
                 {"request_counts", JsonObject{{"total", 0}, {"completed", 0}, {"failed", 0}}},
                 {"metadata", std::move(metadata)}};
  return batch;
}

void set_status(StoredBatch& batch, std::string_view status, std::int64_t now_s) {
  JsonObject& object = *batch.object.object();
  batch.status = status;
  recipe::set_member(object, "status", status);
  recipe::set_member(object, std::string(status) + "_at", now_s);
}

void set_counts(StoredBatch& batch, std::size_t total, std::size_t completed, std::size_t failed) {
  recipe::set_member(*batch.object.object(), "request_counts",
                     JsonObject{{"total", static_cast<std::uint64_t>(total)},
                                {"completed", static_cast<std::uint64_t>(completed)},
                                {"failed", static_cast<std::uint64_t>(failed)}});
}

std::size_t total_of(const StoredBatch& batch) {
  const Json* const counts = batch.object.find("request_counts");
  const Json* const total = counts == nullptr ? nullptr : counts->find("total");
  return total == nullptr || total->int64() == nullptr
             ? 0
             : static_cast<std::size_t>(std::max<std::int64_t>(*total->int64(), 0));
}

void set_error(StoredBatch& batch, const Error& error) {
  std::string code(error.reason.empty() ? name(error.code) : error.reason);
  std::ranges::replace(code, ' ', '_');
  const std::optional<std::int64_t> line = line_of(error.where);
  recipe::set_member(
      *batch.object.object(), "errors",
      JsonObject{{"object", "list"},
                 {"data", JsonArray{JsonObject{
                              {"code", std::move(code)},
                              {"message", error.what},
                              {"param", error.where.empty() || line ? Json{} : Json(error.where)},
                              {"line", line ? Json(*line) : Json{}}}}}});
}

std::string member_text(const StoredBatch& batch, std::string_view key) {
  const Json* const value = batch.object.find(key);
  return value == nullptr || value->string() == nullptr ? std::string() : *value->string();
}

std::int64_t member_number(const StoredBatch& batch, std::string_view key) {
  const Json* const value = batch.object.find(key);
  return value == nullptr || value->int64() == nullptr ? 0 : *value->int64();
}

}  // namespace galley::gateway
