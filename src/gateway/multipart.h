#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace galley::gateway {

// One field of a form (RFC 7578). `content` views the body.
struct FormPart {
  std::string name;
  std::string filename;  // empty: it is no file
  std::string_view content;
};

inline constexpr std::size_t kFormPartsMax = 16;
inline constexpr std::size_t kFormPartHeadBytesMax = 4096;
inline constexpr std::size_t kFilenameBytesMax = 255;

// The fields of a multipart/form-data body, in order. `content_type` is the header's value, which
// names the boundary. Linear in the body. Error: kInvalidArgument that names what is wrong,
// kTooLarge past one of the bounds.
[[nodiscard]] Result<std::vector<FormPart>> parse_multipart(std::string_view content_type,
                                                            std::string_view body);

}  // namespace galley::gateway
