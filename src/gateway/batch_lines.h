#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "recipe/limits.h"
#include "recipe/request.h"

// The lines of an offline batch (docs/formats/batch.md): requests in, answers out, and which of
// them an earlier run has answered. Text only; no files, no model.
namespace galley::gateway {

// One request: the largest body and what stands around it. A longer one is answered 413.
inline constexpr std::size_t kBatchLineBytesMax = recipe::kBodyBytesMax + (std::size_t{64} << 10U);
inline constexpr std::size_t kBatchLinesMax = 1'000'000;  // of a batch, blank ones included
inline constexpr std::size_t kCustomIdBytesMax = 512;
// One answer; nothing longer is written, so that everything written can be read again.
inline constexpr std::size_t kBatchAnswerBytesMax = std::size_t{256} << 20U;

// One line that wants an answer.
struct BatchEntry {
  std::size_t number{};   // of the line in its file, from 1
  std::string_view text;  // of the file's
  std::string custom_id;  // empty: the line has none that can be read
};

// The lines of `jsonl` in their order, without blank ones. What is wrong with one is found out when
// its turn comes (parse_batch_line). Errors, with the line in `where`: kInvalidArgument when two
// have one custom_id, kTooLarge beyond kBatchLinesMax. Linear in `jsonl`, which the entries view.
[[nodiscard]] Result<std::vector<BatchEntry>> index_batch(std::string_view jsonl);

// The protocol of a line's `url`; nothing when no batch takes it.
[[nodiscard]] std::optional<recipe::Protocol> batch_protocol(std::string_view url);

// What a line asks for.
struct BatchRequest {
  recipe::Protocol protocol = recipe::Protocol::kChat;  // by its url; also the form of its error
  // The body's JSON text. Errors: kInvalidArgument, with the member in `where`, for a line that is
  // no JSON object or lacks a good `custom_id`, `method` or `body`, or wants a stream; kNotFound
  // for another `url`; kTooLarge.
  Result<std::string> body;
};
[[nodiscard]] BatchRequest parse_batch_line(std::string_view text);

// One answer, to be written as a line.
struct BatchAnswer {
  std::string id;  // behind "batch_req_"
  std::string custom_id;
  std::size_t number{};    // of its line; written only where there is no custom_id
  int status{};            // HTTP's
  std::string request_id;  // whole
  std::string body;        // compact JSON: the protocol's reply or its error object
  std::string note;        // what the request said without effect, mostly empty
};
// With the line end.
[[nodiscard]] std::string batch_answer_line(const BatchAnswer& answer);

// What is wanted of an answer that lies in a file.
struct BatchMark {
  std::string custom_id;  // empty: `number` says whose it is
  std::size_t number{};
  bool failed{};  // the status is no 2xx
};
// `line` without its end. Error: kCorruption when it is no answer of a batch, kTooLarge.
[[nodiscard]] Result<BatchMark> parse_batch_answer(std::string_view line);

// What earlier runs have answered.
struct BatchDone {
  std::unordered_set<std::string> custom_ids;
  std::unordered_set<std::size_t> numbers;  // of lines without custom_id
  std::size_t failed{};                     // of both
  std::uint64_t bytes{};                    // of whole lines; what lies behind is torn

  [[nodiscard]] std::size_t size() const { return custom_ids.size() + numbers.size(); }
};

// Reads the output of earlier runs, in pieces of any size.
class BatchDoneReader {
 public:
  // Errors, with the line in `where`: those of parse_batch_answer, kCorruption for a second answer
  // to one request. Nothing is to be fed after an error.
  [[nodiscard]] Result<void> feed(std::string_view bytes);
  // After the last piece, once. Error: kCorruption when the last line has no end and does not begin
  // as an answer does, so that nobody's file is cut.
  [[nodiscard]] Result<BatchDone> finish();

 private:
  [[nodiscard]] Result<void> add(std::string_view line);
  [[nodiscard]] std::string here() const;

  BatchDone done_;
  std::string line_;  // what there is of the line at hand
  std::size_t number_ = 1;
};

// The entries that are not done. Error: kInvalidArgument when something is done that is not among
// them: the output is another batch's.
[[nodiscard]] Result<std::vector<BatchEntry>> entries_left(std::vector<BatchEntry> entries,
                                                           const BatchDone& done);

}  // namespace galley::gateway
