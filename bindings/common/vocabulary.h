#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "recipe/control.h"
#include "recipe/conversation.h"
#include "recipe/prompt.h"
#include "recipe/prompt_encoder.h"
#include "recipe/tokenizer.h"

namespace galley::bindings {

// A tokenizer together with what encodes the prompts of each model version: what C and Python call
// a tokenizer. A vocabulary may lack control tokens of one version; that is an error only when that
// version is asked for. Thread-safe.
class Vocabulary {
 public:
  explicit Vocabulary(std::shared_ptr<const recipe::Tokenizer> tokenizer);

  [[nodiscard]] const std::shared_ptr<const recipe::Tokenizer>& tokenizer() const {
    return tokenizer_;
  }
  // Error: kInvalidArgument naming a control token the vocabulary lacks.
  [[nodiscard]] Result<std::vector<TokenId>> encode(const recipe::Prompt& prompt,
                                                    recipe::ModelVersion version) const;
  // Ids that end the model's turn. Error: as encode().
  [[nodiscard]] Result<std::vector<TokenId>> stop_ids(const recipe::Request& request) const;

 private:
  struct Side {
    recipe::ControlIds controls;
    std::unique_ptr<recipe::PromptEncoder> encoder;
  };
  [[nodiscard]] const Result<Side>& side(recipe::ModelVersion version) const {
    return sides_[static_cast<std::size_t>(version)];
  }
  static Result<Side> make_side(const std::shared_ptr<const recipe::Tokenizer>& tokenizer,
                                recipe::ModelVersion version);

  std::shared_ptr<const recipe::Tokenizer> tokenizer_;  // shared with replies under way
  std::array<Result<Side>, 2> sides_;                   // by ModelVersion
};

}  // namespace galley::bindings
