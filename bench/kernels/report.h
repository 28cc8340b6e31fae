#pragma once

#include <benchmark/benchmark.h>
#include <cstddef>
#include <map>
#include <string>

#include "bench/kernels/measure.h"

namespace galley::bench {

struct Line {
  std::string what;
  std::size_t rows = 0;
  int cores = 0;
  double step_bytes = 0;  // of weights; 0: the line is about arithmetic only
  double step_flops = 0;
  bool by_bytes = false;  // rates are shown in bytes a second
  Measured measured;
};

// What the benchmarks of this run found, by their names.
using Lines = std::map<std::string, Line>;

// Prints a line of the table, or an object of a JSON array, for each benchmark that has run.
// Google Benchmark's own reports know neither ceilings nor peers.
class TableReporter final : public benchmark::BenchmarkReporter {
 public:
  TableReporter(const Lines& lines, std::string isa, bool json)
      : lines_(lines), isa_(std::move(isa)), json_(json) {}

  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  const Lines& lines_;
  std::string isa_;
  bool json_;
  bool first_ = true;
  bool failed_ = false;
};

}  // namespace galley::bench
