#include "bench/kernels/report.h"

#include <cstdio>
#include <fmt/core.h>

#include <nlohmann/json.hpp>

namespace galley::bench {
namespace {

std::string rate_text(const Line& line, double steps_per_second) {
  return line.by_bytes ? fmt::format("{:.1f} GB/s", steps_per_second * line.step_bytes / 1e9)
                       : fmt::format("{:.0f} GFLOP/s", steps_per_second * line.step_flops / 1e9);
}

std::string percent(double share) {
  return fmt::format("{:.0f} %", 100 * share);
}

nlohmann::json json_of(const Line& line, const std::string& isa) {
  const Measured& m = line.measured;
  nlohmann::json out = {{"what", line.what},
                        {"isa", isa},
                        {"rows", line.rows},
                        {"cores", line.cores},
                        {"gflops", m.rate * line.step_flops / 1e9},
                        {"limit", m.why},
                        {"share", m.share},
                        {"limit_spread", m.spread}};
  if (line.step_bytes > 0) {
    out["weight_gb_per_second"] = m.rate * line.step_bytes / 1e9;
  }
  out[line.by_bytes ? "limit_gb_per_second" : "limit_gflops"] =
      m.ceiling * (line.by_bytes ? line.step_bytes : line.step_flops) / 1e9;
  if (m.bare > 0) {
    out["bare_gflops"] = m.bare * line.step_flops / 1e9;
    out["bare_share"] = m.bare / m.ceiling;
  }
  if (m.peer > 0) {
    out["peer_gflops"] = m.peer * line.step_flops / 1e9;
    out["over_peer"] = m.rate / m.peer;
  }
  return out;
}

}  // namespace

bool TableReporter::ReportContext(const Context& /*context*/) {
  if (json_) {
    fmt::print("[");
  } else {
    fmt::print(
        "products by {}\n{:<8} {:>5} {:>5} {:>14} {:>14} {:<10} {:>5} {:>6} {:>14} {:>6} {:>6}\n",
        isa_, "what", "rows", "cores", "rate", "limit", "of", "share", "bare", "oneDNN", "over",
        "spread");
  }
  return true;
}

void TableReporter::ReportRuns(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    if (run.error_occurred) {
      failed_ = true;
      fmt::print(stderr, "{}: {}\n", run.benchmark_name(), run.error_message);
      continue;
    }
    // Its names append "/iterations:5/manual_time" to ours.
    const Line& line = lines_.at(run.run_name.function_name);
    if (json_) {
      fmt::print("{}\n{}", first_ ? "" : ",", json_of(line, isa_).dump());
      first_ = false;
      continue;
    }
    const Measured& m = line.measured;
    fmt::print("{:<8} {:>5} {:>5} {:>14} {:>14} {:<10} {:>5} {:>6} {:>14} {:>6} {:>6}\n", line.what,
               line.rows, line.cores, rate_text(line, m.rate), rate_text(line, m.ceiling), m.why,
               percent(m.share), m.bare > 0 ? percent(m.bare / m.ceiling) : "-",
               m.peer > 0 ? rate_text(line, m.peer) : "-",
               m.peer > 0 ? fmt::format("{:.2f}x", m.rate / m.peer) : "-", percent(m.spread));
  }
  std::fflush(stdout);
}

void TableReporter::Finalize() {
  if (json_) {
    fmt::print("\n]\n");
  }
}

}  // namespace galley::bench
