// Goal: pieces of a file are read where they lie, and an end or a missing file is an error. Method:
// one small file.
#include "base/row_file.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>

namespace galley {
namespace {

TEST(RowFile, ReadsPieces) {
  const std::string path = testing::TempDir() + "galley_row_file_" + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary) << "0123456789";
  auto opened = RowFile::open(path);
  ASSERT_TRUE(opened) << to_string(opened.error());
  const RowFile file = std::move(*opened);
  std::array<std::byte, 4> out{};
  file.expect(3, 4);
  ASSERT_TRUE(file.read(3, out));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.data()), out.size()), "3456");
  const auto past = file.read(8, out);
  ASSERT_FALSE(past);
  EXPECT_EQ(past.error().code, Code::kCorruption);
  std::filesystem::remove(path);
  const auto missing = RowFile::open(path);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_EQ(missing.error().where, path);
}

}  // namespace
}  // namespace galley
