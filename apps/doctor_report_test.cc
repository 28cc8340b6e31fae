// Goal: what the doctor says of a machine follows from its measurements and is shown in columns.
// Method: made-up measurements of a good machine, one of them bent a test.
#include "apps/doctor_report.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <sstream>

#include <nlohmann/json.hpp>

namespace galley::apps {
namespace {

using kernels::Isa;

DoctorFacts good_machine() {
  DoctorFacts facts;
  facts.cpu = {.model = "A Processor",
               .online = 4,
               .usable = 4,
               .cores = 4,
               .avx2 = true,
               .avx512 = true,
               .avx512_vnni = true,
               .avx512_bf16 = true,
               .amx = true,
               .supported = {Isa::kAmx, Isa::kAvx512, Isa::kAvx2, Isa::kReference},
               .chosen = Isa::kAmx};
  facts.checks = {
      {.isa = Isa::kAmx, .format = "BF16", .error = 0.25, .bound = 1, .share = 0.25},
      {.isa = Isa::kAvx2, .format = "FP4", .error = 0.001, .bound = 0.002, .share = 0.5}};
  facts.memory = {.total_bytes = 32e9, .available_bytes = 30e9, .huge_pages = "madvise"};
  facts.one = {.threads = 1,
               .limits = {.read_bytes_per_second = 15e9,
                          .cached_bytes_per_second = 150e9,
                          .fma_flops = 219e9,
                          .bf16_flops = 108e9,
                          .tile_flops = 2.7e12},
               .product_limit = 2.7e12,
               .products = {1.35e12, 1.35e12, 1.35e12}};
  facts.all = {.threads = 4,
               .limits = {.read_bytes_per_second = 50e9,
                          .cached_bytes_per_second = 590e9,
                          .fma_flops = 850e9,
                          .bf16_flops = 420e9,
                          .tile_flops = 10.6e12},
               .product_limit = 10.6e12,
               .products = {5e12, 5e12, 5e12}};
  facts.disk = {.directory = "/models", .bytes_per_second = 2e9, .direct = true};
  facts.limits = {.locked_bytes = std::nullopt, .open_files = 65536};
  return facts;
}

Finding finding(const DoctorFacts& facts, const std::string& what) {
  const std::vector<Finding> all = judge(facts);
  const auto found = std::ranges::find(all, what, &Finding::what);
  if (found == all.end()) {
    ADD_FAILURE() << "nothing is said of " << what;
    return {};
  }
  return *found;
}

// What of the good machine is not good after `bend`; each has advice.
template <class Bend>
std::vector<std::string> complaints(Bend bend) {
  DoctorFacts facts = good_machine();
  bend(facts);
  std::vector<std::string> out;
  for (const Finding& one : judge(facts)) {
    const bool good = one.verdict == Verdict::kGood || one.verdict == Verdict::kRight;
    EXPECT_EQ(one.advice.empty(), good) << one.what << ": " << one.advice;
    if (!good) {
      out.push_back(one.what + " " + std::string(name(one.verdict)));
    }
  }
  return out;
}

using Complaints = std::vector<std::string>;

TEST(DoctorJudge, AGoodMachineHasNoComplaints) {
  EXPECT_EQ(complaints([](DoctorFacts&) {}), Complaints());
  EXPECT_TRUE(sound(judge(good_machine())));
}

TEST(DoctorJudge, Processor) {
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.cpu.usable = f.cpu.cores = f.all.threads = 2; }),
            Complaints{"cores poor"});
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.cpu.quota = 3.5; }), Complaints{"quota poor"});
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.cpu.quota = 4; }), Complaints());
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.cpu.load = 2.5; }), Complaints{"load poor"});
  // The processor has it, Linux does not hand it out.
  EXPECT_EQ(complaints([](DoctorFacts& f) {
              f.cpu.supported.erase(f.cpu.supported.begin());
              f.cpu.chosen = Isa::kAvx512;
              f.one.products = {};
              f.all.products = {};
            }),
            Complaints{"AMX poor"});
  EXPECT_EQ(complaints([](DoctorFacts& f) {
              f.cpu.chosen = Isa::kAvx2;
              f.cpu.wanted = "avx2";
              f.one.products = {};
              f.all.products = {};
            }),
            Complaints{"instruction set poor"});
  EXPECT_EQ(finding(good_machine(), "instruction set").value, "amx (the best here)");
}

TEST(DoctorJudge, AnOldProcessorMissesThings) {
  const auto old = [](DoctorFacts& f) {
    f.cpu.amx = f.cpu.avx512_bf16 = false;
    f.cpu.supported = {Isa::kAvx2, Isa::kReference};
    f.cpu.chosen = Isa::kAvx2;
    for (RateFacts* rates : {&f.one, &f.all}) {
      rates->limits.bf16_flops = rates->limits.tile_flops = 0;
      rates->product_limit = rates->limits.fma_flops;
      rates->products.fill(0.7 * rates->product_limit);
    }
  };
  EXPECT_EQ(complaints(old),
            (Complaints{"AVX-512 VNNI BF16 missing", "AMX missing", "BF16 pairs, 1 core missing",
                        "AMX tiles, 1 core missing"}));
  DoctorFacts facts = good_machine();
  old(facts);
  EXPECT_EQ(finding(facts, "AVX-512 VNNI BF16").value, "AVX-512 VNNI");
  EXPECT_TRUE(sound(judge(facts)));  // what is missing is replaced
}

TEST(DoctorJudge, WrongNumbersFail) {
  for (const double share : {1.001, std::numeric_limits<double>::quiet_NaN()}) {
    DoctorFacts facts = good_machine();
    facts.checks[1].share = share;
    const std::vector<Finding> findings = judge(facts);
    EXPECT_FALSE(sound(findings));
    EXPECT_EQ(finding(facts, "avx2 FP4").verdict, Verdict::kFailed);
    EXPECT_EQ(finding(facts, "amx BF16").verdict, Verdict::kRight);
    EXPECT_FALSE(doctor_json(findings)["sound"]);
  }
  DoctorFacts facts = good_machine();
  facts.checks[1].share = 1;
  EXPECT_TRUE(sound(judge(facts)));
}

TEST(DoctorJudge, Memory) {
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.memory.available_bytes = 15e9; }),
            Complaints{"available poor"});
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.memory.huge_pages = "never"; }),
            Complaints{"huge pages poor"});
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.memory.huge_pages = ""; }),
            Complaints{"huge pages missing"});
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.one.limits.read_bytes_per_second = 5e9; }),
            Complaints{"read, 1 core poor"});
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.all.limits.read_bytes_per_second = 16e9; }),
            Complaints{"read, 4 cores poor"});
}

TEST(DoctorJudge, Compute) {
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.all.limits.fma_flops = 600e9; }),
            Complaints{"float32 FMA, 4 cores poor"});
  // Two threads of a core share its units.
  const auto threads = [](DoctorFacts& f) {
    f.cpu.cores = 2;
    for (double* rate : {&f.all.limits.fma_flops, &f.all.limits.bf16_flops,
                         &f.all.limits.tile_flops, &f.all.limits.cached_bytes_per_second}) {
      *rate /= 2;
    }
  };
  EXPECT_EQ(complaints(threads), Complaints());
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.one.products[1] = 1e12; }),
            Complaints{"amx FP8 product, 1 core poor"});
  EXPECT_EQ(finding(good_machine(), "amx FP8 product, 1 core").value,
            "1.35 TFLOP/s, 50 % of limit");
}

TEST(DoctorJudge, ASingleCoreIsSaidOnce) {
  DoctorFacts facts = good_machine();
  facts.cpu.online = facts.cpu.usable = facts.cpu.cores = 1;
  facts.all = facts.one;
  std::size_t rates = 0;
  for (const Finding& one : judge(facts)) {
    rates += one.what.ends_with("1 core") ? 1U : 0U;
    EXPECT_EQ(one.what.find(" cores"), std::string::npos) << one.what;
  }
  EXPECT_EQ(rates, 8U);
}

TEST(DoctorJudge, DiskAndLimits) {
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.disk.bytes_per_second = 0.2e9; }),
            Complaints{"read \"/models\" poor"});
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.disk.problem = "read-only"; }),
            Complaints{"read \"/models\" missing"});
  EXPECT_EQ(complaints([](DoctorFacts& f) { f.disk.io_uring = "forbidden"; }),
            Complaints{"io_uring missing"});
  EXPECT_EQ(complaints(
                [](DoctorFacts& f) { f.limits = {.locked_bytes = 8U << 20U, .open_files = 1024}; }),
            (Complaints{"locked memory poor", "open files poor"}));
  EXPECT_EQ(finding(good_machine(), "locked memory").value, "unlimited");
}

TEST(DoctorReport, TheTableIsAligned) {
  DoctorFacts facts = good_machine();
  facts.disk.directory = "/mod\xc3\xa8les\n";
  facts.limits.open_files = 1024;
  std::istringstream lines(doctor_table(judge(facts)));
  std::size_t sections = 0;
  std::size_t column = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_EQ(line, line.substr(0, line.find_last_not_of(' ') + 1)) << "spaces at the end";
    if (!line.starts_with("  ")) {
      sections += line.empty() ? 0U : 1U;
      continue;
    }
    // The verdict starts in the same column everywhere, counted in characters.
    std::size_t at = std::string::npos;
    for (const char* const verdict : {"  good", "  ok", "  poor", "  missing", "  FAILED"}) {
      at = std::min(at, line.rfind(verdict));
    }
    ASSERT_NE(at, std::string::npos) << line;
    at -= static_cast<std::size_t>(std::ranges::count(line, '\xc3'));
    EXPECT_TRUE(column == 0 || at == column) << line;
    column = at;
  }
  EXPECT_EQ(sections, 6U);
}

TEST(DoctorReport, TableOfMadeUpFindings) {
  const std::vector<Finding> findings = {
      {.section = "one", .what = "a", .value = "1 GB/s", .number = 1e9, .unit = "B/s"},
      {.section = "one", .what = "longer", .value = "2", .verdict = Verdict::kPoor, .advice = "x"},
      {.section = "two", .what = "b", .value = "-", .verdict = Verdict::kMissing, .advice = "y"},
      {.section = "two", .what = "c", .value = "3", .verdict = Verdict::kFailed, .advice = "z"}};
  EXPECT_EQ(doctor_table(findings),
            "one\n"
            "  a       1 GB/s  good\n"
            "  longer  2       poor     x\n"
            "\n"
            "two\n"
            "  b       -       missing  y\n"
            "  c       3       FAILED   z\n");
}

TEST(DoctorReport, JsonSaysTheSame) {
  const std::vector<Finding> findings = judge(good_machine());
  const nlohmann::json json = doctor_json(findings);
  EXPECT_TRUE(json["sound"]);
  ASSERT_EQ(json["findings"].size(), findings.size());
  for (std::size_t i = 0; i < findings.size(); ++i) {
    const nlohmann::json& entry = json["findings"][i];
    EXPECT_EQ(entry["section"], findings[i].section);
    EXPECT_EQ(entry["what"], findings[i].what);
    EXPECT_EQ(entry["value"], findings[i].value);
    EXPECT_EQ(entry["verdict"], name(findings[i].verdict));
    EXPECT_EQ(entry.contains("number"), findings[i].number.has_value());
  }
  const Finding read = finding(good_machine(), "read, 1 core");
  EXPECT_EQ(read.number, 15e9);
  EXPECT_EQ(read.unit, "B/s");
}

}  // namespace
}  // namespace galley::apps
