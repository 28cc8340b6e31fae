#include "apps/chat_input.h"

#include <atomic>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <histedit.h>
#include <iostream>
#include <memory>

namespace galley::apps {
namespace {

constexpr int kHistoryLines = 1000;

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler writes it

}  // namespace

// libedit's own interface: of its imitation of readline, Ctrl-C is a signal while a line is edited,
// and one that comes just before the read of the next key wakes nobody. Here it is a key like any
// other.
class ChatInput::Editor {
 public:
  Editor()
      : history_(history_init(), &history_end),
        edit_(el_init("galley", stdin, stdout, stderr), &el_end) {
    std::setlocale(LC_CTYPE, "");  // libedit counts columns of what is typed by it
    HistEvent event;
    history(history_.get(), &event, H_SETSIZE, kHistoryLines);
    el_set(edit_.get(), EL_CLIENTDATA, this);
    el_set(edit_.get(), EL_PROMPT, &prompt);
    el_set(edit_.get(), EL_HIST, history, history_.get());
    el_set(edit_.get(), EL_EDITOR, "emacs");
    el_set(edit_.get(), EL_SIGNAL, 1);  // a changed width, Ctrl-Z and coming back
    el_set(edit_.get(), EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(edit_.get(), EL_SETTY, "-d", "intr=", nullptr);
    el_set(edit_.get(), EL_ADDFN, "drop-line", "drops what was typed", &drop_line);
    el_set(edit_.get(), EL_BIND, "^C", "drop-line", nullptr);
  }

  std::optional<Line> read(const char* prompt) {
    prompt_ = prompt;
    int length = 0;
    const char* text = el_gets(edit_.get(), &length);
    if (text == nullptr || length <= 0) {
      // A signal from elsewhere ends the line, too.
      return take_interrupt() ? std::optional(Line{.interrupted = true}) : std::nullopt;
    }
    Line line{.text = text};
    if (line.text.ends_with('\n')) {
      line.text.pop_back();
    }
    if (!line.text.empty()) {
      HistEvent event;
      history(history_.get(), &event, H_ENTER, line.text.c_str());
    }
    // One that came before the line was edited; a later one stops the answer.
    (void)take_interrupt();
    return line;
  }

 private:
  static Editor& of(EditLine* edit) {
    void* editor = nullptr;
    el_get(edit, EL_CLIENTDATA, &editor);
    return *static_cast<Editor*>(editor);
  }
  static char* prompt(EditLine* edit) { return of(edit).prompt_.data(); }
  static unsigned char drop_line(EditLine* /*edit*/, int /*key*/) {
    interrupted.store(true, std::memory_order_relaxed);
    return CC_EOF;
  }

  std::string prompt_;
  std::unique_ptr<History, decltype(&history_end)> history_;
  std::unique_ptr<EditLine, decltype(&el_end)> edit_;
};

ChatInput::ChatInput(bool terminal) : editor_(terminal ? std::make_unique<Editor>() : nullptr) {}

ChatInput::~ChatInput() = default;

std::optional<ChatInput::Line> ChatInput::read(const char* prompt) {
  if (editor_) {
    return editor_->read(prompt);
  }
  Line line;
  if (!std::getline(std::cin, line.text)) {
    return std::nullopt;
  }
  if (line.text.ends_with('\r')) {  // a text file of Windows
    line.text.pop_back();
  }
  return line;
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
