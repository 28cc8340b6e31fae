// Goal: a file appears whole or not at all, and nothing else is left in its folder. Method: a
// folder of its own, looked at before and after each end a file can have.
#include "base/new_file.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

namespace galley {
namespace {

namespace fs = std::filesystem;

class NewFileTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      out.insert(entry.path().filename());
    }
    return out;
  }
  [[nodiscard]] static std::string content(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::span<const std::byte> bytes(std::string_view text) {
    return std::as_bytes(std::span(text));
  }

  fs::path folder_ =
      fs::path(testing::TempDir()) / ("galley_new_file_" + std::to_string(::getpid()));
  fs::path path_ = folder_ / "a" / "file";
};

TEST_F(NewFileTest, AppearsWholeWithItsFolder) {
  auto file = NewFile::create(path_, 6);
  ASSERT_TRUE(file) << to_string(file.error());
  ASSERT_TRUE(file->write(4, bytes("ef")));
  ASSERT_TRUE(file->write(0, bytes("ab")));
  EXPECT_FALSE(fs::exists(path_));
  NewFile moved = std::move(*file);
  ASSERT_TRUE(moved.commit());
  EXPECT_EQ(content(path_), std::string("ab\0\0ef", 6));
  folder_ /= "a";
  EXPECT_EQ(names(), std::set<std::string>{"file"});
  folder_ = folder_.parent_path();
}

TEST_F(NewFileTest, ReplacesWhatWasThereAndOnlyThen) {
  fs::create_directories(path_.parent_path());
  std::ofstream(path_) << "old";
  {
    auto first = NewFile::create(path_, 3);
    auto second = NewFile::create(path_, 3);
    auto dropped = NewFile::create(path_, 3);
    ASSERT_TRUE(first && second && dropped);
    ASSERT_TRUE(dropped->write(0, bytes("bad")));
    ASSERT_TRUE(first->write(0, bytes("one")));
    EXPECT_EQ(content(path_), "old");
    ASSERT_TRUE(first->commit());
    EXPECT_EQ(content(path_), "one");
    ASSERT_TRUE(second->write(0, bytes("two")));
    EXPECT_EQ(content(path_), "one");
    ASSERT_TRUE(second->commit());
  }
  EXPECT_EQ(content(path_), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(path_.parent_path()), {}), 1);
}

TEST_F(NewFileTest, ErrorsNameThePlaceAndLeaveNothing) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "taken") << "";
  const auto below_a_file = NewFile::create(folder_ / "taken" / "file", 3);
  ASSERT_FALSE(below_a_file);
  EXPECT_EQ(below_a_file.error().code, Code::kUnavailable);
  EXPECT_EQ(below_a_file.error().where, (folder_ / "taken").string());
  EXPECT_TRUE(below_a_file.error().what.starts_with("cannot make the folder: "));

  fs::create_directories(folder_ / "folder" / "full");
  {
    auto over_a_folder = NewFile::create(folder_ / "folder", 3);
    ASSERT_TRUE(over_a_folder);
    const auto done = over_a_folder->commit();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().where, (folder_ / "folder").string());
  }
  // More than any disk has; how it is refused depends on the file system.
  EXPECT_FALSE(NewFile::create(folder_ / "large", std::uint64_t{1} << 62U));
  EXPECT_EQ(names(), (std::set<std::string>{"folder", "taken"}));
}

TEST_F(NewFileTest, AWriteThatFailsIsAnError) {
  auto file = NewFile::create(path_, 0);
  ASSERT_TRUE(file);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 4, .rlim_max = before.rlim_max};
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto done = file->write(0, bytes("longer"));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace galley
