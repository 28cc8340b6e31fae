// Goal: the whole network equals the goldens, and itself in every chunking; a set that lacks
// something, is garbled or has one wrong value does not pass. Method: the golden set of
// tests/golden, file by file, and copies of it that are broken on purpose.
#include "model/golden_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/safetensors.h"

namespace galley::model {
namespace {

namespace fs = std::filesystem;

const fs::path kSet = fs::path(GALLEY_TESTS_DIR) / "golden";

class GoldenCheck : public testing::TestWithParam<const char*> {};

TEST_P(GoldenCheck, Passes) {
  const auto device = kernels::create_cpu_device(2);
  const auto outcomes = check_golden_set(kSet, *device, GetParam());
  ASSERT_TRUE(outcomes) << to_string(outcomes.error());
  EXPECT_GT(outcomes->size(), 5U);
  for (const GoldenOutcome& outcome : *outcomes) {
    EXPECT_TRUE(outcome.passed) << outcome.name << ": max " << outcome.max_error
                                << ", relative rms " << outcome.relative_rms << "; "
                                << outcome.detail;
  }
}

INSTANTIATE_TEST_SUITE_P(,
                         GoldenCheck,
                         testing::Values("ops",
                                         "images",
                                         "v4/short",
                                         "v41/short",
                                         "v4/short_act",
                                         "v41/short_act",
                                         "v4/f32_nq",
                                         "v41/f32_nq",
                                         "v4/f32",
                                         "v41/f32",
                                         "v4/bf16",
                                         "v41/bf16",
                                         "v4/bf16_act",
                                         "v41/bf16_act",
                                         "v41/vision",
                                         "v41/replay"),
                         [](const testing::TestParamInfo<const char*>& param) {
                           std::string name = param.param;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

// Value `at` of a tensor, another one: floats larger by `difference` of their size at least.
std::string changed(const TensorView& view, std::size_t at, float difference) {
  const std::size_t width = bytes_of(view.dtype);
  std::string value(reinterpret_cast<const char*>(view.bytes.data()) + at * width, width);
  if (view.dtype == Dtype::kF32) {
    float number = 0;
    std::memcpy(&number, value.data(), sizeof(number));
    number = std::isfinite(number) ? number + difference * std::max(1.0F, std::fabs(number)) : 7.0F;
    std::memcpy(value.data(), &number, sizeof(number));
  } else {
    value[0] = static_cast<char>(value[0] ^ 1);
  }
  return value;
}

// A copy of one part of the set, to be broken.
class BrokenSet : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::path(testing::TempDir()) /
        fmt::format("broken_set_{}", testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void copy(const char* part) { fs::copy(kSet / part, folder_ / part); }

  // Names and details of what fails.
  std::map<std::string, std::string> failures(std::string_view part) {
    const auto outcomes = check_golden_set(folder_, *device_, part);
    EXPECT_TRUE(outcomes) << to_string(outcomes.error());
    std::map<std::string, std::string> out;
    for (const GoldenOutcome& outcome : outcomes.value_or(std::vector<GoldenOutcome>())) {
      if (!outcome.passed) {
        out[outcome.name] = outcome.detail;
      }
    }
    return out;
  }

  // Overwrites bytes of a tensor in `file`.
  void write(const fs::path& file, const std::string& tensor, std::size_t at, std::string bytes) {
    const Safetensors header = Safetensors::open(kSet / file).value();
    std::fstream out(folder_ / file, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(header.offset_of(*header.find(tensor)) + at));
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(out.good()) << tensor;
  }
  // Writes `file` again with its JSON header changed; tensors keep their bytes.
  void edit_header(const fs::path& file, const std::function<void(nlohmann::json&)>& edit) {
    std::ifstream in(kSet / file, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    nlohmann::json header = nlohmann::json::parse(bytes.substr(sizeof(length), length));
    edit(header);
    const std::string text = header.dump();
    const std::uint64_t size = text.size();
    std::ofstream out(folder_ / file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), sizeof(size));
    out << text << bytes.substr(sizeof(length) + length);
  }

  fs::path folder_;
  std::unique_ptr<kernels::Device> device_ = kernels::create_cpu_device(2);
};

// Tensors of ops that operations start from; every other one is a result.
const std::set<std::string, std::less<>> kInputs = {"attention_sink.kv",
                                                    "attention_sink.q",
                                                    "attention_sink.sink",
                                                    "attention_sink.visible",
                                                    "compressor_csa.a",
                                                    "compressor_csa.ape",
                                                    "compressor_csa.g",
                                                    "compressor_csa.norm",
                                                    "compressor_csa2.a",
                                                    "compressor_csa2.g",
                                                    "compressor_csa2.k_norm",
                                                    "compressor_csa2.norm",
                                                    "compressor_csa2.wk",
                                                    "compressor_hca.a",
                                                    "compressor_hca.ape",
                                                    "compressor_hca.g",
                                                    "engram_hash.t",
                                                    "expert.w1",
                                                    "expert.w2",
                                                    "expert.w3",
                                                    "expert.weight",
                                                    "expert.x",
                                                    "fake_quant.x",
                                                    "fp4_weight.scale",
                                                    "fp4_weight.weight",
                                                    "fp8_weight_128.scale",
                                                    "fp8_weight_128.weight",
                                                    "fp8_weight_32.scale",
                                                    "fp8_weight_32.weight",
                                                    "indexer.k",
                                                    "indexer.n_visible",
                                                    "indexer.q",
                                                    "indexer.w",
                                                    "mhc.X",
                                                    "mhc.base",
                                                    "mhc.fn",
                                                    "mhc.head_base",
                                                    "mhc.head_fn",
                                                    "mhc.head_scale",
                                                    "mhc.scale",
                                                    "mhc.y",
                                                    "rmsnorm.w",
                                                    "rmsnorm.x",
                                                    "rope.pos",
                                                    "rope.x",
                                                    "router.hash_idx",
                                                    "router.bias",
                                                    "router.gate",
                                                    "router.x",
                                                    "sinkhorn.logits"};

TEST_F(BrokenSet, OneWrongValueOfAnyOperationFails) {
  const fs::path file = fs::path("ops") / "ops.safetensors";
  const Safetensors golden = Safetensors::open(kSet / file).value();
  for (const auto& [tensor, view] : golden.tensors()) {
    if (kInputs.contains(tensor)) {
      continue;
    }
    const std::size_t width = bytes_of(view.dtype);
    const auto last = static_cast<std::size_t>(view.elements()) - 1;
    for (const std::size_t at : {std::size_t{0}, last / 2, last}) {
      fs::remove_all(folder_ / "ops");
      copy("ops");
      const std::string value = changed(view, at, 1e-3F);
      write(file, tensor, at * width, value);
      EXPECT_TRUE(failures("ops").contains("ops/" + tensor)) << tensor << " " << at;
    }
  }
}

// What a run starts from, and what may differ in some places or lies behind a rounding (README of
// the goldens, step 8).
bool is_result(std::string_view tensor) {
  for (const std::string_view name :
       {"ids", "rows", "chunks", "dspark.x0", "decode.input", "f32.argmax", "bf16.argmax"}) {
    if (tensor == name) {
      return false;
    }
  }
  return !tensor.starts_with("f32.L") && !tensor.starts_with("bf16.L");
}

// Every result of a run is changed at once, in its first and its last value, and each is noticed.
TEST_F(BrokenSet, EveryResultOfARunIsCompared) {
  for (const std::string part : {"v4/short", "v41/short", "v4/f32_nq", "v41/vision"}) {
    fs::remove_all(folder_ / part.substr(0, part.find('/')));
    copy(part.substr(0, part.find('/')).c_str());
    const std::string file = part + ".safetensors";
    const Safetensors golden = Safetensors::open(kSet / file).value();
    std::set<std::string> results;
    for (const auto& [tensor, view] : golden.tensors()) {
      if (!is_result(tensor)) {
        continue;
      }
      results.insert(tensor);
      for (const std::size_t at : {std::size_t{0}, static_cast<std::size_t>(view.elements()) - 1}) {
        write(file, tensor, at * bytes_of(view.dtype), changed(view, at, 1e3F));
      }
    }
    EXPECT_GT(results.size(), 25U);
    const auto failed = failures(part);
    for (const std::string& tensor : results) {
      EXPECT_TRUE(failed.contains(fmt::format("{} {}", part, tensor))) << part << " " << tensor;
    }
  }
}

TEST_F(BrokenSet, GarbledIndicesAreNamed) {
  struct Case {
    const char* tensor;
    std::string value;
    const char* detail;
  };
  const auto number = [](std::int64_t value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  for (const Case& c :
       {Case{"router.hash_idx", number(1'000'000), "value 0 is 1000000, want [0, 7]"},
        Case{"router.hash_idx", number(-1), "value 0 is -1, want [0, 7]"},
        Case{"indexer.n_visible", number(41), "value 0 is 41, want [1, 40]"},
        Case{"indexer.n_visible", number(-5), "value 0 is -5, want [1, 40]"},
        Case{"engram_hash.t", number(99'092), "value 0 is 99092, want [0, 99091]"}}) {
    fs::remove_all(folder_ / "ops");
    copy("ops");
    write("ops/ops.safetensors", c.tensor, 0, c.value);
    const auto failed = failures("ops");
    ASSERT_TRUE(failed.contains(std::string("ops/") + c.tensor));
    EXPECT_EQ(failed.at(std::string("ops/") + c.tensor), c.detail);
  }
}

TEST_F(BrokenSet, TensorsThatAreMissingMisshapenOrNewAreNamed) {
  struct Case {
    std::function<void(nlohmann::json&)> edit;
    const char* name;
    const char* detail;
  };
  const auto rename = [](nlohmann::json& header, const char* from, const char* to) {
    header[to] = header[from];
    header.erase(from);
  };
  for (const Case& c : {Case{[&](auto& h) { rename(h, "mhc.head_collapsed", "mhc.new"); },
                             "ops/mhc.head_collapsed", "is missing"},
                        Case{[&](auto& h) { h["rope.pos"]["dtype"] = "F64"; }, "ops/rope.pos",
                             "has no dtype of integers"},
                        Case{[&](auto& h) {
                               // A row fewer here is a new tensor there: the file stays whole.
                               h["expert.x"]["shape"] = {7, 64};
                               h["expert.x"]["data_offsets"][1] =
                                   h["expert.x"]["data_offsets"][1].template get<int>() - 256;
                               h["filler"] = {
                                   {"dtype", "F32"},
                                   {"shape", {64}},
                                   {"data_offsets",
                                    {h["expert.x"]["data_offsets"][1],
                                     h["expert.x"]["data_offsets"][1].template get<int>() + 256}}};
                             },
                             "ops/expert.x", "has shape [7, 64], want 512 values"}}) {
    fs::remove_all(folder_ / "ops");
    copy("ops");
    edit_header("ops/ops.safetensors", c.edit);
    const auto failed = failures("ops");
    ASSERT_TRUE(failed.contains(c.name)) << c.name;
    EXPECT_EQ(failed.at(c.name), c.detail);
  }
}

TEST_F(BrokenSet, ATensorThatNothingComparesFails) {
  copy("ops");
  edit_header("ops/ops.safetensors", [](nlohmann::json& header) {
    header["mhc.new"] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
  });
  const auto failed = failures("ops");
  EXPECT_EQ(failed.at("ops/mhc.new"), "is compared with nothing");
  EXPECT_EQ(failed.at("ops/ops.json mhc.new"), "is not listed");
}

TEST_F(BrokenSet, TheListOfOperationsIsRead) {
  const auto edited = [&](const char* from, const char* to) {
    fs::remove_all(folder_ / "ops");
    copy("ops");
    std::ifstream in(kSet / "ops/ops.json");
    std::string text((std::istreambuf_iterator<char>(in)), {});
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    text.replace(at, std::strlen(from), to);
    std::ofstream(folder_ / "ops/ops.json") << text;
    return failures("ops");
  };
  EXPECT_TRUE(edited("384006168", "384006169").contains("ops/ops.json engram_hash.table_rows"));
  EXPECT_TRUE(edited("\"y_1e20\"", "\"y_1e21\"").contains("ops/ops.json rmsnorm.y_1e20"));
  EXPECT_TRUE(edited("\"y_1e20\"", "\"y_1e21\"").contains("ops/ops.json rmsnorm.y_1e21"));
  EXPECT_TRUE(edited("{", "[").contains("ops can be read"));
}

TEST_F(BrokenSet, MissingFilesAreNamed) {
  std::set<std::string> names;
  for (const auto& [name, detail] : failures("")) {
    names.insert(name);
    EXPECT_NE(detail.find(folder_.string()), std::string::npos) << name << " " << detail;
  }
  const std::set<std::string> want = {
      "images can be read",       "ops can be read",          "v4/bf16 can be read",
      "v4/bf16_act can be read",  "v4/f32 can be read",       "v4/f32_nq can be read",
      "v4/short can be read",     "v4/short_act can be read", "v41/bf16 can be read",
      "v41/bf16_act can be read", "v41/f32 can be read",      "v41/f32_nq can be read",
      "v41/replay can be read",   "v41/short can be read",    "v41/short_act can be read",
      "v41/vision can be read"};
  EXPECT_EQ(names, want);
  copy("v4");
  fs::remove(folder_ / "v4/model.safetensors");
  EXPECT_TRUE(failures("v4/short").contains("v4/short can be run"));
}

// A parameter of a run that would lead out of a buffer is named instead.
TEST_F(BrokenSet, GarbledParametersOfRunsAreNamed) {
  struct Case {
    const char* part;
    const char* tensor;
  };
  copy("v4");
  copy("v41");
  for (const Case& c :
       {Case{"v4/f32_nq", "ids"}, Case{"v4/f32_nq", "rows"}, Case{"v4/f32_nq", "chunks"},
        Case{"v4/f32_nq", "decode.input"}, Case{"v4/short", "ids"}, Case{"v41/replay", "hit"},
        Case{"v41/replay", "replay_start"}, Case{"v41/replay", "keep"}, Case{"v41/replay", "cut"},
        Case{"v41/replay", "cold.chunks0"}, Case{"v41/vision", "ids"},
        Case{"v41/vision", "rows"}}) {
    const std::string file = std::string(c.part) + ".safetensors";
    write(file, c.tensor, 0, std::string("\xff\xff\xff\x7f", 4));
    EXPECT_TRUE(failures(c.part).contains(fmt::format("{} {}", c.part, c.tensor))) << c.tensor;
    fs::copy_file(kSet / file, folder_ / file, fs::copy_options::overwrite_existing);
  }
}

}  // namespace
}  // namespace galley::model
