#include "gateway/http_client.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <curl/curl.h>
#include <fmt/core.h>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "base/quote.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

constexpr std::size_t kShownBytesMax = 300;  // of an error's body
constexpr std::size_t kRefusalBytesMax = std::size_t{64} << 10U;
constexpr long kConnectMilliseconds = 10'000;

struct Transfer {
  std::uint64_t id{};
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  std::string body;  // that is sent
  HttpAnswer answer;
  std::string refusal;  // the body of a status that is no 2xx, its beginning
  bool streams = false;
  std::size_t bytes_left = 0;
  std::optional<Error> broken;  // why we broke it off
  std::array<char, CURL_ERROR_SIZE> reason{};

  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() {
    curl_slist_free_all(headers);
    curl_easy_cleanup(easy);
  }
  [[nodiscard]] long status() const {
    long code = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
    return code;
  }
};

// What came instead of a stream of events, if something did.
Result<void> check_stream(const Transfer& transfer) {
  constexpr std::string_view kEvents = "text/event-stream";
  const char* type = nullptr;
  curl_easy_getinfo(transfer.easy, CURLINFO_CONTENT_TYPE, &type);
  const std::string_view text = type == nullptr ? std::string_view() : std::string_view(type);
  const bool same = curl_strnequal(text.data(), kEvents.data(), kEvents.size()) != 0;
  if (text.size() < kEvents.size() || !same) {
    return fail(Code::kUnavailable,
                fmt::format("the server answers {} with {} instead of a stream of events",
                            transfer.status(),
                            text.empty() ? "no content-type" : quoted(text, kShownBytesMax)));
  }
  return {};
}

Result<void> take_piece(Transfer& transfer, std::string_view piece) {
  const long status = transfer.status();
  if (status < 200 || status > 299) {
    transfer.refusal += piece;
    return transfer.refusal.size() <= kRefusalBytesMax
               ? Result<void>()
               : fail(Code::kUnavailable, fmt::format("the server answers {}", status));
  }
  if (transfer.streams) {
    GALLEY_CHECK_OK(check_stream(transfer));
  }
  if (piece.size() > transfer.bytes_left) {
    return fail(Code::kTooLarge, "the server's reply has no end in sight");
  }
  transfer.bytes_left -= piece.size();
  return transfer.answer.on_bytes(piece);
}

std::size_t take(char* bytes, std::size_t size, std::size_t count, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  if (auto taken = take_piece(transfer, {bytes, size * count}); !taken) {
    transfer.broken = std::move(taken).error();
    return 0;  // curl ends it then
  }
  return size * count;
}

// What a server says is wrong, in the form of either protocol.
std::string message_of(const std::string& body) {
  const auto json = recipe::parse_json(body);
  const recipe::Json* const error = json ? json->find("error") : nullptr;
  const recipe::Json* const message = error == nullptr ? nullptr : error->find("message");
  return message != nullptr && message->string() != nullptr
             ? harmless(std::string_view(*message->string()).substr(0, kShownBytesMax))
             : quoted(body, kShownBytesMax);
}

Code code_of(long status) {
  switch (status) {
    case 401:
    case 403:
      return Code::kUnauthenticated;
    case 404:
      return Code::kNotFound;
    case 429:
      return Code::kOverloaded;
    default:
      return status >= 500 ? Code::kUnavailable : Code::kInvalidArgument;
  }
}

Result<void> end_of(const Transfer& transfer, CURLcode code) {
  if (transfer.broken) {
    return std::unexpected(*transfer.broken);
  }
  if (code != CURLE_OK) {
    const char* const reason =
        transfer.reason.front() != '\0' ? transfer.reason.data() : curl_easy_strerror(code);
    return fail(Code::kUnavailable, std::string(reason));
  }
  if (const long status = transfer.status(); status < 200 || status > 299) {
    return fail(code_of(status),
                fmt::format("the server answers {}: {}", status, message_of(transfer.refusal)));
  }
  return transfer.streams ? check_stream(transfer) : Result<void>();
}

}  // namespace

Result<void> check_server_url(std::string_view url, std::string_view where) {
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parts(curl_url(), &curl_url_cleanup);
  const std::string text(url);
  const bool schemed = url.starts_with("http://") || url.starts_with("https://");
  // The error does not show it: there may be a password in it.
  if (!schemed || curl_url_set(parts.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) {
    return fail(Code::kInvalidArgument, "wants an address that begins with http:// or https://",
                std::string(where));
  }
  for (const CURLUPart part : {CURLUPART_USER, CURLUPART_PASSWORD}) {
    char* value = nullptr;
    const CURLUcode got = curl_url_get(parts.get(), part, &value, 0);
    curl_free(value);
    if (got == CURLUE_OK) {
      return fail(Code::kInvalidArgument, "must have no name or password in it: logs show it",
                  std::string(where));
    }
  }
  return {};
}

struct HttpClient::State {
  HttpBounds bounds;
  CURLM* multi = curl_multi_init();
  std::list<Transfer> transfers;
  std::uint64_t last_id = 0;
  ~State() {
    drop();
    curl_multi_cleanup(multi);
  }
  void drop() {
    for (const Transfer& transfer : transfers) {
      curl_multi_remove_handle(multi, transfer.easy);
    }
    transfers.clear();
  }
};

HttpClient::HttpClient(const HttpBounds& bounds) {
  curl_global_init(CURL_GLOBAL_DEFAULT);
  state_ = std::make_unique<State>();
  state_->bounds = bounds;
}

HttpClient::~HttpClient() = default;

std::uint64_t HttpClient::start(const HttpAsk& ask, HttpAnswer answer) {
  Transfer& transfer = state_->transfers.emplace_back();
  transfer.id = ++state_->last_id;
  transfer.easy = curl_easy_init();
  transfer.answer = std::move(answer);
  transfer.body = ask.body;
  transfer.streams = ask.streams;
  transfer.bytes_left = state_->bounds.reply_bytes;
  const auto add_header = [&](const std::string& line) {
    transfer.headers = curl_slist_append(transfer.headers, line.c_str());
  };
  add_header("content-type: application/json");
  add_header("expect:");  // the body is small enough to go at once
  if (!ask.key.empty()) {
    add_header("authorization: Bearer " + std::string(ask.key.reveal()));
  }
  for (const std::string& line : ask.headers) {
    add_header(line);
  }
  CURL* const easy = transfer.easy;
  if (ask.direct) {
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
  }
  curl_easy_setopt(easy, CURLOPT_URL, ask.url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer.headers);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, kConnectMilliseconds);
  // Less than a byte a second, so long.
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, static_cast<long>(state_->bounds.silence.count()));
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(ask.total_max.count()));
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer.reason.data());
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &take);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
  if (!transfer.body.empty()) {
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, transfer.body.data());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(transfer.body.size()));
  }
  curl_multi_add_handle(state_->multi, easy);
  return transfer.id;
}

void HttpClient::cancel(std::uint64_t id) {
  const auto found = std::ranges::find(state_->transfers, id, &Transfer::id);
  if (found != state_->transfers.end()) {
    curl_multi_remove_handle(state_->multi, found->easy);
    state_->transfers.erase(found);
  }
}

void HttpClient::wake() {
  curl_multi_wakeup(state_->multi);
}

std::size_t HttpClient::under_way() const {
  return state_->transfers.size();
}

void HttpClient::run(Duration limit) {
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  curl_multi_poll(state_->multi, nullptr, 0, static_cast<int>(milliseconds), nullptr);
  int running = 0;
  curl_multi_perform(state_->multi, &running);
  int left = 0;
  while (const CURLMsg* const message = curl_multi_info_read(state_->multi, &left)) {
    if (message->msg != CURLMSG_DONE) {
      continue;
    }
    const auto ended = std::ranges::find(state_->transfers, message->easy_handle, &Transfer::easy);
    const Result<void> result = end_of(*ended, message->data.result);
    const auto on_end = std::move(ended->answer.on_end);
    curl_multi_remove_handle(state_->multi, ended->easy);
    state_->transfers.erase(ended);
    on_end(result);  // may start another
  }
}

void HttpClient::stop() {
  state_->drop();
}

Result<std::string> HttpClient::fetch(const HttpAsk& ask) {
  std::string body;
  std::optional<Result<void>> ended;
  start(ask, {.on_bytes = [&](std::string_view bytes) -> Result<void> {
                if (bytes.size() > state_->bounds.fetched_bytes - body.size()) {
                  return fail(Code::kTooLarge,
                              fmt::format("the server's reply has more than {} bytes",
                                          state_->bounds.fetched_bytes));
                }
                body += bytes;
                return {};
              },
              .on_end = [&](Result<void> result) { ended = std::move(result); }});
  while (!ended) {
    run(std::chrono::milliseconds(200));
  }
  GALLEY_CHECK_OK(*ended);
  return body;
}

Result<void> SseReader::feed(std::string_view bytes,
                             const std::function<void(std::string_view data)>& on_data) {
  constexpr std::string_view kData = "data:";
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + data_.size() + piece.size() > kEventBytesMax) {
      return fail(Code::kTooLarge,
                  fmt::format("the server sends an event of more than {} bytes", kEventBytesMax));
    }
    line_ += piece;
    if (end == std::string_view::npos) {
      return {};
    }
    bytes.remove_prefix(end + 1);
    std::string_view line = line_;
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (line.empty()) {
      if (!data_.empty()) {
        on_data(data_);
      }
      data_.clear();
    } else if (line.starts_with(kData)) {
      line.remove_prefix(kData.size());
      data_.append(data_.empty() ? "" : "\n").append(line.substr(line.starts_with(' ') ? 1 : 0));
    }
    line_.clear();
  }
  return {};
}

}  // namespace galley::gateway
