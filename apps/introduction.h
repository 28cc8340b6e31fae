#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace galley::apps {

// What a model says of itself: introduction.json in its folder, {"about": text, "questions":
// [texts]}.
struct Introduction {
  std::string about;
  std::vector<std::string> questions;  // to begin with
};

// nullopt where the folder has none. Errors: kCorruption, or as read_input.
[[nodiscard]] Result<std::optional<Introduction>> read_introduction(
    const std::filesystem::path& folder);

}  // namespace galley::apps
