// Goal: what is appended is there for the next run, a torn line is not, and no other file is
// harmed. Method: files in a folder of their own.
#include "gateway/batch_output.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

namespace galley::gateway {
namespace {

std::string answer(std::string_view id) {
  return batch_answer_line({.id = "1",
                            .custom_id = std::string(id),
                            .status = 200,
                            .request_id = "req_1",
                            .body = "{}",
                            .note = {}});
}

class BatchOutputTest : public testing::Test {
 protected:
  BatchOutputTest() { std::filesystem::create_directory(folder_); }
  ~BatchOutputTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string content() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  void write(std::string_view text) const { std::ofstream(path_) << text; }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) /
      testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string path_ = (folder_ / "out.jsonl").string();
};

TEST_F(BatchOutputTest, AppendsAndReadsAgain) {
  {
    auto output = BatchOutput::open(path_);
    ASSERT_TRUE(output.has_value()) << to_string(output.error());
    EXPECT_EQ(output->done().size(), 0U);
    ASSERT_TRUE(output->append(answer("a")).has_value());
    EXPECT_EQ(content(), answer("a"));  // before it is closed
  }
  auto output = BatchOutput::open(path_);
  ASSERT_TRUE(output.has_value());
  EXPECT_TRUE(output->done().custom_ids.contains("a"));
  ASSERT_TRUE(output->append(answer("b")).has_value());
  EXPECT_EQ(content(), answer("a") + answer("b"));
}

TEST_F(BatchOutputTest, ATornLineIsCutOff) {
  write(answer("a") + answer("b").substr(0, 30));
  auto output = BatchOutput::open(path_);
  ASSERT_TRUE(output.has_value());
  EXPECT_EQ(output->done().size(), 1U);
  EXPECT_EQ(content(), answer("a"));
  ASSERT_TRUE(output->append(answer("b")).has_value());
  EXPECT_EQ(content(), answer("a") + answer("b"));
}

TEST_F(BatchOutputTest, AnotherFileIsLeftAsItIs) {
  write("dear diary");
  const auto output = BatchOutput::open(path_);
  ASSERT_FALSE(output.has_value());
  EXPECT_EQ(output.error().where, path_ + ", line 1");
  EXPECT_EQ(content(), "dear diary");
}

TEST_F(BatchOutputTest, OneProcessWrites) {
  auto output = BatchOutput::open(path_);
  ASSERT_TRUE(output.has_value());
  const auto second = BatchOutput::open(path_);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().what, "another process is writing it");
  // Moved, it is still held; gone, it is free.
  {
    const BatchOutput moved = *std::move(output);
    EXPECT_FALSE(BatchOutput::open(path_).has_value());
  }
  EXPECT_TRUE(BatchOutput::open(path_).has_value());
}

TEST_F(BatchOutputTest, WhatIsNoFileIsRefused) {
  EXPECT_EQ(BatchOutput::open(folder_.string()).error().where, folder_.string());
  EXPECT_EQ(BatchOutput::open((folder_ / "no" / "out").string()).error().code, Code::kUnavailable);
  const auto device = BatchOutput::open("/dev/null");
  ASSERT_FALSE(device.has_value());
  EXPECT_NE(device.error().what.find("no regular file"), std::string::npos);
}

}  // namespace
}  // namespace galley::gateway
