#include "apps/introduction.h"

#include <system_error>
#include <utility>

#include "apps/input.h"
#include "recipe/json.h"

namespace galley::apps {

Result<std::optional<Introduction>> read_introduction(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "introduction.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return std::nullopt;
  }
  const auto corrupt = [] {
    return fail(Code::kCorruption, "want a text `about` and a list of texts `questions`");
  };
  GALLEY_TRY(const std::string text, read_input(path.string()));
  GALLEY_TRY(const recipe::Json json, recipe::parse_json(text));
  const recipe::Json* const about = json.find("about");
  const recipe::Json* const questions = json.find("questions");
  if (about == nullptr || about->string() == nullptr || questions == nullptr ||
      questions->array() == nullptr) {
    return corrupt();
  }
  Introduction out{.about = *about->string()};
  for (const recipe::Json& question : *questions->array()) {
    if (question.string() == nullptr) {
      return corrupt();
    }
    out.questions.push_back(*question.string());
  }
  return out;
}

}  // namespace galley::apps
