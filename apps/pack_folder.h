#pragma once

#include <filesystem>
#include <string_view>

#include "base/result.h"

namespace galley::apps {

inline constexpr std::string_view kPackFolderHelp =
    "$XDG_CACHE_HOME/galley/packed, or ~/.cache/galley/packed";

// Where pack files lie (model/pack_file.h). Error: the environment names no home.
[[nodiscard]] Result<std::filesystem::path> pack_folder();

}  // namespace galley::apps
