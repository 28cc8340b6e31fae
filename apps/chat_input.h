#pragma once

#include <memory>
#include <optional>
#include <string>

namespace galley::apps {

// Lines a person types. On a terminal with line editing and a history of this session; from a pipe
// plain, without a prompt.
class ChatInput {
 public:
  explicit ChatInput(bool terminal);
  ~ChatInput();
  ChatInput(const ChatInput&) = delete;
  ChatInput& operator=(const ChatInput&) = delete;

  struct Line {
    std::string text;
    bool interrupted = false;  // Ctrl-C: what was typed is dropped
  };
  // Nothing at the end of the input (Ctrl-D).
  [[nodiscard]] std::optional<Line> read(const char* prompt);

 private:
  class Editor;
  std::unique_ptr<Editor> editor_;  // none where no terminal is
};

// Ctrl-C from now on sets a flag instead of ending the program.
void catch_interrupts();
// Whether it was pressed since the last call.
[[nodiscard]] bool take_interrupt();

}  // namespace galley::apps
