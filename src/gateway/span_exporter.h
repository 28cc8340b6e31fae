#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/task_pool.h"
#include "base/units.h"

namespace galley::gateway {

using SpanValue = std::variant<std::string, std::int64_t, bool>;

// One request, for a tracing system.
struct Span {
  std::string trace_id;   // 32 hexadecimal digits; empty: it begins a trace
  std::string parent_id;  // 16 of them; empty: it has none
  std::string span_id;    // 16 of them; the exporter gives it one
  std::string name;       // "POST /chat/completions"
  UnixTime begun{};
  UnixTime ended{};
  std::optional<UnixTime> first_token;
  bool failed = false;
  std::vector<std::pair<std::string, SpanValue>> attributes;
};

// The JSON body that OTLP over HTTP has for them.
[[nodiscard]] std::string otlp_json(std::span<const Span> spans);

// How many of `sent` spans a collector's answer says it has not taken.
[[nodiscard]] std::size_t rejected_spans(std::string_view answer, std::size_t sent);

// Sends spans to an OpenTelemetry collector, some at a time, from a thread of its own. What does
// not fit into its queue, and what the collector does not take, is counted and forgotten: tracing
// holds up nobody.
class SpanExporter {
 public:
  static constexpr std::size_t kWaitingMax = 4096;
  static constexpr std::size_t kBatchMax = 512;
  // A collector has as long for a batch, whether it is silent or sends a byte now and then.
  static constexpr std::chrono::milliseconds kPatience{5000};
  static constexpr std::chrono::milliseconds kFlushMax{5000};

  // `url` is the collector's, without the path: "http://127.0.0.1:4318". The rest outlives this.
  SpanExporter(std::string url, Seed seed, const Clock& clock, Metrics& metrics, Log& log);
  // Sends what waits, unless the collector takes nothing or is slow: after the batch that is on its
  // way, kFlushMax are spent on it.
  ~SpanExporter();
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  // Any thread. Never waits.
  void add(Span span) GALLEY_EXCLUDES(mutex_);

 private:
  void run();
  // What a batch may take that begins now.
  [[nodiscard]] std::chrono::milliseconds patience() const;
  void send(const std::vector<Span>& batch, std::chrono::milliseconds patience);
  void tell(bool& told, std::string_view message, std::string_view reason);

  const std::string url_;
  const Clock& clock_;
  std::atomic<TimeNs> ends_ = TimeNs::max();  // of sending, once this ends
  Log& log_;
  Counter sent_;
  Counter dropped_;
  Mutex mutex_;
  Random random_ GALLEY_GUARDED_BY(mutex_);
  BoundedQueue<Span> waiting_{kWaitingMax};
  // Of the thread: the log has that the collector takes nothing, or not all.
  bool told_ = false;
  bool told_rejected_ = false;
  TaskPool thread_{1, 1};  // last: joined before all that it uses goes
};

}  // namespace galley::gateway
