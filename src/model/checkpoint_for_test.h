#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <span>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/safetensors.h"

namespace galley::model {

// A folder that is removed with the object.
class FolderForTest {
 public:
  FolderForTest() {
    std::string name = (std::filesystem::temp_directory_path() / "galley-model-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~FolderForTest() { std::filesystem::remove_all(path_); }
  FolderForTest(const FolderForTest&) = delete;
  FolderForTest& operator=(const FolderForTest&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_for_test(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.flush()) << path;
}

// A golden checkpoint in memory, to be bent and written again.
struct CheckpointForTest {
  struct Tensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };
  nlohmann::json config;
  std::map<std::string, Tensor> tensors;
  // Bytes of tensors that are zeros on disk and take no room there (a hole at the file's end).
  std::map<std::string, std::uint64_t> holes;
  std::string token_map;

  // `family`: "v4" or "v41", of tests/golden.
  static CheckpointForTest golden(const std::string& family) {
    const std::filesystem::path folder =
        std::filesystem::path(GALLEY_TESTS_DIR) / "golden" / family;
    CheckpointForTest out;
    std::ifstream config(folder / "config.json");
    out.config = nlohmann::json::parse(config);
    const auto file = Safetensors::open(folder / "model.safetensors");
    EXPECT_TRUE(file);
    for (const auto& [name, view] : file->tensors()) {
      out.tensors[name] = {
          std::string(galley::model::name(view.dtype)), view.shape,
          std::string(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size())};
    }
    std::ifstream map(folder / "engram_token_map.bin", std::ios::binary);
    out.token_map.assign(std::istreambuf_iterator<char>(map), {});
    return out;
  }

  void rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    ASSERT_FALSE(node.empty()) << from;
    node.key() = to;
    tensors.insert(std::move(node));
  }

  // The file's bytes; `edit` may bend the header before it is written.
  template <class Edit>
  [[nodiscard]] std::string file(Edit edit) const {
    nlohmann::json header = nlohmann::json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      header[name] = {{"dtype", tensor.dtype},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    std::uint64_t end = data.size();
    for (const auto& [name, bytes] : holes) {
      header[name]["data_offsets"] = {end, end + bytes};
      end += bytes;
    }
    edit(header);
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    std::string out(sizeof(length), '\0');
    std::memcpy(out.data(), &length, sizeof(length));
    return out + text + data;
  }

  void write(const std::filesystem::path& folder) const {
    write_for_test(folder / "config.json", config.dump());
    const std::filesystem::path model = folder / "model.safetensors";
    write_for_test(model, file([](nlohmann::json&) {}));
    std::uint64_t size = std::filesystem::file_size(model);
    for (const auto& [name, bytes] : holes) {
      size += bytes;
    }
    std::filesystem::resize_file(model, size);
    if (!token_map.empty()) {
      write_for_test(folder / "engram_token_map.bin", token_map);
    }
  }
};

}  // namespace galley::model
