#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "recipe/tokenizer.h"

namespace galley::apps {

// The help text of every --tokenizer.
inline constexpr const char* kTokenizerHelp =
    "A Hugging Face tokenizer.json of the V4 family (one with V4's names serves V4.1 too). Without "
    "it: a small built-in vocabulary, good for trying things.";

// The tokenizer at `path`, the built-in one when it is empty.
[[nodiscard]] Result<std::shared_ptr<const recipe::Tokenizer>> choose_tokenizer(
    const std::string& path);

// The built-in tokenizer's file.
[[nodiscard]] std::string_view builtin_tokenizer_json();

}  // namespace galley::apps
