#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The text rules of HTTP that the server needs. Pure functions.
namespace galley::gateway {

// ASCII only, as header names are.
[[nodiscard]] std::string to_lower(std::string_view text);
[[nodiscard]] bool same_ignoring_case(std::string_view a, std::string_view b);

// "/v1/models?limit=2" and "http://host/v1/models" -> "/v1/models". Percent signs stay.
[[nodiscard]] std::string path_of_target(std::string_view target);
// "/v1/models?limit=2#here" -> "limit=2".
[[nodiscard]] std::string query_of_target(std::string_view target);
// The first value of `name`, decoded; empty where it has none. Nothing when it is not there or its
// percent signs are wrong.
[[nodiscard]] std::optional<std::string> query_value(std::string_view query, std::string_view name);
// Nothing when a '%' is not followed by two hex digits.
[[nodiscard]] std::optional<std::string> percent_decoded(std::string_view text);

// What a client may choose as x-request-id: 1 to 128 of [A-Za-z0-9._-], so that it can go into
// logs.
[[nodiscard]] bool is_request_id(std::string_view text);
// A W3C traceparent: "00-" + 32 hex digits of the trace + "-" + 16 of the caller + "-" + 2 of
// flags, lower case, ids not all zero. Of later versions what stands behind is left open.
[[nodiscard]] bool is_traceparent(std::string_view text);

[[nodiscard]] std::string_view reason_phrase(int status);
// "Sun, 06 Nov 1994 08:49:37 GMT"
[[nodiscard]] std::string http_date(std::int64_t unix_s);
// "1994-11-06T08:49:37Z", for JSON.
[[nodiscard]] std::string rfc3339(std::int64_t unix_s);

// Appends "name: value\r\n"; bytes of `value` outside printable ASCII become '?', so that nothing
// can end the line early.
void append_header(std::string_view name, std::string_view value, std::string& out);

}  // namespace galley::gateway
