#include "bindings/common/vocabulary.h"

#include <utility>

namespace galley::bindings {

Vocabulary::Vocabulary(std::shared_ptr<const recipe::Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)),
      sides_{make_side(tokenizer_, recipe::ModelVersion::kV4),
             make_side(tokenizer_, recipe::ModelVersion::kV41)} {}

Result<Vocabulary::Side> Vocabulary::make_side(
    const std::shared_ptr<const recipe::Tokenizer>& tokenizer, recipe::ModelVersion version) {
  GALLEY_TRY(const recipe::ControlIds controls, recipe::ControlIds::find(*tokenizer, version));
  return Side{controls, std::make_unique<recipe::PromptEncoder>(tokenizer, controls)};
}

Result<std::vector<TokenId>> Vocabulary::encode(const recipe::Prompt& prompt,
                                                recipe::ModelVersion version) const {
  const Result<Side>& found = side(version);
  if (!found) {
    return std::unexpected(found.error());
  }
  return found->encoder->encode(prompt);
}

Result<std::vector<TokenId>> Vocabulary::stop_ids(const recipe::Request& request) const {
  const Result<Side>& found = side(request.version);
  if (!found) {
    return std::unexpected(found.error());
  }
  return recipe::stop_ids(request, found->controls, *tokenizer_);
}

}  // namespace galley::bindings
