#include "gateway/http_head.h"

#include <algorithm>
#include <string>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>

#include "gateway/http_text.h"

namespace galley::gateway {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using BeastParser = http::request_parser<http::empty_body>;

constexpr Refusal kTargetTooLong{414, "The request target is too long."};
constexpr Refusal kHeaderTooLarge{431, "The request header is too large."};
constexpr Refusal kAmbiguousLength{400, "The length of the request body is ambiguous."};

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

// What Beast found wrong, as a status.
Refusal refusal_of(const error_code& error, bool start_line_seen) {
  if (error == http::error::header_limit) {
    return start_line_seen ? kHeaderTooLarge : kTargetTooLong;
  }
  if (error == http::error::bad_version) {
    return {505, "Only HTTP/1.0 and HTTP/1.1 are spoken here."};
  }
  if (error == http::error::bad_transfer_encoding || error == http::error::bad_content_length ||
      error == http::error::multiple_content_length) {
    return kAmbiguousLength;
  }
  return {400, "The request is not well-formed HTTP."};
}

bool is_digits(beast::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// How often the fields stand there that must not be said twice.
struct FieldCounts {
  std::size_t all = 0;
  std::size_t host = 0;
  std::size_t coding = 0;
  std::size_t length = 0;
};

FieldCounts count_fields(const BeastParser::value_type& head) {
  FieldCounts counts;
  for (const auto& field : head) {
    ++counts.all;
    counts.host += field.name() == http::field::host ? 1 : 0;
    counts.coding += field.name() == http::field::transfer_encoding ? 1 : 0;
    counts.length += field.name() == http::field::content_length ? 1 : 0;
  }
  return counts;
}

Refusal check_body_fields(const BeastParser& parser,
                          const FieldCounts& counts,
                          const HttpOptions& options) {
  const auto& head = parser.get();
  if (counts.coding > 1 || counts.length > 1 || (counts.coding > 0 && counts.length > 0) ||
      (counts.coding > 0 && head.version() < 11) || !is_digits(head[http::field::content_length])) {
    return kAmbiguousLength;
  }
  if (counts.coding > 0 &&
      !same_ignoring_case(view(head[http::field::transfer_encoding]), "chunked")) {
    return {501, "The only transfer coding understood is chunked."};
  }
  for (const auto& field : head) {
    if (field.name() == http::field::content_encoding &&
        !same_ignoring_case(view(field.value()), "identity")) {
      return {415, "A request body must not be compressed: the only content-encoding is identity."};
    }
  }
  // A request that says nothing of a body has none, whatever its method (RFC 9112 6.3).
  if (parser.content_length().value_or(0) > options.largest_body_bytes()) {
    return {413, "The request body is too large."};
  }
  return {};
}

Refusal check_head(const BeastParser& parser, const HttpOptions& options) {
  const auto& head = parser.get();
  if (head.target().size() > options.target_bytes_max) {
    return kTargetTooLong;
  }
  const FieldCounts counts = count_fields(head);
  if (counts.all > options.header_count_max) {
    return {431, "The request has too many header fields."};
  }
  if (counts.host > 1 || (counts.host == 0 && head.version() >= 11)) {
    return {400, "The request needs exactly one Host header."};
  }
  if (const Refusal refusal = check_body_fields(parser, counts, options); refusal.status != 0) {
    return refusal;
  }
  if (const auto expect = head[http::field::expect];
      !expect.empty() && !same_ignoring_case(view(expect), "100-continue")) {
    return {417, "The only expectation understood is 100-continue."};
  }
  return {};
}

}  // namespace

struct HeadParser::State {
  explicit State(const HttpOptions& http_options) : options(http_options) {
    parser.header_limit(static_cast<std::uint32_t>(options.header_bytes_max));
    parser.body_limit(boost::none);  // check_body_fields() knows it
  }
  const HttpOptions& options;
  BeastParser parser;
  Refusal refusal;
};

HeadParser::HeadParser(const HttpOptions& options) : state_(std::make_unique<State>(options)) {}
HeadParser::~HeadParser() = default;

std::size_t HeadParser::feed(std::string_view bytes) {
  error_code error;
  const std::size_t used = state_->parser.put(boost::asio::buffer(bytes), error);
  if (error && error != http::error::need_more) {
    state_->refusal = refusal_of(error, !state_->parser.get().target().empty());
  } else if (done()) {
    state_->refusal = check_head(state_->parser, state_->options);
  }
  return used;
}

bool HeadParser::done() const {
  return state_->parser.is_header_done();
}

const Refusal& HeadParser::refusal() const {
  return state_->refusal;
}

HttpHead HeadParser::head() const {
  const auto& message = state_->parser.get();
  HttpHead head{.http_1_1 = message.version() >= 11,
                .persistent = message.keep_alive(),
                .no_reply_body = message.method() == http::verb::head,
                .expects_continue = message.count(http::field::expect) > 0};
  head.request.method = view(message.method_string());
  head.request.path = path_of_target(view(message.target()));
  head.request.query = query_of_target(view(message.target()));
  for (const auto& field : message) {
    head.request.headers.push_back(
        {to_lower(view(field.name_string())), std::string(view(field.value()))});
  }
  if (const std::string* id = head.request.header("x-request-id");
      id != nullptr && is_request_id(*id)) {
    head.request.id = *id;
  }
  if (done()) {
    head.chunked = state_->parser.chunked();
    head.body_bytes = state_->parser.content_length().value_or(0);
  }
  return head;
}

}  // namespace galley::gateway
