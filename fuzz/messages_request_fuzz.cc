// Goal: no Messages body crashes or hangs the parser, and what it accepts renders. Method: the
// first byte chooses mode, version and options, the rest is the body.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "recipe/prompt.h"
#include "recipe/request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galley::recipe;
  if (size == 0) {
    return 0;
  }
  CodecOptions options;
  options.compat = (data[0] & 1U) != 0 ? Compat::kRecipe02 : Compat::kGalley;
  options.reject_missing_reasoning = (data[0] & 4U) != 0;
  options.messages_drop_web_search = (data[0] & 8U) != 0;
  options.models["m"] = (data[0] & 2U) != 0 ? ModelVersion::kV4 : ModelVersion::kV41;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const galley::Result<Request> request = parse_messages_request(body, options);
  if (request) {
    const Prompt prompt = render(request->conversation, request->version);
    GALLEY_ASSERT(!prompt.text.empty());
  } else {
    GALLEY_ASSERT(!request.error().what.empty());
    GALLEY_ASSERT(!request.error().where.empty());
  }
  return 0;
}
