#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// The input of a custom tool call, taken out of its arguments as they stream (spec recipe 6.5).
namespace galley::recipe {

// Arguments of the form `{"input": "..."` give the decoded string, whatever follows its closing
// quote; any other text, and text that stops being well-formed JSON inside the string, passes
// through unchanged.
class CustomInput {
 public:
  // Appends what is certain to `out`.
  void feed(std::string_view arguments, std::string& out);
  // End of the arguments: an unfinished start or escape is passed on as it is.
  void finish(std::string& out);

 private:
  enum class State : std::uint8_t { kStart, kString, kDone, kRaw };

  void start(char byte, std::string& out);
  void string(char byte, std::string& out);
  void escape(char byte, std::string& out);

  State state_ = State::kStart;
  std::size_t matched_ = 0;  // of `{"input":"`
  std::string pending_;      // bytes read and not decided
};

}  // namespace galley::recipe
