#include "gateway/file_routes.h"

#include <algorithm>
#include <charconv>
#include <fmt/core.h>
#include <optional>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "gateway/batch_object.h"
#include "gateway/generation_reply.h"
#include "gateway/http_text.h"
#include "gateway/list_query.h"
#include "gateway/multipart.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

using recipe::Json;
using recipe::JsonArray;
using recipe::JsonObject;
using recipe::Protocol;

constexpr std::size_t kShownBytesMax = 64;
constexpr int kConflict = 409;
constexpr std::size_t kFilePageMax = 10'000;
constexpr std::size_t kBatchPageMax = 100;
// A file may ask to go earlier than the operator's age, as the protocol has it.
constexpr std::int64_t kExpirySecondsMin = 3600;
constexpr std::int64_t kExpirySecondsMax = std::int64_t{30} * 24 * 3600;
// What a download reads at a time, while less than this is unsent.
constexpr std::size_t kPieceBytes = std::size_t{256} << 10U;

HttpResponse error_of(const FileDesk& desk, const Error& error) {
  HttpResponse response = error_response(Protocol::kChat, desk.compat, error);
  if (error.reason == kFileInUse) {
    response.status = kConflict;
  }
  return response;
}

Error too_many() {
  return {.code = Code::kOverloaded, .what = "Too many requests wait for the disk. Retry later."};
}

// `work` on the store's thread makes the object that is the reply.
template <typename Work>
void answer(FileRoute route, const std::shared_ptr<Exchange>& exchange, Work work) {
  FileDesk& desk = route.desk;
  const bool posted =
      desk.run([route = std::move(route), exchange, work = std::move(work)]() mutable {
        if (exchange->gone()) {
          return;
        }
        Result<Json> made = work(route);
        exchange->post([&desk = route.desk, exchange, made = std::move(made)] {
          exchange->respond(made ? HttpResponse{.headers = {{"content-type", "application/json"}},
                                                .body = to_json(*made)}
                                 : error_of(desk, made.error()));
        });
      });
  if (!posted) {
    exchange->respond(error_of(desk, too_many()));
  }
}

Json list_object(JsonArray data, bool has_more) {
  const Json first = data.empty() ? Json{} : *data.front().find("id");
  const Json last = data.empty() ? Json{} : *data.back().find("id");
  return JsonObject{{"object", "list"},
                    {"data", std::move(data)},
                    {"first_id", first},
                    {"last_id", last},
                    {"has_more", has_more}};
}

const FormPart* part_of(const std::vector<FormPart>& parts, std::string_view name) {
  const auto found = std::ranges::find(parts, name, &FormPart::name);
  return found == parts.end() ? nullptr : &*found;
}

// Seconds until the file goes; 0 where the form does not say.
Result<std::int64_t> expiry_of(const std::vector<FormPart>& parts) {
  constexpr std::string_view kName = "expires_after[seconds]";
  const FormPart* const part = part_of(parts, kName);
  if (part == nullptr) {
    return 0;
  }
  std::int64_t seconds = 0;
  const std::string_view text = part->content;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc() || rest != end || seconds < kExpirySecondsMin ||
      seconds > kExpirySecondsMax) {
    return fail(Code::kInvalidArgument,
                fmt::format("{} is no number of seconds from {} to {}",
                            quoted(text, kShownBytesMax), kExpirySecondsMin, kExpirySecondsMax),
                std::string(kName));
  }
  return seconds;
}

// Whether a client can read the JSON that holds it: it must be UTF-8.
bool is_json_text(const std::string& text) {
  return recipe::parse_json(to_json(Json(text))).has_value();
}

struct Upload {
  StoredFile file;
  std::string_view content;  // of the body
};

Result<Upload> upload_of(const HttpRequest& request, std::string_view body) {
  const std::string* const type = request.header("content-type");
  GALLEY_TRY(const std::vector<FormPart> parts,
             parse_multipart(type == nullptr ? std::string_view() : *type, body));
  const FormPart* const file = part_of(parts, "file");
  const FormPart* const purpose = part_of(parts, "purpose");
  if (file == nullptr) {
    return fail(Code::kInvalidArgument, "`file` is missing", "file");
  }
  if (!is_json_text(file->filename)) {
    return fail(Code::kInvalidArgument, "`filename` is not UTF-8", "filename");
  }
  if (purpose == nullptr || purpose->content != kBatchPurpose) {
    return fail(
        Code::kInvalidArgument,
        fmt::format("{} is not supported: the only purpose is `batch`; images and documents "
                    "go into the request itself",
                    quoted(purpose == nullptr ? "" : purpose->content, kShownBytesMax)),
        "purpose");
  }
  GALLEY_TRY(const std::int64_t expiry, expiry_of(parts));
  return Upload{.file = {.filename = file->filename.empty() ? "file" : file->filename,
                         .purpose = std::string(kBatchPurpose),
                         .expires_s = expiry},
                .content = file->content};
}

// Sends a file piece by piece, as far as the client keeps up.
class Download final : public ExchangeListener, public std::enable_shared_from_this<Download> {
 public:
  Download(FileRoute route, std::shared_ptr<Exchange> exchange, std::int64_t bytes)
      : route_(std::move(route)), exchange_(std::move(exchange)), left_(bytes) {}

  void on_gone() override { over_ = true; }
  void on_room() override { more(); }
  void on_stop() override {}  // a download is short; a drain waits as long as it waits for answers
  void on_keep_alive() override {}

  // With the first piece, which is there before the reply begins.
  void begin(std::string_view piece) {
    add(piece);
    more();
  }

  // Asks for the next piece, once the client has taken enough of the last.
  void more() {
    if (over_ || reading_ || exchange_->unsent_bytes() >= kPieceBytes) {
      return;
    }
    if (left_ == 0) {
      over_ = true;
      exchange_->end_stream();
      return;
    }
    reading_ = route_.desk.run([self = shared_from_this()] {
      auto piece = self->route_.desk.store.read_file(self->route_.tenant, self->route_.id,
                                                     self->at_, kPieceBytes);
      self->exchange_->post([self, piece = std::move(piece)] { self->take(piece); });
    });
    if (!reading_) {
      cut();
    }
  }

 private:
  void take(const Result<std::string>& piece) {
    reading_ = false;
    if (over_) {
      return;
    }
    if (!piece || piece->empty()) {
      return cut();
    }
    add(*piece);
    more();
  }
  void add(std::string_view piece) {
    at_ += piece.size();
    left_ -= static_cast<std::int64_t>(piece.size());
    if (!piece.empty()) {
      exchange_->write(piece);
    }
  }
  // Without the end mark, so that half a file is not taken for a whole one.
  void cut() {
    over_ = true;
    exchange_->abort();
  }

  FileRoute route_;
  std::shared_ptr<Exchange> exchange_;  // owners: the connection, this download until it ends
  std::uint64_t at_ = 0;                // changed while nothing is being read
  std::int64_t left_;
  bool reading_ = false;
  bool over_ = false;
};

}  // namespace

void upload_file(FileRoute route, const std::shared_ptr<Exchange>& exchange) {
  std::string id = "file-" + route.desk.ids.next_id();
  answer(std::move(route), exchange,
         [body = std::move(exchange->request().body), id = std::move(id),
          exchange](const FileRoute& asked) mutable -> Result<Json> {
           GALLEY_TRY(Upload upload, upload_of(exchange->request(), body.text));
           StoredFile& file = upload.file;
           file.id = std::move(id);
           file.tenant = asked.tenant;
           file.created_s = asked.desk.clock.unix_seconds();
           file.expires_s += file.expires_s > 0 ? file.created_s : 0;
           file.bytes = static_cast<std::int64_t>(upload.content.size());
           GALLEY_CHECK_OK(asked.desk.store.put_file(file, upload.content));
           body = {};  // its place is the next one's
           return file_object(file);
         });
}

void list_files(FileRoute route, const std::shared_ptr<Exchange>& exchange) {
  const std::string& query = exchange->request().query;
  auto page = list_page(query, kFilePageMax, kFilePageMax);
  if (!page) {
    return exchange->respond(error_of(route.desk, page.error()));
  }
  answer(std::move(route), exchange,
         [page = std::move(*page), purpose = query_value(query, "purpose").value_or("")](
             const FileRoute& asked) -> Result<Json> {
           GALLEY_TRY(const Listed<StoredFile> found,
                      asked.desk.store.files(asked.tenant, purpose, page));
           JsonArray data;
           for (const StoredFile& file : found.entries) {
             data.push_back(file_object(file));
           }
           return list_object(std::move(data), found.has_more);
         });
}

void get_file(FileRoute route, const std::shared_ptr<Exchange>& exchange) {
  answer(std::move(route), exchange, [](const FileRoute& asked) -> Result<Json> {
    GALLEY_TRY(const StoredFile file, asked.desk.store.file(asked.tenant, asked.id));
    return file_object(file);
  });
}

void get_file_content(FileRoute route, const std::shared_ptr<Exchange>& exchange) {
  FileDesk& desk = route.desk;
  const bool posted = desk.run([route = std::move(route), exchange]() mutable {
    auto file = route.desk.store.file(route.tenant, route.id);
    // Before the head is sent: bytes that cannot be read are an error a client can see.
    auto piece = file ? route.desk.store.read_file(route.tenant, route.id, 0, kPieceBytes)
                      : Result<std::string>(std::unexpected(file.error()));
    exchange->post([route = std::move(route), exchange, file = std::move(file),
                    piece = std::move(piece)]() mutable {
      if (exchange->gone()) {
        return;
      }
      if (!piece) {
        return exchange->respond(error_of(route.desk, piece.error()));
      }
      exchange->start_stream({.headers = {{"content-type", "application/octet-stream"},
                                          {"x-content-type-options", "nosniff"}}});
      const auto download = std::make_shared<Download>(std::move(route), exchange, file->bytes);
      exchange->listen(download);
      download->begin(*piece);
    });
  });
  if (!posted) {
    exchange->respond(error_of(desk, too_many()));
  }
}

void delete_file(FileRoute route, const std::shared_ptr<Exchange>& exchange) {
  answer(std::move(route), exchange, [](const FileRoute& asked) -> Result<Json> {
    GALLEY_CHECK_OK(asked.desk.store.remove_file(asked.tenant, asked.id));
    return JsonObject{{"id", asked.id}, {"object", "file"}, {"deleted", true}};
  });
}

void create_batch(FileRoute route, const std::shared_ptr<Exchange>& exchange) {
  std::string id = "batch_" + route.desk.ids.next_id();
  answer(std::move(route), exchange,
         [body = std::move(exchange->request().body),
          id = std::move(id)](const FileRoute& asked) mutable -> Result<Json> {
           GALLEY_TRY(const StoredBatch batch, new_batch(body.text, std::move(id), asked.tenant,
                                                         asked.desk.clock.unix_seconds()));
           const auto input =
               asked.desk.store.file(asked.tenant, member_text(batch, "input_file_id"));
           if (!input && input.error().code == Code::kNotFound) {
             return fail(Code::kInvalidArgument, input.error().what, "input_file_id");
           }
           if (!input) {
             return std::unexpected(input.error());
           }
           GALLEY_CHECK_OK(asked.desk.store.put_batch(batch));
           asked.desk.worker.wake();
           return batch.object;
         });
}

void list_batches(FileRoute route, const std::shared_ptr<Exchange>& exchange) {
  auto page = list_page(exchange->request().query, ListPage().limit, kBatchPageMax);
  if (!page) {
    return exchange->respond(error_of(route.desk, page.error()));
  }
  answer(std::move(route), exchange,
         [page = std::move(*page)](const FileRoute& asked) -> Result<Json> {
           GALLEY_TRY(Listed<StoredBatch> found, asked.desk.store.batches(asked.tenant, page));
           JsonArray data;
           for (StoredBatch& batch : found.entries) {
             data.push_back(std::move(batch.object));
           }
           return list_object(std::move(data), found.has_more);
         });
}

void get_batch(FileRoute route, const std::shared_ptr<Exchange>& exchange) {
  answer(std::move(route), exchange, [](const FileRoute& asked) -> Result<Json> {
    GALLEY_TRY(StoredBatch batch, asked.desk.store.batch(asked.tenant, asked.id));
    return std::move(batch.object);
  });
}

void cancel_batch(FileRoute route, const std::shared_ptr<Exchange>& exchange) {
  answer(std::move(route), exchange, [](const FileRoute& asked) -> Result<Json> {
    std::string before;
    GALLEY_TRY(StoredBatch batch,
               asked.desk.store.change_batch(asked.tenant, asked.id, [&](StoredBatch& changed) {
                 before = changed.status;
                 if (before == "validating" || before == "in_progress") {
                   set_status(changed, "cancelling", asked.desk.clock.unix_seconds());
                 }
               }));
    if (is_finished(before) || before == "finalizing") {
      return fail(Code::kInvalidArgument,
                  fmt::format("Cannot cancel a batch with status '{}'.", before));
    }
    asked.desk.worker.wake();
    return std::move(batch.object);
  });
}

}  // namespace galley::gateway
