#include "apps/bench_report.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <utility>

namespace galley::apps {
namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 240;
constexpr double kLeft = 56;
constexpr double kBottom = 28;
constexpr std::size_t kPointsMax = 2'000;  // of a plot; more cannot be told apart

double milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// 1, 2 or 5 times a power of ten, at least `value`.
double round_up(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(std::max(value, 1e-9))));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= value) {
      return factor * power;
    }
  }
  return 10 * power;
}

// Axes with five marks each, and room for points.
class Plot {
 public:
  Plot(double x_max, double y_max) : x_max_(round_up(x_max)), y_max_(round_up(y_max)) {}

  [[nodiscard]] double x(double value) const {
    return kLeft + value / x_max_ * (kWidth - kLeft - 8);
  }
  [[nodiscard]] double y(double value) const {
    return kHeight - kBottom - value / y_max_ * (kHeight - kBottom - 8);
  }
  [[nodiscard]] std::string whole(std::string_view title,
                                  std::string_view x_name,
                                  std::string_view points) const {
    std::string out = fmt::format(
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {} {}\" role=\"img\" "
        "aria-label=\"{}\">",
        title, kWidth, kHeight, title);
    for (int i = 0; i <= 4; ++i) {
      const double share = i / 4.0;
      fmt::format_to(std::back_inserter(out),
                     "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" "
                     "y2=\"{2:.1f}\"/><text x=\"{3:.1f}\" y=\"{4:.1f}\" "
                     "text-anchor=\"end\">{5:.4g}</text>"
                     "<text x=\"{6:.1f}\" y=\"{7:.1f}\" text-anchor=\"middle\">{8:.4g}</text>",
                     x(0), x(x_max_), y(share * y_max_), kLeft - 6, y(share * y_max_) + 4,
                     share * y_max_, x(share * x_max_), kHeight - kBottom + 14, share * x_max_);
    }
    return out + fmt::format(
                     "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>{}</svg>"
                     "</figure>",
                     kWidth - 8, kHeight - 2, x_name, points);
  }

 private:
  double x_max_;
  double y_max_;
};

// The share of values up to each.
std::string distribution(std::string_view title, std::vector<double> values) {
  if (values.empty()) {
    return "";
  }
  std::ranges::sort(values);
  const Plot plot(values.back(), 1);
  std::string points;
  const std::size_t step = values.size() / kPointsMax + 1;
  for (std::size_t i = 0; i < values.size(); i += step) {
    fmt::format_to(std::back_inserter(points), "{:.1f},{:.1f} ", plot.x(values[i]),
                   plot.y(static_cast<double>(i + 1) / static_cast<double>(values.size())));
  }
  fmt::format_to(std::back_inserter(points), "{:.1f},{:.1f}", plot.x(values.back()), plot.y(1));
  return plot.whole(title, "ms", fmt::format("<polyline points=\"{}\"/>", points));
}

std::string over_time(const std::vector<RequestTimes>& requests) {
  double x_max = 1e-3;
  double y_max = 1e-3;
  for (const RequestTimes& request : requests) {
    x_max = std::max(x_max, milliseconds(request.begun) / 1000);
    y_max = std::max(y_max, milliseconds(request.first));
  }
  const Plot plot(x_max, y_max);
  std::string points;
  const std::size_t step = requests.size() / kPointsMax + 1;
  for (std::size_t i = 0; i < requests.size(); i += step) {
    const RequestTimes& request = requests[i];
    fmt::format_to(std::back_inserter(points),
                   "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2\"/>",
                   request.error ? "bad" : "good", plot.x(milliseconds(request.begun) / 1000),
                   plot.y(milliseconds(request.first)));
  }
  return plot.whole("First token, by arrival (ms)", "s", points);
}

std::string row(std::string_view name, const Spread& values) {
  return fmt::format(
      "<tr><th>{}</th><td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td></tr>", name,
      values.mean, values.p50, values.p90, values.p99);
}

constexpr std::string_view kHead =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width\"><title>galley bench</title><style>"
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:44rem;"
    "margin:2rem auto;padding:0 1rem}table{border-collapse:collapse}th,td{padding:.15rem .8rem;"
    "text-align:right}th:first-child{text-align:left}figure{margin:1.5rem 0}svg{width:100%}"
    "svg text{font-size:11px;fill:currentColor}.grid{stroke:currentColor;opacity:.15}"
    "polyline{fill:none;stroke:#2f6fde;stroke-width:2}.good{fill:#2f6fde}.bad{fill:#d64545}"
    "</style>";

}  // namespace

std::string bench_html(std::string_view title,
                       const BenchFigures& figures,
                       const std::vector<RequestTimes>& requests) {
  std::vector<double> first;
  std::vector<double> gaps;
  for (const RequestTimes& request : requests) {
    if (!request.error) {
      first.push_back(milliseconds(request.first));
      for (const Duration gap : request.gaps) {
        gaps.push_back(milliseconds(gap));
      }
    }
  }
  std::string out(kHead);
  out += fmt::format(
      "<h1>galley bench</h1><p>{}</p><p>{} requests, {} failed, in {:.2f} s. {} prompt tokens ({} "
      "of them from the cache), {} answer tokens: {:.1f} a second.{}</p>",
      escaped(title), figures.done, figures.failed, figures.seconds, figures.prompt_tokens,
      figures.cached_tokens, figures.answer_tokens,
      figures.seconds > 0 ? static_cast<double>(figures.answer_tokens) / figures.seconds : 0.0,
      figures.good ? fmt::format(" {} requests were within the goals.", *figures.good) : "");
  out += "<table><tr><th>ms</th><th>mean</th><th>p50</th><th>p90</th><th>p99</th></tr>";
  out += row("first token", figures.first_ms) + row("between steps", figures.gap_ms) +
         row("per token", figures.per_token_ms) + row("whole answer", figures.whole_ms) +
         "</table>";
  out += distribution("First token: share of requests within so many ms", std::move(first));
  out += distribution("Between steps: share of gaps within so many ms", std::move(gaps));
  return out + over_time(requests) + "</html>\n";
}

}  // namespace galley::apps
