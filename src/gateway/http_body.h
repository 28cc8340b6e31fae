#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gateway/http_head.h"

namespace galley::gateway {

// Takes the body of one request off a connection's bytes: by its Content-Length, or chunked
// (RFC 9112 7.1; extensions and trailer fields are read over). A line of chunked framing must end
// in CRLF, so that a proxy in front of us cannot see another body than we do.
class BodyParser {
 public:
  // Bounds of what is read over.
  static constexpr std::size_t kSizeLineBytesMax = 256;  // a chunk's size and extensions
  static constexpr std::size_t kTrailerBytesMax = std::size_t{8} << 10U;  // all trailer fields

  BodyParser(const HttpHead& head, std::size_t bytes_max);

  // Appends what belongs to the body to `body`, and says how many of `bytes` it used; what is left
  // follows the body. It needs more, unless done() or refused afterwards.
  std::size_t feed(std::string_view bytes, std::string& body);
  [[nodiscard]] bool done() const { return state_ == State::kDone; }
  [[nodiscard]] const Refusal& refusal() const { return refusal_; }

 private:
  enum class State : std::uint8_t {
    kSize,         // the first digit of a chunk's size
    kSizeMore,     // further digits, or what ends them
    kExtension,    // behind the size, up to the end of its line
    kSizeLf,       // the LF of that line
    kData,         // bytes of the body
    kDataCr,       // the line end behind a chunk's data
    kDataLf,       //
    kTrailer,      // the start of a trailer line; an empty one ends the body
    kTrailerMore,  // inside one
    kTrailerLf,    // the LF of one
    kLastLf,       // the LF of the empty one
    kDone,
  };

  bool take(char byte);  // one byte of framing; false: malformed

  const std::size_t bytes_max_;
  const bool chunked_;
  State state_;
  std::uint64_t left_;             // bytes of the body, or of the chunk, still to come
  std::size_t framing_bytes_ = 0;  // of the size line or the trailer at hand
  Refusal refusal_;
};

}  // namespace galley::gateway
