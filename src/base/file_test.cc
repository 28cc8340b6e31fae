// Goal: a file is read whole or refused with the reason. Method: small files, and things that are
// not files.
#include "base/file.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

namespace galley {
namespace {

class File : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "galley_file_test_" + std::to_string(::getpid());
    std::filesystem::create_directory(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string write(std::string_view text) const {
    std::string path = directory_ + "/file";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string directory_;
};

TEST_F(File, IsReadWholeUpToTheLimit) {
  EXPECT_EQ(*read_file(write(""), Bytes(0)), "");
  const std::string text("a\0b\r\n", 5);
  const std::string path = write(text);
  EXPECT_EQ(*read_file(path, Bytes(5)), text);
  EXPECT_EQ(*read_file(path, Bytes(500)), text);
  const auto large = read_file(path, Bytes(4));
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, Code::kTooLarge);
}

TEST_F(File, ProblemsAreNamed) {
  const auto missing = read_file(directory_ + "/none", Bytes(1));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_NE(missing.error().what.find("/none"), std::string::npos);
  const auto folder = read_file(directory_, Bytes(1));
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code, Code::kInvalidArgument);
  EXPECT_FALSE(read_file("/dev/zero", Bytes(1)));
}

}  // namespace
}  // namespace galley
