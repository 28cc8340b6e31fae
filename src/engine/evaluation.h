#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/event.h"
#include "recipe/json.h"

// Questions with the answers that count as right, and whether an answer is: the pure half of
// `galley model eval`.
namespace galley::engine {

inline constexpr std::size_t kEvalCasesMax = 100'000;
inline constexpr std::string_view kAllKinds = "all";  // what a report calls their sum; no kind

struct EvalCall {
  std::string name;
  recipe::Json arguments;
};

// One question. What is expected is a text (with the reasoning before it, where that is given),
// calls, or words that the text holds (none: any text that ends).
struct EvalCase {
  std::string kind;            // groups cases: "fact", "tool", ...
  std::size_t line{};          // of the suite, from 1
  recipe::JsonObject request;  // body of a chat completion, without model and sampling
  std::optional<std::string> text;
  std::optional<std::string> reasoning;
  std::vector<EvalCall> calls;
  std::vector<std::string> contains;
};

// Reads JSON lines, without unknown members, of {"kind", "request", "expect": {"text", "reasoning"}
// | {"calls": [{"name", "arguments"}]} | {"contains": []}}; empty lines are skipped. Linear in the
// input. Error: kInvalidArgument, `where` is "line N".
[[nodiscard]] Result<std::vector<EvalCase>> parse_eval_suite(std::string_view jsonl);

// Collects what a model said.
class EvalAnswer final : public recipe::EventSink {
 public:
  struct Call {
    std::string name;
    std::string arguments;  // JSON text
    friend bool operator==(const Call&, const Call&) = default;
  };

  void on_event(const recipe::Event& event) override;

  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  std::optional<recipe::FinishReason> reason;

  friend bool operator==(const EvalAnswer& a, const EvalAnswer& b) {
    return a.reasoning == b.reasoning && a.content == b.content && a.calls == b.calls &&
           a.reason == b.reason;
  }
};

struct Verdict {
  bool right{};
  // It has the form that was asked for, whatever it says: calls whose arguments are objects, JSON
  // where the request wants JSON, else a turn that ends by itself or at a stop string.
  bool well_formed{};
};
[[nodiscard]] Verdict judge(const EvalCase& question, const EvalAnswer& answer);

struct EvalResult {
  EvalAnswer answer;
  Verdict verdict;
};

// The questions of one kind, or all of them.
struct EvalGroup {
  std::string name;
  std::vector<std::size_t> questions;  // index in the suite
};
// In the order in which kinds first come, then kAllKinds.
[[nodiscard]] std::vector<EvalGroup> groups_of(std::span<const EvalCase> suite);

struct EvalScore {
  double right{};         // %
  double formed{};        // %
  std::int64_t differ{};  // answers that are not the other way's
};
// How the answers computed in one way did on a group, beside those of another; both by question.
[[nodiscard]] EvalScore score(const EvalGroup& group,
                              std::span<const EvalResult> results,
                              std::span<const EvalResult> other);

}  // namespace galley::engine
