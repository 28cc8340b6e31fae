// Forms of any bytes: no crash, and every part lies within the body, in order, without its
// neighbours.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "gateway/multipart.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  // The first line is the header.
  const std::size_t end = all.find('\n');
  const std::string_view type = all.substr(0, end);
  const std::string_view body =
      end == std::string_view::npos ? std::string_view() : all.substr(end + 1);
  const auto parts = galley::gateway::parse_multipart(type, body);
  if (!parts) {
    return 0;
  }
  const char* at = body.data();
  for (const auto& part : *parts) {
    if (part.name.empty() || part.content.data() < at ||
        part.content.data() + part.content.size() > body.data() + body.size()) {
      std::abort();
    }
    at = part.content.data() + part.content.size();
  }
  return 0;
}
