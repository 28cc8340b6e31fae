// Goal: whatever a golden file holds or lacks, what is read from it has the size and the range
// asked for, and what is wrong is named. Method: a file of two tensors, asked for what it has and
// has not.
#include "model/golden_file.h"

#include <cstring>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>
#include <vector>

namespace galley::model {
namespace {

namespace fs = std::filesystem;

class GoldenFile : public testing::Test {
 protected:
  void SetUp() override {
    const std::string header = R"({"ids":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},)"
                               R"("x":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})";
    const std::uint64_t length = header.size();
    const std::int32_t ids[] = {3, 9};
    const float x = 0.5F;
    std::ofstream out(path_, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof(length));
    out << header;
    out.write(reinterpret_cast<const char*>(ids), sizeof(ids));
    out.write(reinterpret_cast<const char*>(&x), sizeof(x));
  }
  void TearDown() override { fs::remove(path_); }

  fs::path path_ = fs::path(testing::TempDir()) / fmt::format("{}_golden_file", ::getpid());
};

TEST_F(GoldenFile, ValuesOutOfRangeBecomeTheLowest) {
  const Safetensors file = Safetensors::open(path_).value();
  Golden golden(file);
  EXPECT_EQ(golden.integers("ids", {3, 9}), (std::vector<std::int64_t>{3, 9}));
  EXPECT_TRUE(golden.problems().empty());
  EXPECT_EQ(golden.integers("ids", {1, 8}), (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(golden.problems().at("ids"), "value 1 is 9, want [1, 8]");
}

TEST_F(GoldenFile, AMissingTensorHasSafeValues) {
  const Safetensors file = Safetensors::open(path_).value();
  Golden golden(file);
  EXPECT_EQ(golden.integers("gone", {-4, 4}, 2), (std::vector<std::int64_t>{0, 0}));
  EXPECT_EQ(golden.integers("gone", {2, 4}, 1), (std::vector<std::int64_t>{2}));
  EXPECT_EQ(golden.integers("gone", {-4, -2}, 1), (std::vector<std::int64_t>{-2}));
  EXPECT_EQ(golden.problems().at("gone"), "is missing");
}

// A range made from the size of another tensor that is missing, too.
TEST_F(GoldenFile, ARangeWithoutAnIntegerIsAProblem) {
  const Safetensors file = Safetensors::open(path_).value();
  Golden golden(file);
  EXPECT_EQ(golden.integers("gone", {0, -8}, 2), (std::vector<std::int64_t>{0, 0}));
  EXPECT_EQ(golden.integers("x", {5, 3}, 1), (std::vector<std::int64_t>{5}));
  EXPECT_EQ(golden.integers("ids", {1, 0}), (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(golden.problems().at("gone"), "is missing");
  EXPECT_EQ(golden.problems().at("x"), "no value fits: want [5, 3]");
  EXPECT_EQ(golden.problems().at("ids"), "no value fits: want [1, 0]");
}

TEST_F(GoldenFile, OnlyWhatIsReadOrPassedOverIsNotUnread) {
  const Safetensors file = Safetensors::open(path_).value();
  Golden golden(file);
  EXPECT_EQ(golden.unread(), (std::vector<std::string>{"ids", "x"}));
  golden.pass_over("x");
  golden.pass_over("gone");  // no problem: nothing needs it
  EXPECT_EQ(golden.unread(), (std::vector<std::string>{"ids"}));
  EXPECT_EQ(golden.floats("x"), (std::vector<float>{0.5F}));
  EXPECT_EQ(golden.tokens("ids", 10), (std::vector<std::int32_t>{3, 9}));
  EXPECT_TRUE(golden.unread().empty());
  EXPECT_TRUE(golden.problems().empty());
}

}  // namespace
}  // namespace galley::model
