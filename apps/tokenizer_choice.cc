#include "apps/tokenizer_choice.h"

#include <string_view>

#include "builtin_files.h"
#include "recipe/control.h"

namespace galley::apps {

Result<std::shared_ptr<const recipe::Tokenizer>> choose_tokenizer(const std::string& path) {
  if (!path.empty()) {
    return recipe::Tokenizer::from_file(path, {.rename = recipe::v41_renames()});
  }
  const auto bytes = builtin_files::files().front().bytes;
  return recipe::Tokenizer::from_json(
      std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace galley::apps
