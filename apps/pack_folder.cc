#include "apps/pack_folder.h"

#include <cstdlib>

namespace galley::apps {
namespace {

namespace fs = std::filesystem;

// The variable's path; empty when it has none, or one that depends on the working directory, which
// the XDG base directory specification (0.8) tells to pass over.
fs::path absolute_path(const char* variable) {
  const char* const value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): none is set
  const fs::path path = value == nullptr ? "" : value;
  return path.is_absolute() ? path : fs::path();
}

}  // namespace

Result<fs::path> pack_folder() {
  fs::path cache = absolute_path("XDG_CACHE_HOME");
  if (cache.empty()) {
    const fs::path home = absolute_path("HOME");
    if (home.empty()) {
      return fail(Code::kInvalidArgument,
                  "neither XDG_CACHE_HOME nor HOME names a folder for files of packed weights");
    }
    cache = home / ".cache";
  }
  return cache / "galley" / "packed";
}

}  // namespace galley::apps
