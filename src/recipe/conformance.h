#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "recipe/json.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

// Runs golden records (formats of spec recipe 9.1 to 9.3) against the codec in Compat::kRecipe02.
// Other engines can use it on records of their own.
namespace galley::recipe {

inline constexpr std::int64_t kGoldenBytesMax = std::int64_t{256} << 20U;  // of one golden file

// The same vocabulary under the names of both versions.
struct ConformanceTokenizers {
  std::shared_ptr<const Tokenizer> v4;
  std::shared_ptr<const Tokenizer> v41;
};

// Outcome of one record.
struct RecordCheck {
  std::string id;                        // the record's id, or "key[index] name" in a vectors file
  std::vector<std::string> differences;  // empty: passed. One readable line each.
  std::string not_applicable;            // reason, when the record tests what no public API reaches
};

// The options a record was made with: its version under the model name `m`, Compat::kRecipe02, and
// what its `opt` names. Error: an `opt` nobody knows.
[[nodiscard]] Result<CodecOptions> golden_options(const Json& record);

// One line of a .jsonl golden file.
[[nodiscard]] RecordCheck check_record(const Json& record, const ConformanceTokenizers& tokenizers);

// A whole file: .jsonl (a record a line) or a vectors .json. Error: unreadable file or malformed
// JSON, with the line.
[[nodiscard]] Result<std::vector<RecordCheck>> check_file(const std::string& path,
                                                          const ConformanceTokenizers& tokenizers);

}  // namespace galley::recipe
