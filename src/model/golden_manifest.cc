#include "model/golden_manifest.h"

#include <string>

#include "base/file.h"

namespace galley::model {

Result<nlohmann::json> read_manifest(const std::filesystem::path& path) {
  constexpr std::size_t kManifestBytesMax = std::size_t{16} << 20U;
  GALLEY_TRY(const std::string text, read_file(path.string(), Bytes(kManifestBytesMax)));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return fail(Code::kCorruption, "want a JSON object", path.string());
  }
  return json;
}

}  // namespace galley::model
