#include "apps/chat_input.h"

#include <atomic>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <editline/readline.h>
#include <iostream>
#include <memory>

namespace galley::apps {
namespace {

constexpr int kHistoryLines = 1000;

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler writes it

}  // namespace

ChatInput::ChatInput(bool terminal) : terminal_(terminal) {
  if (terminal_) {
    std::setlocale(LC_CTYPE, "");  // libedit counts columns of what is typed by it
    using_history();
    stifle_history(kHistoryLines);
  }
}

std::optional<ChatInput::Line> ChatInput::read(const char* prompt) {
  if (!terminal_) {
    Line line;
    if (!std::getline(std::cin, line.text)) {
      return std::nullopt;
    }
    if (line.text.ends_with('\r')) {  // a text file of Windows
      line.text.pop_back();
    }
    return line;
  }
  const std::unique_ptr<char, decltype(&std::free)> text(readline(prompt), &std::free);
  if (text == nullptr) {
    // libedit ends the line both for Ctrl-C and at the end of the input.
    return take_interrupt() ? std::optional(Line{.interrupted = true}) : std::nullopt;
  }
  if (*text != '\0') {
    add_history(text.get());
  }
  (void)take_interrupt();  // one that came before the line was edited; a later one stops the answer
  return Line{.text = text.get()};
}

void catch_interrupts() {
  struct sigaction action{};
  action.sa_handler = [](int) { interrupted.store(true, std::memory_order_relaxed); };
  // No SA_RESTART: a read that waits for a line must end.
  sigaction(SIGINT, &action, nullptr);
}

bool take_interrupt() {
  return interrupted.exchange(false, std::memory_order_relaxed);
}

}  // namespace galley::apps
