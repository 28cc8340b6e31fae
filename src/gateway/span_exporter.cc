#include "gateway/span_exporter.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fmt/core.h>

#include "base/check.h"
#include "base/quote.h"
#include "gateway/http_client.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

using recipe::Json;
using recipe::JsonArray;
using recipe::JsonObject;

constexpr std::size_t kShownBytesMax = 300;  // of what a collector says
constexpr int kServerKind = 2;               // of the span kinds, and below of the status codes
constexpr int kErrorStatus = 2;

std::string nanoseconds(UnixTime time) {
  return std::to_string(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

// Whole numbers of 64 bits are texts in the JSON of protocol buffers.
Json json_of(const SpanValue& value) {
  if (const auto* const number = std::get_if<std::int64_t>(&value)) {
    return JsonObject{{"intValue", std::to_string(*number)}};
  }
  if (const bool* const flag = std::get_if<bool>(&value)) {
    return JsonObject{{"boolValue", *flag}};
  }
  return JsonObject{{"stringValue", std::get<std::string>(value)}};
}

Json attribute(const std::string& key, const SpanValue& value) {
  return JsonObject{{"key", key}, {"value", json_of(value)}};
}

Json json_of(const Span& span) {
  JsonArray attributes;
  for (const auto& [key, value] : span.attributes) {
    attributes.push_back(attribute(key, value));
  }
  JsonArray events;
  if (span.first_token) {
    events.emplace_back(
        JsonObject{{"timeUnixNano", nanoseconds(*span.first_token)}, {"name", "first_token"}});
  }
  JsonObject out{{"traceId", span.trace_id},
                 {"spanId", span.span_id},
                 {"name", span.name},
                 {"kind", kServerKind},
                 {"startTimeUnixNano", nanoseconds(span.begun)},
                 {"endTimeUnixNano", nanoseconds(span.ended)},
                 {"attributes", std::move(attributes)},
                 {"events", std::move(events)}};
  if (!span.parent_id.empty()) {
    out.push_back({"parentSpanId", span.parent_id});
  }
  if (span.failed) {
    out.push_back({"status", JsonObject{{"code", kErrorStatus}}});
  }
  return out;
}

}  // namespace

std::string otlp_json(std::span<const Span> spans) {
  JsonArray list;
  for (const Span& span : spans) {
    list.push_back(json_of(span));
  }
  const Json scope =
      JsonObject{{"scope", JsonObject{{"name", "galley"}}}, {"spans", std::move(list)}};
  const Json resource = JsonObject{
      {"resource", JsonObject{{"attributes", JsonArray{attribute("service.name", "galley")}}}},
      {"scopeSpans", JsonArray{scope}}};
  return to_json(JsonObject{{"resourceSpans", JsonArray{resource}}});
}

std::size_t rejected_spans(std::string_view answer, std::size_t sent) {
  const auto json = recipe::parse_json(answer);
  const Json* const partial = json ? json->find("partialSuccess") : nullptr;
  const Json* const count = partial == nullptr ? nullptr : partial->find("rejectedSpans");
  std::size_t rejected = 0;
  if (count != nullptr && count->int64() != nullptr) {
    rejected = static_cast<std::size_t>(std::max(*count->int64(), std::int64_t{0}));
  } else if (count != nullptr && count->string() != nullptr) {
    const std::string& text = *count->string();
    std::from_chars(text.data(), text.data() + text.size(), rejected);
  }
  return std::min(rejected, sent);
}

SpanExporter::SpanExporter(
    std::string url, Seed seed, const Clock& clock, Metrics& metrics, Log& log)
    : url_(std::move(url)),
      clock_(clock),
      log_(log),
      sent_(metrics.counter("galley_spans_sent_total", "Spans that the collector has taken.")),
      dropped_(metrics.counter("galley_spans_dropped_total",
                               "Spans that did not fit or that the collector did not take.")),
      random_(seed, 0) {
  const bool posted = thread_.try_post([this] { run(); });
  GALLEY_ASSERT(posted);
}

SpanExporter::~SpanExporter() {
  ends_ = clock_.now() + kFlushMax;
  waiting_.close();
}

void SpanExporter::add(Span span) {
  {
    const MutexLock lock(mutex_);
    span.span_id = fmt::format("{:016x}", random_.next_u64());
    if (span.trace_id.empty()) {
      span.trace_id = fmt::format("{:016x}{:016x}", random_.next_u64(), random_.next_u64());
    }
  }
  if (!waiting_.try_push(std::move(span))) {
    dropped_.add();
  }
}

// While one batch is on its way the next one gathers.
void SpanExporter::run() {
  while (auto first = waiting_.pop()) {
    std::vector<Span> batch;
    batch.push_back(*std::move(first));
    while (batch.size() < kBatchMax) {
      auto next = waiting_.try_pop();
      if (!next) {
        break;
      }
      batch.push_back(*std::move(next));
    }
    const bool stopping = ends_.load() != TimeNs::max();
    const std::chrono::milliseconds left = patience();
    if (stopping && (told_ || left.count() <= 0)) {
      dropped_.add(static_cast<double>(batch.size()));
    } else {
      send(batch, left);
    }
  }
}

std::chrono::milliseconds SpanExporter::patience() const {
  const TimeNs ends = ends_;
  if (ends == TimeNs::max()) {
    return kPatience;
  }
  return std::min(kPatience,
                  std::chrono::duration_cast<std::chrono::milliseconds>(ends - clock_.now()));
}

void SpanExporter::send(const std::vector<Span>& batch, std::chrono::milliseconds patience) {
  HttpClient client;
  const auto taken =
      client.fetch({.url = url_ + "/v1/traces", .body = otlp_json(batch), .total_max = patience});
  if (!taken) {
    dropped_.add(static_cast<double>(batch.size()));
    tell(told_, "the collector takes no spans", taken.error().what);
    return;
  }
  told_ = false;
  const std::size_t rejected = rejected_spans(*taken, batch.size());
  sent_.add(static_cast<double>(batch.size() - rejected));
  dropped_.add(static_cast<double>(rejected));
  if (rejected > 0) {
    tell(told_rejected_, "the collector takes not all spans",
         harmless(std::string_view(*taken).substr(0, kShownBytesMax)));
  }
}

// Once.
void SpanExporter::tell(bool& told, std::string_view message, std::string_view reason) {
  if (!std::exchange(told, true)) {
    log_.warn(message, {{"url", url_}, {"reason", reason}});
  }
}

}  // namespace galley::gateway
