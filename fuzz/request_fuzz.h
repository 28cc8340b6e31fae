#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "recipe/answer_grammar.h"
#include "recipe/control.h"
#include "recipe/prompt.h"
#include "recipe/request.h"
#include "recipe/tokenizer_for_test.h"

// Goal: no request body crashes or hangs its parser; what is accepted renders, with control tokens
// in order, and what is refused says what and where. Method: the first byte chooses mode, version
// and options, the rest is the body.
namespace galley::recipe {

inline void fuzz_request(Protocol protocol, std::span<const std::uint8_t> data) {
  if (data.empty()) {
    return;
  }
  const std::uint8_t choices = data[0];
  CodecOptions options;
  options.compat = (choices & 1U) != 0 ? Compat::kRecipe02 : Compat::kGalley;
  options.models["m"] = (choices & 2U) != 0 ? ModelVersion::kV4 : ModelVersion::kV41;
  options.reject_missing_reasoning = (choices & 4U) != 0;
  options.messages_drop_web_search = (choices & 8U) != 0;
  options.responses_reject_web_search = (choices & 8U) != 0;
  options.default_thinking = (choices & 16U) == 0;
  const std::string_view body(reinterpret_cast<const char*>(data.data()) + 1, data.size() - 1);
  const Result<Request> request = parse_request(protocol, body, options);
  if (!request) {
    GALLEY_ASSERT(!request.error().what.empty());
    GALLEY_ASSERT(!request.error().where.empty());
    return;
  }
  const auto tokenizer = small_tokenizer_for_test(GALLEY_TESTS_DIR).value();
  if (const auto controls = ControlIds::find(*tokenizer, request->version)) {
    const auto grammar = answer_grammar(*request, *controls, *tokenizer);
    GALLEY_ASSERT(grammar || !grammar.error().where.empty());
  }
  const Prompt prompt = render(*request);
  GALLEY_ASSERT(!prompt.text.empty() || !prompt.ids.empty());
  std::size_t done = 0;
  for (const ControlSpan& span : prompt.controls) {
    GALLEY_ASSERT(span.begin >= done);
    GALLEY_ASSERT(span.end <= prompt.text.size());
    done = span.end;
  }
}

}  // namespace galley::recipe
