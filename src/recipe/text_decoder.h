#pragma once

#include <string>
#include <string_view>

// Bytes of successive tokens -> well-formed UTF-8 (spec recipe 1.4).
namespace galley::recipe {

// Appends to `out` the longest part of what was fed that is well-formed; at most 3 bytes of an
// unfinished character wait for the next call. A byte that can never become part of a character
// turns into U+FFFD, once.
class TextDecoder {
 public:
  void feed(std::string_view bytes, std::string& out);
  // End of stream, or a control token follows: an unfinished character becomes U+FFFD.
  void flush(std::string& out);
  [[nodiscard]] bool pending() const { return pending_bytes_ != 0; }

 private:
  char pending_[4] = {};
  unsigned char pending_bytes_ = 0;
};

}  // namespace galley::recipe
