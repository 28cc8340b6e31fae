#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace galley::model {

// MANIFEST.json of a golden set: where its numbers come from, the noise of its runs, image plans
// and files. Error: it cannot be read, or is no object.
[[nodiscard]] Result<nlohmann::json> read_manifest(const std::filesystem::path& path);

}  // namespace galley::model
