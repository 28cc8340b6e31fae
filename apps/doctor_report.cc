#include "apps/doctor_report.h"

#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/quote.h"

namespace galley::apps {
namespace {

using kernels::Isa;
using kernels::isa_name;

constexpr double kGiga = 1e9;
constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
constexpr double kMib = 1024.0 * 1024.0;

// Below these a machine of the last ten years is disturbed or throttled.
constexpr double kReadPoor = 6e9;         // bytes a second of one core
constexpr double kCachedReadPoor = 30e9;  // the same from the second-level cache
constexpr double kFmaPoor = 40e9;         // operations a second of one core
constexpr double kDiskPoor = 0.5e9;       // bytes a second
// All cores against one: clocks sink when all work, memory is shared by all.
constexpr double kComputeGrowth = 0.7;  // for each core
constexpr double kReadGrowth = 1.2;     // in all
constexpr double kAvailableShare = 0.5;
constexpr double kLoadShare = 0.5;  // one run of this command leaves 0.15 behind
// What the configuration's default number of connections and an engine's files need; a ring's and
// a transfer's buffers.
constexpr std::uint64_t kOpenFilesPoor = 4096;
constexpr std::uint64_t kLockedPoor = std::uint64_t{64} << 20U;

constexpr std::size_t kNameBytesMax = 40;  // shown of a folder's name

constexpr const char* kBusy = "stop other programs and run it again, or the machine is shared";

// Of the rate their instruction set allows, products should reach this at 256 rows.
double product_share_poor(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return 0;
    case Isa::kAvx2:
    case Isa::kAvx512:
      return 0.6;
    case Isa::kAmx:
      return 0.4;  // tiles come from the second-level cache, the limit is that of the first
  }
  std::unreachable();
}

std::string gigabytes_per_second(double rate) {
  return fmt::format("{:.1f} GB/s", rate / kGiga);
}

std::string flops(double rate) {
  return rate >= 1e12 ? fmt::format("{:.2f} TFLOP/s", rate / 1e12)
                      : fmt::format("{:.0f} GFLOP/s", rate / kGiga);
}

// What `rates` were measured on.
std::string extent(const RateFacts& rates, const CpuFacts& cpu) {
  return rates.threads == 1 ? "1 core"
                            : fmt::format("{} {}", rates.threads,
                                          rates.threads == cpu.cores ? "cores" : "threads");
}

bool is_good(Verdict verdict) {
  return verdict == Verdict::kGood || verdict == Verdict::kRight;
}

// Columns of a terminal: characters of UTF-8, most of which are one wide.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char byte) { return (byte & 0xC0) != 0x80; }));
}

// `text` and as many spaces as make it `columns` wide.
std::string padded(std::string_view text, std::size_t columns) {
  return std::string(text) + std::string(columns - std::min(columns, width(text)), ' ');
}

class Findings {
 public:
  void section(std::string_view name) { section_ = name; }
  // `advice` is kept where the verdict is not good.
  void text(std::string what, std::string value, Verdict verdict, std::string advice = {}) {
    number(std::move(what), std::move(value), std::nullopt, "", verdict, std::move(advice));
  }
  void number(std::string what,
              std::string value,
              std::optional<double> number,
              std::string_view unit,
              Verdict verdict,
              std::string advice = {}) {
    out_.push_back({.section = section_,
                    .what = std::move(what),
                    .value = std::move(value),
                    .number = number,
                    .unit = unit,
                    .verdict = verdict,
                    .advice = is_good(verdict) ? std::string() : std::move(advice)});
  }
  std::vector<Finding> take() { return std::move(out_); }

 private:
  std::string_view section_;
  std::vector<Finding> out_;
};

Verdict good_if(bool good) {
  return good ? Verdict::kGood : Verdict::kPoor;
}

bool supports(const CpuFacts& cpu, Isa isa) {
  return std::ranges::count(cpu.supported, isa) > 0;
}

void judge_feature(Findings& out, const char* what, bool found, bool used, const char* missing) {
  if (found && !used) {
    out.text(what, "not granted", Verdict::kPoor,
             "the processor has it, the system does not let programs use it: newer kernel "
             "(Linux 5.16), hypervisor settings");
    return;
  }
  out.text(what, found ? "yes" : "no", found ? Verdict::kGood : Verdict::kMissing, missing);
}

void judge_cpu(const CpuFacts& cpu, Findings& out) {
  out.section("CPU");
  out.text("model", cpu.model.empty() ? "unknown" : harmless(cpu.model), Verdict::kGood);
  const std::string threads =
      cpu.usable == cpu.cores ? "" : fmt::format(", {} threads", cpu.usable);
  const std::string of =
      cpu.usable == cpu.online ? "" : fmt::format(", of {} processors", cpu.online);
  out.number("cores", fmt::format("{}{}{}", cpu.cores, threads, of), cpu.cores, "cores",
             good_if(cpu.usable == cpu.online),
             "a thread is started for every processor that is online: give this process all of "
             "them, or the machine fewer");
  if (cpu.quota > 0) {
    out.number("quota", fmt::format("{:.3g} processors", cpu.quota), cpu.quota, "processors",
               good_if(cpu.quota >= cpu.usable),
               "the container stands still when its share is used up: raise its CPU limit, or tie "
               "it to whole cores");
  }
  out.number("load", fmt::format("{:.1f} in the last minute", cpu.load), cpu.load, "threads",
             good_if(cpu.load < kLoadShare * cpu.usable),
             "other programs run here: the rates below are too low by what they take");
  judge_feature(out, "AVX2", cpu.avx2, supports(cpu, Isa::kAvx2),
                "every x86 server processor since 2015 (Intel) or 2017 (AMD) has it");
  const bool avx512 = cpu.avx512 && cpu.avx512_vnni && cpu.avx512_bf16;
  if (cpu.avx512 && !avx512) {
    out.text(
        "AVX-512 VNNI BF16",
        fmt::format("AVX-512{}{}", cpu.avx512_vnni ? " VNNI" : "", cpu.avx512_bf16 ? " BF16" : ""),
        Verdict::kMissing, "products use AVX2; Zen 4 and Sapphire Rapids have all of it");
  } else {
    judge_feature(out, "AVX-512 VNNI BF16", avx512, supports(cpu, Isa::kAvx512),
                  "products use AVX2; Zen 4 and Sapphire Rapids have it");
  }
  judge_feature(out, "AMX", cpu.amx, supports(cpu, Isa::kAmx),
                "Intel since Sapphire Rapids: prompts are read several times faster");
  const Isa best = cpu.supported.empty() ? Isa::kReference : cpu.supported.front();
  const bool is_best = cpu.chosen == best;
  std::string why = " (the best here)";
  if (!cpu.wanted.empty()) {
    why = fmt::format(" ({}={})", kernels::kIsaVariable, cpu.wanted);
  }
  out.text("instruction set", std::string(isa_name(cpu.chosen)) + why, good_if(is_best),
           fmt::format("the best here is {}: unset {}", isa_name(best), kernels::kIsaVariable));
}

void judge_kernels(std::span<const ProductCheck> checks, Findings& out) {
  out.section("kernels");
  for (const ProductCheck& check : checks) {
    const bool good = check.share <= 1;  // not a number is not good
    out.number(fmt::format("{} {}", isa_name(check.isa), check.format),
               fmt::format("error {:.2g}, bound {:.2g}", check.error, check.bound),
               std::isfinite(check.share) ? std::optional(check.share) : std::nullopt, "of bound",
               good ? Verdict::kRight : Verdict::kFailed,
               "wrong numbers: do not serve with it. Test the machine (memory, overclocking), use "
               "another with GALLEY_ISA, report it with this output");
  }
}

// A rate on one core, then on all.
void judge_rates(Findings& out,
                 const DoctorFacts& facts,
                 const char* what,
                 double kernels::Limits::* rate,
                 double poor,
                 double growth,
                 std::string (*show)(double),
                 std::string_view unit,
                 const char* missing = "") {
  const double one = facts.one.limits.*rate;
  const double all = facts.all.limits.*rate;
  if (one == 0) {
    out.number(fmt::format("{}, 1 core", what), "-", std::nullopt, unit, Verdict::kMissing,
               missing);
    return;
  }
  out.number(fmt::format("{}, 1 core", what), show(one), one, unit, good_if(one >= poor), kBusy);
  if (facts.all.threads > 1) {
    out.number(fmt::format("{}, {}", what, extent(facts.all, facts.cpu)), show(all), all, unit,
               good_if(all >= growth * one),
               fmt::format("only {:.1f} times one core: {}", all / one, kBusy));
  }
}

void judge_memory(const DoctorFacts& facts, Findings& out) {
  const MemoryFacts& memory = facts.memory;
  out.section("memory");
  out.number("total", fmt::format("{:.1f} GiB", memory.total_bytes / kGib), memory.total_bytes, "B",
             Verdict::kGood);
  out.number("available", fmt::format("{:.1f} GiB", memory.available_bytes / kGib),
             memory.available_bytes, "B",
             good_if(memory.available_bytes >= kAvailableShare * memory.total_bytes),
             "weights and cache must fit in it: stop other programs, or raise the container's "
             "memory limit");
  const double cores = facts.cpu.cores;
  judge_rates(out, facts, "read", &kernels::Limits::read_bytes_per_second, kReadPoor,
              cores > 1 ? kReadGrowth : 0, gigabytes_per_second, "B/s");
  judge_rates(out, facts, "read, L2", &kernels::Limits::cached_bytes_per_second, kCachedReadPoor,
              kComputeGrowth * cores, gigabytes_per_second, "B/s");
  const bool none = memory.huge_pages.empty();
  out.text("huge pages", none ? "none" : memory.huge_pages,
           none ? Verdict::kMissing : good_if(memory.huge_pages != "never"),
           none ? "a kernel built with transparent huge pages reads memory faster"
                : "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
}

void judge_compute(const DoctorFacts& facts, Findings& out) {
  const double cores = facts.cpu.cores;
  const Isa isa = facts.cpu.chosen;
  out.section("compute");
  judge_rates(out, facts, "float32 FMA", &kernels::Limits::fma_flops, kFmaPoor,
              kComputeGrowth * cores, flops, "FLOP/s");
  judge_rates(out, facts, "BF16 pairs", &kernels::Limits::bf16_flops, kFmaPoor,
              kComputeGrowth * cores, flops, "FLOP/s", "no AVX-512 BF16; see above");
  judge_rates(out, facts, "AMX tiles", &kernels::Limits::tile_flops, 10 * kFmaPoor,
              kComputeGrowth * cores, flops, "FLOP/s", "no AMX; see above");
  for (std::size_t i = 0; i < kProductFormats.size(); ++i) {
    for (const RateFacts* rates : {&facts.one, &facts.all}) {
      if (rates->products[i] == 0 || (rates == &facts.all && facts.all.threads == 1)) {
        continue;
      }
      const double share = rates->products[i] / rates->product_limit;
      out.number(
          fmt::format("{} {} product, {}", isa_name(isa), kProductFormats[i],
                      extent(*rates, facts.cpu)),
          fmt::format("{}, {:.0f} % of limit", flops(rates->products[i]), 100 * share),
          rates->products[i], "FLOP/s", good_if(share >= product_share_poor(isa)),
          fmt::format("at least {:.0f} % is usual: {}", 100 * product_share_poor(isa), kBusy));
    }
  }
}

void judge_disk(const DiskFacts& disk, Findings& out) {
  out.section("disk");
  const std::string what = "read " + quoted(disk.directory, kNameBytesMax);
  if (!disk.problem.empty()) {
    out.text(what, "-", Verdict::kMissing, disk.problem);
  } else {
    out.number(what,
               fmt::format("{:.2f} GB/s{}", disk.bytes_per_second / kGiga,
                           disk.direct ? ", direct" : ", through the page cache"),
               disk.bytes_per_second, "B/s", good_if(disk.bytes_per_second >= kDiskPoor),
               "models load slowly and a cache on it helps little: keep them on a local NVMe disk");
  }
  out.text("io_uring", disk.io_uring.empty() ? "yes" : "no",
           disk.io_uring.empty() ? Verdict::kGood : Verdict::kMissing, disk.io_uring);
}

void judge_limits(const LimitFacts& limits, Findings& out) {
  out.section("limits");
  const auto enough = [](const std::optional<std::uint64_t>& limit, std::uint64_t poor) {
    return good_if(!limit || *limit >= poor);
  };
  const auto number = [](const std::optional<std::uint64_t>& limit) {
    return limit ? std::optional(static_cast<double>(*limit)) : std::nullopt;
  };
  out.number("locked memory",
             limits.locked_bytes
                 ? fmt::format("{:.4g} MiB", static_cast<double>(*limits.locked_bytes) / kMib)
                 : "unlimited",
             number(limits.locked_bytes), "B", enough(limits.locked_bytes, kLockedPoor),
             "ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit");
  out.number("open files", limits.open_files ? fmt::format("{}", *limits.open_files) : "unlimited",
             number(limits.open_files), "files", enough(limits.open_files, kOpenFilesPoor),
             "each connection is one: ulimit -n 65536; LimitNOFILE=65536 in a systemd unit");
}

}  // namespace

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGood:
      return "good";
    case Verdict::kRight:
      return "ok";
    case Verdict::kPoor:
      return "poor";
    case Verdict::kMissing:
      return "missing";
    case Verdict::kFailed:
      return "FAILED";
  }
  std::unreachable();
}

std::vector<Finding> judge(const DoctorFacts& facts) {
  Findings out;
  judge_cpu(facts.cpu, out);
  judge_kernels(facts.checks, out);
  judge_memory(facts, out);
  judge_compute(facts, out);
  judge_disk(facts.disk, out);
  judge_limits(facts.limits, out);
  return out.take();
}

bool sound(std::span<const Finding> findings) {
  return std::ranges::count(findings, Verdict::kFailed, &Finding::verdict) == 0;
}

std::string doctor_table(std::span<const Finding> findings) {
  std::size_t what_width = 0;
  std::size_t value_width = 0;
  for (const Finding& finding : findings) {
    what_width = std::max(what_width, width(finding.what));
    value_width = std::max(value_width, width(finding.value));
  }
  constexpr std::size_t kVerdictWidth = 7;
  std::string out;
  std::string_view section;
  for (const Finding& finding : findings) {
    if (finding.section != section) {
      fmt::format_to(std::back_inserter(out), "{}{}\n", section.empty() ? "" : "\n",
                     finding.section);
      section = finding.section;
    }
    std::string line = fmt::format("  {}  {}  {}  {}", padded(finding.what, what_width),
                                   padded(finding.value, value_width),
                                   padded(name(finding.verdict), kVerdictWidth), finding.advice);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

nlohmann::json doctor_json(std::span<const Finding> findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    nlohmann::json entry = {{"section", finding.section},
                            {"what", finding.what},
                            {"value", finding.value},
                            {"verdict", name(finding.verdict)},
                            {"advice", finding.advice}};
    if (finding.number) {
      entry["number"] = *finding.number;
      entry["unit"] = finding.unit;
    }
    list.push_back(std::move(entry));
  }
  return {{"sound", sound(findings)}, {"findings", std::move(list)}};
}

}  // namespace galley::apps
