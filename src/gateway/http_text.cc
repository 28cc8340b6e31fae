#include "gateway/http_text.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <fmt/core.h>

#include "base/hex.h"

namespace galley::gateway {
namespace {

constexpr std::size_t kRequestIdBytesMax = 128;

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// A UTC date and time, taken apart.
struct Moment {
  explicit Moment(std::int64_t unix_s) {
    using namespace std::chrono;
    const sys_seconds time{seconds{unix_s}};
    const sys_days date_of = floor<days>(time);
    const year_month_day date{date_of};
    const hh_mm_ss clock{time - date_of};
    weekday = std::chrono::weekday{date_of}.c_encoding();
    year = static_cast<int>(date.year());
    month = static_cast<unsigned>(date.month());
    day = static_cast<unsigned>(date.day());
    hour = clock.hours().count();
    minute = clock.minutes().count();
    second = clock.seconds().count();
  }
  int year{};
  unsigned month{};
  unsigned day{};
  unsigned weekday{};  // 0 is Sunday
  long hour{};
  long minute{};
  long second{};
};

}  // namespace

std::string to_lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), lower);
  return out;
}

bool same_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::string path_of_target(std::string_view target) {
  if (const std::size_t scheme = target.find("://");
      scheme != std::string_view::npos && !target.starts_with('/')) {
    const std::size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  return std::string(target.substr(0, target.find_first_of("?#")));
}

std::string query_of_target(std::string_view target) {
  target = target.substr(0, target.find('#'));
  const std::size_t mark = target.find('?');
  return mark == std::string_view::npos ? std::string() : std::string(target.substr(mark + 1));
}

std::optional<std::string> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    if (percent_decoded(pair.substr(0, equals)) == name) {
      std::string value(pair.substr(std::min(equals + 1, pair.size())));
      std::ranges::replace(value, '+', ' ');
      return percent_decoded(value);
    }
  }
  return std::nullopt;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (text.size() - i < 3) {
      return std::nullopt;
    }
    const int high = hex_digit(text[i + 1]);
    const int low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

bool is_request_id(std::string_view text) {
  return !text.empty() && text.size() <= kRequestIdBytesMax &&
         std::ranges::all_of(text, [](char c) {
           const char small = lower(c);
           return (small >= 'a' && small <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
                  c == '_' || c == '-';
         });
}

bool is_traceparent(std::string_view text) {
  constexpr std::size_t kBytes = 55;
  const auto is_hex = [](std::string_view part) {
    return std::ranges::all_of(
        part, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  };
  const auto is_id = [&](std::string_view part) {
    return is_hex(part) && part.find_first_not_of('0') != std::string_view::npos;
  };
  if (text.size() < kBytes || text[2] != '-' || text[35] != '-' || text[52] != '-') {
    return false;
  }
  const std::string_view version = text.substr(0, 2);
  const bool open = version != "00" && text.size() > kBytes && text[kBytes] == '-';
  return is_hex(version) && version != "ff" && is_id(text.substr(3, 32)) &&
         is_id(text.substr(36, 16)) && is_hex(text.substr(53, 2)) &&
         (text.size() == kBytes || open);
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 402:
      return "Payment Required";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

std::string http_date(std::int64_t unix_s) {
  static constexpr std::array kDays{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array kMonths{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const Moment at(unix_s);
  return fmt::format("{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT", kDays[at.weekday], at.day,
                     kMonths[at.month - 1], at.year, at.hour, at.minute, at.second);
}

std::string rfc3339(std::int64_t unix_s) {
  const Moment at(unix_s);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", at.year, at.month, at.day, at.hour,
                     at.minute, at.second);
}

void append_header(std::string_view name, std::string_view value, std::string& out) {
  out.append(name).append(": ");
  for (const char c : value) {
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  out += "\r\n";
}

}  // namespace galley::gateway
