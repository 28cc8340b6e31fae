#include "apps/tokenizer_choice.h"

#include <algorithm>
#include <string_view>

#include "builtin_files.h"
#include "recipe/control.h"

namespace galley::apps {

Result<std::shared_ptr<const recipe::Tokenizer>> choose_tokenizer(const std::string& path) {
  if (path.empty()) {
    return recipe::Tokenizer::from_json(builtin_tokenizer_json());
  }
  GALLEY_TRY(auto tokenizer, recipe::Tokenizer::from_file(path));
  // V4's file has other names at the ids that V4.1 gave a meaning; a smaller one has no such ids.
  const auto renames = recipe::v41_renames();
  const bool renamed =
      tokenizer->find_added(recipe::spelling(recipe::Control::kSystem)).has_value();
  if (renamed || tokenizer->vocabulary_size() <= std::ranges::max_element(renames)->first) {
    return tokenizer;
  }
  return recipe::Tokenizer::from_file(path, {.rename = renames});
}

std::string_view builtin_tokenizer_json() {
  const auto bytes = builtin_files::files().front().bytes;
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace galley::apps
