// Responses bodies: any bytes give a request that renders or an error with its place, in both modes
// and versions, and never anything else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "recipe/prompt.h"
#include "recipe/request.h"

namespace {

using namespace galley::recipe;

void one(std::string_view body, ModelVersion version, Compat compat) {
  CodecOptions options{.compat = compat};
  options.models["m"] = version;
  const galley::Result<Request> request = parse_responses_request(body, options);
  if (!request) {
    GALLEY_ASSERT(!request.error().what.empty());
    GALLEY_ASSERT(!request.error().where.empty());
    return;
  }
  const Prompt prompt = render(request->conversation, version);
  std::size_t done = 0;
  for (const ControlSpan& span : prompt.controls) {
    GALLEY_ASSERT(span.begin >= done);
    GALLEY_ASSERT(span.end <= prompt.text.size());
    done = span.end;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  one(body, ModelVersion::kV41, Compat::kGalley);
  one(body, ModelVersion::kV4, Compat::kGalley);
  one(body, ModelVersion::kV41, Compat::kRecipe02);
  return 0;
}
