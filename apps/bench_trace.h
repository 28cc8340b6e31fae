#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "base/units.h"

// Recorded loads that `galley bench --trace` plays again. No clock, no server.
namespace galley::apps {

// One request of a recording: when it came, how long it was, what it shared with others.
struct TraceEntry {
  Duration at{};  // from the first one
  std::size_t prompt_tokens{};
  std::size_t answer_tokens{};        // at least 1
  std::vector<std::uint64_t> blocks;  // names of its first blocks of tokens: the same, the same
  std::size_t block_tokens{};         // of each
};

// At most `count_max` entries, in the order of `at`. The form is told from the first line:
//   Mooncake  {"timestamp": ms, "input_length", "output_length", "hash_ids"}, blocks of 512
//   LMCache   the same with "session" and seconds within it, blocks of 128: all sessions begin at 0
//   FlexLB    {"ts": ms, "il", "ol", "bh"}, blocks of 1024
//   Azure     CSV: TIMESTAMP,ContextTokens,GeneratedTokens
// Errors: kInvalidArgument naming the line; nothing in it.
[[nodiscard]] Result<std::vector<TraceEntry>> parse_trace(std::string_view text,
                                                          std::size_t count_max);

// Another size and pace of the same load.
struct TraceScale {
  double lengths = 1;  // of prompts, answers and blocks, none below 1
  double pace = 1;     // 2: twice as fast
};
void rescale(std::vector<TraceEntry>& entries, const TraceScale& scale);

// The prompt of an entry as places in a pool of `pool` tokens: blocks of one name are the same, and
// what no block names is like nothing else. `number` is the entry's.
[[nodiscard]] std::vector<std::size_t> trace_prompt(const TraceEntry& entry,
                                                    std::size_t number,
                                                    std::size_t pool,
                                                    Seed seed);

}  // namespace galley::apps
