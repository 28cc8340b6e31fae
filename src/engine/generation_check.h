#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "model/plan.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer.h"

namespace galley::engine {

// What the network cannot do with a generation, of a model with so many token ids and so long a
// context. Errors: kInvalidArgument or kUnimplemented, with the request's field in `where`.
[[nodiscard]] Result<void> check_generation(const recipe::Generation& generation,
                                            std::size_t vocabulary,
                                            std::int64_t context_tokens);

// Whether a model can be served with a tokenizer, and its windows be rebuilt so behind a hit.
// Error: kInvalidArgument.
[[nodiscard]] Result<void> check_model(const model::ModelPlan& plan,
                                       const recipe::Tokenizer& tokenizer,
                                       std::optional<model::WindowRebuild> rebuild);

}  // namespace galley::engine
