#include "apps/bench_trace.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fmt/core.h>
#include <optional>
#include <string>
#include <utility>

#include "base/fnv1a.h"
#include "recipe/json.h"

namespace galley::apps {
namespace {

using recipe::Json;

// More than any model takes, so that a wrong unit is not taken for a prompt.
constexpr std::int64_t kTokensMax = std::int64_t{1} << 24;

// One of the forms of JSON lines.
struct LineForm {
  std::string_view at;
  double seconds;  // of its unit
  std::string_view prompt;
  std::string_view answer;
  std::string_view blocks;
  std::size_t block_tokens;
};
constexpr LineForm kMooncake{"timestamp", 1e-3, "input_length", "output_length", "hash_ids", 512};
constexpr LineForm kLmcache{"timestamp", 1, "input_length", "output_length", "hash_ids", 128};
constexpr LineForm kFlexlb{"ts", 1e-3, "il", "ol", "bh", 1024};

Duration seconds(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

Result<double> number_in(const Json& line, std::string_view key, double max) {
  const Json* const found = line.find(key);
  const auto value = found == nullptr ? std::nullopt : found->number();
  if (!value || !(*value >= 0 && *value <= max)) {
    return fail(Code::kInvalidArgument, fmt::format("must have a `{}` from 0 to {:.0f}", key, max));
  }
  return *value;
}

// Names are numbers or texts.
Result<std::vector<std::uint64_t>> blocks_in(const Json& line, std::string_view key) {
  std::vector<std::uint64_t> out;
  const Json* const found = line.find(key);
  if (found == nullptr || found->array() == nullptr) {
    return fail(Code::kInvalidArgument, fmt::format("must have a list `{}`", key));
  }
  for (const Json& item : *found->array()) {
    Fnv1a hash;
    hash.add(std::string_view(to_json(item)));
    out.push_back(hash.value());
  }
  return out;
}

Result<TraceEntry> parse_line(const Json& line, const LineForm& form) {
  constexpr double kSecondsMax = 1e8;
  TraceEntry entry{.block_tokens = form.block_tokens};
  GALLEY_TRY(const double at, number_in(line, form.at, kSecondsMax / form.seconds));
  GALLEY_TRY(const double prompt, number_in(line, form.prompt, kTokensMax));
  GALLEY_TRY(const double answer, number_in(line, form.answer, kTokensMax));
  GALLEY_TRY(entry.blocks, blocks_in(line, form.blocks));
  entry.at = seconds(at * form.seconds);
  entry.prompt_tokens = static_cast<std::size_t>(prompt);
  entry.answer_tokens = static_cast<std::size_t>(answer);
  return entry;
}

std::optional<std::size_t> count_of(std::string_view text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole && value <= static_cast<std::size_t>(kTokensMax) ? std::optional(value)
                                                                : std::nullopt;
}

// "2023-11-16 18:17:03.9799600": days of the month and the time of day; traces of one month.
std::optional<Duration> moment_of(const std::string& text) {
  int year = 0;
  int month = 0;
  int day = 0;
  int hour = 0;
  int minute = 0;
  double second = 0;
  if (std::sscanf(text.c_str(), "%4d-%2d-%2d %2d:%2d:%lf", &year, &month, &day, &hour, &minute,
                  &second) != 6) {
    return std::nullopt;
  }
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok() || !(second >= 0 && second < 61)) {
    return std::nullopt;
  }
  return std::chrono::sys_days(date).time_since_epoch() + std::chrono::hours(hour) +
         std::chrono::minutes(minute) + seconds(second);
}

Result<TraceEntry> parse_row(std::string_view row) {
  const std::size_t first = row.find(',');
  const std::size_t second = first == std::string_view::npos ? first : row.find(',', first + 1);
  if (second == std::string_view::npos) {
    return fail(Code::kInvalidArgument, "must have three columns");
  }
  const auto at = moment_of(std::string(row.substr(0, first)));
  const auto prompt = count_of(row.substr(first + 1, second - first - 1));
  const auto answer = count_of(row.substr(second + 1));
  if (!at || !prompt || !answer) {
    return fail(Code::kInvalidArgument, "must have a date with time and two counts of tokens");
  }
  return TraceEntry{.at = *at,
                    .prompt_tokens = *prompt,
                    .answer_tokens = *answer,
                    .blocks = {},
                    .block_tokens = 0};
}

constexpr std::string_view kAzureHead = "TIMESTAMP,ContextTokens,GeneratedTokens";

Result<TraceEntry> parse_entry(std::string_view line, bool is_csv) {
  if (is_csv) {
    return parse_row(line);
  }
  GALLEY_TRY(const Json json, recipe::parse_json(line));
  return parse_line(json, json.find("il") != nullptr        ? kFlexlb
                          : json.find("session") != nullptr ? kLmcache
                                                            : kMooncake);
}

std::size_t scaled(std::size_t count, double factor) {
  return std::max<std::size_t>(
      1, static_cast<std::size_t>(std::llround(static_cast<double>(count) * factor)));
}

}  // namespace

Result<std::vector<TraceEntry>> parse_trace(std::string_view text, std::size_t count_max) {
  std::vector<TraceEntry> entries;
  const bool is_csv = text.starts_with(kAzureHead);
  for (std::size_t number = 1; !text.empty() && entries.size() < count_max; ++number) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (line.empty() || (is_csv && number == 1)) {
      continue;
    }
    auto entry = parse_entry(line, is_csv);
    if (!entry) {
      return in_step(fmt::format("line {}", number), std::move(entry).error());
    }
    entry->prompt_tokens = std::max<std::size_t>(entry->prompt_tokens, 1);
    entry->answer_tokens = std::max<std::size_t>(entry->answer_tokens, 1);
    entries.push_back(*std::move(entry));
  }
  if (entries.empty()) {
    return fail(Code::kInvalidArgument, "has no requests");
  }
  std::ranges::stable_sort(entries, {}, &TraceEntry::at);
  const Duration begin = entries.front().at;
  for (TraceEntry& entry : entries) {
    entry.at -= begin;
  }
  return entries;
}

void rescale(std::vector<TraceEntry>& entries, const TraceScale& scale) {
  for (TraceEntry& entry : entries) {
    entry.at = seconds(std::chrono::duration<double>(entry.at).count() / scale.pace);
    entry.prompt_tokens = scaled(entry.prompt_tokens, scale.lengths);
    entry.answer_tokens = scaled(entry.answer_tokens, scale.lengths);
    entry.block_tokens = scaled(entry.block_tokens, scale.lengths);
  }
}

std::vector<std::size_t> trace_prompt(const TraceEntry& entry,
                                      std::size_t number,
                                      std::size_t pool,
                                      Seed seed) {
  std::vector<std::size_t> out;
  const auto draw = [&](Random& random, std::size_t count) {
    for (std::size_t i = 0; i < count && out.size() < entry.prompt_tokens; ++i) {
      out.push_back(static_cast<std::size_t>(random.next_below(pool)));
    }
  };
  for (const std::uint64_t name : entry.blocks) {
    Random random(seed, name);
    draw(random, entry.block_tokens);
  }
  // Behind the names: no name is likely to be so small.
  Random rest(seed, number);
  draw(rest, entry.prompt_tokens);
  return out;
}

}  // namespace galley::apps
